#include "cli/eval/eval_questions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/test_files.h"

namespace quire::cli {
namespace {

TEST(EvalQuestionsTest, FindsTheNumberBehindTheMark) {
  EXPECT_EQ(FindNumber("12 + 7 = 19\n#### 19"), "19");
  EXPECT_EQ(FindNumber("#### 3 apples, and 5 pears"), "3");
  EXPECT_EQ(FindNumber("#### 1\n#### 2"), "2");
  EXPECT_EQ(FindNumber("7 apples\n#### none"), std::nullopt);
}

TEST(EvalQuestionsTest, WithoutAMarkItIsTheLastNumber) {
  EXPECT_EQ(FindNumber("First 12, then 30."), "30");
  EXPECT_EQ(FindNumber("10-3"), "3");
  EXPECT_EQ(FindNumber("no number"), std::nullopt);
  EXPECT_EQ(FindNumber(""), std::nullopt);
}

TEST(EvalQuestionsTest, EqualNumbersHaveOneForm) {
  for (const auto& [text, number] :
       std::vector<std::pair<std::string, std::string>>{{"1,234.50", "1234.5"},
                                                        {"$7.", "7"},
                                                        {"-$12.00", "-12"},
                                                        {"007", "7"},
                                                        {"0.50", "0.5"},
                                                        {".5", "5"},
                                                        {"-0", "0"},
                                                        {"12,000,000", "12000000"},
                                                        {"3, 4", "3"},
                                                        {"100%", "100"},
                                                        {"1.2.3", "1.2"},
                                                        {"0", "0"},
                                                        {"-4", "-4"},
                                                        {"2,", "2"}}) {
    EXPECT_EQ(FindNumber("#### " + text), number) << text;
  }
}

TEST(EvalQuestionsTest, ReadsTheFormatOfGsm8k) {
  const TempDir dir;
  const auto file =
      dir.Write("q.jsonl",
                "{\"question\": \"How many?\", \"answer\": \"2 + 2 = 4\\n#### 4\"}\n\n"
                "{\"question\": \"And?\", \"answer\": \"#### 1,000\", \"more\": 1}\n");
  const std::vector<EvalQuestion> questions = ReadQuestions(file);
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].question, "How many?");
  EXPECT_EQ(questions[0].number, "4");
  EXPECT_EQ(questions[1].number, "1000");
}

TEST(EvalQuestionsTest, SaysWhatIsWrongAndWhere) {
  const TempDir dir;
  const auto refused = [&](const std::string& text) {
    return InvalidArgument([&] { ReadQuestions(dir.Write("q.jsonl", text)); }, dir.path());
  };
  EXPECT_EQ(refused("\n"), "DIR/q.jsonl: expected a question on a line, got none");
  EXPECT_EQ(refused("{\"question\": \"x\", \"answer\": \"4\"}"),
            "DIR/q.jsonl: line 1: answer: expected \"#### NUMBER\" at its end, got \"4\"");
  EXPECT_TRUE(refused("\n{\"question\": 1, \"answer\": \"#### 4\"}")
                  .starts_with("DIR/q.jsonl: line 2: question: expected a string"));
}

TEST(EvalQuestionsTest, ExamplesStandBeforeTheQuestion) {
  EXPECT_EQ(FewShotPrompt({}, "How many?"), "Question: How many?\nAnswer:");
  const std::vector<EvalQuestion> examples{{.question = "One?", .answer = "#### 1"}};
  EXPECT_EQ(FewShotPrompt(examples, "Two?"),
            "Question: One?\nAnswer: #### 1\n\nQuestion: Two?\nAnswer:");
}

TEST(EvalQuestionsTest, TheIntervalIsWilsons) {
  // By the formula, to six digits.
  const Accuracy most = MakeAccuracy(97, 100);
  EXPECT_DOUBLE_EQ(most.value, 0.97);
  EXPECT_NEAR(most.low, 0.915481, 1e-6);
  EXPECT_NEAR(most.high, 0.989745, 1e-6);
  EXPECT_NEAR(MakeAccuracy(10, 10).high, 1.0, 1e-12);
  EXPECT_NEAR(MakeAccuracy(10, 10).low, 0.722467, 1e-6);
  EXPECT_NEAR(MakeAccuracy(0, 10).low, 0.0, 1e-12);
  EXPECT_EQ(MakeAccuracy(0, 0).high, 1.0);
}

}  // namespace
}  // namespace quire::cli
