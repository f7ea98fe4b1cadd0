#include "serve/openai_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace quire {
namespace {

using std::chrono::microseconds;

// A body with one message or prompt, and `more` fields.
std::string ChatBody(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "Hi"}])" + (more.empty() ? "" : ", " + more) +
         "}";
}
std::string CompletionBody(const std::string& more) {
  return R"({"prompt": "Hi")" + (more.empty() ? "" : ", " + more) + "}";
}

GenerationFields Chat(const std::string& more, const RequestLimits& limits = {},
                      const GenerationConfig& defaults = {}) {
  return ParseChatCompletionRequest(ChatBody(more), defaults, limits).generation;
}
CompletionRequest Completion(const std::string& more, const RequestLimits& limits = {}) {
  return ParseCompletionRequest(CompletionBody(more), {}, limits);
}

// "param | message" of the 400 that fn throws.
template <class Fn>
std::string Refusal(Fn fn) {
  try {
    fn();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.type(), "invalid_request_error");
    return error.param() + " | " + error.what();
  }
  return "no error";
}
std::string ChatRefusal(const std::string& more, const RequestLimits& limits = {}) {
  return Refusal([&] { (void)Chat(more, limits); });
}
std::string CompletionRefusal(const std::string& more, const RequestLimits& limits = {}) {
  return Refusal([&] { (void)Completion(more, limits); });
}
std::string BodyRefusal(const std::string& body, const RequestLimits& limits = {}) {
  const std::string chat = Refusal([&] { (void)ParseChatCompletionRequest(body, {}, limits); });
  const std::string completion = Refusal([&] { (void)ParseCompletionRequest(body, {}, limits); });
  EXPECT_EQ(chat, completion);
  return chat;
}

// ---- The body ----

TEST(OpenaiRequestTest, MalformedBodiesAreRefusedWithThePlace) {
  EXPECT_EQ(BodyRefusal(""), " | body: line 1, column 1: expected a JSON value, got an empty text");
  EXPECT_EQ(BodyRefusal("[1]"), " | body: expected a JSON object, got an array of 1");
  EXPECT_EQ(BodyRefusal("\"prompt\""), " | body: expected a JSON object, got \"prompt\"");
  for (const char* body :
       {"{", "{\"prompt\": }", "{\"prompt\": \"Hi\"} x", "{'prompt': 1}", "nul"}) {
    EXPECT_TRUE(BodyRefusal(body).starts_with(" | body: line 1, column ")) << body;
  }
  EXPECT_EQ(BodyRefusal(R"({"n": 1, "n": 2})"), " | body: line 1, column 12: duplicate key \"n\"");
}

TEST(OpenaiRequestTest, TextThatIsNotUtf8IsRefused) {
  for (const char* text : {"\xff", "\xe2\x82", "\xc0\xaf", "\xed\xa0\x80", "\\ud800"}) {
    const std::string refusal = BodyRefusal(fmt::format(R"({{"prompt": "{}"}})", text));
    EXPECT_TRUE(refusal.starts_with(" | body: line 1, column 1")) << refusal;
  }
}

TEST(OpenaiRequestTest, DeepNestingAndSizeAreBounded) {
  const auto nested = [](int depth) {
    return ChatBody(R"("chat_template_kwargs": {"x": )" + std::string(depth, '[') +
                    std::string(depth, ']') + "}");
  };
  EXPECT_NO_THROW((void)ParseChatCompletionRequest(nested(62), {}));
  EXPECT_TRUE(Refusal([&] {
                (void)ParseChatCompletionRequest(nested(63), {});
              }).ends_with("nested deeper than 64"));
  EXPECT_TRUE(BodyRefusal(std::string(1 << 20, '[')).ends_with("nested deeper than 64"));
  EXPECT_EQ(BodyRefusal("{}       ", {.max_bytes = ByteOffset(8)}),
            " | body: expected at most 8 bytes, got 9");
}

TEST(OpenaiRequestTest, AFieldNobodyKnowsIsRefusedByName) {
  EXPECT_EQ(ChatRefusal(R"("temprature": 1)"),
            "temprature | temprature: unknown field; did you mean temperature?");
  EXPECT_EQ(CompletionRefusal(R"("guided_xml": {})"), "guided_xml | guided_xml: unknown field");
  EXPECT_EQ(ChatRefusal(R"("a\nb": 1)"), R"("a\nb" | "a\nb": unknown field)");
  EXPECT_EQ(ChatRefusal(R"("prompt": "Hi")"), "prompt | prompt: unknown field");
  EXPECT_EQ(CompletionRefusal(R"("messages": [])"), "messages | messages: unknown field");
  std::string many;
  for (int i = 0; i < 200; ++i) many += fmt::format("{}\"x{}\": 1", i == 0 ? "" : ", ", i);
  EXPECT_EQ(ChatRefusal(many), " | body: expected at most 128 fields, got 201");
}

