#include "serve/responses_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace quire {
namespace {

std::string MessagesOf(const std::string& body) {
  return ParseResponsesRequest(body, {}).chat.conversation.messages.dump();
}

std::string ResponsesRefusal(const std::string& body) {
  try {
    (void)ParseResponsesRequest(body, {});
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param() + " | " + error.what();
  }
  return "no error";
}
std::string WithInput(const std::string& more) {
  return ResponsesRefusal(R"({"input": "Hi", )" + more + "}");
}

TEST(ResponsesRequestTest, AConversationIsAChats) {
  EXPECT_EQ(MessagesOf(R"({"input": "Hi", "instructions": "Be brief."})"),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])");
  EXPECT_EQ(MessagesOf(R"({"input": [
      {"role": "developer", "content": "Be kind."},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"},
                                                      {"type": "input_text", "text": "b"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed",
       "content": [{"type": "reasoning_text", "text": "Hm."}]},
      {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
       "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
      {"role": "user", "content": "d"}]})"),
            R"([{"role":"system","content":"Be kind."},{"role":"user","content":"a\nb"},)"
            R"({"role":"assistant","content":"c","reasoning_content":"Hm."},)"
            R"({"role":"user","content":"d"}])");
}

TEST(ResponsesRequestTest, FieldsAboutTheAnswerAndWhatComesBackOfThem) {
  const ResponsesRequest request = ParseResponsesRequest(
      R"({"input": "Hi", "model": "m", "max_output_tokens": 7, "temperature": 0.7, "top_p": 0.9,
          "stream": true, "store": false, "metadata": {"a": "b"}, "instructions": "x",
          "reasoning": {"effort": "none"},
          "text": {"format": {"type": "json_schema", "name": "s", "strict": true,
                              "schema": {"type": "object"}}}})",
      {});
  const GenerationFields& fields = request.chat.generation;
  EXPECT_EQ(fields.max_tokens, 7);
  EXPECT_EQ(fields.sampling.temperature, 0.7f);
  EXPECT_TRUE(fields.stream);
  ASSERT_TRUE(fields.constraint);
  EXPECT_EQ(fields.constraint->source, "text.format.schema");
  EXPECT_EQ(request.chat.conversation.template_variables.dump(),
            R"({"thinking":false,"enable_thinking":false})");
  EXPECT_EQ(Json(request.repeated).dump(1), Json::parse(R"({
    "instructions": "x", "max_output_tokens": 7, "metadata": {"a": "b"},
    "parallel_tool_calls": true, "previous_response_id": null,
    "reasoning": {"effort": "none", "summary": null}, "store": false, "temperature": 0.7,
    "text": {"format": {"type": "json_schema", "name": "s", "strict": true,
                        "schema": {"type": "object"}}},
    "tool_choice": "none", "tools": [], "top_p": 0.9, "truncation": "disabled", "user": null})")
                                                .dump(1));
}

TEST(ResponsesRequestTest, ToolsAreAChats) {
  const ResponsesRequest request = ParseResponsesRequest(R"({
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"},
               "strict": true}],
    "tool_choice": "required", "parallel_tool_calls": false,
    "input": [
      {"role": "user", "content": "Hi"},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So"}]},
      {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "d", "name": "f", "arguments": "{\"a\": 1}"},
      {"type": "function_call_output", "call_id": "c", "output": "r"},
      {"type": "function_call_output", "call_id": "d",
       "output": [{"type": "input_text", "text": "s"}]}]})",
                                                         {});
  EXPECT_EQ(request.chat.tools.choice, ToolChoice::kRequired);
  EXPECT_FALSE(request.chat.tools.parallel);
  ASSERT_EQ(request.chat.tools.tools.size(), 1u);
  EXPECT_EQ(request.chat.tools.tools[0].name, "f");
  EXPECT_EQ(request.repeated["tool_choice"], "required");
  EXPECT_EQ(request.repeated["tools"][0]["name"], "f");
  EXPECT_EQ(request.chat.conversation.messages.dump(),
            R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"So","tool_calls":)"
            R"([{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}},)"
            R"({"id":"d","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},)"
            R"({"role":"tool","content":"r","tool_call_id":"c"},)"
            R"({"role":"tool","content":"s","tool_call_id":"d"}])");
}

TEST(ResponsesRequestTest, FormatsAreConstraints) {
  const auto constraint = [](const std::string& format) {
    return ParseResponsesRequest(R"({"input": "Hi", "text": {"format": )" + format + "}}", {})
        .chat.generation.constraint;
  };
  EXPECT_FALSE(constraint(R"({"type": "text"})"));
  ASSERT_TRUE(constraint(R"({"type": "json_object"})"));
  EXPECT_EQ(constraint(R"({"type": "json_object"})")->kind, TextConstraint::Kind::kJsonObject);
  EXPECT_EQ(WithInput(R"("text": {"format": {"type": "json_schema"}})"),
            "text.format.schema | text.format.schema: missing");
  EXPECT_EQ(WithInput(R"("text": {"format": {"type": "grammar"}})"),
            "text.format.type | text.format.type: expected \"text\", \"json_object\" or "
            "\"json_schema\", got \"grammar\"");
}

TEST(ResponsesRequestTest, NothingIsStored) {
  EXPECT_EQ(WithInput(R"("store": true)"),
            "store | store: expected false (nothing is stored), got true");
  EXPECT_EQ(
      WithInput(R"("previous_response_id": "resp_1")"),
      "previous_response_id | previous_response_id: expected null (nothing is stored; give all "
      "items as input), got \"resp_1\"");
  EXPECT_EQ(WithInput(R"("store": null, "previous_response_id": null)"), "no error");
  EXPECT_EQ(WithInput(R"("background": true)"),
            "background | background: expected false (not supported), got true");
}

TEST(ResponsesRequestTest, RefusalsNameTheFieldTheExpectedAndTheActual) {
  EXPECT_EQ(ResponsesRefusal("{}"), "input | input: missing");
  EXPECT_EQ(
      ResponsesRefusal(R"({"input": []})"),
      "input | input: expected a string, or an array of at least one item, got an array of 0");
  EXPECT_EQ(WithInput(R"("top_c": 1)"), "top_c | top_c: unknown field; did you mean top_p?");
  EXPECT_EQ(WithInput(R"("max_output_tokens": 0)"),
            "max_output_tokens | max_output_tokens: expected an integer of 1 or more, got 0");
  EXPECT_EQ(
      ResponsesRefusal(R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})"),
      "input[0].content[0].type | input[0].content[0].type: expected \"input_text\" (others are "
      "not supported), got \"input_image\"");
  EXPECT_TRUE(ResponsesRefusal(R"({"input": [{"type": "item_reference", "id": "x"}]})")
                  .starts_with("input[0].type | "));
}

}  // namespace
}  // namespace quire
