#include "cli/eval/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cli/eval/answerer.h"
#include "cli/eval/eval_questions.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/local_model.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/result_file.h"
#include "engine/counters.h"

namespace quire::cli {
namespace {

constexpr int64_t kMaxConcurrency = 1024;
constexpr const char* kOwnGroup = "Options";  // where flags are that have no heading

struct EvalFlags {
  ModelFlags model = {};
  ServerAddress server = {};
  std::string data = {};
  std::optional<int64_t> num_questions = {};
  int64_t num_examples = 0;
  int64_t concurrency = 16;
  AskOptions ask = {};
  bool text = false;
  bool disable_radix_cache = false;
  int64_t num_shown = 0;
  std::string json = {};
};

struct Judged {
  GivenAnswer given = {};
  std::optional<std::string> number = {};
  bool is_right = false;
  // To its end; the others were left out, because of ctrl-C or of a dead server.
  bool was_asked = false;
};

struct EvalRun {
  std::vector<Judged> answers = {};
  double seconds = 0;
  SchedulerCounters counters = {};  // of a model that runs here
  bool was_interrupted = false;
};

// ---- Asking ----

// How many are done, and how many of them are right: on one line of a terminal; elsewhere a line
// now and then.
class EvalProgress {
 public:
  explicit EvalProgress(size_t total) : total_(total) {}