TEST(OpenaiRequestTest, FieldsThatAskForNothingAreAccepted) {
  EXPECT_NO_THROW((void)Chat(R"("tools": [], "tool_choice": "none", "functions": [],
    "function_call": "none", "parallel_tool_calls": false, "response_format": {"type": "text"},
    "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "modalities": ["text"], "user": "me",
    "safety_identifier": "x", "prompt_cache_key": "y", "use_beam_search": false, "echo": false,
    "include_stop_str_in_output": false, "return_token_ids": false, "prompt_logprobs": null,
    "continue_final_message": false)"));
  EXPECT_NO_THROW((void)Chat(R"("tools": null, "audio": null, "prediction": null, "verbosity": null,
    "reasoning_effort": null, "web_search_options": null, "n": null, "stop": null, "seed": null,
    "temperature": null, "stream_options": null, "logit_bias": null, "max_tokens": null)"));
  EXPECT_NO_THROW((void)Completion(R"("suffix": "", "user": "me", "best_of": null)"));
}

TEST(OpenaiRequestTest, FieldsThatWeDoNotDoAreRefusedByName) {
  const std::vector<std::pair<const char*, const char*>> refused = {
      {"functions", R"([{"name": "f"}])"},
      {"function_call", R"({"name": "f"})"},
      {"response_format", R"("text")"},
      {"metadata", R"(["a"])"},
      {"store", "true"},
      {"service_tier", R"("flex")"},
      {"modalities", R"(["text", "audio"])"},
      {"audio", "{}"},
      {"prediction", "{}"},
      {"reasoning_effort", R"("high")"},
      {"verbosity", R"("low")"},
      {"web_search_options", "{}"},
      {"user", "7"},
      {"use_beam_search", "true"},
      {"prompt_logprobs", "0"},
      {"echo", "true"},
  };
  for (const auto& [name, value] : refused) {
    const std::string refusal = ChatRefusal(fmt::format("\"{}\": {}", name, value));
    EXPECT_TRUE(refusal.starts_with(fmt::format("{} | {}: expected ", name, name))) << refusal;
  }
  EXPECT_EQ(CompletionRefusal(R"("suffix": "x")"),
            "suffix | suffix: expected \"\" (not supported), got \"x\"");
}

TEST(OpenaiRequestTest, WhatEndsAnAnswerAndIdsMayBeAskedFor) {
  EXPECT_FALSE(Chat("").include_stop);
  EXPECT_FALSE(Chat("").token_ids);
  const GenerationFields fields =
      Completion(R"("include_stop_str_in_output": true, "return_token_ids": true)").generation;
  EXPECT_TRUE(fields.token_ids);
  EXPECT_TRUE(MakeTextRequest(fields, {1}, std::nullopt, {}).include_stop);
  EXPECT_EQ(ChatRefusal(R"("return_token_ids": 1)"),
            "return_token_ids | return_token_ids: expected true or false, got 1");
}

// ---- Messages ----

TEST(OpenaiRequestTest, AnAssistantsLastMessageMayBeContinued) {
  const auto parse = [](const char* role, const char* fields) {
    return ParseChatCompletionRequest(
        fmt::format(R"({{"messages": [{{"role": "{}", "content": "a"}}], {}}})", role, fields), {});
  };
  const Conversation conversation =
      parse("assistant", R"("continue_final_message": true)").conversation;
  EXPECT_TRUE(conversation.ToChatRequest().continue_final_message);
  EXPECT_FALSE(conversation.add_generation_prompt);
  EXPECT_TRUE(
      parse("assistant", R"("continue_final_message": false)").conversation.add_generation_prompt);
  EXPECT_EQ(Refusal([&] { (void)parse("user", R"("continue_final_message": true)"); }),
            "continue_final_message | continue_final_message: expected false unless the last "
            "message is the assistant's, "
            "got true");
  EXPECT_EQ(Refusal([&] {
              (void)parse("assistant",
                          R"("continue_final_message": true, "add_generation_prompt": true)");
            }),
            "continue_final_message | continue_final_message: expected false with "
            "add_generation_prompt, got true");
}

TEST(OpenaiRequestTest, MessagesAreKeptForTheTemplate) {
  const ChatCompletionRequest request = ParseChatCompletionRequest(R"({"messages": [
      {"role": "developer", "content": "Be nice."},
      {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "role": "user",
       "name": "Ann"},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [],
       "refusal": null, "function_call": null, "audio": null, "annotations": []},
      {"role": "assistant"},
      {"role": "system", "content": ""}],
      "chat_template_kwargs": {"z": 1, "a": [2]}, "add_generation_prompt": false})",
                                                                   {});
  EXPECT_EQ(request.conversation.messages.dump(),
            R"([{"role":"system","content":"Be nice."},)"
            R"({"role":"user","content":"a\nb","name":"Ann"},)"
            R"({"role":"assistant","content":"","reasoning_content":"hm"},)"
            R"({"role":"assistant","content":""},)"
            R"({"role":"system","content":""}])");
  EXPECT_EQ(request.conversation.template_variables.dump(), R"({"z":1,"a":[2]})");
  EXPECT_FALSE(request.conversation.add_generation_prompt);
}

