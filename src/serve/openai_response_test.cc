#include "serve/openai_response.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/response_logprobs.h"
#include "serve/test_tokenizer.h"
#include "text/detokenizer.h"

namespace quire {
namespace {

constexpr float kNoLogprob = -std::numeric_limits<float>::infinity();

const Tokenizer& TestTokenizer() {
  static const std::unique_ptr<const Tokenizer> kTokenizer = SmallTokenizer();
  return *kTokenizer;
}

OrderedJson Parse(const std::string& text) { return ParseOrderedJson(text, "answer"); }

// As JSON, so that keys are compared without regard to their order and a difference is readable.
void ExpectJson(const std::string& actual, const char* expected) {
  EXPECT_EQ(Json::parse(actual).dump(1), Json::parse(expected).dump(1));
}

void ExpectChunks(const std::vector<std::string>& actual,
                  const std::vector<const char*>& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << (actual.empty() ? "" : actual.back());
  for (size_t i = 0; i < actual.size(); ++i) ExpectJson(actual[i], expected[i]);
}

AnswerShape ChatShape() {
  return {.endpoint = Endpoint::kChat,
          .id = "chatcmpl-1",
          .created = 1700000000,
          .model = "m",
          .system_fingerprint = "fp",
          .prompts = {{.tokens = {8, 7, 3}}},
          .tokenizer = &TestTokenizer()};
}

AnswerShape CompletionShape() {
  AnswerShape shape = ChatShape();
  shape.endpoint = Endpoint::kCompletion;
  shape.id = "cmpl-1";
  shape.prompts = {{.text = "Hi!", .tokens = {8, 7, 3}}};
  return shape;
}

// The event of one token, after which the answer has `count`.
TextEvent Token(int32_t token, float logprob, std::string content, int64_t count) {
  TextEvent event;
  event.text.content = std::move(content);
  event.token = TokenScore{.chosen = {.token = token, .logprob = logprob}};
  event.output_tokens = count;
  if (count == 1) event.cached_tokens = TokenCount(2);
  return event;
}

TextEvent End(FinishReason reason, int64_t count) {
  TextEvent event;
  event.finish = reason;
  event.output_tokens = count;
  event.last_of_request = true;
  return event;
}

std::string JoinedAnswer(const WholeAnswer& answer) {
  ReplyPieces pieces = answer.Json();
  std::string all;
  for (std::string piece = pieces(); !piece.empty(); piece = pieces()) all += piece;
  return all;
}

std::string WholeJson(AnswerShape shape, const std::vector<TextEvent>& events) {
  WholeAnswer answer(std::move(shape));
  for (const TextEvent& event : events) {
    EXPECT_FALSE(answer.done());
    answer.Take(0, event);
  }
  EXPECT_TRUE(answer.done());
  return JoinedAnswer(answer);
}

std::vector<std::string> Chunks(AnswerShape shape, const std::vector<TextEvent>& events) {
  StreamedAnswer answer(std::move(shape));
  std::vector<std::string> all;
  for (const TextEvent& event : events) {
    EXPECT_FALSE(answer.done());
    for (std::string& chunk : answer.Take(0, event)) all.push_back(std::move(chunk));
  }
  EXPECT_TRUE(answer.done());
  return all;
}

TEST(OpenaiResponseTest, IdsAreOfTheEndpoint) {
  EXPECT_EQ(MakeAnswerId(Endpoint::kChat, 1, 0xab), "chatcmpl-000000000000000100000000000000ab");
  EXPECT_EQ(MakeAnswerId(Endpoint::kCompletion, 0, 0), "cmpl-00000000000000000000000000000000");
}

TEST(OpenaiResponseTest, AWholeChatAnswer) {
  ExpectJson(
      WholeJson(ChatShape(),
                {Token(7, -0.5f, "Hi", 1), Token(3, -1.5f, "!", 2), End(FinishReason::kStop, 3)}),
      R"({"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "m",
      "system_fingerprint": "fp",
      "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi!", "refusal": null},
                   "logprobs": null, "finish_reason": "stop"}],
      "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6,
                "prompt_tokens_details": {"cached_tokens": 2}}})");
}

