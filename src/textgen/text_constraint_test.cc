// Answers that are held to something, drawn by a fake runner: whatever else runs beside them, they are
// of the grammar, and the same text.
#include "textgen/text_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "testing/error_message.h"
#include "testing/fake_runner.h"
#include "text/grammar/random_schema.h"
#include "text/grammar/schema_validator.h"
#include "text/tool_call_parser.h"
#include "text/tool_grammar.h"
#include "textgen/text_engine.h"

namespace quire::testing {
namespace {

using Kind = TextConstraint::Kind;

// An engine with little room: answers preempt each other.
struct Machine {
  explicit Machine(const TextModel& model, SchedulerOptions options = {}, int64_t pages = 60)
      : runner({.page_size = PageSize(4),
                .pool_pages = PageCount(pages + 1),
                .context = TokenCount(230),
                .max_seqs = 8,
                .max_step_tokens = TokenCount(32),
                .max_samples = 8,
                .vocab_size = model.tokenizer->vocab_size()}),
        tokens(runner, options),
        engine(tokens, model) {}

  FakeRunner runner;
  Engine tokens;
  TextEngine engine;
};

class TextConstraintTest : public ::testing::Test {
 protected:
  std::shared_ptr<const TokenGrammar> Compile(Kind kind, std::vector<std::string> texts) {
    return compiler_.Compile({.kind = kind, .texts = std::move(texts), .source = "test"});
  }

  TextRequest MakeRequest(std::shared_ptr<const TokenGrammar> grammar,
                          const std::string& prompt = "Once upon a time") const {
    TextRequest request;
    request.tokens.prompt = EncodePrompt(model_, prompt);
    request.tokens.max_tokens = 200;
    request.grammar = std::move(grammar);
    return request;
  }

  std::string Answer(TextRequest request) {
    Machine machine(model_);
    return GenerateText(machine.engine, std::move(request))[0].text.content;
  }

