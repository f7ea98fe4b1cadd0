#include "runner/cpu_runner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "decode/sample_rows.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/store.h"
#include "kernels/cpu/weight_packer.h"
#include "model/cost.h"
#include "runner/batch_checks.h"
#include "runner/kv_stores.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Model LoadModel(const ModelConfig& config, WeightSource& source, TokenCount context, Carver& carver,
                Executor& executor, const LoadProgress& progress) {
  cpu::CpuWeightPacker packer(carver, executor, progress);
  ModelWeights weights = LoadWeights(config, source, packer);
  return Model(config, std::move(weights), MakeRopeAngles(config, context, packer));
}

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Writes to every memory page, so that the machine gives it now or not at all.
void TakeFromMachine(std::span<std::byte> memory, Executor& executor) {
  constexpr int64_t kChunk = int64_t{2} << 20;
  constexpr int64_t kPage = 4096;
  executor.Run(CeilDiv(std::ssize(memory), kChunk), [&](int64_t chunk) {
    const int64_t end = std::min(std::ssize(memory), (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; i += kPage) {
      *const_cast<volatile std::byte*>(memory.data() + i) = std::byte{0};
    }
  });
}

}  // namespace

CpuRunner::CpuRunner(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
                     const MemoryPlan& plan, const LoadProgress& progress)
    : options_(options),
      plan_(plan),
      pool_(options.num_threads),
      arena_("arena", plan.total()),
      carver_(arena_.bytes()),
      model_(LoadModel(config, source, plan.limits.context, carver_, pool_, progress)),
      stores_(LayOutStores(config, plan.limits, options, carver_)),
      memory_(LayOutSteps(config, plan.limits, options, carver_)),
      book_(plan.limits.max_seqs, memory_.page_rows.width) {
  QUIRE_CHECK(carver_.used() == plan.total(), "{} bytes laid out, {} planned", carver_.used(),
              plan.total());
  TakeFromMachine({stores_.front().Page(kScratchPage), Size(plan.kv.raw())}, pool_);
  size_t most_rows = 0;
  for (const Bucket& bucket : memory_.buckets) {
    bucket_sizes_.push_back(bucket.size);
    ops_.emplace_back(bucket.scratch, pool_, clock_);
    most_rows = std::max(most_rows, Size(bucket.size.num_seqs));
  }
  uses_.resize(most_rows);
  thread_ = std::thread([this] { ThreadMain(); });
}

CpuRunner::~CpuRunner() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_ != State::kRunning; });
    state_ = State::kStopping;
  }
  changed_.notify_all();
  thread_.join();
}

ByteOffset CpuRunner::WeightBytesPerStep(int64_t num_tokens) const {
  return quire::WeightBytesPerStep(model_.config(), model_.weights(), num_tokens);
}

// ---- The caller's side ----

void CpuRunner::Submit(const StepBatch& batch) {
  const PageCount looked_at = CheckBatch(batch, plan_.limits);
  {
    const std::lock_guard lock(mutex_);
    QUIRE_CHECK(state_ == State::kIdle, "a step is still to be collected");
    memory_.results.Pick(batch, *memory_.next, memory_.scores);
    stats_.logit_rows = memory_.results.num_rows();
    batch_ = batch;
    stats_.pages_looked_at = looked_at;
    state_ = State::kRunning;
  }
  changed_.notify_all();
}

const StepResult& CpuRunner::Collect() {
  std::unique_lock lock(mutex_);
  QUIRE_CHECK(state_ != State::kIdle, "no step was submitted");
  changed_.wait(lock, [&] { return state_ == State::kDone; });
  state_ = State::kIdle;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return *result_;
}

// ---- The thread's side ----

void CpuRunner::ThreadMain() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return state_ == State::kRunning || state_ == State::kStopping; });
    if (state_ == State::kStopping) return;
    lock.unlock();
    try {
      RunStep();
    } catch (...) {
      failure_ = std::current_exception();
      book_.ForgetPages();  // the step may not have come as far as its plan
    }
    lock.lock();
    state_ = State::kDone;
    changed_.notify_all();
  }
}