TEST(OpenaiResponseTest, ReasoningStandsApart) {
  TextEvent thought = Token(7, -0.5f, "", 1);
  thought.text.reasoning = "Hi";
  TextEvent both = Token(3, -0.5f, "€", 2);
  both.text.reasoning = "!";
  const std::vector<TextEvent> events = {thought, both, End(FinishReason::kLength, 2)};
  const OrderedJson whole = Parse(WholeJson(ChatShape(), events));
  EXPECT_EQ(whole["choices"][0]["message"].dump(),
            R"({"role":"assistant","content":"€","refusal":null,"reasoning_content":"Hi!"})");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  std::vector<std::string> deltas;
  for (const std::string& chunk : Chunks(ChatShape(), events)) {
    deltas.push_back(Parse(chunk)["choices"][0]["delta"].dump());
  }
  EXPECT_EQ(deltas, (std::vector<std::string>{
                        R"({"role":"assistant","content":""})", R"({"reasoning_content":"Hi"})",
                        R"({"reasoning_content":"!"})", R"({"content":"€"})", "{}"}));
}

TEST(OpenaiResponseTest, OffsetsAreThoseOfTheAnswersTextWithEveryKindOfTokenizer) {
  for (const char* name : {"minicpm3", "metaspace", "deepseek_v3"}) {
    const auto tokenizer = OpenTokenizer(std::filesystem::path(QUIRE_TOKENIZERS) / name);
    const auto encode = [&](std::string_view text, bool add) {
      return tokenizer->Encode(text, {.add_special_tokens = add});
    };
    // Behind a prompt that is text, behind one that is a begin token alone, and behind none.
    for (const std::vector<int32_t>& prompt :
         {encode("Once upon", true), encode("", true), std::vector<int32_t>()}) {
      AnswerOffsets offsets(*tokenizer, prompt, 10, true);
      Detokenizer text(*tokenizer, prompt);
      int64_t begun = 10;
      for (const int32_t token : encode(" a time there was\n a wolf", false)) {
        EXPECT_EQ(offsets.Next(token), begun) << name << ", behind " << prompt.size();
        begun += CountCharacters(text.Put(token));
      }
    }
  }
}

TEST(OpenaiResponseTest, AStreamedChatAnswer) {
  AnswerShape shape = ChatShape();
  shape.include_usage = true;
  shape.system_fingerprint = "";
  // The second token's text waits for the third.
  ExpectChunks(Chunks(shape, {Token(7, -0.5f, "Hi", 1), Token(4, -1, "", 2),
                              Token(3, -1.5f, "\ufffd!", 3), End(FinishReason::kStop, 4)}),
               {R"({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000,
                 "model": "m", "system_fingerprint": null, "usage": null,
                 "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""},
                              "logprobs": null, "finish_reason": null}]})",
                R"({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000,
                 "model": "m", "system_fingerprint": null, "usage": null,
                 "choices": [{"index": 0, "delta": {"content": "Hi"},
                              "logprobs": null, "finish_reason": null}]})",
                R"({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000,
                 "model": "m", "system_fingerprint": null, "usage": null,
                 "choices": [{"index": 0, "delta": {"content": "�!"},
                              "logprobs": null, "finish_reason": null}]})",
                R"({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000,
                 "model": "m", "system_fingerprint": null, "usage": null,
                 "choices": [{"index": 0, "delta": {},
                              "logprobs": null, "finish_reason": "stop"}]})",
                R"({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000,
                 "model": "m", "system_fingerprint": null, "choices": [],
                 "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7,
                           "prompt_tokens_details": {"cached_tokens": 2}}})"});
}

