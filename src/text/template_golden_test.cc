// Every template under testdata/templates gives what transformers gave, byte for byte
// (tools/make_template_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/test_files.h"
#include "text/chat_template.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = QUIRE_TEMPLATES;

std::vector<fs::path> TemplateFiles() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

OrderedJson ReadGolden(const fs::path& path) {
  return ParseOrderedJson(ReadAll(path), path.string());
}

// {"text": ...}, {"raised": ...} or {"error": ...}, as the goldens have them.
template <class Fn>
OrderedJson Outcome(Fn render) {
  try {
    return {{"text", render()}};
  } catch (const TemplateRaised& raised) {
    return {{"raised", raised.what()}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

// Of a failure, only that there was one: the messages are our own.
void ExpectSame(const OrderedJson& ours, const OrderedJson& golden, const std::string& what) {
  if (golden.contains("error")) {
    EXPECT_TRUE(ours.contains("error")) << what << "\n got " << ours << "\n for " << golden;
    return;
  }
  const char* key = golden.contains("text") ? "text" : "raised";
  EXPECT_EQ(ours.dump(), (OrderedJson{{key, golden.at(key)}}.dump())) << what;
}

// The first `count` of the tools; null for null.
OrderedJson FirstTools(const OrderedJson& tools, const OrderedJson& count) {
  OrderedJson first;
  for (size_t i = 0; !count.is_null() && i < count.get<size_t>(); ++i) first.push_back(tools[i]);
  return first;
}

class TemplateGoldenTest : public ::testing::TestWithParam<fs::path> {};

TEST_P(TemplateGoldenTest, GivesWhatTransformersGives) {
  const ChatTemplate chat =
      ChatTemplate::Parse(ReadAll(GetParam()), GetParam().filename().string());
  const OrderedJson conversations = ReadGolden(kFolder / "conversations.json");
  const OrderedJson golden = ReadGolden(fs::path(GetParam()).replace_extension(".golden.json"));
  ASSERT_EQ(golden.at("results").size(), conversations.at("cases").size());
  for (size_t i = 0; i < golden.at("results").size(); ++i) {
    const OrderedJson& item = conversations.at("cases")[i];
    const OrderedJson tools = FirstTools(conversations.at("tools"), item.at("tools"));
    const ChatOptions options{.add_generation_prompt = item.at("add_generation_prompt").get<bool>(),
                              .tools = tools.is_null() ? nullptr : &tools,
                              .variables = &item.at("variables")};
    ExpectSame(Outcome([&] { return chat.Render(item.at("messages"), options); }),
               golden.at("results")[i], item.dump());
  }
}

INSTANTIATE_TEST_SUITE_P(All, TemplateGoldenTest, ::testing::ValuesIn(TemplateFiles()),
                         [](const auto& param_info) { return param_info.param.stem().string(); });

TEST(ExpressionGoldenTest, RandomTemplatesGiveWhatJinjaGives) {
  const OrderedJson golden = ReadGolden(kFolder / "expressions.golden.json");
  const ChatOptions options{.variables = &golden.at("variables")};
  for (const OrderedJson& item : golden.at("cases")) {
    const std::string source = item[0].get<std::string>();
    ExpectSame(Outcome([&] {
                 return ChatTemplate::Parse(source, "random").Render(OrderedJson::array(), options);
               }),
               item[1], source);
  }
}

}  // namespace
}  // namespace quire
