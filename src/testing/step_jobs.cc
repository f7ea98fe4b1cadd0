#include "testing/step_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "base/error.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/memory_plan.h"

namespace quire::testing {
namespace {

// Pages of a pool in random order, handed out one by one.
class ShuffledPages {
 public:
  ShuffledPages(PageCount pool_pages, uint64_t seed) {
    for (int64_t i = 1; i < pool_pages.raw(); ++i) free_.push_back(PageId(i));
    std::shuffle(free_.begin(), free_.end(), std::mt19937_64(seed));
  }
  void Grow(std::vector<PageId>& pages, PageCount count) {
    while (PageCount(pages.size()) < count) {
      QUIRE_CHECK(!free_.empty(), "the test needs more pages than the pool has");
      pages.push_back(free_.back());
      free_.pop_back();
    }
  }

 private:
  std::vector<PageId> free_;
};

// One job on its way.
class Running {
 public:
  Running(const Job& job, uint64_t id, PageSize page_size)
      : job_(job), id_(id), page_size_(page_size) {
    tokens_ = job.prompt;
  }

  bool done() const { return std::ssize(report_.output) >= job_.num_output && InOutput(); }
  const JobReport& report() const { return report_; }

  // What comes next, within `budget` tokens.
  StepSequence Next(int64_t budget, ShuffledPages& free) {
    const int64_t end =
        InOutput() ? position_ + 1
                   : std::min({prompt_end() - 1, position_ + job_.chunk, position_ + budget});
    free.Grow(pages_, page_size_.PagesFor(TokenCount(end)));
    StepSequence seq{.id = id_,
                     .tokens = std::span(tokens_).subspan(static_cast<size_t>(position_),
                                                          static_cast<size_t>(end - position_)),
                     .position = TokenCount(position_),
                     .pages = pages_,
                     .kept_pages = kept_pages_,
                     .want = InOutput() ? Want::kNextToken : Want::kScores,
                     .sampling = job_.sampling,
                     .first_sample = job_.sample,
                     .prompt = job_.prompt,
                     .output = report_.output};
    if (!InOutput()) seq.next_token = tokens_[static_cast<size_t>(end)];
    return seq;
  }

  void Take(const StepSequence& seq, const StepSequenceResult& result) {
    QUIRE_CHECK(result.fault == RowFault::kNone, "{}", RowFaultName(result.fault));
    const std::span<const StepToken> tokens = result.answers[0].tokens;
    for (const StepToken& token : tokens) {
      report_.tokens.push_back({token.chosen, {token.top.begin(), token.top.end()}});
    }
    kept_pages_ = PageCount(seq.pages.size());
    position_ += std::ssize(seq.tokens);
    ++report_.num_steps;
    if (seq.want != Want::kNextToken) return;
    report_.output.push_back(tokens[0].chosen.token);
    tokens_.push_back(tokens[0].chosen.token);
  }

 private:
  int64_t prompt_end() const { return std::ssize(job_.prompt); }
  bool InOutput() const { return position_ >= prompt_end() - 1; }

  const Job& job_;
  uint64_t id_;
  PageSize page_size_;
  std::vector<int32_t> tokens_;
  std::vector<PageId> pages_;
  PageCount kept_pages_{0};
  int64_t position_ = 0;
  JobReport report_;
};

bool SameBits(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token == b.token &&
         std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob);
}

}  // namespace

std::unique_ptr<CpuRunner> MakeRunner(const std::filesystem::path& folder,
                                      const RunnerOptions& options, Weights weights) {
  const ModelConfig config = ReadModelConfig(folder);
  const std::unique_ptr<WeightSource> source =
      weights == Weights::kFiles ? OpenWeightFiles(folder, config) : MakeDummyWeights(config);
  const MemoryPlan plan = MakeMemoryPlan(config, *source, options);
  return std::make_unique<CpuRunner>(config, *source, options, plan);
}

std::vector<JobReport> RunJobs(Runner& runner, std::span<const Job> jobs, uint64_t page_seed,
                               const StepObserver& observer) {
  ShuffledPages free(runner.limits().pool_pages, page_seed);
  std::vector<Running> running;
  for (const Job& job : jobs) {
    running.emplace_back(job, uint64_t{running.size()} + 1, runner.limits().page_size);
  }
  for (int64_t step = 0;; ++step) {
    std::vector<StepSequence> seqs;
    std::vector<Running*> owners;
    bool all_done = true;
    int64_t budget = runner.limits().max_step_tokens.raw();
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (running[i].done()) continue;
      all_done = false;
      if (jobs[i].first_step > step || budget == 0) continue;
      seqs.push_back(running[i].Next(budget, free));
      owners.push_back(&running[i]);
      budget -= std::ssize(seqs.back().tokens);
    }
    if (all_done) break;
    if (seqs.empty()) continue;
    const StepResult& result = runner.Step({.sequences = seqs});
    for (size_t i = 0; i < owners.size(); ++i) owners[i]->Take(seqs[i], result.sequences[i]);
    if (observer) observer();
  }
  std::vector<JobReport> reports;
  for (const Running& job : running) reports.push_back(job.report());
  return reports;
}

std::string Difference(const JobReport& a, const JobReport& b) {
  if (a.tokens.size() != b.tokens.size()) {
    return fmt::format("{} tokens against {}", a.tokens.size(), b.tokens.size());
  }
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    const TokenReport& x = a.tokens[i];
    const TokenReport& y = b.tokens[i];
    if (!SameBits(x.chosen, y.chosen)) {
      return fmt::format("position {}: token {} ({}) against {} ({})", i, x.chosen.token,
                         x.chosen.logprob, y.chosen.token, y.chosen.logprob);
    }
    if (!std::ranges::equal(x.top, y.top, SameBits)) {
      return fmt::format("position {}: the alternatives differ", i);
    }
  }
  return "";
}

std::vector<int32_t> RandomTokens(int64_t n, int64_t vocab_size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  }
  return tokens;
}

}  // namespace quire::testing