TEST(OpenaiResponseTest, UsageIsOnlyInAStreamThatAskedForIt) {
  for (const std::string& chunk :
       Chunks(ChatShape(), {Token(7, -1, "Hi", 1), End(FinishReason::kStop, 2)})) {
    EXPECT_FALSE(Parse(chunk).contains("usage"));
    EXPECT_EQ(Parse(chunk)["choices"].size(), 1u);
  }
}

TEST(OpenaiResponseTest, ChatLogprobsHaveExactBytes) {
  AnswerShape shape = ChatShape();
  shape.logprobs = true;
  TextEvent cut = Token(4, -0.5f, "", 1);
  cut.token->top = {{.token = 4, .logprob = -0.5f}, {.token = 50, .logprob = -2}};
  const TextEvent rest = Token(7, kNoLogprob, "\ufffdHi", 2);
  const char* const kFirst = R"({"token": "�", "logprob": -0.5, "bytes": [226], "top_logprobs": [
      {"token": "�", "logprob": -0.5, "bytes": [226]},
      {"token": "token_id:50", "logprob": -2.0, "bytes": null}]})";
  const char* const kSecond =
      R"({"token": "Hi", "logprob": -9999.0, "bytes": [72, 105], "top_logprobs": []})";

  const Json whole = Json::parse(WholeJson(shape, {cut, rest, End(FinishReason::kStop, 3)}));
  const Json expected = {{"content", {Json::parse(kFirst), Json::parse(kSecond)}},
                         {"refusal", nullptr}};
  EXPECT_EQ(whole["choices"][0]["logprobs"].dump(1), expected.dump(1));

  const std::vector<std::string> chunks = Chunks(shape, {cut, rest, End(FinishReason::kStop, 3)});
  ASSERT_EQ(chunks.size(), 4u);  // role, a token without text, a token with text, end
  const Json second = Json::parse(chunks[1])["choices"][0];
  EXPECT_EQ(second["delta"].dump(), R"({"content":""})");
  EXPECT_EQ(second["logprobs"]["content"][0], Json::parse(kFirst));
  const Json third = Json::parse(chunks[2])["choices"][0];
  EXPECT_EQ(third["delta"]["content"], "\ufffdHi");
  EXPECT_EQ(third["logprobs"]["content"], Json::array({Json::parse(kSecond)}));
  EXPECT_TRUE(Json::parse(chunks[3])["choices"][0]["logprobs"].is_null());
}

TEST(OpenaiResponseTest, LogprobsAreInOneChunkOfAnEventThatMakesTwo) {
  AnswerShape shape = ChatShape();
  shape.logprobs = true;
  TextEvent both = Token(7, -1, "Hi", 1);
  both.text.reasoning = "!";
  const std::vector<std::string> chunks = Chunks(shape, {both, End(FinishReason::kStop, 2)});
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(Parse(chunks[1])["choices"][0]["logprobs"]["content"].size(), 1u);
  EXPECT_TRUE(Parse(chunks[2])["choices"][0]["logprobs"].is_null());
}

TEST(OpenaiResponseTest, AWholeCompletion) {
  ExpectJson(
      WholeJson(CompletionShape(), {Token(7, -0.5f, "Hi", 1), End(FinishReason::kLength, 1)}),
      R"({"id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "m",
      "system_fingerprint": "fp",
      "choices": [{"index": 0, "text": "Hi", "logprobs": null, "finish_reason": "length"}],
      "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 2}}})");
}

TEST(OpenaiResponseTest, AStreamedCompletion) {
  TextEvent last = Token(3, -1, "!", 2);
  last.finish = FinishReason::kLength;
  ExpectChunks(Chunks(CompletionShape(), {Token(7, -0.5f, "Hi", 1), last}),
               {R"({"id": "cmpl-1", "object": "text_completion", "created": 1700000000,
                 "model": "m", "system_fingerprint": "fp",
                 "choices": [{"index": 0, "text": "Hi", "logprobs": null, "finish_reason": null}]})",
                R"({"id": "cmpl-1", "object": "text_completion", "created": 1700000000,
                 "model": "m", "system_fingerprint": "fp",
                 "choices": [{"index": 0, "text": "!", "logprobs": null,
                              "finish_reason": "length"}]})"});
}

