#include "runner/cpu/cpu_step_device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/mla_attention.h"
#include "kernels/cpu/store.h"
#include "kernels/cpu/weight_packer.h"
#include "model/draft.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "runner/kv_stores.h"
#include "runner/plan_parts.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// Of each row that a pass of the draft layer wants tokens of, the most likely.
SampleCapacity DraftCapacity(const RunnerLimits& limits, const RunnerOptions& options) {
  const int32_t rows = limits.max_seqs * options.draft_branches;
  return {.vocab_size = limits.vocab_size, .rows = rows, .items = rows};
}

Model LoadModel(const ModelConfig& config, WeightSource& source, TokenCount context, Carver& carver,
                Executor& executor, const LoadProgress& progress) {
  cpu::CpuWeightPacker packer(carver, executor, progress);
  ModelWeights weights = LoadWeights(config, source, packer);
  return Model(config, std::move(weights), MakeRopeAngles(config, context, packer));
}

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

// device->*kPart(work), as a StepThread takes it.
template <auto kPart>
StepThread::Part PartOf(CpuStepDevice* device, const StepWork& work) {
  return {.do_part =
              [](void* object, const StepWork& given) {
                (static_cast<CpuStepDevice*>(object)->*kPart)(given);
              },
          .object = device,
          .work = work};
}

}  // namespace

StepMemory LayOutCpuSteps(const ModelConfig& config, const RunnerLimits& limits,
                          const RunnerOptions& options, CpuStepParts& parts, Carver& carver) {
  const auto bucket_parts = [&](size_t i) -> CpuStepParts::BucketParts& {
    if (parts.buckets.size() <= i) parts.buckets.resize(i + 1);
    return parts.buckets[i];
  };
  const WorkShape shape = cpu::MlaWorkShape(AttentionShape(config), options.num_threads);
  const auto work = [&](const BucketSize&) { return shape; };
  const auto attention = [](const OpLimits& ops) {
    return cpu::MlaAttentionWorkspace(ops.capacity, ops.work, ops.attention);
  };
  const auto selection = [](const OpLimits& ops) { return cpu::SelectionBytes(ops); };
  const auto plan = [&](size_t i, const Bucket& bucket, const PageRows& rows, Carver& memory,
                        Carver&) {
    if (memory.counting()) {
      memory.TakeBytes(PlanStorageBytes(bucket.capacity, bucket.work));
    } else {
      bucket_parts(i).plans =
          std::make_unique<PlanStorage>(bucket.capacity, bucket.work, rows, memory);
    }
  };
  const auto ops = [&](size_t i, const OpLimits& op_limits, Carver& region) {
    bucket_parts(i).scratch = cpu::LayOutOps(op_limits, region);
  };
  const auto more = [&](Carver& memory) {
    parts.sample_workers = LayOutSampleWorkers(limits.vocab_size, options.num_threads, memory);
    if (!config.drafts || options.draft_branches == 0) return;
    parts.draft_inputs = LayOutSampleInputs(DraftCapacity(limits, options), memory);
    parts.draft_results = LayOutSampleResults(DraftCapacity(limits, options), memory);
  };
  const StepLayout layout{.activation = DType::kF32,
                          .buckets = options.mode,
                          .logit_rows = std::min(kLogitBlock, limits.max_step_tokens.raw()),
                          .work = work,
                          .attention = attention,
                          .selection = selection,
                          .plan = plan,
                          .ops = ops,
                          .more = more};
  return LayOutSteps(config, limits, options, layout, carver, carver);
}

CpuStepDevice::CpuStepDevice(const ModelConfig& model, WeightSource& source,
                             const RunnerOptions& options, const MemoryPlan& plan,
                             const LoadProgress& progress, std::shared_ptr<Collective> ranks)
    : options_(options),
      config_(ConfigFor(model, options)),
      ranks_(std::move(ranks)),
      pool_(options.num_threads),
      arena_("arena", plan.total()),
      carver_(arena_.bytes()),
      model_(LoadModel(config_, source, plan.limits.context, carver_, pool_, progress)),
      stores_(LayOutStores(config_, plan.limits, options, carver_)),
      memory_(LayOutCpuSteps(config_, plan.limits, options, parts_, carver_)),
      orders_(ranks_.get(), memory_) {
  QUIRE_CHECK(carver_.used() == plan.total(), "{} bytes laid out, {} planned", carver_.used(),
              plan.total());
  TakeFromMachine({stores_.front().Page(kScratchPage), Size(plan.kv.raw())}, pool_);
  for (const CpuStepParts::BucketParts& bucket : parts_.buckets) {
    ops_.emplace_back(bucket.scratch, pool_, clock_, ranks_.get());
  }
  if (memory_.num_draft_rows > 0) {
    draft_tops_.emplace(DraftCapacity(plan.limits, options), parts_.draft_inputs);
  }
}