  const TextModel model_ = OpenTextModel(QUIRE_TOKENIZERS "/deepseek_v3");
  ConstraintCompiler compiler_{*model_.tokenizer, model_.tokenizer->vocab_size()};
};

TEST_F(TextConstraintTest, AnAnswerEndsWhereNothingCanFollow) {
  for (const bool ignore_eos : {false, true}) {
    Machine machine(model_);
    TextRequest request = MakeRequest(Compile(Kind::kChoice, {"yes, of course", "no"}));
    request.ignore_eos = ignore_eos;
    const TextAnswer answer = GenerateText(machine.engine, request)[0];
    EXPECT_TRUE(answer.text.content == "yes, of course" || answer.text.content == "no")
        << answer.text.content;
    EXPECT_EQ(answer.finish, FinishReason::kStop);
  }
}

TEST_F(TextConstraintTest, EveryKindIsKeptTo) {
  EXPECT_TRUE(Json::parse(Answer(MakeRequest(
                              Compile(Kind::kJsonSchema, {R"({"type": "array", "items": {"type":
                              "boolean"}, "maxItems": 4})"}))))
                  .is_array());
  const std::string digits = Answer(MakeRequest(Compile(Kind::kRegex, {"[0-9]{3}-[0-9]{4}"})));
  ASSERT_EQ(digits.size(), 8u) << digits;
  EXPECT_EQ(digits[3], '-');
  const std::string sum =
      Answer(MakeRequest(Compile(Kind::kEbnf, {"root ::= [0-9]{1,3} (\"+\" [0-9]{1,3}){1,3}"})));
  EXPECT_NE(sum.find('+'), std::string::npos) << sum;
}

TEST_F(TextConstraintTest, AnswersOfRandomSchemasParseAndValidateWhateverRunsBesideThem) {
  constexpr uint32_t kSchemas = 40;
  std::vector<TextRequest> requests;
  std::vector<OrderedJson> schemas;
  for (uint32_t seed = 0; seed < kSchemas; ++seed) {
    schemas.push_back(RandomSchema(seed).Object(2));
    TextRequest request = MakeRequest(Compile(Kind::kJsonSchema, {schemas.back().dump()}),
                                      "Once upon a time " + std::to_string(seed % 7));
    request.tokens.num_samples = 3;
    requests.push_back(request);
  }
  // Alone, and then all at once with little room.
  std::vector<std::vector<TextAnswer>> alone;
  for (const TextRequest& request : requests) {
    Machine machine(model_, {.prefix_cache = PrefixCache::kOff}, 200);
    alone.push_back(GenerateText(machine.engine, request));
  }
  Machine machine(model_);
  std::vector<std::future<std::vector<TextAnswer>>> together;
  for (const TextRequest& request : requests) {
    together.push_back(std::async(
        std::launch::async, [&machine, request] { return GenerateText(machine.engine, request); }));
  }
  int whole = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<TextAnswer> answers = together[i].get();
    for (size_t n = 0; n < answers.size(); ++n) {
      EXPECT_EQ(answers[n].text.content, alone[i][n].text.content) << i << " answer " << n;
      if (answers[n].finish != FinishReason::kStop) continue;  // no room in the context
      ++whole;
      EXPECT_EQ(SchemaValidator(schemas[i]).Check(OrderedJson::parse(answers[n].text.content)), "")
          << answers[n].text.content;
    }
  }
  EXPECT_GT(whole, 60);
  EXPECT_GT(machine.tokens.counters().preemptions, 0);
  const SchedulerSnapshot after = machine.tokens.Snapshot();
  EXPECT_EQ(after.pages_in_use, PageCount(0));
}

TEST_F(TextConstraintTest, AStopStringStillEndsTheAnswer) {
  TextRequest request = MakeRequest(Compile(Kind::kRegex, {"[ab]{20}x"}));
  const std::string whole = Answer(request);
  ASSERT_EQ(whole.size(), 21u);
  request.stop = {whole.substr(5, 3)};
  Machine machine(model_);
  const TextAnswer answer = GenerateText(machine.engine, request)[0];
  EXPECT_EQ(answer.text.content, whole.substr(0, whole.find(request.stop[0])));
  EXPECT_EQ(answer.finish, FinishReason::kStop);
}

TEST_F(TextConstraintTest, ReasoningIsFreeAndWhatFollowsItIsNot) {
  const auto grammar = Compile(Kind::kChoice, {"yes", "no"});
  const auto constraint = MakeAnswerConstraint(
      grammar, *model_.tokenizer, {.end_tokens = {1}, .start = ReasoningStart::kReasoning});
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(model_.tokenizer->vocab_size())));
  // How many tokens it has.
  const auto accept = [&](const std::string& text) {
    const std::vector<int32_t> tokens = model_.tokenizer->Encode(text);
    for (const int32_t token : tokens) EXPECT_TRUE(constraint->Accept(token));
    return std::ssize(tokens);
  };
  const int64_t vocab_size = model_.tokenizer->vocab_size();
  const auto count = [&] {
    EXPECT_TRUE(constraint->Fill(mask));
    int64_t bits = 0;
    for (int64_t i = 0; i < vocab_size; ++i)
      bits += mask[static_cast<size_t>(i / 32)] >> (i % 32) & 1;
    return bits;
  };
  accept("I wonder. yes");
  EXPECT_EQ(count(), vocab_size - 1);  // the answer cannot end before it has begun
  EXPECT_FALSE(constraint->Accept(1));
  EXPECT_FALSE(constraint->IsFinished());
  const int64_t tag = accept("</think>");
  const int64_t few = count();
  EXPECT_LE(few, 6);  // n, no, y, ye, yes
  const int64_t no = accept("no");
  EXPECT_TRUE(constraint->IsFinished());
  constraint->Rollback(no);
  EXPECT_FALSE(constraint->IsFinished());
  EXPECT_EQ(count(), few);
  constraint->Rollback(tag);
  EXPECT_EQ(count(), vocab_size - 1);
  accept("</think>");
  EXPECT_EQ(count(), few);
  EXPECT_FALSE(constraint->Accept(model_.tokenizer->Encode("x")[0]));
}

TEST_F(TextConstraintTest, AModelMayBeginItsReasoningItself) {
  const auto grammar = Compile(Kind::kRegex, {"\\n?(yes|no)"});
  const int32_t think = model_.tokenizer->Encode("<think>")[0];
  const auto make = [&](ReasoningStart start) {
    return MakeAnswerConstraint(grammar, *model_.tokenizer, {.end_tokens = {1}, .start = start});
  };
  EXPECT_FALSE(make(ReasoningStart::kContent)->Accept(think));
  const auto constraint = make(ReasoningStart::kEither);
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(model_.tokenizer->vocab_size())));
  const auto allows = [&](int32_t token) {
    EXPECT_TRUE(constraint->Fill(mask));
    return (mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
  };
  const auto accept = [&](const std::string& text) {
    const std::vector<int32_t> tokens = model_.tokenizer->Encode(text);
    for (const int32_t token : tokens) EXPECT_TRUE(constraint->Accept(token)) << text;
    return std::ssize(tokens);
  };
  const int32_t line = model_.tokenizer->Encode("\n")[0], other = model_.tokenizer->Encode("x")[0];
  EXPECT_TRUE(allows(think) && allows(line));
  EXPECT_FALSE(allows(other));
  // It does, and then there is a text.
  ASSERT_EQ(accept("\n"), 1);
  EXPECT_TRUE(allows(think));
  EXPECT_FALSE(allows(line));
  ASSERT_EQ(accept("<think>"), 1);
  EXPECT_TRUE(allows(other));
  EXPECT_FALSE(allows(1));
  const int64_t thoughts = accept("hm no</think>");
  EXPECT_FALSE(allows(think) || allows(other));
  EXPECT_TRUE(allows(line));  // what came before is no part of it
  const int64_t answer = accept("\nyes");
  EXPECT_TRUE(constraint->IsFinished());
  // All of it can be taken back, part by part or at once.
  constraint->Rollback(answer);
  EXPECT_TRUE(allows(line));
  constraint->Rollback(thoughts);
  EXPECT_TRUE(allows(other));
  constraint->Rollback(1);
  EXPECT_TRUE(allows(think));
  EXPECT_FALSE(allows(line) || allows(other));
  accept("<think>a</think>\nno");
  constraint->Rollback(std::ssize(model_.tokenizer->Encode("<think>a</think>\nno")) + 1);
  EXPECT_TRUE(allows(think) && allows(line));
  // It does not.
  accept("no");
  EXPECT_TRUE(constraint->IsFinished());
  EXPECT_FALSE(constraint->Accept(think));
}

