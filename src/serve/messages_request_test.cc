#include "serve/messages_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace quire {
namespace {

ChatCompletionRequest Messages(const std::string& fields) {
  return ParseMessagesRequest(R"({"max_tokens": 9, )" + fields + "}", {});
}

constexpr const char* kHi = R"("messages": [{"role": "user", "content": "Hi"}])";

std::string MessagesRefusal(const std::string& body, const RequestLimits& limits = {}) {
  try {
    (void)ParseMessagesRequest(body, {}, limits);
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.param() + " | " + error.what();
  }
  return "no error";
}
std::string WithHi(const std::string& more) {
  return MessagesRefusal(std::string(R"({"max_tokens": 9, )") + kHi + ", " + more + "}");
}
std::string WithMessage(const std::string& message) {
  return MessagesRefusal(R"({"max_tokens": 9, "messages": [)" + message + "]}");
}

TEST(MessagesRequestTest, AConversationIsAChats) {
  const ChatCompletionRequest request = Messages(R"(
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
               {"type": "text", "text": "Be kind."}],
    "messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""},
                                        {"type": "text", "text": "Hello", "citations": null}]},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])");
  EXPECT_EQ(request.conversation.messages.dump(),
            R"([{"role":"system","content":"Be brief.\nBe kind."},{"role":"user","content":"Hi"},)"
            R"({"role":"assistant","content":"Hello","reasoning_content":"Hm."},)"
            R"({"role":"user","content":"a\nb"}])");
  EXPECT_TRUE(request.conversation.add_generation_prompt);
  EXPECT_FALSE(request.conversation.continue_final_message);
}

TEST(MessagesRequestTest, AnAnswerGoesOnWithTheAssistantsLastMessage) {
  const Conversation conversation = Messages(R"("messages": [{"role": "user", "content": "Hi"},
                               {"role": "assistant", "content": "The answer is ("}])")
                                        .conversation;
  EXPECT_TRUE(conversation.continue_final_message);
  EXPECT_FALSE(conversation.add_generation_prompt);
}

TEST(MessagesRequestTest, FieldsAboutTheAnswer) {
  const GenerationFields fields =
      Messages(std::string(kHi) + R"(, "model": "m", "temperature": 0.5, "top_p": 0.25, "top_k": 7,
        "stop_sequences": ["END", "\n"], "stream": true, "seed": 3, "metadata": {"user_id": "u"},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}})")
          .generation;
  EXPECT_EQ(fields.model, "m");
  EXPECT_EQ(fields.max_tokens, 9);
  EXPECT_EQ(fields.sampling.temperature, 0.5f);
  EXPECT_EQ(fields.sampling.top_p, 0.25f);
  EXPECT_EQ(fields.sampling.top_k, 7);
  EXPECT_EQ(fields.stop, (std::vector<std::string>{"END", "\n"}));
  EXPECT_TRUE(fields.stream);
  EXPECT_EQ(fields.seed, 3u);
  ASSERT_TRUE(fields.constraint);
  EXPECT_EQ(fields.constraint->source, "output_config.format.schema");
}

TEST(MessagesRequestTest, ThinkingIsTheTemplates) {
  const auto variables = [](const std::string& thinking) {
    return Messages(std::string(kHi) + thinking).conversation.template_variables.dump();
  };
  EXPECT_EQ(variables(""), "{}");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "enabled", "budget_tokens": 1024})"),
            R"({"thinking":true,"enable_thinking":true})");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "adaptive"})"),
            R"({"thinking":true,"enable_thinking":true})");
  EXPECT_EQ(variables(R"(, "thinking": {"type": "disabled"},
                         "chat_template_kwargs": {"thinking": "deep"})"),
            R"({"thinking":"deep","enable_thinking":false})");
}

