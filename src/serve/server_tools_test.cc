// Calls of tools through the whole server. The runner draws any token that it may; a choice of one text makes
// it write that.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/server_testing.h"

namespace quire::testing {
namespace {

constexpr const char* kCall =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": "
    "\"Paris\"}<｜tool▁call▁end｜>";
constexpr const char* kSecondCall =
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";

class ServerToolsTest : public ServerTest {
 protected:
  ServerToolsTest() {
    UseTemplate(
        "{{ bos_token }}{% for t in tools or [] %}[tool {{ t.function.name }}]{% endfor %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.function.name + '<｜tool▁sep｜>' + "
        "c.function.arguments }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}{% endfor %}");
  }

  void UseTemplate(const std::string& text) {
    dir_.Write("chat_template.jinja", text);
    model_ = OpenTextModel(dir_.path());
    model_.generation.eos_tokens.clear();
  }

  static json Tools() {
    return json::parse(
        R"([{"type": "function", "function": {"name": "weather", "parameters": {"type":
      "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}},
      {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {},
      "additionalProperties": false}}}])");
  }
  // A request that is answered with this text.
  static json Scripted(const std::string& text) {
    json body = Chat(200);
    body["ignore_eos"] = false;
    body["tools"] = Tools();
    body["structured_outputs"] = {{"choice", json::array({text})}};
    return body;
  }
  json Choice(const json& body) {
    const HttpResponse response = Post("/v1/chat/completions", body);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body)["choices"][0];
  }
  // The deltas of a stream joined to what a whole answer has, choice by choice.
  std::vector<json> StreamedChoices(json body, size_t n = 1) {
    body["stream"] = true;
    std::vector<json> choices(n, {{"content", ""}, {"tool_calls", json::array()}});
    for (const std::string& data : Stream("/v1/chat/completions", body)) {
      if (data == "[DONE]") continue;
      const json chunk = json::parse(data);
      for (const json& choice : chunk["choices"]) {
        Join(choice, choices[choice["index"].get<size_t>()]);
      }
    }
    return choices;
  }
  static void Join(const json& choice, json& joined) {
    const json& delta = choice["delta"];
    if (delta.contains("content")) {
      joined["content"].get_ref<std::string&>() += delta["content"].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) joined["finish_reason"] = choice["finish_reason"];
    if (!delta.contains("tool_calls")) return;
    for (const json& part : delta["tool_calls"]) {
      json& calls = joined["tool_calls"];
      if (part.contains("id")) {
        EXPECT_EQ(part["index"], calls.size());
        calls.push_back(part["function"]);
        continue;
      }
      calls[part["index"].get<size_t>()]["arguments"].get_ref<std::string&>() +=
          part["function"]["arguments"].get<std::string>();
    }
  }
};

TEST_F(ServerToolsTest, AnAnswerHasItsCallsAndTheTextBeforeThem) {
  Start();
  const json choice = Choice(Scripted(std::string("I look. ") + kCall + kSecondCall));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I look.");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            (json{{"name", "weather"}, {"arguments", R"({"city": "Paris"})"}}));
  EXPECT_EQ(choice["message"]["tool_calls"][1]["function"],
            (json{{"name", "now"}, {"arguments", "{}"}}));
  EXPECT_NE(choice["message"]["tool_calls"][0]["id"], choice["message"]["tool_calls"][1]["id"]);
}

TEST_F(ServerToolsTest, AStreamHasTheSameCallsForEveryChoice) {
  Start();
  json body = Scripted(std::string("I look. ") + kCall + kSecondCall);
  body["n"] = 3;
  for (const json& choice : StreamedChoices(body, 3)) {
    EXPECT_EQ(choice["content"], "I look.");
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_EQ(choice["tool_calls"],
              json::parse(R"([{"name": "weather", "arguments": "{\"city\": \"Paris\"}"},
                              {"name": "now", "arguments": "{}"}])"));
  }
}

TEST_F(ServerToolsTest, WithoutParallelCallsAnAnswerEndsBehindTheFirst) {
  Start();
  json body = Scripted(std::string(kCall) + kSecondCall);
  body["parallel_tool_calls"] = false;
  for (const json& choice : {Choice(body)["message"], StreamedChoices(body)[0]}) {
    EXPECT_EQ(choice["tool_calls"].size(), 1u);
  }
  EXPECT_EQ(Choice(body)["finish_reason"], "tool_calls");
}

TEST_F(ServerToolsTest, WithoutToolsOrWithNoneCallsAreText) {
  Start();
  json body = Scripted(std::string(kCall) + kSecondCall);
  body["tool_choice"] = "none";
  EXPECT_EQ(Choice(body)["message"]["content"], std::string(kCall) + kSecondCall);
  EXPECT_EQ(Choice(body)["finish_reason"], "stop");
  body.erase("tools");
  body.erase("tool_choice");
  EXPECT_EQ(Choice(body)["message"]["content"], std::string(kCall) + kSecondCall);
}