TEST(OpenaiRequestTest, WrongMessages) {
  const auto refusal = [](const std::string& messages) {
    return Refusal(
        [&] { (void)ParseChatCompletionRequest("{\"messages\": " + messages + "}", {}); });
  };
  EXPECT_EQ(Refusal([] { (void)ParseChatCompletionRequest("{}", {}); }),
            "messages | messages: missing");
  EXPECT_EQ(refusal("null"), "messages | messages: missing");
  EXPECT_EQ(refusal("[]"), "messages | messages: expected at least one message, got an array of 0");
  EXPECT_EQ(refusal("\"Hi\""), "messages | messages: expected an array, got \"Hi\"");
  EXPECT_EQ(refusal("[3]"), "messages[0] | messages[0]: expected an object, got 3");
  const auto second = [&](const std::string& message) {
    return refusal(R"([{"role": "user", "content": "a"}, )" + message + "]");
  };
  EXPECT_EQ(second(R"({"content": "a"})"), "messages[1].role | messages[1].role: missing");
  EXPECT_EQ(second(R"({"role": "function", "content": "a"})"),
            "messages[1].role | messages[1].role: expected one of \"system\", \"developer\", "
            "\"user\", \"assistant\", \"tool\", got \"function\"");
  EXPECT_TRUE(second(R"({"role": 3, "content": "a"})").ends_with("got 3"));
  EXPECT_EQ(second(R"({"role": "user"})"), "messages[1].content | messages[1].content: missing");
  EXPECT_EQ(second(R"({"role": "user", "content": null})"),
            "messages[1].content | messages[1].content: missing");
  EXPECT_EQ(second(R"({"role": "user", "content": 3})"),
            "messages[1].content | messages[1].content: expected a string or an array of text "
            "parts, got 3");
  EXPECT_EQ(second(R"({"role": "user", "content": []})"),
            "messages[1].content | messages[1].content: expected at least one part, got an array "
            "of 0");
  EXPECT_EQ(second(R"({"role": "user", "content": [{"type": "text", "text": "a"},
                       {"type": "image_url", "image_url": {"url": "x"}}]})"),
            "messages[1].content[1].type | messages[1].content[1].type: expected \"text\", got "
            "\"image_url\"");
  EXPECT_EQ(second(R"({"role": "user", "content": ["a"]})"),
            "messages[1].content[0] | messages[1].content[0]: expected an object, got \"a\"");
  EXPECT_EQ(second(R"({"role": "user", "content": [{"type": "text"}]})"),
            "messages[1].content[0].text | messages[1].content[0].text: missing");
  EXPECT_EQ(second(R"({"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]})"),
            "messages[1].content[0].b | messages[1].content[0].b: unknown field");
  EXPECT_EQ(second(R"({"role": "user", "content": "a", "weight": 1})"),
            "messages[1].weight | messages[1].weight: unknown field");
  EXPECT_EQ(second(R"({"role": "user", "content": "a", "name": 1})"),
            "messages[1].name | messages[1].name: expected a string, got 1");
  EXPECT_EQ(second(R"({"role": "assistant", "content": null, "function_call": {}})"),
            "messages[1].function_call | messages[1].function_call: expected null (not supported), "
            "got an object");
}

TEST(OpenaiRequestTest, TemplateVariablesAreAnObjectOfTheirOwnNames) {
  EXPECT_EQ(ChatRefusal(R"("chat_template_kwargs": [])"),
            "chat_template_kwargs | chat_template_kwargs: expected an object, got an array of 0");
  EXPECT_EQ(ChatRefusal(R"("chat_template_kwargs": {"tools": []})"),
            "chat_template_kwargs.tools | chat_template_kwargs.tools: expected as a field of the "
            "request, not of the template");
}

