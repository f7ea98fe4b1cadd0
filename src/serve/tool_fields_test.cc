#include "serve/tool_fields.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "serve/openai_request.h"

namespace quire {
namespace {

constexpr const char* kTwoTools =
    R"("tools": [{"type": "function", "function": {"name": "weather", "description": "Looks.", "strict": true,
       "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
       {"type": "function", "function": {"name": "now"}}])";

ChatCompletionRequest ChatWith(const std::string& fields) {
  return ParseChatCompletionRequest(
      fmt::format(R"({{"messages": [{{"role": "user", "content": "a"}}], {}}})", fields), {});
}

ChatCompletionRequest ChatOf(const std::string& messages) {
  return ParseChatCompletionRequest(fmt::format(R"({{"messages": {}}})", messages), {});
}

// "param | message"
template <class Function>
std::string ToolRefusal(Function function) {
  try {
    function();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    const Json json = Json::parse(error.ToJson());
    return fmt::format("{} | {}", json["error"]["param"].get<std::string>(), error.what());
  }
  return "accepted";
}

std::string Refused(const std::string& fields) {
  return ToolRefusal([&] { (void)ChatWith(fields); });
}

TEST(ToolFieldsTest, ToolsAreReadAndAutoIsTheirDefault) {
  const ToolFields read = ChatWith(kTwoTools).tools;
  ASSERT_EQ(read.tools.size(), 2u);
  EXPECT_EQ(read.tools[0].name, "weather");
  EXPECT_EQ(read.tools[0].description, "Looks.");
  EXPECT_EQ(read.tools[0].parameters.dump(),
            R"({"type":"object","properties":{"city":{"type":"string"}}})");
  EXPECT_TRUE(read.tools[0].strict);
  EXPECT_EQ(read.tools[1].name, "now");
  EXPECT_FALSE(read.tools[1].strict);
  EXPECT_FALSE(read.tools[1].description);
  EXPECT_TRUE(read.tools[1].parameters.is_null());
  EXPECT_EQ(read.choice, ToolChoice::kAuto);
  EXPECT_TRUE(read.parallel);
}

TEST(ToolFieldsTest, WithoutToolsThereIsNothingToChoose) {
  for (const char* fields : {R"("tools": [])", R"("tools": null, "tool_choice": "none")",
                             R"("tool_choice": null, "parallel_tool_calls": false)"}) {
    EXPECT_EQ(ChatWith(fields).tools.choice, ToolChoice::kNone) << fields;
  }
}

TEST(ToolFieldsTest, ChoicesAreReadByTheirNames) {
  const auto with = [](const std::string& choice) {
    return ChatWith(fmt::format(R"({}, "tool_choice": {})", kTwoTools, choice)).tools;
  };
  EXPECT_EQ(with(R"("none")").choice, ToolChoice::kNone);
  EXPECT_EQ(with(R"("auto")").choice, ToolChoice::kAuto);
  EXPECT_EQ(with(R"("required")").choice, ToolChoice::kRequired);
  EXPECT_FALSE(with(R"("required")").name);
  const ToolFields named = with(R"({"type": "function", "function": {"name": "now"}})");
  EXPECT_EQ(named.choice, ToolChoice::kRequired);
  EXPECT_EQ(named.name, "now");
}

TEST(ToolFieldsTest, WrongToolsAreRefusedWithTheirPlace) {
  EXPECT_EQ(Refused(R"("tools": {})"), "tools | tools: expected an array, got an object");
  EXPECT_EQ(Refused(R"("tools": [1])"), "tools[0] | tools[0]: expected an object, got 1");
  EXPECT_EQ(Refused(R"("tools": [{}])"), "tools[0].type | tools[0].type: missing");
  EXPECT_EQ(Refused(R"("tools": [{"type": "web_search"}])"),
            "tools[0].type | tools[0].type: expected \"function\" (others are not supported), got "
            "\"web_search\"");
  EXPECT_EQ(Refused(R"("tools": [{"type": "function"}])"),
            "tools[0].function | tools[0].function: missing");
  const auto function = [](const std::string& text) {
    return Refused(fmt::format(R"("tools": [{{"type": "function", "function": {{{}}}}}])", text));
  };
  EXPECT_EQ(function(""), "tools[0].function.name | tools[0].function.name: missing");
  EXPECT_EQ(function(R"("name": "two words")"),
            "tools[0].function.name | tools[0].function.name: expected letters, digits, \"_\", "
            "\"-\" and \".\", got \"two words\"");
  EXPECT_TRUE(function(fmt::format(R"("name": "{}")", std::string(65, 'a')))
                  .starts_with("tools[0].function.name | tools[0].function.name: expected"));
  EXPECT_EQ(function(R"("name": "f", "parameters": "x")"),
            "tools[0].function.parameters | tools[0].function.parameters: expected an object, got "
            "\"x\"");
  EXPECT_EQ(function(R"("name": "f", "description": 1)"),
            "tools[0].function.description | tools[0].function.description: expected a string, got "
            "1");
  EXPECT_EQ(function(R"("name": "f", "oops": 1)"),
            "tools[0].function.oops | tools[0].function.oops: unknown field");
  EXPECT_EQ(Refused(R"("tools": [{"type": "function", "function": {"name": "f"}},
                                 {"type": "function", "function": {"name": "f"}}])"),
            "tools[1] | tools[1]: expected one tool of the name f, got an object");
  std::string many;
  for (int i = 0; i < 257; ++i) {
    many += fmt::format(R"({}{{"type": "function", "function": {{"name": "f{}"}}}})",
                        i == 0 ? "" : ", ", i);
  }
  EXPECT_EQ(Refused("\"tools\": [" + many + "]"),
            "tools | tools: expected at most 256 tools, got an array of 257");
}