TEST(MessagesRequestTest, RefusalsNameTheFieldTheExpectedAndTheActual) {
  EXPECT_EQ(MessagesRefusal(std::string("{") + kHi + "}"), "max_tokens | max_tokens: missing");
  EXPECT_EQ(MessagesRefusal(std::string("{\"max_tokens\": 0, ") + kHi + "}"),
            "max_tokens | max_tokens: expected an integer of 1 or more, got 0");
  EXPECT_EQ(MessagesRefusal(R"({"max_tokens": 9})"), "messages | messages: missing");
  EXPECT_EQ(MessagesRefusal(R"({"max_tokens": 9, "messages": []})"),
            "messages | messages: expected at least one message, got an array of 0");
  EXPECT_EQ(WithHi(R"("top_c": 1)"), "top_c | top_c: unknown field; did you mean top_p?");
  EXPECT_EQ(
      WithHi(R"("stop_sequences": "END")"),
      "stop_sequences | stop_sequences: expected an array of at most 16 strings, got \"END\"");
  EXPECT_EQ(WithHi(R"("thinking": {"type": "enabled"})"),
            "thinking.budget_tokens | thinking.budget_tokens: missing");
  EXPECT_EQ(WithHi(R"("output_config": {"effort": "low"})"),
            "output_config.effort | output_config.effort: expected \"high\" (others are not "
            "supported), got \"low\"");
  EXPECT_EQ(WithMessage(R"({"role": "tool", "content": "x"})"),
            "messages[0].role | messages[0].role: expected \"user\", \"assistant\" or \"system\", "
            "got \"tool\"");
  EXPECT_EQ(WithMessage(R"({"role": "user", "content": []})"),
            "messages[0].content | messages[0].content: expected a string, or an array of at least "
            "one block, got an array of 0");
}

TEST(MessagesRequestTest, BlocksThatAreNotSupportedAreRefusedByName) {
  for (const char* type : {"image", "document", "search_result", "container_upload"}) {
    const std::string said = WithMessage(std::string(R"({"role": "user", "content": [{"type": ")") +
                                         type + R"(", "source": {}}]})");
    EXPECT_TRUE(said.starts_with("messages[0].content[0].type | ")) << said;
    EXPECT_TRUE(said.ends_with(std::string("got \"") + type + "\"")) << said;
  }
  EXPECT_TRUE(WithMessage(R"({"role": "assistant", "content": [{"type": "redacted_thinking"}]})")
                  .starts_with("messages[0].content[0].type | "));
}

TEST(MessagesRequestTest, ToolsAreAChats) {
  const ChatCompletionRequest request = Messages(R"(
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}},
              {"type": "custom", "name": "g", "input_schema": {}, "strict": true}],
    "tool_choice": {"type": "tool", "name": "g", "disable_parallel_tool_use": true},
    "messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": [{"type": "text", "text": "So"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"b": 1, "a": [2]}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]},
        {"type": "tool_result", "tool_use_id": "d", "is_error": true},
        {"type": "text", "text": "Well?"}]}])");
  ASSERT_EQ(request.tools.tools.size(), 2u);
  EXPECT_EQ(request.tools.tools[0].name, "f");
  EXPECT_EQ(request.tools.tools[0].description, "d");
  EXPECT_EQ(request.tools.tools[0].parameters.dump(), R"({"type":"object"})");
  EXPECT_EQ(request.tools.choice, ToolChoice::kRequired);
  EXPECT_EQ(request.tools.name, "g");
  EXPECT_FALSE(request.tools.parallel);
  EXPECT_EQ(
      request.conversation.messages.dump(),
      R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"So","tool_calls":)"
      R"([{"id":"c","type":"function","function":{"name":"f","arguments":)"
      R"("{\"b\":1,\"a\":[2]}"}}]},{"role":"tool","content":"r","tool_call_id":"c"},)"
      R"({"role":"tool","content":"","tool_call_id":"d"},{"role":"user","content":"Well?"}])");
  EXPECT_FALSE(request.conversation.continue_final_message);
}

TEST(MessagesRequestTest, CountingNeedsNoLength) {
  const ChatCompletionRequest request =
      ParseCountTokensRequest(std::string("{\"model\": \"m\", ") + kHi + "}");
  EXPECT_EQ(request.generation.model, "m");
  EXPECT_EQ(request.conversation.messages.size(), 1u);
  EXPECT_THROW(ParseCountTokensRequest(std::string("{\"max_tokens\": 1, ") + kHi + "}"), ApiError);
}

}  // namespace
}  // namespace quire
