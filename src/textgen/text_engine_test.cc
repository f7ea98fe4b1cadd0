// Text from tokens that a fake runner draws: what it must be follows from the tokens alone.
#include "textgen/text_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "base/error.h"
#include "testing/error_message.h"
#include "testing/fake_runner.h"
#include "textgen/text_constraint.h"

namespace quire::testing {
namespace {

class TextEngineTest : public ::testing::Test {
 protected:
  RunnerLimits Limits() const {
    return {.page_size = PageSize(4),
            .pool_pages = PageCount(201),
            .context = TokenCount(300),
            .max_seqs = 4,
            .max_step_tokens = TokenCount(64),
            .max_samples = 4,
            .vocab_size = model_.tokenizer->vocab_size()};
  }

  TextRequest MakeRequest(int64_t max_tokens) const {
    TextRequest request;
    request.tokens.prompt = EncodePrompt(model_, "Once upon a time");
    request.tokens.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
  }

  // The first `count` tokens that the fake runner draws as this answer.
  std::vector<int32_t> ExpectedTokens(const TextRequest& request, int64_t count,
                                      int32_t sample = 0) const {
    std::vector<int32_t> history = request.tokens.prompt;
    for (int64_t i = 0; i < count; ++i) {
      history.push_back(ExpectedToken(history, sample, Limits().vocab_size));
    }
    history.erase(history.begin(), history.begin() + std::ssize(request.tokens.prompt));
    return history;
  }
  std::string ExpectedText(const TextRequest& request, int64_t count, int32_t sample = 0) const {
    return model_.tokenizer->Decode(ExpectedTokens(request, count, sample));
  }

  // All events of a request.
  std::vector<TextEvent> Run(TextRequest request) {
    auto events = std::make_shared<std::vector<TextEvent>>();
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> ended = done->get_future();
    engine_.Submit(std::move(request), [events, done](const TextEvent& event) {
      events->push_back(event);
      if (event.last_of_request) done->set_value();
    });
    ended.wait();
    return *events;
  }

  TextModel model_ = OpenTextModel(QUIRE_TOKENIZERS "/deepseek_v3");
  FakeRunner runner_{Limits()};
  Engine tokens_{runner_, {}};
  TextEngine engine_{tokens_, model_};
};

TEST_F(TextEngineTest, TheTextIsThatOfTheTokens) {
  const TextRequest request = MakeRequest(50);
  const std::vector<TextAnswer> answers = GenerateText(engine_, request);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].text.content, ExpectedText(request, 50));
  EXPECT_EQ(answers[0].text.reasoning, "");
  EXPECT_EQ(answers[0].output_tokens, 50);
  EXPECT_STREQ(FinishReasonName(answers[0].finish), "length");
}

// Where a text begins, tokenizers of this kind leave out a space; an answer is not such a place.
TEST_F(TextEngineTest, AnAnswerContinuesItsPrompt) {
  for (const char* name : {"minicpm3", "metaspace", "deepseek_v3"}) {
    const TextModel model = OpenTextModel(std::filesystem::path(QUIRE_TOKENIZERS) / name);
    RunnerLimits limits = Limits();
    limits.vocab_size = model.tokenizer->vocab_size();
    FakeRunner runner(limits);
    Engine tokens(runner, {});
    TextEngine engine(tokens, model);
    int num_spaces = 0;
    for (int i = 0; i < 100; ++i) {
      TextRequest request;
      request.tokens.prompt = EncodePrompt(model, "Once " + std::to_string(i));
      request.tokens.max_tokens = 3;
      request.ignore_eos = true;
      std::vector<int32_t> whole = request.tokens.prompt;
      const std::string prompt = model.tokenizer->Decode(whole);
      for (int j = 0; j < 3; ++j) whole.push_back(ExpectedToken(whole, 0, limits.vocab_size));
      const std::string text = GenerateText(engine, request)[0].text.content;
      EXPECT_EQ(prompt + text, model.tokenizer->Decode(whole)) << name;
      num_spaces += text.starts_with(' ') ? 1 : 0;
    }
    EXPECT_GT(num_spaces, 10) << name;
  }
}