TEST(ToolFieldsTest, WrongChoicesAreRefused) {
  EXPECT_EQ(Refused(R"("tool_choice": "auto")"),
            "tool_choice | tool_choice: expected \"none\" without tools, got \"auto\"");
  const auto choice = [](const std::string& text) {
    return Refused(fmt::format(R"({}, "tool_choice": {})", kTwoTools, text));
  };
  EXPECT_EQ(choice(R"("any")"),
            "tool_choice | tool_choice: expected \"none\", \"auto\", \"required\" or {\"type\": "
            "\"function\", \"function\": {\"name\": ...}}, got \"any\"");
  EXPECT_EQ(
      choice(R"({"type": "function", "function": {"name": "then"}})"),
      "tool_choice.function.name | tool_choice.function.name: expected the name of one of the "
      "tools, got \"then\"");
  EXPECT_EQ(choice(R"({"type": "allowed_tools"})"),
            "tool_choice.type | tool_choice.type: expected \"function\", got \"allowed_tools\"");
  EXPECT_EQ(Refused(R"("parallel_tool_calls": 1)"),
            "parallel_tool_calls | parallel_tool_calls: expected true or false, got 1");
}

TEST(ToolFieldsTest, CallsAndResultsAreKeptForTheTemplate) {
  const Conversation read = ChatOf(R"([{"role": "assistant", "content": null, "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"b\": 1, \"a\": 2}"}},
      {"id": "c2", "function": {"name": "now", "arguments": ""}, "index": 1}]},
      {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]}])")
                                .conversation;
  EXPECT_EQ(
      read.messages.dump(),
      R"([{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":)"
      R"({"name":"weather","arguments":"{\"b\": 1, \"a\": 2}"}},{"id":"c2","type":"function",)"
      R"("function":{"name":"now","arguments":""}}]},)"
      R"({"role":"tool","content":"rain","tool_call_id":"c1"}])");
  Conversation objects = read;
  objects.MakeArgumentsObjects();
  EXPECT_EQ(objects.messages[0]["tool_calls"][0]["function"]["arguments"].dump(),
            R"({"b":1,"a":2})");
  EXPECT_EQ(objects.messages[0]["tool_calls"][1]["function"]["arguments"].dump(), "{}");
}

TEST(ToolFieldsTest, WrongCallsAndResultsAreRefusedWithTheirPlace) {
  const auto message = [](const std::string& text) {
    return ToolRefusal([&] { (void)ChatOf("[" + text + "]"); });
  };
  EXPECT_EQ(message(R"({"role": "tool", "content": "a"})"),
            "messages[0].tool_call_id | messages[0].tool_call_id: missing");
  EXPECT_EQ(
      message(R"({"role": "user", "content": "a", "tool_call_id": "c"})"),
      "messages[0].tool_call_id | messages[0].tool_call_id: expected null, but for a tool, got "
      "\"c\"");
  EXPECT_EQ(message(R"({"role": "user", "content": "a", "tool_calls": [{}]})"),
            "messages[0].tool_calls | messages[0].tool_calls: expected null or [], but for an "
            "assistant, got an array of 1");
  EXPECT_EQ(message(R"({"role": "assistant", "tool_calls": [{}]})"),
            "messages[0].tool_calls[0].id | messages[0].tool_calls[0].id: missing");
  EXPECT_EQ(message(R"({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f",
              "arguments": {}}}]})"),
            "messages[0].tool_calls[0].function.arguments | "
            "messages[0].tool_calls[0].function.arguments: expected a string, got an object");
  EXPECT_EQ(
      message(R"({"role": "assistant", "tool_calls": [{"id": "c", "index": {}}]})"),
      "messages[0].tool_calls[0].index | messages[0].tool_calls[0].index: expected an integer "
      "0..2147483647, got an object");
  EXPECT_EQ(message(R"({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]})"),
            "messages[0].tool_calls[0].type | messages[0].tool_calls[0].type: expected "
            "\"function\", got \"custom\"");
}

TEST(ToolFieldsTest, ArgumentsThatAreNoObjectAreRefusedWhereTheTemplateWantsOne) {
  const auto refusal = [](const std::string& arguments) {
    Conversation read = ChatOf(fmt::format(R"([{{"role": "user", "content": "a"}}, {{"role":
      "assistant", "tool_calls": [{{"id": "c", "function": {{"name": "f", "arguments": {}}}}}]}}])",
                                           Json(arguments).dump()))
                            .conversation;
    return ToolRefusal([&] { read.MakeArgumentsObjects(); });
  };
  const std::string path = "messages[1].tool_calls[0].function.arguments";
  EXPECT_EQ(refusal("[1]"),
            path + " | " + path + ": expected the text of a JSON object, got an array of 1");
  EXPECT_TRUE(refusal("{\"a\": ").starts_with(path + " | " + path + ": "));
  EXPECT_EQ(refusal("{}"), "accepted");
}

TEST(ToolFieldsTest, IdsOfCallsDifferByAnswerChoiceAndPlace) {
  EXPECT_EQ(MakeToolCallId("chatcmpl-0123", 2, 1), "call_0123_2_1");
}

}  // namespace
}  // namespace quire
