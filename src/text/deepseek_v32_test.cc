#include "text/deepseek_v32.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "io/test_files.h"

namespace quire {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";

std::string Encode(std::string_view messages, const DeepseekV32Options& options = {}) {
  std::string text = EncodeDeepseekV32(ParseOrderedJson(messages, "messages"), options);
  EXPECT_TRUE(text.starts_with(kBos));
  text.erase(0, kBos.size());
  for (size_t at; (at = text.find(kEos)) != std::string::npos;) {
    text.replace(at, kEos.size(), "<eos>");
  }
  return text;
}

std::string EncodingRefusal(std::string_view messages, const DeepseekV32Options& options = {}) {
  return InvalidArgument([&] { (void)Encode(messages, options); });
}

constexpr DeepseekV32Options kThinking{.mode = ThinkingMode::kThinking};

TEST(DeepseekV32Test, ChatModeClosesTheThoughtsAtOnce) {
  EXPECT_EQ(Encode(R"([{"role": "system", "content": "Be brief."},
                       {"role": "user", "content": "Hi"}])"),
            "Be brief.<｜User｜>Hi<｜Assistant｜></think>");
  EXPECT_EQ(Encode(R"([{"role": "user", "content": "Hi"},
                       {"role": "assistant", "content": "Yo", "reasoning_content": "hm"},
                       {"role": "user", "content": "Ok"}])"),
            "<｜User｜>Hi<｜Assistant｜></think>Yo<eos><｜User｜>Ok<｜Assistant｜></think>");
}

TEST(DeepseekV32Test, ThinkingModeOpensThemBehindTheLastUserMessageOnly) {
  EXPECT_EQ(Encode(R"([{"role": "user", "content": "Hi"},
                       {"role": "assistant", "content": "Yo", "reasoning_content": "hm"},
                       {"role": "user", "content": [{"type": "text", "text": "Ok"}]}])",
                   kThinking),
            "<｜User｜>Hi<｜Assistant｜></think>Yo<eos><｜User｜>Ok<｜Assistant｜><think>");
  EXPECT_EQ(Encode(R"([{"role": "user", "content": "Hi"},
                       {"role": "assistant", "content": "Yo", "reasoning_content": "hm"}])",
                   kThinking),
            "<｜User｜>Hi<｜Assistant｜><think>hm</think>Yo<eos>");
}

TEST(DeepseekV32Test, CallsAndResultsAreInTheModelsMarkup) {
  constexpr std::string_view kMessages = R"([
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": null, "reasoning_content": "look", "tool_calls": [
      {"function": {"name": "at", "arguments": "{\"place\": \"Rome\", \"days\": [1, 2.0]}"}},
      {"function": {"name": "now", "arguments": {}}}]},
    {"role": "tool", "content": "sunny"}, {"role": "tool", "content": "noon"}])";
  const std::string calls =
      "\n\n<｜DSML｜function_calls>\n"
      "<｜DSML｜invoke name=\"at\">\n"
      "<｜DSML｜parameter name=\"place\" string=\"true\">Rome</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"days\" string=\"false\">[1, 2.0]</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n"
      "<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n"
      "</｜DSML｜function_calls><eos>"
      "\n\n<function_results>\n<result>sunny</result>\n<result>noon</result>\n</function_results>";
  EXPECT_EQ(Encode(kMessages, kThinking),
            "<｜User｜>Weather?<｜Assistant｜><think>look</think>" + calls + "\n\n<think>");
  EXPECT_EQ(Encode(kMessages),
            "<｜User｜>Weather?<｜Assistant｜></think>" + calls + "\n\n</think>");
}

TEST(DeepseekV32Test, ToolsGoIntoTheSystemPrompt) {
  const OrderedJson tools = ParseOrderedJson(
      R"([{"type": "function", "function": {"name": "b", "a": "ü"}},
          {"type": "function", "function": {"name": "c"}}])",
      "tools");
  const DeepseekV32Options options{
      .tools = &tools, .tools_prompt = "{dsml_token}{thinking_end_token}\n{tool_schemas}"};
  const std::string prompt =
      "\n\n｜DSML｜</think>\n{\"name\": \"b\", \"a\": \"ü\"}\n{\"name\": \"c\"}";
  EXPECT_EQ(
      Encode(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}])", options),
      "S" + prompt + "<｜User｜>Hi<｜Assistant｜></think>");
  EXPECT_EQ(Encode(R"([{"role": "user", "content": "Hi"}])", options),
            prompt + "<｜User｜>Hi<｜Assistant｜></think>");
  EXPECT_EQ(EncodingRefusal("[]", {.tools = &tools}),
            "tools: the model has no text about tools (TOOLS_SYSTEM_TEMPLATE in "
            "encoding/encoding_dsv32.py)");
}

TEST(DeepseekV32Test, WhatTheFormatHasNoPlaceForIsRefused) {
  EXPECT_EQ(EncodingRefusal(R"([{"role": "user", "content": "Hi"}, {"role": "developer"}])"),
            "messages[1]: expected the role system, user, assistant or tool, got \"developer\"");
  EXPECT_EQ(EncodingRefusal("[1]"), "messages[0]: expected an object");
  EXPECT_EQ(EncodingRefusal("{}"), "messages: expected an array");
  EXPECT_EQ(EncodingRefusal(R"([{"role": "user", "content": 5}])"),
            "messages[0]: expected a string or an array as content");
  EXPECT_EQ(EncodingRefusal(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
            "messages[0]: expected parts with text");
  EXPECT_EQ(EncodingRefusal(R"([{"role": "tool", "content": "x"}])"),
            "messages[0]: a result without a call");
  EXPECT_EQ(EncodingRefusal(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
                        {"role": "tool"}, {"role": "tool"}])"),
            "messages[2]: a result without a call");
  EXPECT_EQ(EncodingRefusal(
                R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "x"}])",
                kThinking),
            "messages[1]: expected reasoning_content or tool_calls after the last user message");
  EXPECT_EQ(EncodingRefusal(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f",
                        "arguments": "[1]"}}]}])"),
            "messages[0]: expected an object as function.arguments");
}

}  // namespace
}  // namespace quire