void CpuStepDevice::BringPages(size_t, std::span<const SequenceStep>, std::span<const RowUse>) {
  QUIRE_CHECK(false, "a step on the CPU brings any number of pages");
}

void CpuStepDevice::Bring(const StepWork& work) {
  thread_.Give(PartOf<&CpuStepDevice::BringNow>(this, work));
}
void CpuStepDevice::Run(const StepWork& work) {
  thread_.Give(PartOf<&CpuStepDevice::RunNow>(this, work));
}
void CpuStepDevice::Sample(const StepWork& work) {
  thread_.Give(PartOf<&CpuStepDevice::SampleNow>(this, work));
}

void CpuStepDevice::ThrowIfLost() const {
  if (ranks_ != nullptr) ranks_->ThrowIfFailed();
}

// Other ranks may be within a step that this one drops.
void CpuStepDevice::Abandon(const std::exception_ptr& why) noexcept {
  try {
    if (!why && orders_.leads()) {
      thread_.Wait();  // so that no rank is left within the step that is under way
      orders_.TellEnd();
    }
    orders_.FailFor(why);
  } catch (...) {
    orders_.FailFor(std::current_exception());
  }
  thread_.Drop();
}

void CpuStepDevice::BringNow(const StepWork& work) {
  const Clock::time_point begin = Clock::now();
  times_ = {};
  clock_.Reset();
  orders_.WithRanks([&] {
    orders_.Tell(StepOrder::kRun, work);
    Poison();
    const RareInputs& rare = memory_.device_rare;
    MoveRows(TrunkStores(), rare.move_from.first(work.num_moves),
             rare.move_to.first(work.num_moves));
    MoveRows(stores_, rare.copy_from.first(work.num_copies), rare.copy_to.first(work.num_copies));
    plan_ = &parts_.buckets[work.bucket].plans->Make(work.seqs, work.uses, pool_, options_.faults);
  });
  times_[StepPart::kPlan] = SecondsSince(begin);
}

void CpuStepDevice::Poison() {
  if (options_.checks == StepChecks::kOff) return;
  std::memset(memory_.activations.data(), 0xff, memory_.activations.size());
}

std::span<const KvStore> CpuStepDevice::TrunkStores() const {
  return std::span(stores_).first(NumTrunkStores(config_));
}

// In every layer all sources are read before a target is written.
void CpuStepDevice::MoveRows(std::span<const KvStore> stores, std::span<const Slot> from,
                             std::span<const Slot> to) {
  if (from.empty()) return;
  for (const KvStore& store : stores) {
    cpu::StoreMove({.store = store, .from = from, .to = to, .workspace = memory_.copy_rows}, pool_);
  }
}

void CpuStepDevice::RunNow(const StepWork& work) {
  const Bucket& bucket = memory_.buckets[work.bucket];
  const auto num_tokens = static_cast<int64_t>(work.num_tokens);
  clock_.Restart();
  orders_.WithRanks([&] {
    model_.Forward({.tokens = bucket.device.tokens.first(work.num_tokens),
                    .positions = bucket.device.positions.first(work.num_tokens),
                    .slots = bucket.device.slots.first(work.num_tokens),
                    .plan = *plan_,
                    .stores = TrunkStores(),
                    .buffers = bucket.forward,
                    .experts_used = memory_.device_outputs.experts_used,
                    .chooses = Chooses(),
                    .states = config_.drafts ? memory_.states.FirstRows(num_tokens) : TensorView()},
                   ops_[work.bucket]);
  });
}

bool CpuStepDevice::Chooses() const {
  if (!config_.indexer) return false;
  const TokenCount top_k(config_.indexer->top_k);
  return std::ranges::any_of(plan_->tiles,
                             [&](const QueryTile& tile) { return tile.kv_end > top_k; });
}

void CpuStepDevice::SampleNow(const StepWork& work) {
  orders_.WithRanks([&] {
    orders_.TellLogits(work, LogitsApart::kAll);
    SampleAll(work, *memory_.buckets[work.bucket].next, memory_.device_outputs.next);
    for (size_t i = 0; i < work.num_score_blocks; ++i) {
      SampleAll(work, memory_.scores[i], memory_.device_outputs.scores[i]);
    }
  });
  for (const ForwardPart part : kForwardParts) times_[StepPartOf(part)] = clock_.seconds(part);
}

// What is wanted of rows, a block of them at a time.
void CpuStepDevice::SampleAll(const StepWork& work, const SampledRows& sampled,
                              const SampleResults& results) {
  const auto sample = [&](int64_t first, int64_t count) {
    const Clock::time_point begin = Clock::now();
    SampleRows({.logits = memory_.logits.FirstRows(count),
                .first_row = static_cast<int32_t>(first),
                .inputs = sampled.packer.inputs(),
                .workers = parts_.sample_workers,
                .results = results},
               pool_);
    times_[StepPart::kSampling] += SecondsSince(begin);
  };
  LogitsOf(work.bucket, sampled.rows.first(Size(sampled.packer.num_rows())), sample);
}

