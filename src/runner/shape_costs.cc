#include "runner/shape_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "base/units.h"

namespace quire {
namespace {

constexpr size_t kPromptTokens = 16;
// Tokens more, of prompts whose own cost is measured: what a prompt takes whatever its length, a pass of the
// layer, it shares with the answers beside it.
constexpr size_t kMoreTokens = 64;
// Every shape in turn, more than once: what else the machine does comes and goes.
constexpr int kRounds = 3;
constexpr int kStepsEach = 2;

// Not the engine's, which counts from 1.
constexpr uint64_t kFirstId = uint64_t{1} << 63;

// Sequences that answer together, for as long as there is room for what they say.
class Choir {
 public:
  Choir(Runner& runner, int64_t num_seqs, uint64_t first_id, size_t num_prompt = kPromptTokens)
      : runner_(runner),
        num_prompt_(num_prompt),
        singers_(static_cast<size_t>(num_seqs)),
        batch_(singers_.size()) {
    const RunnerLimits& limits = runner.limits();
    const int64_t num_pages = PagesOfEach(limits).raw();
    int64_t page = 1;
    for (Singer& singer : singers_) {
      singer.id = first_id++;
      for (int64_t i = 0; i < num_pages; ++i) singer.pages.emplace_back(page++);
      for (size_t i = 0; i < num_prompt_; ++i) {
        singer.text.push_back(
            static_cast<int32_t>((page + 7 * std::ssize(singer.text)) % limits.vocab_size));
      }
      Begin(singer);
    }
  }

  static PageCount PagesOfEach(const RunnerLimits& limits) {
    return limits.page_size.PagesFor(Length(limits));
  }

  // Whether the context is long enough for one step.
  static bool HasRoom(const RunnerLimits& limits) {
    return Length(limits) > TokenCount(kPromptTokens + 1) + limits.lookahead;
  }

  // False if there was no room for one more.
  bool Step() {
    const RunnerLimits& limits = runner_.limits();
    for (size_t i = 0; i < singers_.size(); ++i) {
      const Singer& singer = singers_[i];
      const std::span<const int32_t> text = singer.text;
      if (TokenCount(text.size()) + limits.lookahead >= Length(limits)) return false;
      batch_[i] = {.id = singer.id,
                   .tokens = text.last(1),
                   .position = TokenCount(text.size() - 1),
                   .pages = singer.pages,
                   .lookahead = limits.lookahead,
                   .want = Want::kNextToken,
                   .sampling = {.temperature = 0},
                   .prompt = text.first(num_prompt_),
                   .output = text.subspan(num_prompt_)};
    }
    const StepResult& result = runner_.Step({.sequences = batch_});
    for (size_t i = 0; i < singers_.size(); ++i) Take(result.sequences[i], singers_[i]);
    return true;
  }

 private:
  struct Singer {
    uint64_t id = 0;
    std::vector<PageId> pages = {};
    std::vector<int32_t> text = {};
  };

  static TokenCount Length(const RunnerLimits& limits) {
    constexpr int64_t kMostText = 256;
    return Min(limits.context, TokenCount(kMostText) + limits.lookahead);
  }

  void Begin(Singer& singer) {
    const size_t chunk =
        std::min<size_t>(num_prompt_, static_cast<size_t>(runner_.limits().max_step_tokens.raw()));
    const std::span<const int32_t> text = singer.text;
    for (size_t first = 0; first < num_prompt_; first += chunk) {
      const size_t count = std::min(chunk, num_prompt_ - first);
      const bool is_last = first + count == num_prompt_;
      const StepSequence seq{.id = singer.id,
                             .tokens = text.subspan(first, count),
                             .position = TokenCount(first),
                             .pages = singer.pages,
                             .want = is_last ? Want::kNextToken : Want::kNothing,
                             .sampling = {.temperature = 0}};
      const StepResult& result = runner_.Step({.sequences = {&seq, 1}});
      if (is_last) Take(result.sequences[0], singer);
    }
  }

  // Of logits that are not finite nothing comes: the text goes on with any token.
  static void Take(const StepSequenceResult& result, Singer& singer) {
    if (result.fault != RowFault::kNone) {
      singer.text.push_back(0);
      return;
    }
    for (const StepToken& token : result.answers[0].tokens) {
      singer.text.push_back(token.chosen.token);
    }
  }