TEST_F(ServerToolsTest, WhatIsNoCallIsContent) {
  Start();
  const std::string text = "<｜tool▁calls▁begin｜>Let me <b>see</b>. ";
  EXPECT_EQ(Choice(Scripted(text))["message"]["content"], text);
  EXPECT_EQ(StreamedChoices(Scripted(text))[0]["content"], text);
  EXPECT_FALSE(Choice(Scripted(text))["message"].contains("tool_calls"));
}

TEST_F(ServerToolsTest, AStopStringCutsACallAndSaysSo) {
  Start();
  json body = Scripted(std::string(kCall) + kSecondCall);
  body["stop"] = "Par";
  const json choice = Choice(body);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"city": ")");
}

// The runner draws any token that it may: what comes out is what the constraint allows.
TEST_F(ServerToolsTest, RequiredCallsAreMadeWithArgumentsOfTheSchema) {
  Start();
  json body = Chat(300);
  body["tools"] =
      json::parse(R"([{"type": "function", "function": {"name": "set", "parameters": {"type":
    "object", "properties": {"on": {"type": "boolean"}, "unit": {"enum": ["C", "F"]}}, "required": ["on",
    "unit"], "additionalProperties": false}}}, {"type": "function", "function": {"name": "now",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}}])");
  body["parallel_tool_calls"] = false;
  body["n"] = 4;
  for (const json& choice :
       {json("required"), json::parse(R"({"type": "function", "function": {"name": "set"}})")}) {
    body["tool_choice"] = choice;
    const HttpResponse response = Post("/v1/chat/completions", body);
    ASSERT_EQ(response.status, 200) << response.body;
    const json answer = json::parse(response.body);
    for (const json& one : answer["choices"]) {
      EXPECT_EQ(one["finish_reason"], "tool_calls") << one;
      EXPECT_TRUE(one["message"]["content"].is_null()) << one;
      ASSERT_EQ(one["message"]["tool_calls"].size(), 1u) << one;
      const json& function = one["message"]["tool_calls"][0]["function"];
      const json arguments = json::parse(function["arguments"].get<std::string>());
      if (choice == "required" && function["name"] == "now") {
        EXPECT_EQ(arguments, json::object());
        continue;
      }
      EXPECT_EQ(function["name"], "set");
      EXPECT_TRUE(arguments["on"].is_boolean());
      EXPECT_TRUE(arguments["unit"] == "C" || arguments["unit"] == "F");
    }
  }
}

TEST_F(ServerToolsTest, ASchemaHoldsContentAndToolsTheirCalls) {
  Start();
  json body = Chat(300);
  body["tools"] =
      json::parse(R"([{"type": "function", "function": {"name": "now", "parameters": {"type":
    "object", "properties": {}, "additionalProperties": false}}}])");
  body["parallel_tool_calls"] = false;
  body["response_format"] =
      json::parse(R"({"type": "json_schema", "json_schema": {"name": "s", "schema":
    {"enum": [1, 2]}}})");
  body["n"] = 4;
  int num_calls = 0, num_texts = 0;
  for (int i = 0; i < 8; ++i) {
    body["messages"][0]["content"] = "Hello " + std::to_string(i);
    const HttpResponse response = Post("/v1/chat/completions", body);
    ASSERT_EQ(response.status, 200) << response.body;
    const json answer = json::parse(response.body);
    for (const json& choice : answer["choices"]) {
      if (choice["finish_reason"] == "tool_calls") {
        ++num_calls;
        const json& function = choice["message"]["tool_calls"][0]["function"];
        EXPECT_EQ(function["name"], "now");
        EXPECT_EQ(json::parse(function["arguments"].get<std::string>()), json::object());
      } else {
        ++num_texts;
        EXPECT_TRUE(choice["message"]["content"] == "1" || choice["message"]["content"] == "2")
            << choice;
      }
    }
  }
  EXPECT_GT(num_calls, 0);
  EXPECT_GT(num_texts, 0);
}

TEST_F(ServerToolsTest, WhatCannotBeHeldIsRefused) {
  Start();
  json body = Scripted("x");
  body["tool_choice"] = "required";
  EXPECT_EQ(ErrorOf(Post("/v1/chat/completions", body)),
            "400 invalid_request_error null: tool_choice: expected \"auto\" or \"none\" with "
            "structured_outputs.choice, which all of the text is held to");
  body.erase("structured_outputs");
  body["tools"][0]["function"]["parameters"] = {{"not", json::object()}};
  EXPECT_EQ(
      ErrorOf(Post("/v1/chat/completions", body)),
      "400 invalid_request_error null: tools: weather: parameters: #: \"not\": not supported");
}