TEST_F(TextConstraintTest, EndTokensMayFollowWhereTheTextMayEnd) {
  const auto grammar = Compile(Kind::kRegex, {"a+"});
  const auto constraint = MakeAnswerConstraint(grammar, *model_.tokenizer, {.end_tokens = {1, 7}});
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(model_.tokenizer->vocab_size())));
  const auto is_set = [&](int32_t token) {
    EXPECT_TRUE(constraint->Fill(mask));
    return (mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1u) != 0;
  };
  EXPECT_FALSE(is_set(1));
  ASSERT_TRUE(constraint->Accept(model_.tokenizer->Encode("a")[0]));
  EXPECT_TRUE(is_set(1));
  EXPECT_TRUE(is_set(7));
  ASSERT_TRUE(constraint->Accept(1));
  EXPECT_TRUE(constraint->IsFinished());
  constraint->Rollback(1);
  EXPECT_FALSE(constraint->IsFinished());
}

TEST_F(TextConstraintTest, AnAnswerThatCannotGoOnFailsAloneAndSaysWhy) {
  // The vocabulary of the model has no token for what is asked: it ends behind its tokenizer's.
  const std::vector<std::string_view> letters = {"a", "b"};
  const auto grammar = std::make_shared<const TokenGrammar>(
      CompileGrammar(MakeGrammar({.kind = Kind::kChoice, .texts = {"ac"}, .source = "test"})),
      std::make_shared<const VocabularyTrie>(letters));
  Machine machine(model_);
  std::string error;
  try {
    GenerateText(machine.engine, MakeRequest(grammar));
  } catch (const InternalError& thrown) {
    error = thrown.what();
  }
  EXPECT_NE(error.find("no token of the vocabulary can follow what was asked for"),
            std::string::npos)
      << error;
  TextRequest request = MakeRequest(nullptr);
  request.tokens.max_tokens = 3;
  EXPECT_EQ(GenerateText(machine.engine, request).size(), 1u);
}

