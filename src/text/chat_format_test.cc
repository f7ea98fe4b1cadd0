#include "text/chat_format.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "io/test_files.h"

namespace quire {
namespace {

const OrderedJson kHi = {{{"role", "user"}, {"content", "Hi"}}};
const OrderedJson kTools = OrderedJson::array();

std::string RenderIn(const TempDir& dir, const ChatRequest& request) {
  return ChatFormat::Load(dir.path()).Render(request);
}

std::string RenderIn(const TempDir& dir) { return RenderIn(dir, {.messages = &kHi}); }

std::string FolderRefusal(const TempDir& dir) {
  return InvalidArgument([&] { (void)ChatFormat::Load(dir.path()); }, dir.path());
}

TEST(ChatFormatTest, TheTemplateOfTheTokenizerIsFound) {
  const TempDir dir;
  dir.Write("tokenizer_config.json", R"({"bos_token": {"content": "<s>", "lstrip": false},
      "eos_token": "</s>", "pad_token": "<pad>", "unk_token": null, "chat_template":
      "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ unk_token }}."})");
  EXPECT_EQ(RenderIn(dir), "<s>Hi</s><pad>.");
  const ChatFormat format = ChatFormat::Load(dir.path());
  EXPECT_EQ(format.bos_token(), "<s>");
  EXPECT_EQ(format.eos_token(), "</s>");
}

TEST(ChatFormatTest, OfSeveralTemplatesTheOneForToolsIsUsedWithTools) {
  const TempDir dir;
  dir.Write("tokenizer_config.json", R"({"chat_template": [
      {"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "{% nonsense %}"},
      {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(RenderIn(dir), "plain");
  EXPECT_EQ(RenderIn(dir, {.messages = &kHi, .tools = &kTools}), "tools");
}

TEST(ChatFormatTest, AFileOfItsOwnComesFirst) {
  const TempDir dir;
  dir.Write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "old"})");
  dir.Write("chat_template.jinja", "{{ bos_token }}new\n");
  EXPECT_EQ(RenderIn(dir), "<s>new");
  std::filesystem::create_directory(dir.path() / "additional_chat_templates");
  dir.Write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(RenderIn(dir, {.messages = &kHi, .tools = &kTools}), "tools");
}

TEST(ChatFormatTest, VariablesOfTheRequestAreSeen) {
  const TempDir dir;
  dir.Write("chat_template.jinja", "{{ thinking }}{{ add_generation_prompt }}");
  const OrderedJson variables = {{"thinking", true}};
  EXPECT_EQ(
      RenderIn(dir, {.messages = &kHi, .add_generation_prompt = false, .variables = &variables}),
      "TrueFalse");
}

TEST(ChatFormatTest, TheLastMessageMayBeContinued) {
  const TempDir dir;
  const auto render = [&](const char* jinja, const std::string& content) {
    dir.Write("chat_template.jinja", jinja);
    const OrderedJson messages = {{{"role", "user"}, {"content", "So"}},
                                  {{"role", "assistant"}, {"content", content}}};
    return RenderIn(dir, {.messages = &messages, .continue_final_message = true});
  };
  const char* plain =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}"
      "{% if add_generation_prompt %}[assistant]{% endif %}";
  EXPECT_EQ(render(plain, "So I"), "[user]So<end>[assistant]So I");
  EXPECT_EQ(render(plain, "So "), "[user]So<end>[assistant]So ");
  EXPECT_EQ(render(plain, ""), "[user]So<end>[assistant]");
  // A template that trims what it is given.
  const char* trims =
      "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}<end>{% endfor %}";
  EXPECT_EQ(render(trims, "So "), "[user]So<end>[assistant]So");
  EXPECT_EQ(InvalidArgument([&] { (void)render("{{ messages[0].content }}", "So"); }, dir.path()),
            "continue_final_message: the model's template does not write the last message");
}

TEST(ChatFormatTest, TheLastMessageOfDeepseekV32MayBeContinued) {
  const TempDir dir;
  dir.Write("config.json", R"({"model_type": "deepseek_v32"})");
  const OrderedJson messages = {{{"role", "user"}, {"content", "Hi"}},
                                {{"role", "assistant"}, {"content", "Hello, "}}};
  EXPECT_EQ(RenderIn(dir, {.messages = &messages, .continue_final_message = true}),
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>Hello, ");
}

TEST(ChatFormatTest, DeepseekV32HasAnEncodingOfItsOwn) {
  const TempDir dir;
  dir.Write("config.json", R"({"model_type": "deepseek_v32"})");
  const OrderedJson variables = {{"thinking", true}};
  EXPECT_EQ(RenderIn(dir), "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>");
  EXPECT_EQ(RenderIn(dir, {.messages = &kHi, .variables = &variables}),
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>");
}

TEST(ChatFormatTest, DeepseekV32sTextAboutToolsComesWithTheModel) {
  const TempDir dir;
  dir.Write("config.json", R"({"model_type": "deepseek_v32"})");
  const OrderedJson tools = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const ChatRequest request{.messages = &kHi, .tools = &tools};
  EXPECT_EQ(InvalidArgument([&] { (void)RenderIn(dir, request); }),
            "tools: the model has no text about tools (TOOLS_SYSTEM_TEMPLATE in "
            "encoding/encoding_dsv32.py)");
  std::filesystem::create_directory(dir.path() / "encoding");
  dir.Write("encoding/encoding_dsv32.py",
            "import json\nTOOLS_SYSTEM_TEMPLATE = \"\"\"Tools:\n{tool_schemas}\n\"\"\"\nx = 1\n");
  EXPECT_EQ(
      RenderIn(dir, request),
      "<｜begin▁of▁sentence｜>\n\nTools:\n{\"name\": \"f\"}\n<｜User｜>Hi<｜Assistant｜></think>");
}

TEST(ChatFormatTest, AFolderWithoutATemplateIsRefusedWithWhatWasLookedFor) {
  const TempDir dir;
  const std::string expected =
      "DIR: found no chat_template.jinja, no \"chat_template\" in tokenizer_config.json, and no "
      "model_type deepseek_v32 in config.json";
  EXPECT_EQ(FolderRefusal(dir), expected);
  dir.Write("tokenizer_config.json", "{}");
  dir.Write("config.json", R"({"model_type": "deepseek_v3"})");
  EXPECT_EQ(FolderRefusal(dir), expected);
}

TEST(ChatFormatTest, RefusalsNameTheFile) {
  const TempDir dir;
  dir.Write("tokenizer_config.json", R"({"chat_template": "\n{% if %}"})");
  EXPECT_EQ(FolderRefusal(dir),
            "DIR/tokenizer_config.json: chat_template: line 2: expected an expression, got %}");
  dir.Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": ""}]})");
  EXPECT_EQ(FolderRefusal(dir),
            "DIR/tokenizer_config.json: chat_template: expected one with the name \"default\"");
  dir.Write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(FolderRefusal(dir),
            "DIR/tokenizer_config.json: chat_template: expected a string, got 5");
  dir.Write("chat_template.jinja", "{{ x | nope }}");
  EXPECT_EQ(FolderRefusal(dir),
            "DIR/chat_template.jinja: line 1: the filter 'nope' is not supported");
}

TEST(ChatFormatTest, APromptThatOpensTheThoughtsIsRecognised) {
  EXPECT_TRUE(ChatFormat::EndsInReasoning("<A><think>"));
  EXPECT_TRUE(ChatFormat::EndsInReasoning("<A><think>\n"));
  EXPECT_FALSE(ChatFormat::EndsInReasoning("<A><think></think>"));
  EXPECT_FALSE(ChatFormat::EndsInReasoning(""));
  EXPECT_TRUE(ChatFormat::EndsBehindReasoning("<A><think></think>\n"));
  EXPECT_FALSE(ChatFormat::EndsBehindReasoning("<A><think>"));
}

}  // namespace
}  // namespace quire