// " €Hi" in tokens of which one ends inside a character.
TEST(OpenaiResponseTest, CompletionLogprobsNameBytesAndCountCharacters) {
  AnswerShape shape = CompletionShape();
  shape.logprobs = true;
  TextEvent cut = Token(4, -1, "", 2);
  cut.token->top = {{.token = 7, .logprob = -0.25f}, {.token = 50, .logprob = -3}};
  const std::vector<TextEvent> events = {Token(2, -0.5f, " ", 1),    cut,
                                         Token(5, -1, "", 3),        Token(6, -1, "€", 4),
                                         Token(9, -1, "", 5),        Token(7, kNoLogprob, "Hi", 6),
                                         End(FinishReason::kStop, 7)};
  const char* const kLogprobs = R"({
      "tokens": [" ", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "</s>", "Hi"],
      "token_logprobs": [-0.5, -1.0, -1.0, -1.0, -1.0, -9999.0],
      "top_logprobs": [{" ": -0.5}, {"Hi": -0.25, "token_id:50": -3.0, "bytes:\\xe2": -1.0},
                       {"bytes:\\x82": -1.0}, {"bytes:\\xac": -1.0}, {"</s>": -1.0},
                       {"Hi": -9999.0}],
      "text_offset": [0, 1, 1, 1, 2, 2]})";
  const OrderedJson whole = Parse(WholeJson(shape, events));
  EXPECT_EQ(whole["choices"][0]["text"], " €Hi");
  ExpectJson(whole["choices"][0]["logprobs"].dump(), kLogprobs);

  OrderedJson joined = {{"tokens", OrderedJson::array()}, {"text_offset", OrderedJson::array()}};
  for (const std::string& chunk : Chunks(shape, events)) {
    const OrderedJson logprobs = Parse(chunk)["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const char* list : {"tokens", "text_offset"}) {
      for (const OrderedJson& entry : logprobs[list]) joined[list].push_back(entry);
    }
  }
  EXPECT_EQ(joined["tokens"], Parse(kLogprobs)["tokens"]);
  EXPECT_EQ(joined["text_offset"], Parse(kLogprobs)["text_offset"]);
}

TEST(OpenaiResponseTest, EchoPutsThePromptBeforeEveryAnswer) {
  AnswerShape shape = CompletionShape();
  shape.echo = true;
  shape.logprobs = true;
  shape.n = 2;
  TextEvent first = Token(7, -0.5f, "Hi", 1);
  first.prompt_scores = {
      {.chosen = {.token = 7, .logprob = -4}, .top = {}},
      {.chosen = {.token = 3, .logprob = -5}, .top = {{.token = 3, .logprob = -5}}}};
  TextEvent second = Token(3, -0.75f, "!", 1);
  second.sample = 1;
  TextEvent end = End(FinishReason::kStop, 1);
  end.last_of_request = false;
  TextEvent other_end = End(FinishReason::kLength, 1);
  other_end.sample = 1;
  const std::vector<TextEvent> events = {first, second, end, other_end};
  const OrderedJson whole = Parse(WholeJson(shape, events));
  EXPECT_EQ(whole["choices"][0]["text"], "Hi!Hi");
  EXPECT_EQ(whole["choices"][1]["text"], "Hi!!");
  EXPECT_EQ(whole["choices"][1]["finish_reason"], "length");
  ExpectJson(whole["choices"][0]["logprobs"].dump(), R"({
      "tokens": ["<s>", "Hi", "!", "Hi"], "token_logprobs": [null, -4.0, -5.0, -0.5],
      "top_logprobs": [null, {"Hi": -4.0}, {"!": -5.0}, {"Hi": -0.5}],
      "text_offset": [0, 0, 2, 3]})");
  ExpectJson(whole["choices"][1]["logprobs"]["token_logprobs"].dump(), "[null, -4.0, -5.0, -0.75]");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 2);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 3);

  std::vector<std::string> texts(2);
  for (const std::string& chunk : Chunks(shape, events)) {
    const OrderedJson choice = Parse(chunk)["choices"][0];
    texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>() + "|";
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"Hi!Hi||", "Hi!!||"}));
}