  Runner& runner_;
  const size_t num_prompt_;
  std::vector<Singer> singers_;
  std::vector<StepSequence> batch_;
};

// Of the second of two prompts: what the layer does behind a step may end within the next one.
double SecondsOfPrompt(Runner& runner, uint64_t first_id, size_t num_tokens,
                       const CostMeter& meter) {
  const Choir before(runner, 1, first_id, num_tokens);
  const double begin = meter.seconds();
  const Choir timed(runner, 1, first_id + 1, num_tokens);
  return meter.seconds() - begin;
}

// The shortest of some steps, or infinite without room.
double ShortestStep(Choir& choir, const CostMeter& meter) {
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kStepsEach; ++i) {
    const double begin = meter.seconds();
    if (!choir.Step()) break;
    shortest = std::min(shortest, meter.seconds() - begin);
  }
  return shortest;
}

std::vector<int64_t> NumbersOfSequences(const RunnerLimits& limits) {
  std::vector<int64_t> numbers;
  if (!Choir::HasRoom(limits)) return numbers;
  const int64_t pages_of_each = Choir::PagesOfEach(limits).raw();
  const int64_t most =
      std::min<int64_t>(limits.max_seqs, (limits.pool_pages.raw() - 1) / pages_of_each);
  for (int64_t number = 1; number < most; number *= 4) numbers.push_back(number);
  if (most >= 1) numbers.push_back(most);
  return numbers;
}

// What one takes longer where the layer is to draft behind it.
double SecondsOfPromptToken(Runner& runner, AdaptiveDrafter& drafter, uint64_t next_id,
                            const CostMeter& meter, const std::function<bool()>& has_time) {
  if (runner.limits().context < TokenCount(kPromptTokens + kMoreTokens)) return 0;
  const auto seconds = [&](size_t number, size_t num_tokens) {
    drafter.Fix(number);
    double shortest = std::numeric_limits<double>::infinity();
    for (int round = 0; round < 2 && (round == 0 || has_time()); ++round) {
      next_id += 2;
      shortest = std::min(shortest, SecondsOfPrompt(runner, next_id, num_tokens, meter));
    }
    return shortest;
  };
  const auto fed_longer = [&](size_t num_tokens) {
    return seconds(1, num_tokens) - seconds(0, num_tokens);
  };
  return std::max(fed_longer(kPromptTokens + kMoreTokens) - fed_longer(kPromptTokens), 0.0) /
         static_cast<double>(kMoreTokens);
}

}  // namespace

ShapeCosts MeasureShapeCosts(Runner& runner, AdaptiveDrafter& drafter, const CostMeter& meter) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const std::span<const TreeShape> shapes = drafter.shapes();
  const double begin = meter.seconds();
  const auto has_time = [&] { return meter.seconds() - begin < meter.budget_seconds; };
  ShapeCosts costs;
  uint64_t next_id = kFirstId;
  for (const int64_t num_seqs : NumbersOfSequences(runner.limits())) {
    if (!costs.steps.empty() && !has_time()) break;
    ShapeCost& cost = costs.steps.emplace_back();
    cost.num_seqs = num_seqs;
    cost.seconds.assign(shapes.size() + 1, kInfinite);
    const auto next_choir = [&](size_t number) {
      drafter.Fix(number);
      next_id += static_cast<uint64_t>(num_seqs);
      return Choir(runner, num_seqs, next_id);
    };
    const auto measure = [&](Choir& choir, size_t number) {
      drafter.Fix(number);
      cost.seconds[number] = std::min(cost.seconds[number], ShortestStep(choir, meter));
    };
    for (int round = 0; round < kRounds && (round == 0 || has_time()); ++round) {
      Choir plain = next_choir(0);
      measure(plain, 0);
      Choir drafting = next_choir(1);
      for (size_t i = 1; i <= shapes.size() && has_time(); ++i) measure(drafting, i);
    }
  }
  if (!costs.steps.empty() && has_time()) {
    costs.prompt_token_seconds = SecondsOfPromptToken(runner, drafter, next_id, meter, has_time);
  }
  drafter.Fix(0);
  return costs;
}

std::string ToTable(std::span<const TreeShape> shapes, const ShapeCosts& costs) {
  std::string table = fmt::format("ms of a step   {:>8}", "plain");
  for (const TreeShape& shape : shapes) {
    table +=
        fmt::format(" {:>8}", fmt::format("{}-{}-{}", shape.steps, shape.branches, shape.nodes));
  }
  for (const ShapeCost& cost : costs.steps) {
    table += fmt::format("\n  {:>4} at once ", cost.num_seqs);
    for (const double seconds : cost.seconds) {
      table += std::isinf(seconds) ? fmt::format(" {:>8}", "-")
                                   : fmt::format(" {:>8.2f}", seconds * 1e3);
    }
  }
  return table + fmt::format("\n  and {:.3f} more for each token of a prompt\n",
                             costs.prompt_token_seconds * 1e3);
}

}  // namespace quire
