// Word problems with a number for an answer: read as GSM8K writes them, asked, and judged.
#ifndef QUIRE_CLI_EVAL_EVAL_QUESTIONS_H_
#define QUIRE_CLI_EVAL_EVAL_QUESTIONS_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

struct EvalQuestion {
  std::string question = {};
  std::string answer = {};  // steps, and "#### 42" at the end
  std::string number = {};  // as FindNumber gives it
};

// A JSON object a line, with "question" and "answer"; empty lines are skipped. Throws
// Error(kInvalidArgument) with file and line if one is not that, or its answer has no "#### NUMBER".
std::vector<EvalQuestion> ReadQuestions(const std::filesystem::path& file);

// The number behind the last "####" or, without one, the last number of the text; in one form for all
// that are equal: "1,234.50" is "1234.5", "$7." is "7". nullopt: there is none.
std::optional<std::string> FindNumber(std::string_view text);

// Examples with their answers, then the question: what is asked of a model that is shown how.
std::string FewShotPrompt(std::span<const EvalQuestion> examples, const std::string& question);

// The part of `count` that is right, and where the true part lies with a confidence of 95% (Wilson's
// interval).
struct Accuracy {
  double value = 0;
  double low = 0;
  double high = 0;
};
Accuracy MakeAccuracy(int64_t num_right, int64_t count);

}  // namespace quire::cli

#endif  // QUIRE_CLI_EVAL_EVAL_QUESTIONS_H_