void CpuStepDevice::LogitsOf(size_t bucket, std::span<const int32_t> rows,
                             FunctionRef<void(int64_t first, int64_t count)> sample) {
  const int64_t num_rows = std::ssize(rows);
  const int64_t block = memory_.logits.dim(0);
  for (int64_t first = 0; first < num_rows; first += block) {
    const int64_t count = std::min(block, num_rows - first);
    clock_.Restart();
    model_.Logits({.hidden = memory_.buckets[bucket].forward.hidden,
                   .rows = rows.subspan(Size(first), Size(count)),
                   .picked = memory_.picked.FirstRows(count),
                   .normed = memory_.normed.FirstRows(count),
                   .logits = memory_.logits.FirstRows(count)},
                  ops_[bucket]);
    sample(first, count);
  }
}

// ---- Drafting ----

std::span<const TokenLogprob> CpuStepDevice::Draft(const StepWork& work, const DraftPass& pass) {
  const int64_t num_wanted = std::ssize(pass.wanted);
  draft_tops_->Begin(static_cast<int32_t>(num_wanted));
  for (int32_t i = 0; i < num_wanted; ++i) draft_tops_->AddScore(i, kNoToken, pass.num_top);
  const auto sample = [&](int64_t first, int64_t count) {
    SampleRows({.logits = memory_.logits.FirstRows(count),
                .first_row = static_cast<int32_t>(first),
                .inputs = draft_tops_->inputs(),
                .workers = parts_.sample_workers,
                .results = parts_.draft_results},
               pool_);
  };
  orders_.WithRanks([&] {
    orders_.Tell(StepOrder::kDraft, work, &pass);
    DraftNow(work, pass, sample);
  });
  return parts_.draft_results.top.first(Size(num_wanted * kMaxTopLogprobs));
}

void CpuStepDevice::DraftNow(const StepWork& work, const DraftPass& pass,
                             FunctionRef<void(int64_t first, int64_t count)> sample) {
  const Bucket& bucket = memory_.buckets[work.bucket];
  cpu::CpuOps& ops = ops_[work.bucket];
  Poison();
  plan_ = &parts_.buckets[work.bucket].plans->Make(work.seqs, work.uses, pool_, options_.faults);
  const ForwardArgs rows{.tokens = bucket.device.tokens.first(work.num_tokens),
                         .positions = bucket.device.positions.first(work.num_tokens),
                         .slots = bucket.device.slots.first(work.num_tokens),
                         .plan = *plan_,
                         .stores = std::span(stores_).subspan(NumTrunkStores(config_)),
                         .buffers = bucket.forward,
                         .chooses = Chooses()};
  ForwardDraft(model_, {.rows = rows, .states = memory_.states, .state_of = pass.state_of}, ops);
  const int64_t num_wanted = std::ssize(pass.wanted);
  const int64_t block = memory_.logits.dim(0);
  for (int64_t first = 0; first < num_wanted; first += block) {
    const int64_t count = std::min(block, num_wanted - first);
    const int64_t state = pass.first_state + first;
    QUIRE_CHECK(state + count <= memory_.states.dim(0), "{} states from {} on, of {}", count, state,
                memory_.states.dim(0));
    DraftLogits(model_,
                {.hidden = bucket.forward.hidden,
                 .rows = pass.wanted.subspan(Size(first), Size(count)),
                 .picked = memory_.picked.FirstRows(count),
                 .normed = memory_.states.FirstRows(count).Shifted(state * config_.hidden_size),
                 .logits = memory_.logits.FirstRows(count)},
                ops);
    sample(first, count);
  }
}

void CpuStepDevice::CopyState(int32_t from, int32_t to) {
  orders_.WithRanks([&] {
    orders_.TellCopyState(from, to);
    std::copy_n(memory_.states.Row<float>(from), config_.hidden_size,
                memory_.states.Row<float>(to));
  });
}

// ---- Ranks ----

void CpuStepDevice::FollowStep(StepOrder order, const StepWork& work) {
  QUIRE_CHECK(order == StepOrder::kRun, "order {}", static_cast<int>(order));
  BringNow(work);
  RunNow(work);
}

void CpuStepDevice::FollowLogits(size_t bucket, size_t, std::span<const int32_t> rows) {
  LogitsOf(bucket, rows, [](int64_t, int64_t) {});
}

void CpuStepDevice::FollowDraft(const StepWork& work, const DraftPass& pass) {
  DraftNow(work, pass, [](int64_t, int64_t) {});
}

}  // namespace quire
