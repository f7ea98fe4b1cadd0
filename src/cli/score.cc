#include "cli/score.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/load.h"
#include "cli/model_name.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/ranks.h"
#include "model/rope_table.h"

namespace quire::cli {
namespace {

// Keys in the order in which they are set; numbers as the shortest text that reads back as the same
// float.
using ScoreJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool,
                                       int64_t, uint64_t, float>;

struct ScoreFlags {
  ModelFlags model = {};
  std::string tokens = {};
  std::string tokens_file = {};
  int32_t top = 0;
  int64_t num_continued = 0;
  bool json = false;
};

// What the model says of the place of one token: `chosen` is the token that stands there, or
// kNoToken behind the last.
struct ScoredToken {
  TokenLogprob chosen = {};
  std::vector<TokenLogprob> top = {};
};

struct Scores {
  std::vector<int32_t> tokens = {};
  std::vector<ScoredToken> places = {};  // of token 1, 2, ... and of the one that would follow
  std::vector<int32_t> continuation = {};
  // LongRoPE has two sets of factors, and the context that there is room for decides for all tokens:
  // the same tokens have other scores with other factors. "short" or "long"; empty: no such model.
  std::string rope_factors = {};
};

// ---- What to score ----

std::vector<int32_t> ReadTokens(const ScoreFlags& flags, int64_t vocab_size) {
  Require(flags.tokens.empty() != flags.tokens_file.empty(),
          "--tokens, --tokens-file: expected one of them, got {}",
          flags.tokens.empty() ? "neither" : "both");
  const bool from_file = flags.tokens.empty();
  const std::string where = from_file ? "--tokens-file " + flags.tokens_file : "--tokens";
  const std::string text =
      from_file ? ReadFileOrStdin("--tokens-file", flags.tokens_file) : flags.tokens;
  std::vector<int32_t> tokens;
  for (const int64_t token : ParseInts(where, text, std::numeric_limits<int64_t>::min())) {
    Require(token >= 0 && token < vocab_size,
            "{}: item {}: expected a token of the vocabulary, 0..{}, got {}", where, tokens.size(),
            vocab_size - 1, token);
    tokens.push_back(static_cast<int32_t>(token));
  }
  return tokens;
}

// ---- Scoring ----

// Room for this one sequence.
RunnerOptions OptionsFor(const ScoreFlags& flags, const ModelConfig& config,
                         TokenCount num_tokens) {
  const TokenCount length = num_tokens + TokenCount(flags.num_continued);
  const TokenCount context = flags.model.context_length.value_or(TokenCount(config.max_context));
  Require(
      length <= context, "{} tokens{} exceed the context length of {}", num_tokens,
      flags.num_continued > 0 ? fmt::format(" and {} to continue with", flags.num_continued) : "",
      context);
  RunnerOptions room{.context = length, .max_seqs = 1, .pool_tokens = length};
  room.max_step_tokens = Min(room.max_step_tokens, length);
  Require(flags.model.speculative_algorithm == Speculation::Algorithm::kNone,
          "--speculative-algorithm: expected none, since scores are of tokens that are given");
  return MakeRoom(flags.model, room);
}

std::string RopeFactors(const ModelConfig& config, TokenCount context) {
  if (config.rope.scaling != RopeScaling::kLongRope) return "";
  return UsesLongFactors(config.rope, context) ? "long" : "short";
}

ScoredToken Copy(const StepToken& token) {
  return {.chosen = token.chosen, .top = {token.top.begin(), token.top.end()}};
}

// The step's tokens of the one sequence that it has.
std::span<const StepToken> TokensOfStep(Runner& runner, const StepSequence& sequence) {
  const StepSequenceResult& result = runner.Step({.sequences = {&sequence, 1}}).sequences[0];
  if (result.fault != RowFault::kNone) {
    throw InternalError(
        fmt::format("behind position {}: {}", sequence.position, RowFaultName(result.fault)));
  }
  return result.answers[0].tokens;
}

// In as many steps as the tokens need.
void ScoreTokens(Runner& runner, const PageList& pages, const SamplingParams& params,
                 Scores& scores) {
  const std::span<const int32_t> tokens = scores.tokens;
  const auto chunk = static_cast<size_t>(runner.limits().max_step_tokens.raw());
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const size_t end = std::min(tokens.size(), begin + chunk);
    const StepSequence sequence{.tokens = tokens.subspan(begin, end - begin),
                                .position = TokenCount(begin),
                                .pages = pages.PageIds(),
                                .want = Want::kScores,
                                .sampling = params,
                                .next_token = end < tokens.size() ? tokens[end] : kNoToken};
    for (const StepToken& token : TokensOfStep(runner, sequence)) {
      scores.places.push_back(Copy(token));
    }
  }
}

// The most likely token, and again, from what follows the scored ones.
void Continue(Runner& runner, const PageList& pages, int64_t count, Scores& scores) {
  for (int64_t i = 0; i < count; ++i) {
    if (i == 0) {
      scores.continuation.push_back(scores.places.back().top.front().token);
      continue;
    }
    const StepSequence sequence{.tokens = {&scores.continuation.back(), 1},
                                .position = TokenCount(scores.tokens.size()) + TokenCount(i - 1),
                                .pages = pages.PageIds(),
                                .want = Want::kNextToken,
                                .sampling = {.temperature = 0}};
    scores.continuation.push_back(TokensOfStep(runner, sequence)[0].chosen.token);
  }
}

Scores Score(const ScoreFlags& flags) {
  const OpenedModel model = OpenModel(FindModel(flags.model).folder, flags.model.load_format);
  Scores scores{.tokens = ReadTokens(flags, model.config->vocab_size)};
  const RunnerOptions options = OptionsFor(flags, *model.config, TokenCount(scores.tokens.size()));
  const std::unique_ptr<MeteredRunner> runner =
      LoadRunner(model, flags.model.device, options, PrintLoading(), RanksOf(flags.model));
  scores.rope_factors = RopeFactors(*model.config, runner->limits().context);
  PagePool pool = MakePagePool(runner->limits());
  const std::vector<PageList> pages =
      TakeSequences(pool, 1, TokenCount(scores.tokens.size()) + TokenCount(flags.num_continued));
  // Continuing begins with the first alternative of what follows.
  const int32_t top = flags.num_continued > 0 ? std::max(flags.top, 1) : flags.top;
  ScoreTokens(*runner, pages[0], {.top_logprobs = top}, scores);
  Continue(*runner, pages[0], flags.num_continued, scores);
  for (ScoredToken& place : scores.places) {
    place.top.resize(std::min(place.top.size(), static_cast<size_t>(flags.top)));
  }
  return scores;
}

// ---- Printing ----

std::string ToJson(const Scores& scores, const ScoreFlags& flags) {
  ScoreJson logprobs = {nullptr};  // nothing stands before the first token
  ScoreJson tops = {nullptr};
  for (const ScoredToken& place : scores.places) {
    if (place.chosen.token != kNoToken) logprobs.push_back(place.chosen.logprob);
    ScoreJson top = ScoreJson::object();
    for (const TokenLogprob& t : place.top) top[std::to_string(t.token)] = t.logprob;
    tops.push_back(std::move(top));
  }
  ScoreJson json;
  json["tokens"] = scores.tokens;
  json["logprobs"] = std::move(logprobs);
  json["top_logprobs"] = std::move(tops);
  if (flags.num_continued > 0) json["continuation"] = scores.continuation;
  if (!scores.rope_factors.empty()) json["rope_factors"] = scores.rope_factors;
  return json.dump() + "\n";
}

std::string Row(size_t position, const std::string& token, const std::string& logprob,
                const std::vector<TokenLogprob>& top) {
  std::string row = fmt::format("{:>8}  {:>8}  {:>10}", position, token, logprob);
  for (const TokenLogprob& t : top) row += fmt::format("  {:>7} {:>8.4f}", t.token, t.logprob);
  return row + "\n";
}

std::string ToTable(const Scores& scores, const ScoreFlags& flags) {
  std::string table = fmt::format("{:>8}  {:>8}  {:>10}{}\n", "position", "token", "logprob",
                                  flags.top > 0 ? "  most likely there" : "");
  table += Row(0, std::to_string(scores.tokens[0]), "-", {});
  double sum = 0;
  for (size_t i = 1; i < scores.tokens.size(); ++i) {
    const ScoredToken& place = scores.places[i - 1];
    table += Row(i, std::to_string(scores.tokens[i]), fmt::format("{:.4f}", place.chosen.logprob),
                 place.top);
    sum += place.chosen.logprob;
  }
  if (flags.top > 0) table += Row(scores.tokens.size(), "next", "", scores.places.back().top);
  if (scores.tokens.size() > 1) {
    const auto count = static_cast<double>(scores.tokens.size() - 1);
    table += fmt::format("\nsum {:.4f}, mean {:.4f}, perplexity {:.4f}\n", sum, sum / count,
                         std::exp(-sum / count));
  }
  if (flags.num_continued > 0) {
    table += fmt::format("\ncontinuation {}\n", fmt::join(scores.continuation, ","));
  }
  if (!scores.rope_factors.empty()) {
    table += fmt::format(
        "\nLongRoPE: {} factors; --context-length, and tokens to continue with, choose for all "
        "tokens\n",
        scores.rope_factors);
  }
  return table;
}

void AddScoreFlags(FlagReader& reader, ScoreFlags& flags) {
  const auto text = [](const std::string&, const std::string& value) { return value; };
  reader.Add({"--tokens", "IDS", "", "The tokens, by number: 1,2,3"}, flags.tokens, text);
  reader.Add({"--tokens-file", "FILE", "",
              "The tokens from a file, - for stdin: numbers between spaces or commas, or a\n"
              "JSON array"},
             flags.tokens_file, text);
  reader.Add({"--top", "N", "0", "Show the N most likely tokens of every place, up to 20"},
             flags.top, [](const std::string& where, const std::string& value) {
               return static_cast<int32_t>(ParseInt(where, value, 0, kMaxTopLogprobs));
             });
  reader.Add({"--continue", "N", "0", "Continue with the N most likely tokens, one by one"},
             flags.num_continued, [](const std::string& where, const std::string& value) {
               return ParseInt(where, value, 0, std::numeric_limits<int32_t>::max());
             });
  reader.AddSwitch("--json", flags.json, "Print JSON: tokens, logprobs, top_logprobs");
  AddModelFlags(reader, flags.model);
}

void RunScore(ScoreFlags flags) {
  JoinRanks(flags.model);
  const Scores scores = Score(flags);
  WriteResult(flags.json ? ToJson(scores, flags) : ToTable(scores, flags));
}

}  // namespace

void AddScore(CLI::App& quire) {
  AddCommand(
      quire,
      {"score", "Print the log-probability of every token of a text, given those before it",
       "Example:\n"
       "  quire score models/DeepSeek-V2-Lite --tokens 100000,549,6077,280 --top 5\n"
       "\n"
       "The KV cache and the steps are made as large as the tokens need, unless flags say more.\n"
       "A model with LongRoPE has other scores in a longer context: the output says which factors\n"
       "were used, and --context-length chooses them.\n"},
      AddScoreFlags, RunScore);
}

}  // namespace quire::cli
