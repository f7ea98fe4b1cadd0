#include "bench/engine_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "attn/plan_storage.h"
#include "bench/manual_time.h"
#include "engine/engine.h"
#include "engine/scheduler.h"
#include "kernels/cpu/mla_attention.h"
#include "runner/batch_checks.h"
#include "runner/page_row_book.h"

namespace quire::bench {
namespace {

struct EngineShape {
  int32_t num_seqs = 1;
  TokenCount context{1};
  PageSize page_size{64};
};

enum class Part {
  kSchedule,
  kScheduleAndPlan,
  kScheduleAndPages,  // with what a device's runner does about pages: its checks, and its page rows
};

const char* NameOf(Part part) {
  switch (part) {
    case Part::kSchedule:
      return "schedule";
    case Part::kScheduleAndPlan:
      return "host_step";
    case Part::kScheduleAndPages:
      return "host_pages";
  }
  return "?";
}

const char* LabelOf(Part part) {
  switch (part) {
    case Part::kSchedule:
      return "who is in a step of decoding (us)";
    case Part::kScheduleAndPlan:
      return "the same, and its plan (us)";
    case Part::kScheduleAndPages:
      return "the same, and a device's checks and page rows (us)";
  }
  return "?";
}

// Sequences near the context length that decode, and a runner that takes no time.
class DecodingSequences {
 public:
  DecodingSequences(const EngineShape& shape, int num_threads)
      : shape_(shape),
        limits_(LimitsOf(shape)),
        plans_({.num_seqs = shape.num_seqs,
                .query_tokens = TokenCount(shape.num_seqs),
                .context = limits_.context,
                .page_size = shape.page_size,
                .pool_pages = limits_.pool_pages},
               cpu::MlaWorkShape({.num_heads = 16}, num_threads)),
        tokens_(static_cast<size_t>(shape.num_seqs), StepToken{.chosen = {.token = 1}}) {
    for (const StepToken& token : tokens_) answers_.push_back({.tokens = {&token, 1}});
    for (const StepAnswer& answer : answers_) results_.push_back({.answers = {&answer, 1}});
  }

  // Steps until the sequences are no longer near their context length.
  static constexpr int64_t kSteps = 256;

  // Everybody's prompt and first tokens have just been computed, so that lists have room to grow.
  void Restart(Part part) {
    scheduler_.emplace(limits_, SchedulerOptions{});
    book_.emplace(shape_.num_seqs, shape_.page_size.PagesFor(limits_.context));
    for (int32_t i = 0; i < shape_.num_seqs; ++i) {
      scheduler_->Add(
          {.prompt = std::vector<int32_t>(static_cast<size_t>(shape_.context.raw()), i)});
    }
    SerialExecutor serial;
    const Part first = part == Part::kScheduleAndPages ? part : Part::kSchedule;
    for (int i = 0; i < 3; ++i) Step(first, serial);
  }

  void Step(Part part, Executor& executor) {
    const StepBatch batch = scheduler_->Schedule(now_, events_);
    if (part == Part::kScheduleAndPlan) MakePlan(batch, executor);
    if (part == Part::kScheduleAndPages) MakePageRows(batch);
    scheduler_->PrepareNext();
    scheduler_->Commit({.sequences = results_}, events_);
    events_.clear();
  }

 private:
  static RunnerLimits LimitsOf(const EngineShape& shape) {
    const TokenCount context = shape.context + TokenCount(kSteps + 4);
    return {.page_size = shape.page_size,
            .pool_pages = shape.page_size.PagesFor(context) * shape.num_seqs + PageCount(1),
            .context = context,
            .max_seqs = shape.num_seqs,
            .max_step_tokens = shape.context * shape.num_seqs,
            .max_samples = shape.num_seqs,
            .vocab_size = 1000};
  }

  void MakeSequences(const StepBatch& batch) {
    seqs_.clear();
    for (const StepSequence& seq : batch.sequences) {
      const TokenCount q_len(seq.tokens.size());
      seqs_.push_back({.q_len = q_len, .kv_len = seq.position + q_len, .pages = seq.pages});
    }
  }

  void MakePlan(const StepBatch& batch, Executor& executor) {
    MakeSequences(batch);
    plans_.Make(seqs_, executor);
  }

  void MakePageRows(const StepBatch& batch) {
    benchmark::DoNotOptimize(CheckBatch(batch, limits_));
    MakeSequences(batch);
    uses_.resize(seqs_.size());
    book_->Assign(batch.sequences, seqs_, uses_);
    for (size_t i = 0; i < seqs_.size(); ++i) {
      book_->Set(uses_[i].row, uses_[i].unchanged, seqs_[i].pages);
    }
  }

  const EngineShape shape_;
  const RunnerLimits limits_;
  PlanStorage plans_;
  const EngineClock::time_point now_{};
  std::vector<StepToken> tokens_;
  std::vector<StepAnswer> answers_;
  std::vector<StepSequenceResult> results_;
  std::vector<SequenceStep> seqs_;
  std::vector<RowUse> uses_;
  std::optional<PageRowBook> book_;
  std::vector<TokenEvent> events_;
  std::optional<Scheduler> scheduler_;
};

void Run(const EngineShape& shape, Part part, Executor& executor, benchmark::State& state) {
  DecodingSequences seqs(shape, executor.num_threads());
  seqs.Restart(part);
  int64_t steps = 0;
  for (auto _ : state) {
    if (++steps % DecodingSequences::kSteps == 0) {
      state.PauseTiming();
      seqs.Restart(part);
      state.ResumeTiming();
    }
    seqs.Step(part, executor);
  }
  state.SetLabel(LabelOf(part));
  state.counters[kEntries] =
      static_cast<double>((shape.page_size.PagesFor(shape.context) * shape.num_seqs).raw());
}

// A device that takes a while for every step, and notes how long it waited for the next one: from the
// end of a step of all sequences to the next that is submitted.
class WaitingRunner final : public Runner {
 public:
  using Clock = std::chrono::steady_clock;