TEST_F(TextEngineTest, EveryTokenGivesAnEventWithItsScore) {
  TextRequest request = MakeRequest(20);
  request.tokens.sampling.top_logprobs = 2;
  const std::vector<TextEvent> events = Run(request);
  const std::vector<int32_t> tokens = ExpectedTokens(request, 20);
  ASSERT_EQ(events.size(), 20u);
  for (size_t i = 0; i < events.size(); ++i) {
    ASSERT_TRUE(events[i].token.has_value());
    EXPECT_EQ(events[i].token->chosen.token, tokens[i]);
    EXPECT_EQ(events[i].token->top.size(), 2u);
    EXPECT_EQ(events[i].output_tokens, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(events[i].cached_tokens.has_value(), i == 0);
    EXPECT_EQ(events[i].last_of_request, i == 19);
  }
}

TEST_F(TextEngineTest, TheModelsEndTokensStopAndAreNoText) {
  TextRequest request = MakeRequest(50);
  model_.generation.eos_tokens = {ExpectedTokens(request, 10)[9]};
  request.ignore_eos = false;
  const std::vector<TextEvent> events = Run(request);
  const TextEvent& last = events.back();
  EXPECT_STREQ(FinishReasonName(last.finish), "stop");
  EXPECT_FALSE(last.stopped_by.has_value());
  const std::vector<int32_t> tokens = ExpectedTokens(request, 10);
  const auto first = std::ranges::find(tokens, tokens[9]) - tokens.begin();
  EXPECT_EQ(last.output_tokens, first + 1);
  // What is counted has a score, the end token too.
  ASSERT_EQ(std::ssize(events), first + 1);
  for (int64_t i = 0; i <= first; ++i) {
    ASSERT_TRUE(events[i].token.has_value()) << i;
    EXPECT_EQ(events[i].token->chosen.token, tokens[i]);
  }
  std::string text;
  for (const TextEvent& event : events) text += event.text.content;
  EXPECT_EQ(text, ExpectedText(request, first));
}

TEST_F(TextEngineTest, AStopStringEndsAnAnswerAndTheEngineComputesNoMoreOfIt) {
  TextRequest request = MakeRequest(100);
  const std::string text = ExpectedText(request, 100);
  // Some that lie across tokens, somewhere in the middle.
  request.stop = {"no such text in it", text.substr(text.size() / 2, 12)};
  const std::vector<TextEvent> events = Run(request);
  std::string answered;
  for (const TextEvent& event : events) answered += event.text.content;
  EXPECT_EQ(answered, text.substr(0, text.find(request.stop[1])));
  EXPECT_STREQ(FinishReasonName(events.back().finish), "stop");
  EXPECT_EQ(events.back().stopped_by, request.stop[1]);
  EXPECT_LT(events.back().output_tokens, 90);
  // The last token in which the string ended was the last that was computed.
  EXPECT_EQ(tokens_.counters().output_tokens, events.back().output_tokens);
}

TEST_F(TextEngineTest, WhatEndedAnAnswerIsPartOfItIfAskedFor) {
  TextRequest request = MakeRequest(100);
  const std::string text = ExpectedText(request, 100);
  request.stop = {"no such text in it", text.substr(text.size() / 2, 12)};
  request.include_stop = true;
  TextAnswer answer = GenerateText(engine_, request)[0];
  EXPECT_EQ(answer.text.content, text.substr(0, text.find(request.stop[1]) + 12));
  EXPECT_STREQ(FinishReasonName(answer.finish), "stop");
  // One that is whole only when the answer has ended, where a longer one might have come.
  request.stop = {text.substr(text.size() - 5), text + " and more"};
  answer = GenerateText(engine_, request)[0];
  EXPECT_EQ(answer.text.content, text.substr(0, text.find(request.stop[0]) + 5));
  // A token that stops has its text there, too.
  request.stop = {};
  model_.generation.eos_tokens = {ExpectedTokens(request, 10)[9]};
  request.ignore_eos = false;
  answer = GenerateText(engine_, request)[0];
  EXPECT_STREQ(FinishReasonName(answer.finish), "stop");
  EXPECT_EQ(answer.text.content, ExpectedText(request, answer.output_tokens));
}

TEST_F(TextEngineTest, TokensBehindAStopStringInTheSameStepAreNoneOfTheAnswers) {
  RunnerLimits limits = Limits();
  limits.max_tree_nodes = limits.lookahead = TokenCount(5);
  FakeRunner runner(limits);
  Engine tokens(runner, {});
  TextEngine engine(tokens, model_);
  for (int64_t last = 5; last < 25; ++last) {
    TextRequest request = MakeRequest(60);
    // Any text that ends with this token, and with no token before it.
    const std::string before = ExpectedText(request, last - 1);
    const std::string stop = ExpectedText(request, last).substr(before.size());
    if (stop.empty() || before.find(stop) != std::string::npos) continue;
    request.stop = {stop};
    const std::vector<TextAnswer> answers = GenerateText(engine, request);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].text.content, before) << last;
    EXPECT_EQ(answers[0].output_tokens, last);
  }
}