TEST(OpenaiResponseTest, SpecialTokensOfAPromptsTextHaveTheirPlaceInIt) {
  AnswerShape shape = CompletionShape();
  shape.echo = true;
  shape.logprobs = true;
  shape.prompts = {{.text = "€</s>!", .tokens = {8, 4, 5, 6, 9, 3}}};
  TextEvent first = Token(7, -0.5f, "Hi", 1);
  for (const int32_t token : {4, 5, 6, 9, 3}) {
    first.prompt_scores.push_back({.chosen = {.token = token, .logprob = -1}, .top = {}});
  }
  const OrderedJson whole = Parse(WholeJson(shape, {first, End(FinishReason::kLength, 1)}));
  EXPECT_EQ(whole["choices"][0]["logprobs"]["text_offset"].dump(), "[0,0,0,0,1,5,6]");
}

TEST(OpenaiResponseTest, APromptAloneHasNoAnswer) {
  AnswerShape shape = CompletionShape();
  shape.echo = true;
  shape.prompt_only = true;
  shape.include_usage = true;
  TextEvent drawn = Token(7, -0.5f, "Hi", 1);
  drawn.finish = FinishReason::kStop;
  const OrderedJson whole = Parse(WholeJson(shape, {drawn}));
  EXPECT_EQ(whole["choices"][0].dump(),
            R"({"index":0,"text":"Hi!","logprobs":null,"finish_reason":"length"})");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 0);
  const std::vector<std::string> chunks = Chunks(shape, {drawn});
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(Parse(chunks[0])["choices"][0], whole["choices"][0]);
  EXPECT_EQ(Parse(chunks[1])["usage"], whole["usage"]);
}

TEST(OpenaiResponseTest, ChoicesOfSeveralPromptsAreNumberedThrough) {
  AnswerShape shape = CompletionShape();
  shape.prompts = {{.text = "Hi", .tokens = {7}}, {.text = "!", .tokens = {3, 3}}};
  shape.n = 2;
  WholeAnswer answer(shape);
  int64_t count = 0;
  for (const size_t prompt : {1, 0}) {
    for (const int32_t sample : {0, 1}) {
      EXPECT_FALSE(answer.done());
      TextEvent event = Token(3, -1, std::to_string(prompt) + std::to_string(sample), 1);
      event.sample = sample;
      event.finish = FinishReason::kLength;
      event.cached_tokens = TokenCount(1);
      answer.Take(prompt, event);
      ++count;
    }
  }
  ASSERT_TRUE(answer.done());
  const OrderedJson json = Parse(JoinedAnswer(answer));
  ASSERT_EQ(json["choices"].size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(json["choices"][i]["index"], i);
    EXPECT_EQ(json["choices"][i]["text"], std::to_string(i / 2) + std::to_string(i % 2));
  }
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], count);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST(OpenaiResponseTest, IdsOfPromptAndAnswerIfAskedFor) {
  AnswerShape chat = ChatShape();
  chat.token_ids = true;
  AnswerShape completion = CompletionShape();
  completion.token_ids = true;
  const std::vector<TextEvent> events = {Token(3, -1, "a", 1), Token(5, -1, "", 2),
                                         End(FinishReason::kStop, 2)};
  const Json whole_chat = Json::parse(WholeJson(chat, events));
  EXPECT_EQ(whole_chat["prompt_token_ids"].dump(), "[8,7,3]");
  EXPECT_EQ(whole_chat["choices"][0]["token_ids"].dump(), "[3,5]");
  const Json whole = Json::parse(WholeJson(completion, events));
  EXPECT_FALSE(whole.contains("prompt_token_ids"));
  EXPECT_EQ(whole["choices"][0]["prompt_token_ids"].dump(), "[8,7,3]");
  EXPECT_EQ(whole["choices"][0]["token_ids"].dump(), "[3,5]");
  // A token without text has a chunk of its own.
  std::vector<std::string> ids;
  for (const std::string& text : Chunks(chat, events)) {
    const Json chunk = Json::parse(text);
    ids.push_back(chunk["choices"][0]["token_ids"].dump());
    EXPECT_EQ(chunk.contains("prompt_token_ids"), ids.size() == 1);
  }
  EXPECT_EQ(ids, (std::vector<std::string>{"[]", "[3]", "[5]", "[]"}));
  ids.clear();
  for (const std::string& text : Chunks(completion, events)) {
    const Json choice = Json::parse(text)["choices"][0];
    ids.push_back(choice["token_ids"].dump());
    EXPECT_EQ(choice.contains("prompt_token_ids"), ids.size() == 1);
  }
  EXPECT_EQ(ids, (std::vector<std::string>{"[3]", "[5]", "[]"}));
  EXPECT_EQ(WholeJson(ChatShape(), events).find("token_ids"), std::string::npos);
}