// ---- Prompts ----

TEST(OpenaiRequestTest, PromptsHaveFourForms) {
  const auto prompts = [](const std::string& prompt) {
    return ParseCompletionRequest("{\"prompt\": " + prompt + "}", {}).prompts;
  };
  using Prompts = std::vector<CompletionPrompt>;
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(prompts("\"Hi\""), (Prompts{"Hi"}));
  EXPECT_EQ(prompts(R"(["Hi", "you"])"), (Prompts{"Hi", "you"}));
  EXPECT_EQ(prompts("[0, 2147483647]"), (Prompts{Tokens{0, 2147483647}}));
  EXPECT_EQ(prompts("[[1, 2], [3]]"), (Prompts{Tokens{1, 2}, Tokens{3}}));
}

TEST(OpenaiRequestTest, WrongPrompts) {
  const auto refusal = [](const std::string& prompt, const RequestLimits& limits = {}) {
    return Refusal(
        [&] { (void)ParseCompletionRequest("{\"prompt\": " + prompt + "}", {}, limits); });
  };
  EXPECT_EQ(Refusal([] { (void)ParseCompletionRequest("{}", {}); }), "prompt | prompt: missing");
  EXPECT_EQ(refusal("\"\""), "prompt | prompt: expected a string that is not empty, got \"\"");
  EXPECT_EQ(refusal("[]"),
            "prompt | prompt: expected a string, an array of strings, of token ids, or of such "
            "arrays, got an array of 0");
  EXPECT_TRUE(refusal("{}").ends_with("got an object"));
  EXPECT_TRUE(refusal("[null]").ends_with("got an array of 1"));
  EXPECT_EQ(refusal(R"(["a", ""])"),
            "prompt[1] | prompt[1]: expected a string that is not empty, got \"\"");
  EXPECT_EQ(refusal(R"(["a", 1])"),
            "prompt[1] | prompt[1]: expected a string, as the first, got 1");
  EXPECT_EQ(refusal("[1, \"a\"]"),
            "prompt[1] | prompt[1]: expected an integer 0..2147483647, got \"a\"");
  EXPECT_EQ(refusal("[1.5]"), "prompt[0] | prompt[0]: expected an integer 0..2147483647, got 1.5");
  EXPECT_EQ(refusal("[1, -1]"), "prompt[1] | prompt[1]: expected an integer 0..2147483647, got -1");
  EXPECT_EQ(refusal("[[1], []]"),
            "prompt[1] | prompt[1]: expected at least one token id, got an array of 0");
  EXPECT_EQ(refusal("[[1], 2]"),
            "prompt[1] | prompt[1]: expected an array of token ids, as the first, got 2");
  EXPECT_EQ(refusal("[[1], [[2]]]"),
            "prompt[1][0] | prompt[1][0]: expected an integer 0..2147483647, got an array of 1");
  EXPECT_EQ(refusal(R"(["a", "b"])", {.max_prompts = 1}),
            "prompt | prompt: expected at most 1 prompts, got an array of 2");
}

// ---- Sampling ----

TEST(OpenaiRequestTest, SamplingIsTheModelsUnlessTheRequestSays) {
  GenerationConfig config;
  config.sampling = {
      .temperature = 0.25f, .top_k = 7, .top_p = 0.5f, .min_p = 0.125f, .repetition_penalty = 1.5f};
  const SamplingParams kept = Chat("", {}, config).sampling;
  EXPECT_EQ(kept.temperature, 0.25f);
  EXPECT_EQ(kept.top_k, 7);
  EXPECT_EQ(kept.top_p, 0.5f);
  EXPECT_EQ(kept.min_p, 0.125f);
  EXPECT_EQ(kept.repetition_penalty, 1.5f);
  const GenerationFields given = Chat(R"("temperature": 0, "top_k": -1, "top_p": 1, "min_p": 0,
      "repetition_penalty": 1, "presence_penalty": -2, "frequency_penalty": 2,
      "logprobs": true, "top_logprobs": 20, "seed": -1)",
                                      {}, config);
  EXPECT_EQ(given.sampling.temperature, 0);
  EXPECT_EQ(given.sampling.top_k, 0);
  EXPECT_EQ(given.sampling.top_p, 1);
  EXPECT_EQ(given.sampling.min_p, 0);
  EXPECT_EQ(given.sampling.repetition_penalty, 1);
  EXPECT_EQ(given.sampling.presence_penalty, -2);
  EXPECT_EQ(given.sampling.frequency_penalty, 2);
  EXPECT_EQ(given.sampling.top_logprobs, 20);
  EXPECT_TRUE(given.logprobs);
  EXPECT_EQ(given.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Chat("").seed, std::nullopt);
}