TEST_F(TextEngineTest, AStopStringEndsOneOfSeveralAnswers) {
  TextRequest request = MakeRequest(60);
  request.tokens.num_samples = 3;
  const std::string second = ExpectedText(request, 60, 1);
  const std::string stop = second.substr(second.size() / 2, 16);
  ASSERT_EQ(ExpectedText(request, 60, 0).find(stop), std::string::npos);
  ASSERT_EQ(ExpectedText(request, 60, 2).find(stop), std::string::npos);
  request.stop = {stop};
  const std::vector<TextAnswer> answers = GenerateText(engine_, request);
  EXPECT_EQ(answers[0].text.content, ExpectedText(request, 60, 0));
  EXPECT_EQ(answers[1].text.content, second.substr(0, second.find(stop)));
  EXPECT_EQ(answers[2].text.content, ExpectedText(request, 60, 2));
  EXPECT_STREQ(FinishReasonName(answers[1].finish), "stop");
  EXPECT_STREQ(FinishReasonName(answers[2].finish), "length");
}

TEST_F(TextEngineTest, BeforeMinTokensNoStopStringIsLookedFor) {
  TextRequest request = MakeRequest(30);
  request.stop = {ExpectedText(request, 1)};
  ASSERT_FALSE(request.stop[0].empty());
  EXPECT_EQ(GenerateText(engine_, request)[0].text.content, "");
  request.tokens.min_tokens = 30;
  EXPECT_EQ(GenerateText(engine_, request)[0].text.content, ExpectedText(request, 30));
}

TEST_F(TextEngineTest, ReasoningIsSplitOffWhereItIsAskedFor) {
  TextRequest request = MakeRequest(10);
  request.reasoning = ReasoningStart::kReasoning;
  const TextAnswer answer = GenerateText(engine_, request)[0];
  EXPECT_EQ(answer.text.content, "");
  // The splitter drops white space at the edges of reasoning only.
  EXPECT_NE(answer.text.reasoning, "");
  EXPECT_NE(ExpectedText(request, 10).find(answer.text.reasoning), std::string::npos);
}

TEST_F(TextEngineTest, CancelledRequestsEnd) {
  TextRequest request = MakeRequest(250);
  auto done = std::make_shared<std::promise<FinishReason>>();
  std::future<FinishReason> ended = done->get_future();
  engine_.Submit(request, [this, done](const TextEvent& event) {
    if (event.output_tokens == 3) engine_.Cancel(event.request);
    if (event.last_of_request) done->set_value(event.finish);
  });
  EXPECT_STREQ(FinishReasonName(ended.get()), "cancelled");
}

TEST_F(TextEngineTest, WhatCannotBeIsRefused) {
  TextRequest request = MakeRequest(5);
  request.stop = {""};
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { GenerateText(engine_, request); }),
            "stop: expected a text, got an empty one");
  request = MakeRequest(5);
  request.tokens.num_samples = 5;
  EXPECT_EQ(ErrorMessage(ErrorCode::kInvalidArgument, [&] { GenerateText(engine_, request); }),
            "n: expected 1..4, got 5");
}

// An answer that is held to one text is that text.
TEST_F(TextEngineTest, CallsAreApartFromReasoningAndContent) {
  const std::string call = "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>";
  ConstraintCompiler compiler(*model_.tokenizer, Limits().vocab_size);
  TextRequest request = MakeRequest(200);
  request.reasoning = ReasoningStart::kContent;
  request.grammar =
      compiler.Compile({.kind = TextConstraint::Kind::kChoice,
                        .texts = {"<think>hm " + call + "</think>So. " + call + call}});
  for (const bool parallel : {true, false}) {
    request.tools = ToolCallOptions{.format = ToolFormat::kGlm45, .parallel = parallel};
    ReasoningPieces text;
    std::vector<ToolCall> calls;
    const std::vector<TextEvent> events = Run(request);
    for (const TextEvent& event : events) {
      text.reasoning += event.text.reasoning;
      text.content += event.text.content;
      for (const ToolCallDelta& delta : event.calls) {
        if (delta.name) calls.push_back({.name = *delta.name});
        calls[delta.index].arguments += delta.arguments;
      }
    }
    EXPECT_EQ(text.reasoning, "hm " + call);
    EXPECT_EQ(text.content, "So.");
    const ToolCall one{.name = "now", .arguments = R"({"a": 1})"};
    EXPECT_EQ(calls, std::vector<ToolCall>(parallel ? 2 : 1, one));
    EXPECT_STREQ(FinishReasonName(events.back().finish), "stop");
    EXPECT_FALSE(events.back().stopped_by);
  }
}

TEST_F(TextEngineTest, AFailedStepSaysWhy) {
  runner_.FailStep(2, "the step failed");
  try {
    GenerateText(engine_, MakeRequest(5));
    FAIL() << "expected an InternalError";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(), "the step failed");
  }
}

}  // namespace
}  // namespace quire::testing
