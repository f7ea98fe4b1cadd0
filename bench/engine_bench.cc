#include "bench/engine_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attn/plan_storage.h"
#include "engine/scheduler.h"
#include "kernels/cpu/mla_attention.h"

namespace quire::bench {
namespace {

struct EngineShape {
  int32_t num_seqs = 1;
  TokenCount context{1};
  PageSize page_size{64};
};

enum class Part { kSchedule, kScheduleAndPlan };

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
    Restart();
  }

  // Steps until the sequences are no longer near their context length.
  static constexpr int64_t kSteps = 256;

  // Everybody's prompt and first tokens have just been computed, so that lists have room to grow.
  void Restart() {
    scheduler_.emplace(limits_, SchedulerOptions{});
    for (int32_t i = 0; i < shape_.num_seqs; ++i) {
      scheduler_->Add(
          {.prompt = std::vector<int32_t>(static_cast<size_t>(shape_.context.raw()), i)});
    }
    SerialExecutor serial;
    for (int i = 0; i < 3; ++i) Step(Part::kSchedule, serial);
  }

  void Step(Part part, Executor& executor) {
    const StepBatch batch = scheduler_->Schedule(now_, events_);
    if (part == Part::kScheduleAndPlan) MakePlan(batch, executor);
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

  void MakePlan(const StepBatch& batch, Executor& executor) {
    seqs_.clear();
    for (const StepSequence& seq : batch.sequences) {
      const TokenCount q_len(seq.tokens.size());
      seqs_.push_back({.q_len = q_len, .kv_len = seq.position + q_len, .pages = seq.pages});
    }
    plans_.Make(seqs_, executor);
  }

  const EngineShape shape_;
  const RunnerLimits limits_;
  PlanStorage plans_;
  const EngineClock::time_point now_{};
  std::vector<StepToken> tokens_;
  std::vector<StepAnswer> answers_;
  std::vector<StepSequenceResult> results_;
  std::vector<SequenceStep> seqs_;
  std::vector<TokenEvent> events_;
  std::optional<Scheduler> scheduler_;
};

void Run(const EngineShape& shape, Part part, Executor& executor, benchmark::State& state) {
  DecodingSequences seqs(shape, executor.num_threads());
  int64_t steps = 0;
  for (auto _ : state) {
    if (++steps % DecodingSequences::kSteps == 0) {
      state.PauseTiming();
      seqs.Restart();
      state.ResumeTiming();
    }
    seqs.Step(part, executor);
  }
  state.SetLabel(part == Part::kSchedule ? "who is in a step of decoding (us)"
                                         : "the same, and its plan (us)");
  state.counters[kEntries] =
      static_cast<double>((shape.page_size.PagesFor(shape.context) * shape.num_seqs).raw());
}

}  // namespace

void RegisterEngine(Effort effort, Executor& parallel) {
  const auto serial = std::make_shared<SerialExecutor>();
  const bool is_full = effort == Effort::kFull;
  for (const Part part : {Part::kSchedule, Part::kScheduleAndPlan}) {
    for (const int32_t num_seqs : {1, 64, 256}) {
      if (!is_full && num_seqs != 64) continue;
      for (const int32_t page_size : kPageSizes) {
        for (Executor* executor : {static_cast<Executor*>(serial.get()), &parallel}) {
          const EngineShape shape{
              .num_seqs = num_seqs, .context = TokenCount(4096), .page_size = PageSize(page_size)};
          const std::string name =
              fmt::format("{}/b{}/s4k/p{}/{}", part == Part::kSchedule ? "schedule" : "host_step",
                          num_seqs, page_size, executor == serial.get() ? "serial" : "parallel");
          benchmark::RegisterBenchmark(
              name.c_str(),
              [serial, shape, part, executor, name](benchmark::State& state) {
                ShowProgress(name);
                Run(shape, part, *executor, state);
              })
              ->UseRealTime()
              ->MinTime(is_full ? 0.02 : 0.005)
              ->Repetitions(is_full ? 5 : 3)
              ->ReportAggregatesOnly();
        }
      }
    }
  }
}

}  // namespace quire::bench