void CpuRunner::RunStep() {
  const Clock::time_point begin = Clock::now();
  times_ = {};
  clock_.Reset();
  if (options_.checks == StepChecks::kPoison) {
    std::memset(memory_.activations.data(), 0xff, memory_.activations.size());
  }
  CopyPages();
  const TokenCount num_tokens = NumTokens(batch_);
  stats_.bucket =
      ChooseBucket(bucket_sizes_, static_cast<int32_t>(batch_.sequences.size()), num_tokens);
  Bucket& bucket = memory_.buckets[stats_.bucket];
  Pack(batch_, plan_.limits.page_size, bucket.inputs);
  if (options_.mode == StepMode::kGraph) {
    PadTo(bucket.size, plan_.limits.page_size, batch_.sequences.size(), num_tokens, bucket.inputs);
    stats_.padded_rows = bucket.size.num_seqs - static_cast<int32_t>(batch_.sequences.size());
    stats_.padded_tokens = bucket.size.num_tokens - num_tokens;
  }
  const Plan& plan = MakePlan(
      bucket, bucket.inputs.seqs.first(batch_.sequences.size() + Size(stats_.padded_rows)));
  const size_t step_tokens = Size((num_tokens + stats_.padded_tokens).raw());
  times_[StepPart::kPlan] = SecondsSince(begin);
  clock_.Restart();
  model_.Forward({.tokens = bucket.inputs.tokens.first(step_tokens),
                  .positions = bucket.inputs.positions.first(step_tokens),
                  .slots = bucket.inputs.slots.first(step_tokens),
                  .plan = plan,
                  .stores = stores_,
                  .buffers = bucket.forward},
                 ops_[stats_.bucket]);
  SampleAll(bucket.forward.hidden, *memory_.next, memory_.next_results);
  for (size_t i = 0; i < memory_.results.num_score_blocks(); ++i) {
    SampleAll(bucket.forward.hidden, memory_.scores[i], memory_.score_results[i]);
  }
  result_ = &memory_.results.Fill(memory_.next_results, memory_.score_results);
  for (const ForwardPart part : kForwardParts) times_[StepPartOf(part)] = clock_.seconds(part);
}

// Of the batch's sequences, and padded rows behind them.
const Plan& CpuRunner::MakePlan(Bucket& bucket, std::span<const SequenceStep> seqs) {
  const size_t num_seqs = batch_.sequences.size();
  const std::span<RowUse> uses = std::span(uses_).first(seqs.size());
  std::ranges::fill(uses, RowUse{});
  book_.Assign(batch_.sequences, seqs.first(num_seqs), uses.first(num_seqs));
  const Plan& plan = bucket.plans->Make(seqs, uses, pool_, options_.faults);
  for (size_t i = 0; i < num_seqs; ++i) book_.Set(uses[i].row, uses[i].unchanged, seqs[i].pages);
  return plan;
}

// In every layer: all sources are read before a target is written.
void CpuRunner::CopyPages() {
  const PageSize page_size = plan_.limits.page_size;
  size_t num_rows = 0;
  for (const StepPageCopy& copy : batch_.copies) {
    for (int32_t i = 0; i < copy.count; ++i, ++num_rows) {
      memory_.copy_from[num_rows] = page_size.SlotOf(copy.from, i);
      memory_.copy_to[num_rows] = page_size.SlotOf(copy.to, i);
    }
  }
  stats_.copied_pages = static_cast<int32_t>(batch_.copies.size());
  if (num_rows == 0) return;
  for (const KvStore& store : stores_) {
    cpu::StoreMove({.store = store,
                    .from = memory_.copy_from.first(num_rows),
                    .to = memory_.copy_to.first(num_rows),
                    .workspace = memory_.copy_rows},
                   pool_);
  }
}

// What is wanted of rows, a block of them at a time.
void CpuRunner::SampleAll(ConstTensorView hidden, const SampledRows& sampled,
                          const SampleResults& results) {
  const int32_t num_rows = sampled.packer.num_rows();
  for (int32_t first = 0; first < num_rows; first += static_cast<int32_t>(kLogitBlock)) {
    const int64_t count = std::min<int64_t>(kLogitBlock, num_rows - first);
    ComputeLogits(hidden, sampled.rows.subspan(Size(first), Size(count)));
    const Clock::time_point begin = Clock::now();
    SampleRows({.logits = memory_.logits.FirstRows(count),
                .first_row = first,
                .inputs = sampled.packer.inputs(),
                .workers = memory_.sample_workers,
                .results = results},
               pool_);
    times_[StepPart::kSampling] += SecondsSince(begin);
  }
}

void CpuRunner::ComputeLogits(ConstTensorView hidden, std::span<const int32_t> rows) {
  const int64_t num_rows = std::ssize(rows);
  clock_.Restart();
  model_.Logits({.hidden = hidden,
                 .rows = rows,
                 .picked = memory_.picked.FirstRows(num_rows),
                 .normed = memory_.normed.FirstRows(num_rows),
                 .logits = memory_.logits.FirstRows(num_rows)},
                ops_[stats_.bucket]);
}

}  // namespace quire