struct WrongField {
  const char* field;     // "name": value
  const char* expected;  // of the message, up to the end
};

TEST(OpenaiRequestTest, WrongValuesAreRefusedWithTheRange) {
  const WrongField wrong[] = {
      {R"("temperature": "hot")", R"(a number 0..2, got "hot")"},
      {R"("temperature": -0.1)", "a number 0..2, got -0.1"},
      {R"("temperature": 2.01)", "a number 0..2, got 2.01"},
      {R"("temperature": true)", "a number 0..2, got true"},
      {R"("top_p": 0)", "a number above 0, up to 1, got 0"},
      {R"("top_p": 1e-60)", "a number above 0, up to 1, got 1e-60"},
      {R"("top_p": 1.5)", "a number above 0, up to 1, got 1.5"},
      {R"("top_p": "1")", R"(a number above 0, up to 1, got "1")"},
      {R"("top_k": -2)", "an integer -1..2147483647, got -2"},
      {R"("top_k": 1.5)", "an integer -1..2147483647, got 1.5"},
      {R"("top_k": 2147483648)", "an integer -1..2147483647, got 2147483648"},
      {R"("min_p": 1.1)", "a number 0..1, got 1.1"},
      {R"("presence_penalty": 3)", "a number -2..2, got 3"},
      {R"("frequency_penalty": -3)", "a number -2..2, got -3"},
      {R"("repetition_penalty": 0)", "a number 0.0001..10000, got 0"},
      {R"("seed": 1.5)", "an integer of 64 bits, got 1.5"},
      {R"("seed": 9223372036854775808)", "an integer of 64 bits, got 9223372036854775808"},
      {R"("n": 0)", "an integer 1..128, got 0"},
      {R"("n": 129)", "an integer 1..128, got 129"},
      {R"("stream": 1)", "true or false, got 1"},
      {R"("model": 1)", "a string, got 1"},
      {R"("ignore_eos": "no")", R"(true or false, got "no")"},
      {R"("skip_special_tokens": 0)", "true or false, got 0"},
      {R"("add_generation_prompt": 0)", "true or false, got 0"},
      {R"("priority": 4294967296)", "an integer -2147483648..2147483647, got 4294967296"},
      {R"("cache_salt": "")", R"(a string that is not empty, got "")"},
      {R"("cache_salt": 3)", "a string, got 3"},
      {R"("timeout": 0)", "a number of seconds above 0, up to 86400, got 0"},
      {R"("timeout": 86401)", "a number of seconds above 0, up to 86400, got 86401"},
      {R"("timeout": "1")", R"(a number of seconds above 0, up to 86400, got "1")"},
      {R"("stop_token_ids": 3)", "an array of token ids, got 3"},
      {R"("max_tokens": 0)", "an integer of 1 or more, got 0"},
      {R"("max_tokens": -1)", "an integer of 1 or more, got -1"},
      {R"("max_tokens": 1.0)", "an integer of 1 or more, got 1.0"},
      {R"("max_completion_tokens": "9")", R"(an integer of 1 or more, got "9")"},
      {R"("min_tokens": -1)", "an integer 0..1073741824, got -1"},
      {R"("logprobs": 5)", "true or false, got 5"},
      {R"("top_logprobs": 21)", "an integer 0..20, got 21"},
      {R"("top_logprobs": 1)", "0 unless \"logprobs\" is true, got 1"},
      {R"("stream_options": {"include_usage": true})",
       "null unless \"stream\" is true, got an object"},
      {R"("stop": 3)", "a string or an array of at most 16 strings, got 3"},
      {R"("stop": "")", R"(a string that is not empty, got "")"},
      {R"("logit_bias": [])", "an object of at most 1024 token ids, got an array of 0"},
  };
  for (const auto& [field, expected] : wrong) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_EQ(ChatRefusal(field), fmt::format("{} | {}: expected {}", name, name, expected));
  }
}

TEST(OpenaiRequestTest, StopTokensAreLimited) {
  const auto many = [](int count) {
    return fmt::format(R"("stop_token_ids": [{}])", fmt::join(std::vector<int>(count, 5), ","));
  };
  EXPECT_EQ(Chat(many(1024)).stop_token_ids.size(), 1024u);
  EXPECT_EQ(ChatRefusal(many(1025)),
            "stop_token_ids | stop_token_ids: expected an array of at most 1024 token ids, got an "
            "array of 1025");
}

