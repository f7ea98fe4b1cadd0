#include "text/tool_style.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "io/test_files.h"

namespace quire {
namespace {

// A template that template_golden_test compares with transformers, with the markup of a published one.
std::optional<ToolStyle> StyleOf(const std::string& name) {
  const TempDir folder;
  std::filesystem::copy_file(std::filesystem::path(QUIRE_TEMPLATES) / (name + ".jinja"),
                             folder.path() / "chat_template.jinja");
  folder.Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  return FindToolStyle(ChatFormat::Load(folder.path()));
}

std::optional<ToolStyle> StyleOfText(const std::string& text) {
  const TempDir folder;
  folder.Write("chat_template.jinja", text);
  return FindToolStyle(ChatFormat::Load(folder.path()));
}

TEST(ToolStyleTest, TheTemplateItselfSaysHowCallsAreWritten) {
  using enum ToolFormat;
  EXPECT_EQ(StyleOf("tools_deepseek_v3"), (ToolStyle{.format = kDeepseekV3}));
  EXPECT_EQ(StyleOf("tools_deepseek_v31"), (ToolStyle{.format = kDeepseekV31}));
  EXPECT_EQ(StyleOf("tools_kimi_k2"), (ToolStyle{.format = kKimiK2}));
  EXPECT_EQ(StyleOf("tools_glm45"), (ToolStyle{.format = kGlm45, .wants_objects = true}));
}

TEST(ToolStyleTest, DeepseekV32HasNoTemplateAndAStyleAllTheSame) {
  const TempDir folder;
  folder.Write("config.json", R"({"model_type": "deepseek_v32"})");
  EXPECT_EQ(FindToolStyle(ChatFormat::Load(folder.path())),
            (ToolStyle{.format = ToolFormat::kDeepseekV32}));
}

TEST(ToolStyleTest, ATemplateWithoutCallsHasNoStyle) {
  EXPECT_FALSE(StyleOfText("{% for m in messages %}{{ m.content }}{% endfor %}"));
  EXPECT_FALSE(StyleOfText("{{ raise_exception('no') }}"));
  EXPECT_FALSE(
      StyleOfText("{% for m in messages %}{% for t in m.tool_calls or [] %}<tool_call>"
                  "{{ t.function | tojson }}</tool_call>{% endfor %}{% endfor %}"));
}

TEST(ToolStyleTest, AnObjectThatIsPrintedAsPythonDoesIsNotTaken) {
  EXPECT_FALSE(
      StyleOfText("{% for m in messages %}{% for t in m.tool_calls or [] %}"
                  "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ t.function.name }}<｜tool▁sep｜>"
                  "{% for k in t.function.arguments %}{{ k.key }}{% endfor %}"
                  "{{ t.function.arguments.items() }}<｜tool▁call▁end｜>{% endfor %}"
                  "{% endfor %}"));
}

}  // namespace
}  // namespace quire