TEST(OpenaiResponseTest, AGeneratedTextWithItsLogprobs) {
  AnswerShape shape = CompletionShape();
  shape.endpoint = Endpoint::kGenerate;
  shape.token_ids = true;
  std::vector<TextEvent> events = {Token(3, -0.5f, "a", 1), Token(5, kNoLogprob, "b", 2),
                                   End(FinishReason::kLength, 2)};
  const char* plain = R"({"text": "ab", "output_ids": [3, 5], "meta_info": {"id": "cmpl-1",
    "finish_reason": {"type": "length", "length": 2}, "prompt_tokens": 3, "completion_tokens": 2,
    "cached_tokens": 2}})";
  ExpectJson(WholeJson(shape, events), plain);
  const std::vector<std::string> chunks = Chunks(shape, events);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(Json::parse(chunks[0])["output_ids"].dump(), "[3]");
  ExpectJson(chunks[2], plain);
  shape.logprobs = true;
  Json meta = Json::parse(WholeJson(shape, events))["meta_info"];
  EXPECT_EQ(meta["output_token_logprobs"].dump(), "[[-0.5,3,null],[-9999.0,5,null]]");
  EXPECT_EQ(meta["output_token_logprobs_length"], 2);
  EXPECT_EQ(meta["input_token_logprobs"].dump(), "[]");
  EXPECT_FALSE(meta.contains("output_top_logprobs"));
  events[0].token->top = {{.token = 4, .logprob = -0.25f}, {.token = 3, .logprob = -0.5f}};
  shape.top_logprobs = 2;
  shape.text_in_logprobs = true;
  shape.is_list = true;
  const Json list = Json::parse(WholeJson(shape, events));
  EXPECT_EQ(list[0]["index"], 0);
  meta = list[0]["meta_info"];
  const Json name = TestTokenizer().TokenBytes(3);
  EXPECT_EQ(meta["output_token_logprobs"][0], Json({-0.5, 3, name}));
  EXPECT_EQ(meta["output_top_logprobs"][0][0][1], 4);
  EXPECT_EQ(meta["output_top_logprobs"][0][1], Json({-0.5, 3, name}));
  EXPECT_EQ(meta["output_top_logprobs"][1].dump(), "[]");
}