TEST(OpenaiRequestTest, LogitBias) {
  const std::vector<LogitBias> biases = Chat(R"("logit_bias": {"7": -100, "12": 0.5})").logit_bias;
  ASSERT_EQ(biases.size(), 2u);
  EXPECT_EQ(biases[0].token, 7);
  EXPECT_EQ(biases[0].bias, -100);
  EXPECT_EQ(biases[1].token, 12);
  EXPECT_EQ(biases[1].bias, 0.5f);
  for (const char* key : {"a", "-1", "1.5", "", " 1", "2147483648", "99999999999999999999"}) {
    const std::string refusal = ChatRefusal(fmt::format(R"("logit_bias": {{"{}": 1}})", key));
    EXPECT_EQ(refusal,
              fmt::format("logit_bias.\"{0}\" | logit_bias.\"{0}\": expected a token id as "
                          "the key",
                          key));
  }
  EXPECT_EQ(ChatRefusal(R"("logit_bias": {"7": 101})"),
            "logit_bias.\"7\" | logit_bias.\"7\": expected a number -100..100, got 101");
  EXPECT_TRUE(ChatRefusal(R"("logit_bias": {"7": "x"})").ends_with("got \"x\""));
}

TEST(OpenaiRequestTest, Stops) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(Chat("").stop, Texts{});
  EXPECT_EQ(Chat(R"("stop": [])").stop, Texts{});
  EXPECT_EQ(Chat(R"("stop": "a")").stop, Texts{"a"});
  EXPECT_EQ(Chat(R"("stop": ["a", "b"])").stop, (Texts{"a", "b"}));
  EXPECT_EQ(Chat(R"("stop_token_ids": [3, 4])").stop_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(ChatRefusal(R"("stop": ["a", ""])"),
            "stop[1] | stop[1]: expected a string that is not empty, got \"\"");
  EXPECT_EQ(ChatRefusal(R"("stop": ["a", 1])"), "stop[1] | stop[1]: expected a string, got 1");
  const std::string long_text(1025, 'x');
  EXPECT_EQ(ChatRefusal("\"stop\": \"" + long_text + "\""),
            "stop | stop: expected a string of at most 1024 bytes, got 1025 bytes");
  std::string many = "\"a\"";
  for (int i = 0; i < 16; ++i) many += ", \"a\"";
  EXPECT_EQ(ChatRefusal("\"stop\": [" + many + "]"),
            "stop | stop: expected a string or an array of at most 16 strings, got an array of 17");
}

TEST(OpenaiRequestTest, StreamOptions) {
  const GenerationFields fields = Chat(R"("stream": true, "stream_options": {"include_usage": true,
              "include_obfuscation": false})");
  EXPECT_TRUE(fields.stream && fields.include_usage);
  EXPECT_FALSE(Chat(R"("stream": true)").include_usage);
  EXPECT_EQ(ChatRefusal(R"("stream": true, "stream_options": {"include_usage": 1})"),
            "stream_options.include_usage | stream_options.include_usage: expected true or false, "
            "got 1");
  EXPECT_EQ(ChatRefusal(R"("stream": true, "stream_options": {"include": 1})"),
            "stream_options.include | stream_options.include: unknown field");
  // As vLLM has it: with include_usage, or not at all.
  EXPECT_FALSE(Chat(R"("stream": true, "stream_options": {"continuous_usage_stats": true})")
                   .continuous_usage);
  EXPECT_TRUE(Chat(R"("stream": true, "stream_options": {"include_usage": true,
                      "continuous_usage_stats": true})")
                  .continuous_usage);
}

TEST(OpenaiRequestTest, LengthsOfAnswers) {
  EXPECT_EQ(Chat("").max_tokens, std::nullopt);
  EXPECT_EQ(Chat("", {.max_output_tokens = 100}).max_tokens, 100);
  EXPECT_EQ(Chat(R"("max_tokens": 5)").max_tokens, 5);
  EXPECT_EQ(Chat(R"("max_completion_tokens": 6)").max_tokens, 6);
  EXPECT_EQ(Chat(R"("max_completion_tokens": 6, "max_tokens": 6)").max_tokens, 6);
  EXPECT_EQ(Chat(R"("max_tokens": 9223372036854775807)").max_tokens, 1 << 30);
  EXPECT_EQ(ChatRefusal(R"("max_completion_tokens": 6, "max_tokens": 7)"),
            "max_completion_tokens | max_completion_tokens: expected 7, as max_tokens, got 6");
  EXPECT_EQ(ChatRefusal(R"("max_tokens": 101)", {.max_output_tokens = 100}),
            "max_tokens | max_tokens: expected at most 100, this server's limit, got 101");
  EXPECT_EQ(Chat(R"("min_tokens": 3)").min_tokens, 3);
  EXPECT_EQ(ChatRefusal(R"("min_tokens": 8, "max_tokens": 7)"),
            "min_tokens | min_tokens: expected 0..7 (max_tokens), got 8");

  EXPECT_EQ(Completion("").generation.max_tokens, 16);
  EXPECT_EQ(Completion("", {.max_output_tokens = 5}).generation.max_tokens, 5);
  EXPECT_EQ(CompletionRefusal(R"("min_tokens": 17)"),
            "min_tokens | min_tokens: expected 0..16 (max_tokens), got 17");
}