TEST_F(ServerToolsTest, AStrictToolWhoseSchemaCannotBeHeldIsRefused) {
  Start();
  json body = Chat(3);
  body["tools"] = Tools();
  json& function = body["tools"][0]["function"];
  function["parameters"] = {{"not", json::object()}};
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);  // nothing is to be held
  function["strict"] = true;
  EXPECT_EQ(
      ErrorOf(Post("/v1/chat/completions", body)),
      "400 invalid_request_error null: tools: weather: parameters: #: \"not\": not supported");
  const std::vector<json> elsewhere = {
      {{"input", "Hello"},
       {"tools",
        {{{"type", "function"},
          {"name", "weather"},
          {"parameters", function["parameters"]},
          {"strict", true}}}}},
      {{"messages", body["messages"]},
       {"max_tokens", 3},
       {"tools",
        {{{"name", "weather"}, {"input_schema", function["parameters"]}, {"strict", true}}}}}};
  for (size_t i = 0; i < elsewhere.size(); ++i) {
    const HttpResponse response = Post(i == 0 ? "/v1/responses" : "/v1/messages", elsewhere[i]);
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find("tools: weather: parameters: #:"), std::string::npos)
        << response.body;
  }
}

TEST_F(ServerToolsTest, ToolsAndResultsReachTheTemplate) {
  Start();
  json body = Chat(1);
  const auto prompt_tokens = [&] {
    return json::parse(Post("/v1/chat/completions", body).body)["usage"]["prompt_tokens"]
        .get<int64_t>();
  };
  const int64_t plain = prompt_tokens();
  body["tools"] = Tools();
  const int64_t with_tools = prompt_tokens();
  EXPECT_GT(with_tools, plain);
  body["messages"].push_back(
      json::parse(R"({"role": "assistant", "content": null, "tool_calls": [{"id": "c",
    "type": "function", "function": {"name": "now", "arguments": "{}"}}]})"));
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", "c"}, {"content", "noon"}});
  const int64_t with_result = prompt_tokens();
  EXPECT_GT(with_result, with_tools);
  body["tool_choice"] = "none";  // the tools are gone, what was called is not
  EXPECT_EQ(prompt_tokens(), with_result - (with_tools - plain));
}

TEST_F(ServerToolsTest, AModelWithoutCallsRefusesTools) {
  UseTemplate("{% for m in messages %}{{ m.content }}{% endfor %}");
  Start();
  json body = Chat(1);
  body["tools"] = Tools();
  EXPECT_EQ(ErrorOf(Post("/v1/chat/completions", body)),
            "400 invalid_request_error null: tools: expected none, since this model's template "
            "writes no calls in a format that is known (--tool-call-parser names one)");
  body["tool_choice"] = "none";
  EXPECT_EQ(Post("/v1/chat/completions", body).status, 200);
}

TEST_F(ServerToolsTest, ATemplateThatWantsObjectsGetsThem) {
  UseTemplate(
      "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>"
      "{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}<arg_key>{{ k "
      "}}</arg_key>"
      "\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}{% endfor %}");
  Start();
  json body = Scripted(
      "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n</tool_call>");
  body["messages"].push_back(json::parse(R"({"role": "assistant", "tool_calls": [{"id": "c", "type":
    "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]})"));
  EXPECT_EQ(Choice(body)["message"]["tool_calls"][0]["function"]["arguments"], R"({"city": "12"})");
  const json messages = {{"messages", body["messages"]}};
  EXPECT_EQ(json::parse(Post("/apply-template", messages).body)["prompt"],
            "Hello<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
            "</tool_call>");
  EXPECT_EQ(Post("/tokenize", messages).status, 200);
  body["messages"].back()["tool_calls"][0]["function"]["arguments"] = "[]";
  EXPECT_EQ(
      ErrorOf(Post("/v1/chat/completions", body)),
      "400 invalid_request_error null: messages[1].tool_calls[0].function.arguments: expected "
      "the text of a JSON object, got an array of 0");
}

TEST_F(ServerToolsTest, AFormatMayBeNamed) {
  UseTemplate("{% for m in messages %}{{ m.content }}{% endfor %}");
  ServerOptions options = Options();
  options.service.completions.tool_format = ToolFormat::kKimiK2;
  Start(std::move(options));
  const json choice =
      Choice(Scripted("<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
                      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"));
  EXPECT_EQ(choice["message"]["tool_calls"][0]["id"], "functions.now:0");
}

}  // namespace
}  // namespace quire::testing