TEST_F(TextConstraintTest, CompiledGrammarsAreKeptAndTheOldestAreForgotten) {
  const auto first = Compile(Kind::kRegex, {"a"});
  EXPECT_EQ(Compile(Kind::kRegex, {"a"}), first);
  EXPECT_NE(Compile(Kind::kEbnf, {"root ::= \"a\""}), first);
  for (size_t i = 0; i < ConstraintCompiler::kMaxKept; ++i) {
    Compile(Kind::kChoice, {"a", std::to_string(i)});
  }
  EXPECT_NE(Compile(Kind::kRegex, {"a"}), first);
  EXPECT_EQ(ErrorMessage([&] { Compile(Kind::kRegex, {"("}); }), "test: at byte 2: expected \")\"");
}

// A client that sends large grammars, each once, fills no more than the limit.
TEST_F(TextConstraintTest, LargeGrammarsAreForgottenWhenTogetherTheyAreTooLarge) {
  constexpr int64_t kMost = int64_t{1} << 20;
  ConstraintCompiler compiler(*model_.tokenizer, model_.tokenizer->vocab_size(), kMost);
  const auto compile = [&](size_t length, char end) {
    const std::string text = std::string(length, 'a') + end;
    return compiler.Compile({.kind = Kind::kChoice, .texts = {text}, .source = "test"});
  };
  const auto first = compile(3000, 'a');
  EXPECT_GT(compiler.kept_bytes(), kMost / 16);
  EXPECT_EQ(compile(3000, 'a'), first);
  for (char end = 'b'; end <= 't'; ++end) {
    const auto grammar = compile(3000, end);
    EXPECT_LE(compiler.kept_bytes(), kMost);
    EXPECT_EQ(compile(3000, end), grammar);
  }
  EXPECT_NE(compile(3000, 'a'), first);
  const auto huge = compile(50'000, 'a');
  EXPECT_GT(compiler.kept_bytes(), kMost);
  EXPECT_EQ(compile(50'000, 'a'), huge);
  compile(10, 'a');  // and goes with the next one
  EXPECT_LE(compiler.kept_bytes(), kMost);
}

TEST_F(TextConstraintTest, CallsAreCallsAndNothingElseInEveryFormat) {
  // Short: the vocabulary has few of the marks, and spells the rest.
  const std::vector<ToolDefinition> tools = {
      {.name = "f",
       .parameters = OrderedJson::parse(R"({"type": "object", "properties": {"a": {"type":
        "string", "maxLength": 8}}, "required": ["a"], "additionalProperties": false})")}};
  for (const ToolFormat format : kToolFormats) {
    for (int i = 0; i < 10; ++i) {
      TextRequest request =
          MakeRequest(compiler_.CompileCalls({.format = format, .tools = tools, .parallel = false}),
                      "Once " + std::to_string(i));
      request.skip_special_tokens = false;
      const std::string text = Answer(std::move(request));
      ToolCallParser parser(format,
                            std::make_shared<const TextParameters>(FindTextParameters(tools)));
      std::string content, arguments;
      for (const ToolPieces& pieces : {parser.Put(text), parser.Flush()}) {
        content += pieces.content;
        for (const ToolCallDelta& delta : pieces.calls) arguments += delta.arguments;
      }
      EXPECT_EQ(content, "") << text;
      EXPECT_EQ(parser.num_whole_calls(), 1u) << text;
      ASSERT_TRUE(OrderedJson::accept(arguments)) << text;
      EXPECT_EQ(SchemaValidator(tools[0].parameters).Check(OrderedJson::parse(arguments)), "")
          << text;
    }
  }
}

// Not letter by letter, which no model has learned.
TEST_F(TextConstraintTest, MarksOfCallsAreWrittenAsTheirTokens) {
  const std::vector<std::string> marks = FindToolMarks(ToolFormat::kDeepseekV31, *model_.tokenizer);
  ASSERT_FALSE(marks.empty());
  const std::vector<ToolDefinition> tools = {{.name = "now"}};
  GrammarMatcher matcher(
      compiler_.CompileCalls({.format = ToolFormat::kDeepseekV31, .tools = tools}));
  const std::vector<int32_t> tokens = model_.tokenizer->Encode(
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜>",
      {.add_special_tokens = false});
  for (const int32_t token : tokens) EXPECT_TRUE(matcher.Accept(token)) << token;
  EXPECT_TRUE(matcher.is_complete());
}

}  // namespace
}  // namespace quire::testing