TEST(OpenaiResponseTest, AnAnswerThatDoesNotEndWellIsAnError) {
  const std::vector<std::pair<FinishReason, int>> ends = {{FinishReason::kCancelled, 503},
                                                          {FinishReason::kDeadline, 408},
                                                          {FinishReason::kFailed, 500}};
  for (const auto& [reason, status] : ends) {
    TextEvent end = End(reason, 1);
    end.error = "page 7 is lost";
    WholeAnswer whole(ChatShape());
    StreamedAnswer streamed(ChatShape());
    whole.Take(0, Token(7, -1, "Hi", 1));
    EXPECT_EQ(streamed.Take(0, Token(7, -1, "Hi", 1)).size(), 2u);
    EXPECT_FALSE(whole.error().has_value());
    whole.Take(0, end);
    EXPECT_TRUE(streamed.Take(0, end).empty());
    for (const auto& error : {whole.error(), streamed.error()}) {
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->status(), status);
      EXPECT_EQ(std::string(error->what()).find("page 7 is lost") != std::string::npos,
                reason == FinishReason::kFailed);
    }
    EXPECT_TRUE(whole.done() && streamed.done());
    EXPECT_THROW((void)whole.Json(), InternalError);
  }
}

TEST(OpenaiResponseTest, TheFirstErrorStays) {
  AnswerShape shape = ChatShape();
  shape.n = 2;
  StreamedAnswer answer(shape);
  (void)answer.Take(0, End(FinishReason::kDeadline, 0));
  EXPECT_FALSE(answer.done());
  TextEvent other = Token(7, -1, "Hi", 1);
  other.sample = 1;
  EXPECT_TRUE(answer.Take(0, other).empty());
  other.finish = FinishReason::kFailed;
  EXPECT_TRUE(answer.Take(0, other).empty());
  EXPECT_EQ(answer.error()->code(), "deadline_exceeded");
  EXPECT_TRUE(answer.done());
}

TEST(OpenaiResponseTest, TheShapeIsThatOfTheRequest) {
  const CompletionRequest completion = ParseCompletionRequest(
      R"({"prompt": "a", "echo": true, "max_tokens": 0, "logprobs": 1, "n": 3, "stream": true,
          "stream_options": {"include_usage": true}, "skip_special_tokens": false})",
      {});
  const AnswerShape shape = MakeAnswerShape(completion);
  EXPECT_EQ(shape.endpoint, Endpoint::kCompletion);
  EXPECT_EQ(shape.n, 3);
  EXPECT_TRUE(shape.logprobs && shape.echo && shape.prompt_only && shape.include_usage);
  EXPECT_FALSE(shape.skip_special_tokens);
  const AnswerShape plain = MakeAnswerShape(
      ParseChatCompletionRequest(R"({"messages": [{"role": "user", "content": "a"}]})", {}));
  EXPECT_EQ(plain.endpoint, Endpoint::kChat);
  EXPECT_FALSE(plain.logprobs || plain.echo || plain.prompt_only || plain.include_usage);
}

TEST(OpenaiResponseTest, ALongAnswerIsWrittenInPiecesThatFitTogether) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    AnswerShape shape = ChatShape();
    shape.endpoint = endpoint;
    shape.logprobs = true;
    std::vector<TextEvent> events;
    for (int i = 0; i < 6000; ++i) events.push_back(Token(7, -0.5f, "Hi", i + 1));
    events.push_back(End(FinishReason::kLength, 6000));
    const std::string json = WholeJson(shape, events);
    EXPECT_GT(json.size(), kPieceBytes);
    const OrderedJson logprobs = Parse(json)["choices"][0]["logprobs"];
    EXPECT_EQ(logprobs[endpoint == Endpoint::kChat ? "content" : "text_offset"].size(), 6000u);
  }
}

TEST(OpenaiResponseTest, Models) {
  const ServedModel model{.id = "m", .created = 5, .context = 4096};
  ExpectJson(ModelsJson(model), R"({"object": "list", "data": [{"id": "m", "object": "model",
      "created": 5, "owned_by": "quire", "root": "m", "parent": null, "permission": [],
      "max_model_len": 4096}]})");
  ExpectJson(ModelJson(model), R"({"id": "m", "object": "model", "created": 5,
      "owned_by": "quire", "root": "m", "parent": null, "permission": [],
      "max_model_len": 4096})");
}