  WaitingRunner(int32_t num_seqs, std::chrono::microseconds step)
      : limits_{.page_size = PageSize(64),
                .pool_pages = PageCount(num_seqs * 8 + 1),
                .context = TokenCount(512),
                .max_seqs = num_seqs,
                .max_step_tokens = TokenCount(8192),
                .max_samples = num_seqs,
                .vocab_size = 1000},
        step_(step) {}

  const RunnerLimits& limits() const override { return limits_; }
  void Submit(const StepBatch& batch) override {
    const Clock::time_point now = Clock::now();
    const bool is_full = std::ssize(batch.sequences) == limits_.max_seqs;
    if (was_full_ && is_full) waits_.push_back(std::chrono::duration<double>(now - ended_).count());
    was_full_ = is_full;
    results_.assign(batch.sequences.size(), {.answers = {&answer_, 1}});
    ends_ = Clock::now() + step_;
  }
  const StepResult& Collect() override {
    std::this_thread::sleep_until(ends_);
    result_ = {.sequences = results_};
    ended_ = Clock::now();
    return result_;
  }

  double MedianSeconds() {
    std::ranges::sort(waits_);
    return waits_[waits_.size() / 2];
  }

 private:
  const RunnerLimits limits_;
  const std::chrono::microseconds step_;
  const StepToken token_{.chosen = {.token = 1}};
  const StepAnswer answer_{.tokens = {&token_, 1}};
  std::vector<StepSequenceResult> results_;
  StepResult result_;
  bool was_full_ = false;
  Clock::time_point ends_ = {}, ended_ = {};
  std::vector<double> waits_;
};

// Prompts of a page that differ, and answers of as many tokens.
double GapSeconds(int32_t num_seqs, int64_t num_steps) {
  WaitingRunner runner(num_seqs, std::chrono::milliseconds(2));
  std::latch left(num_seqs);
  std::vector<std::vector<TokenEvent>> heard(static_cast<size_t>(num_seqs));
  Engine engine(runner, {});
  for (int32_t i = 0; i < num_seqs; ++i) {
    engine.Submit({.prompt = std::vector<int32_t>(64, i), .max_tokens = num_steps},
                  [&, i](const TokenEvent& event) {
                    heard[static_cast<size_t>(i)].push_back(event);
                    if (event.last_of_request) left.count_down();
                  });
  }
  left.wait();
  return runner.MedianSeconds();
}

void RegisterGap(int32_t num_seqs, bool is_full) {
  const std::string name = fmt::format("gap/b{}/s0k/p64/serial", num_seqs);
  benchmark::RegisterBenchmark(
      name.c_str(),
      [=](benchmark::State& state) {
        ShowProgress(name);
        MeanSeconds(state, [&] { return GapSeconds(num_seqs, is_full ? 400 : 50); });
        state.SetLabel("that a device waits for the engine between two steps of decoding (us)");
        state.counters[kEntries] = num_seqs;
      })
      ->UseManualTime()
      ->Iterations(1)
      ->Repetitions(is_full ? 5 : 3)
      ->ReportAggregatesOnly();
}

void Register(const EngineShape& shape, Part part, bool is_full, std::shared_ptr<Executor> executor,
              const std::string& where) {
  const std::string name = fmt::format("{}/b{}/s{}k/p{}/{}", NameOf(part), shape.num_seqs,
                                       shape.context.raw() / 1024, shape.page_size.raw(), where);
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 ShowProgress(name);
                                 Run(shape, part, *executor, state);
                               })
      ->UseRealTime()
      ->MinTime(is_full ? 0.02 : 0.005)
      ->Repetitions(is_full ? 5 : 3)
      ->ReportAggregatesOnly();
}

}  // namespace

void RegisterEngine(Effort effort, Executor& parallel) {
  const auto serial = std::make_shared<SerialExecutor>();
  const std::shared_ptr<Executor> threads(&parallel, [](Executor*) {});  // the caller's
  const bool is_full = effort == Effort::kFull;
  for (const Part part : {Part::kSchedule, Part::kScheduleAndPlan}) {
    for (const int32_t num_seqs : {1, 64, 256}) {
      if (!is_full && num_seqs != 64) continue;
      for (const int32_t page_size : kPageSizes) {
        const EngineShape shape{
            .num_seqs = num_seqs, .context = TokenCount(4096), .page_size = PageSize(page_size)};
        Register(shape, part, is_full, serial, "serial");
        Register(shape, part, is_full, threads, "parallel");
      }
    }
  }
  for (const int32_t num_seqs : {1, 64, 256}) {
    if (is_full || num_seqs == 64) RegisterGap(num_seqs, is_full);
  }
  // A step's host time must not grow with its pages.
  for (const int64_t context : {8192, 32768, 131072}) {
    if (!is_full && context != 8192) continue;
    for (const int32_t page_size : {1, 64}) {
      const EngineShape shape{
          .num_seqs = 64, .context = TokenCount(context), .page_size = PageSize(page_size)};
      Register(shape, Part::kScheduleAndPages, is_full, serial, "serial");
    }
  }
}

}  // namespace quire::bench