  void Add(bool is_right) {
    const std::lock_guard lock(mutex_);
    ++num_done_;
    num_right_ += is_right;
    const std::string text =
        fmt::format("{} {}/{} questions, {} right", Bar(Part()), num_done_, total_, num_right_);
    if (line_.is_terminal()) return line_.Show(text);
    if (Clock::now() < next_line_) return;
    next_line_ = Clock::now() + kBetweenLines;
    fmt::print(stderr, "{}\n", text);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kBetweenLines{10};

  double Part() const { return static_cast<double>(num_done_) / static_cast<double>(total_); }

  std::mutex mutex_;
  StatusLine line_;
  Clock::time_point next_line_ = Clock::now() + kBetweenLines;
  size_t total_;
  size_t num_done_ = 0;
  size_t num_right_ = 0;
};

// Until all are asked, or `interrupt`, or as many as are asked at a time have no answer and none
// has one.
EvalRun AskAll(Answerer& answerer, std::span<const EvalQuestion> questions,
               std::span<const EvalQuestion> examples, const EvalFlags& flags,
               const Interrupt& interrupt) {
  EvalRun run;
  run.answers.resize(questions.size());
  EvalProgress progress(questions.size());
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> num_answered = 0, num_errors = 0;
  const auto goes_on = [&] {
    return !interrupt.raised() && (num_answered > 0 || num_errors < flags.concurrency);
  };
  const auto work = [&] {
    while (goes_on()) {
      const size_t i = next++;
      if (i >= questions.size()) return;
      const std::string& question = questions[i].question;
      const bool plain = examples.empty() && flags.ask.as == AskAs::kChat;
      Judged& judged = run.answers[i];
      judged.given = answerer.Ask(plain ? question : FewShotPrompt(examples, question), flags.ask);
      if (judged.given.was_interrupted) return;
      judged.was_asked = true;
      ++(judged.given.error.empty() ? num_answered : num_errors);
      judged.number = FindNumber(judged.given.text);
      judged.is_right = judged.given.error.empty() && judged.number == questions[i].number;
      progress.Add(judged.is_right);
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  const size_t count = std::min(static_cast<size_t>(flags.concurrency), questions.size());
  for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return run;
}

// What was asked of both, in order.
void KeepAsked(EvalRun& run, std::vector<EvalQuestion>& questions) {
  size_t kept = 0;
  for (size_t i = 0; i < run.answers.size(); ++i) {
    if (!run.answers[i].was_asked) continue;
    if (kept != i) {
      run.answers[kept] = std::move(run.answers[i]);
      questions[kept] = std::move(questions[i]);
    }
    ++kept;
  }
  run.answers.resize(kept);
  questions.resize(kept);
}

// ---- Reporting ----

struct Totals {
  int64_t right = 0, errors = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
};

Totals AddUp(const EvalRun& run) {
  Totals totals;
  for (const Judged& judged : run.answers) {
    totals.right += judged.is_right;
    totals.errors += !judged.given.error.empty();
    totals.prompt_tokens += judged.given.prompt_tokens;
    totals.cached_tokens += judged.given.cached_tokens;
    totals.output_tokens += judged.given.output_tokens;
  }
  return totals;
}

// Tokens of a step that guesses, and how many of its guesses are right by their place; "" without any.
std::string DraftLine(const SchedulerCounters& counters) {
  if (counters.drafts == 0) return "";
  const auto share = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(counters.drafts);
  };
  std::string places;
  for (size_t i = 0; i < counters.accepted_at.size() && counters.accepted_at[i] > 0; ++i) {
    places += fmt::format("{}{:.2f}", i == 0 ? "" : " ", share(counters.accepted_at[i]));
  }
  return fmt::format(
      "speculation  {:.2f} tokens a step that guesses, mean   by position {}   {} drafts of {} "
      "steps\n",
      1 + share(counters.accepted_tokens), places, counters.drafts, counters.steps);
}

std::string Table(const EvalRun& run) {
  const Totals totals = AddUp(run);
  const auto count = std::ssize(run.answers);
  const Accuracy accuracy = MakeAccuracy(totals.right, count);
  const auto rate = [&](int64_t tokens) { return static_cast<double>(tokens) / run.seconds; };
  return fmt::format(
      "accuracy     {:.4f}   95% interval {:.4f} to {:.4f}   {} of {} right{}\n"
      "time         {:.1f} s   {:.2f} questions/s\n"
      "tokens       {} of prompts ({} cached), {} drawn\n"
      "throughput   {:.0f} prompt tokens/s, {:.0f} output tokens/s\n"
      "{}",
      accuracy.value, accuracy.low, accuracy.high, totals.right, count,
      totals.errors > 0 ? fmt::format(", {} without an answer", totals.errors) : "", run.seconds,
      rate(count), totals.prompt_tokens, totals.cached_tokens, totals.output_tokens,
      rate(totals.prompt_tokens), rate(totals.output_tokens), DraftLine(run.counters));
}

std::string ToJson(const EvalRun& run, std::span<const EvalQuestion> questions,
                   const EvalFlags& flags) {
  const Totals totals = AddUp(run);
  const Accuracy accuracy = MakeAccuracy(totals.right, std::ssize(run.answers));
  OrderedJson json{{"version", QUIRE_VERSION},
                   {"data", flags.data},
                   {"model", flags.server.url.empty() ? flags.model.model : flags.server.url},
                   {"concurrency", flags.concurrency},
                   {"few_shot", flags.num_examples},
                   {"accuracy", accuracy.value},
                   {"interval_95", {accuracy.low, accuracy.high}},
                   {"right", totals.right},
                   {"questions", run.answers.size()},
                   {"interrupted", run.was_interrupted},
                   {"errors", totals.errors},
                   {"seconds", run.seconds},
                   {"prompt_tokens", totals.prompt_tokens},
                   {"cached_tokens", totals.cached_tokens},
                   {"output_tokens", totals.output_tokens}};
  if (flags.server.url.empty()) {
    json["page_size"] = flags.model.page_size.raw();
    json["preemptions"] = run.counters.preemptions;
    json["drafts"] = run.counters.drafts;
    json["draft_tokens"] = run.counters.draft_tokens;
    json["accepted_tokens"] = run.counters.accepted_tokens;
    json["accepted_per_position"] = run.counters.accepted_at;
  }
  OrderedJson answers = OrderedJson::array();
  for (size_t i = 0; i < run.answers.size(); ++i) {
    const Judged& judged = run.answers[i];
    answers.push_back({{"expected", questions[i].number},
                       {"number", judged.number ? OrderedJson(*judged.number) : OrderedJson()},
                       {"right", judged.is_right},
                       {"text", judged.given.text},
                       {"error", judged.given.error}});
  }
  json["answers"] = std::move(answers);
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

void ShowWrong(const EvalRun& run, std::span<const EvalQuestion> questions, int64_t most) {
  for (size_t i = 0; i < questions.size() && most > 0; ++i) {
    const Judged& judged = run.answers[i];
    if (judged.is_right) continue;
    --most;
    fmt::print(stderr, "---- wrong: expected {}, got {}\n{}\n>>> {}\n", questions[i].number,
               judged.number.value_or("none"), questions[i].question,
               judged.given.error.empty() ? judged.given.text : "error: " + judged.given.error);
  }
}

// Throws std::runtime_error if nothing was answered: there is no accuracy then.
void Report(const EvalRun& run, std::span<const EvalQuestion> questions, const EvalFlags& flags,
            ResultFile& result) {
  if (run.answers.empty()) return;  // interrupted
  ShowWrong(run, questions, flags.num_shown);
  const std::string json = ToJson(run, questions, flags);
  result.Write(json);
  if (AddUp(run).errors == std::ssize(run.answers)) {
    throw std::runtime_error("no question was answered: " + run.answers[0].given.error);
  }
  WriteResult(flags.json == "-" ? json : Table(run));
}

// ---- The command ----

// As many sequences as questions are asked at a time.
RunnerOptions OptionsFor(const EvalFlags& flags, const ModelConfig& config) {
  const auto max_seqs = static_cast<int32_t>(std::min<int64_t>(flags.concurrency, 256));
  const TokenCount context = Min(TokenCount(config.max_context), kMostContextForOne);
  return {.context = context,
          .max_seqs = max_seqs,
          .max_step_tokens = Max(TokenCount(512), TokenCount(max_seqs))};
}

void RunEval(EvalFlags flags) {
  if (flags.server.url.empty()) JoinRanks(flags.model);
  Require(!flags.data.empty(), "--data: expected a file of questions, got none");
  std::vector<EvalQuestion> questions = ReadQuestions(flags.data);
  const auto num_examples = static_cast<size_t>(flags.num_examples);
  Require(num_examples < questions.size(),
          "--few-shot: expected fewer than the {} questions of the file, got {}", questions.size(),
          num_examples);
  const std::vector<EvalQuestion> examples(questions.begin(),
                                           questions.begin() + flags.num_examples);
  questions.erase(questions.begin(), questions.begin() + flags.num_examples);
  if (flags.num_questions && std::cmp_less(*flags.num_questions, questions.size())) {
    questions.resize(static_cast<size_t>(*flags.num_questions));
  }
  if (flags.text) flags.ask.as = AskAs::kText;
  // A model that is shown how goes on with a question of its own.
  if (flags.text || flags.num_examples > 0) flags.ask.stop = "Question:";
  ResultFile result("--json", flags.json);

  std::optional<LocalModel> model;
  if (flags.server.url.empty()) {
    LocalModelOptions options;
    options.defaults = [&flags](const ModelConfig& config) { return OptionsFor(flags, config); };
    options.check = [&flags](const BeforeLoading& before) {
      if (flags.ask.as == AskAs::kChat) RequireChat(before.text);
    };
    options.scheduler.max_waiting = kMaxConcurrency;
    if (flags.disable_radix_cache) options.scheduler.prefix_cache = PrefixCache::kOff;
    model.emplace(LoadLocalModel(flags.model, options));
    flags.model.model = model->folder.string();
  }
  const Interrupt interrupt(Interrupt::Times::kOnce);
  const std::unique_ptr<Answerer> answerer =
      model ? MakeLocalAnswerer(*model, interrupt) : MakeServerAnswerer(flags.server, interrupt);
  const size_t num_questions = questions.size();
  EvalRun run = AskAll(*answerer, questions, examples, flags, interrupt);
  run.was_interrupted = interrupt.raised();
  KeepAsked(run, questions);
  if (model) run.counters = model->engine->counters();
  Report(run, questions, flags, result);
  if (!run.was_interrupted) return;
  fmt::print(stderr, "interrupted after {} of {} questions\n", run.answers.size(), num_questions);
  throw Exit{kInterruptedCode};
}

// Flags of the other mode would do nothing, and the result would be taken for what they ask for.
// What the environment holds is no request.
void RefuseWhatDoesNothing(const FlagReader& reader, bool with_url) {
  for (const auto& [name, group] : reader.Typed()) {
    const bool is_of_server = name == "--served-model-name" || name == "--api-key";
    const bool is_of_model = group != kOwnGroup || name == "--disable-radix-cache";
    Require(!is_of_server || with_url, "{}: expected --url with it, got none", name);
    Require(!is_of_model || !with_url,
            "{}: expected without --url, which asks a server and loads no model, got both{}", name,
            name == "--model" ? "; --served-model-name names the server's model" : "");
  }
}

void AddEvalFlags(FlagReader& reader, EvalFlags& flags) {
  const auto text = [](const std::string&, const std::string& value) { return value; };
  const auto count = [](int64_t min, int64_t max) {
    return [min, max](const std::string& where, const std::string& value) {
      return ParseInt(where, value, min, max);
    };
  };
  constexpr int64_t kMany = 1'000'000'000;
  AddModelFlags(reader, flags.model);
  reader.Add(
      {"--data", "FILE", "", "Questions: JSON lines with \"question\" and \"answer\", as GSM8K"},
      flags.data, text);
  reader.Add({"--url", "URL", "", "Ask a running server, and load no model"}, flags.server.url,
             text);
  reader.Add({"--served-model-name", "NAME", "", "The model to ask that server for"},
             flags.server.model, text);
  reader.Add({"--api-key", "KEY", "", "The server's key"}, flags.server.api_key, text).Twin();
  reader.Add({"--num-questions", "N", "all", "The first N of the file"}, flags.num_questions,
             count(1, kMany));
  reader.Add({"--few-shot", "N", "0", "Show the file's first N with their answers before each"},
             flags.num_examples, count(0, 1000));
  reader.Add({"--concurrency", "N", std::to_string(flags.concurrency), "Questions at a time"},
             flags.concurrency, count(1, kMaxConcurrency));
  reader.Add({"--max-tokens", "N", std::to_string(flags.ask.max_tokens), "Tokens of an answer"},
             flags.ask.max_tokens, count(1, kMany));
  reader.Add({"--temperature", "T", "0", "0 takes the most likely token"}, flags.ask.temperature,
             [](const std::string& where, const std::string& value) {
               return ParseNumber(where, value, 0, 2);
             });
  reader.AddSwitch("--text", flags.text,
                   "Put the question as a text to continue, not as a chat message");
  reader.AddSwitch("--disable-radix-cache", flags.disable_radix_cache,
                   "Compute every prompt from its beginning");
  reader.Add({"--show-wrong", "N", "0", "Print the first N wrong answers"}, flags.num_shown,
             count(0, kMany));
  reader.Add({"--json", "FILE", "", "Write everything, every answer too; - for stdout"}, flags.json,
             text);
}

}  // namespace

void AddEval(CLI::App& quire) {
  AddCommand(
      quire,
      {"eval", "Count the word problems that a model gets right",
       "Examples:\n"
       "  quire eval models/DeepSeek-V2-Lite --data gsm8k_test.jsonl --few-shot 5\n"
       "  quire eval --url http://127.0.0.1:8080 --data gsm8k_test.jsonl --concurrency 64\n"
       "\n"
       "An answer is right if the number behind its last ####, or its last number, is the one of "
       "the file.\n"
       "Ctrl-C ends it with what has been answered so far, and 130. Ends with 1 if nothing was "
       "answered.\n"},
      AddEvalFlags, [](const EvalFlags& flags, const FlagReader& reader) {
        RefuseWhatDoesNothing(reader, !flags.server.url.empty());
        RunEval(flags);
      });
}

}  // namespace quire::cli