// ---- Calls of tools ----

std::vector<TextEvent> CallEvents(FinishReason reason) {
  std::vector<TextEvent> events;
  for (int64_t i = 1; i <= 3; ++i) events.push_back(Token(7, -1, i == 1 ? "So" : "", i));
  events[1].calls = {{.index = 0, .name = "weather", .arguments = "{\"a\""}};
  events[2].calls = {{.index = 0, .arguments = ": 1}"},
                     {.index = 1, .name = "now", .id = "functions.now:1", .arguments = "{}"}};
  events.push_back(End(reason, 3));
  return events;
}

TEST(OpenaiResponseTest, AWholeAnswerHasItsCalls) {
  const OrderedJson choice =
      Parse(WholeJson(ChatShape(), CallEvents(FinishReason::kStop)))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "So");
  ExpectJson(choice["message"]["tool_calls"].dump(),
             R"([{"id": "call_1_0_0", "type": "function", "function": {"name": "weather",
                  "arguments": "{\"a\": 1}"}},
                 {"id": "functions.now:1", "type": "function", "function": {"name": "now",
                  "arguments": "{}"}}])");
}

TEST(OpenaiResponseTest, AnAnswerOfCallsAloneHasNoContent) {
  std::vector<TextEvent> events = CallEvents(FinishReason::kStop);
  events[0].text.content = "";
  const OrderedJson message = Parse(WholeJson(ChatShape(), events))["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null());
}

TEST(OpenaiResponseTest, CallsThatAreCutOffDoNotEndAsCalls) {
  EXPECT_EQ(Parse(WholeJson(ChatShape(),
                            CallEvents(FinishReason::kLength)))["choices"][0]["finish_reason"],
            "length");
  std::vector<TextEvent> events = CallEvents(FinishReason::kStop);
  events.back().stopped_by = "x";
  EXPECT_EQ(Parse(WholeJson(ChatShape(), events))["choices"][0]["finish_reason"], "stop");
}

TEST(OpenaiResponseTest, CallsStreamAsDeltas) {
  std::vector<std::string> deltas;
  for (const std::string& chunk : Chunks(ChatShape(), CallEvents(FinishReason::kStop))) {
    const OrderedJson choice = Parse(chunk)["choices"][0];
    deltas.push_back(choice["delta"].dump() +
                     (choice["finish_reason"].is_null() ? "" : choice["finish_reason"].dump()));
  }
  EXPECT_EQ(
      deltas,
      (std::vector<std::string>{
          R"({"role":"assistant","content":""})", R"({"content":"So"})",
          R"({"tool_calls":[{"index":0,"id":"call_1_0_0","type":"function","function":)"
          R"({"name":"weather","arguments":"{\"a\""}}]})",
          R"({"tool_calls":[{"index":0,"function":{"arguments":": 1}"}},{"index":1,"id":)"
          R"("functions.now:1","type":"function","function":{"name":"now","arguments":"{}"}}]})",
          R"({}"tool_calls")"}));
}

TEST(OpenaiResponseTest, LogprobsOfCallsComeWithThem) {
  AnswerShape shape = ChatShape();
  shape.logprobs = true;
  shape.token_ids = true;
  int with_tokens = 0;
  for (const std::string& chunk : Chunks(shape, CallEvents(FinishReason::kStop))) {
    const OrderedJson choice = Parse(chunk)["choices"][0];
    EXPECT_EQ(choice["logprobs"].is_null(), choice["token_ids"].empty());
    if (!choice["token_ids"].empty()) ++with_tokens;
    EXPECT_EQ(choice["token_ids"].size(),
              choice["delta"].contains("tool_calls") || choice["delta"].value("content", "") == "So"
                  ? 1u
                  : 0u);
  }
  EXPECT_EQ(with_tokens, 3);
}

}  // namespace
}  // namespace quire