TEST(OpenaiRequestTest, APromptAloneIsAskedForWithEcho) {
  const CompletionRequest request = Completion(R"("max_tokens": 0, "echo": true, "logprobs": 2)");
  EXPECT_TRUE(request.echo);
  EXPECT_TRUE(request.generation.prompt_only && request.generation.score_prompt);
  EXPECT_EQ(request.generation.sampling.top_logprobs, 2);
  EXPECT_EQ(MakeTextRequest(request.generation, {1}, {}, {}).tokens.max_tokens, 1);
  EXPECT_EQ(CompletionRefusal(R"("max_tokens": 0)"),
            "max_tokens | max_tokens: expected an integer of 1 or more, got 0");
  EXPECT_FALSE(Completion(R"("echo": true)").generation.score_prompt);
  EXPECT_FALSE(Completion(R"("logprobs": 2)").generation.score_prompt);
}

TEST(OpenaiRequestTest, CompletionLogprobsAndBestOf) {
  EXPECT_FALSE(Completion("").generation.logprobs);
  EXPECT_TRUE(Completion(R"("logprobs": 0)").generation.logprobs);
  EXPECT_EQ(CompletionRefusal(R"("logprobs": true)"),
            "logprobs | logprobs: expected an integer 0..20, got true");
  EXPECT_EQ(CompletionRefusal(R"("logprobs": 21)"),
            "logprobs | logprobs: expected an integer 0..20, got 21");
  EXPECT_EQ(Completion(R"("n": 2, "best_of": 2)").generation.n, 2);
  EXPECT_EQ(CompletionRefusal(R"("n": 2, "best_of": 3)"),
            "best_of | best_of: expected 2, as n, got 3");
}

// ---- For the engine ----

TEST(OpenaiRequestTest, EverythingReachesTheEngine) {
  const GenerationFields fields = Chat(R"("n": 3, "temperature": 0.5, "top_p": 0.75, "top_k": 9,
      "min_p": 0.25, "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 2,
      "seed": 11, "logit_bias": {"4": 1}, "max_tokens": 20, "min_tokens": 2, "stop": "x",
      "stop_token_ids": [5], "ignore_eos": true, "skip_special_tokens": false, "priority": -3,
      "cache_salt": "s", "timeout": 1.5, "logprobs": true, "top_logprobs": 4, "model": "m")");
  EXPECT_EQ(fields.model, "m");
  EXPECT_EQ(fields.timeout, microseconds(1500000));
  const Arrival arrival{.now = EngineClock::time_point(microseconds(10)), .seed = 99};
  const TextRequest request =
      MakeTextRequest(fields, {1, 2, 3}, ReasoningStart::kReasoning, arrival);
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_FALSE(request.skip_special_tokens);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(request.reasoning, ReasoningStart::kReasoning);
  const Request& tokens = request.tokens;
  EXPECT_EQ(tokens.prompt, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(tokens.num_samples, 3);
  EXPECT_EQ(tokens.sampling.temperature, 0.5f);
  EXPECT_EQ(tokens.sampling.top_p, 0.75f);
  EXPECT_EQ(tokens.sampling.top_k, 9);
  EXPECT_EQ(tokens.sampling.min_p, 0.25f);
  EXPECT_EQ(tokens.sampling.presence_penalty, 1);
  EXPECT_EQ(tokens.sampling.frequency_penalty, -1);
  EXPECT_EQ(tokens.sampling.repetition_penalty, 2);
  EXPECT_EQ(tokens.sampling.seed, 11u);
  EXPECT_EQ(tokens.sampling.top_logprobs, 4);
  ASSERT_EQ(tokens.logit_bias.size(), 1u);
  EXPECT_EQ(tokens.logit_bias[0].token, 4);
  EXPECT_EQ(tokens.max_tokens, 20);
  EXPECT_EQ(tokens.min_tokens, 2);
  EXPECT_EQ(tokens.stop_tokens, std::vector<int32_t>{5});
  EXPECT_EQ(tokens.priority, -3);
  EXPECT_EQ(tokens.cache_salt, "s");
  EXPECT_EQ(tokens.deadline, EngineClock::time_point(microseconds(1500010)));
  EXPECT_FALSE(tokens.score_prompt);
}

TEST(OpenaiRequestTest, WhatIsNotSaidIsTheEnginesOwn) {
  const TextRequest request = MakeTextRequest(Chat(""), {1}, {}, {.seed = 99});
  const Request untouched;
  EXPECT_EQ(request.tokens.sampling.seed, 99u);
  EXPECT_EQ(request.tokens.max_tokens, untouched.max_tokens);
  EXPECT_EQ(request.tokens.num_samples, 1);
  EXPECT_EQ(request.tokens.deadline, std::nullopt);
  EXPECT_EQ(request.reasoning, std::nullopt);
  EXPECT_FALSE(request.ignore_eos);
  EXPECT_TRUE(request.skip_special_tokens);
}

TEST(OpenaiRequestTest, AShortTimeoutIsNotNone) {
  EXPECT_EQ(Chat(R"("timeout": 1e-9)").timeout, microseconds(1));
}

// A field that is in a body's schema is known, and one that is not is refused.
template <class Parse>
void ExpectSchemaOfFields(const OrderedJson& schema, const char* sound_body, Parse parse) {
  ASSERT_FALSE(schema["additionalProperties"].get<bool>());
  for (const auto& [name, field] : schema["properties"].items()) {
    OrderedJson body = OrderedJson::parse(sound_body);
    if (!body.contains(name)) body[name] = nullptr;
    EXPECT_NO_THROW((void)parse(body.dump())) << name;
  }
}

TEST(OpenaiRequestTest, SchemasHaveTheFieldsThatAreRead) {
  const char* chat = R"({"messages": [{"role": "user", "content": "a"}]})";
  ExpectSchemaOfFields(ChatCompletionSchema(), chat, [](const std::string& body) {
    return ParseChatCompletionRequest(body, {});
  });
  const char* text = R"({"prompt": "a"})";
  ExpectSchemaOfFields(CompletionSchema(), text,
                       [](const std::string& body) { return ParseCompletionRequest(body, {}); });
}

TEST(OpenaiRequestTest, GenerateTakesTextsOrTokens) {
  const GenerateRequest one = ParseGenerateRequest(
      R"({"text": "a", "sampling_params": {"max_new_tokens": 3, "n": 2, "stop": "b", "sampling_seed": 5,
          "temperature": 0.5}, "stream": true, "rid": "x"})",
      {});
  EXPECT_FALSE(one.is_list);
  EXPECT_TRUE(one.generation.stream);
  EXPECT_EQ(one.generation.max_tokens, 3);
  EXPECT_EQ(one.generation.n, 2);
  EXPECT_EQ(one.generation.seed, 5u);
  EXPECT_EQ(one.generation.sampling.temperature, 0.5f);
  EXPECT_TRUE(one.generation.token_ids);
  EXPECT_FALSE(one.generation.logprobs);
  const GenerateRequest scored = ParseGenerateRequest(
      R"({"text": "a", "return_logprob": true, "top_logprobs_num": 3, "return_text_in_logprobs": true,
          "sampling_params": {"no_stop_trim": true}})",
      {});
  EXPECT_TRUE(scored.generation.logprobs);
  EXPECT_EQ(scored.generation.sampling.top_logprobs, 3);
  EXPECT_TRUE(scored.text_in_logprobs);
  EXPECT_TRUE(scored.generation.include_stop);
  EXPECT_EQ(ParseGenerateRequest(R"({"text": ["a"]})", {}).generation.max_tokens, 128);
  EXPECT_TRUE(ParseGenerateRequest(R"({"input_ids": [[1, 2]]})", {}).is_list);
  EXPECT_FALSE(ParseGenerateRequest(R"({"input_ids": [1, 2]})", {}).is_list);
  for (const char* body :
       {"{}", R"({"text": "a", "input_ids": [1]})", R"({"text": [1]})", R"({"input_ids": ["a"]})",
        R"({"text": "a", "sampling_params": {"stream": true}})", R"({"text": "a", "regex": null})",
        R"({"text": "a", "sampling_params": {"max_new_tokens": 0}})",
        R"({"text": "a", "return_logprob": true, "stream": true})",
        R"({"text": "a", "top_logprobs_num": 1})", R"({"text": "a", "logprob_start_len": 0})"}) {
    EXPECT_THROW((void)ParseGenerateRequest(body, {}), ApiError) << body;
  }
}

}  // namespace
}  // namespace quire
