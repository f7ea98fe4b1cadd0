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
#include "model/rope_table.h"
#include "model/weights.h"
#include "runner/draft_pass.h"
#include "runner/kv_stores.h"
#include "runner/plan_parts.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

size_t Size(int64_t n) { return static_cast<size_t>(n); }

Model LoadModel(const ModelConfig& config, WeightSource& source, TokenCount context, Carver& carver,
                Executor& executor, const LoadProgress& progress) {
  cpu::CpuWeightPacker packer(carver, executor, progress);
  ModelWeights weights = LoadWeights(config, source, packer);
  return Model(config, std::move(weights), MakeRopeAngles(config, context, packer));
}

// None where no head is to draft.
std::optional<EagleHead> LoadHead(const RunnerOptions& options, const MemoryPlan& plan,
                                  const Weight& embedding, Carver& carver, Executor& executor,
                                  const LoadProgress& progress) {
  if (options.head == nullptr) return std::nullopt;
  const auto loaded = [&](ByteOffset used) {
    if (progress) progress(Min(used, plan.weights));  // the model's angles lie before the head
  };
  cpu::CpuWeightPacker packer(carver, executor, loaded);
  return LoadEagleHead(*options.head, embedding, plan.limits.context, packer);
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
  };
  const auto head_work = [&](const BucketSize&) {
    const MlaShape head = AttentionShape(options.head->config->layer);
    return cpu::MlaWorkShape(head, options.num_threads);
  };
  const StepLayout layout{.activation = DType::kF32,
                          .buckets = options.mode,
                          .logit_rows = std::min(kLogitBlock, limits.max_step_tokens.raw()),
                          .work = work,
                          .head_work = head_work,
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
      head_(LoadHead(options, plan, model_.weights().embedding, carver_, pool_, progress)),
      stores_(LayOutStores(config_, plan.limits, options, carver_)),
      memory_(LayOutCpuSteps(config_, plan.limits, options, parts_, carver_)),
      orders_(ranks_.get(), memory_, config_.shard.tokens) {
  QUIRE_CHECK(carver_.used() == plan.total(), "{} bytes laid out, {} planned", carver_.used(),
              plan.total());
  TakeFromMachine({stores_.front().Page(kScratchPage), Size(plan.kv.raw())}, pool_);
  for (const CpuStepParts::BucketParts& bucket : parts_.buckets) {
    ops_.emplace_back(bucket.scratch, pool_, clock_, ranks_.get(), config_.shard.tokens);
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

void CpuStepDevice::Enter() {
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
  const auto rows_of = [&](const TensorView& all) {
    return all.empty() ? TensorView() : all.FirstRows(num_tokens);
  };
  ForwardArgs args{.tokens = bucket.device.tokens.first(work.num_tokens),
                   .positions = bucket.device.positions.first(work.num_tokens),
                   .slots = bucket.device.slots.first(work.num_tokens),
                   .plan = *plan_,
                   .stores = TrunkStores(),
                   .buffers = bucket.forward,
                   .experts_used = memory_.device_outputs.experts_used,
                   .chooses = Chooses()};
  if (config_.drafts) args.states = rows_of(memory_.states);
  if (head_) {
    args.wanted_layers = head_->config().wanted_layers;
    args.layer_inputs = rows_of(bucket.layer_inputs);
  }
  clock_.Restart();
  orders_.WithRanks([&] {
    model_.Forward(args, ops_[work.bucket]);
    if (!head_) return;
    head_->Fuse({.inputs = args.layer_inputs,
                 .normed = rows_of(bucket.normed_inputs),
                 .states = rows_of(memory_.states)},
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

void CpuStepDevice::Draft(const StepWork& work, const DraftWork& draft) {
  const auto sample = [&](int64_t first, int64_t count) {
    SampleRows({.logits = DraftedLogits(Drafting(), memory_, count),
                .first_row = static_cast<int32_t>(first),
                .inputs = memory_.device_draft.sampling,
                .workers = parts_.sample_workers,
                .results = memory_.device_tops},
               pool_);
  };
  orders_.WithRanks([&] {
    orders_.TellDraft(work, draft);
    DraftNow(work, draft, sample);
  });
}

void CpuStepDevice::MeetRanks(std::span<uint32_t> words) {
  if (config_.shard.tokens != RankTokens::kOwn) return;
  orders_.WithRanks([&] { ranks_->AllReduceOr(words); });
}

void CpuStepDevice::DraftNow(const StepWork& work, const DraftWork& draft,
                             FunctionRef<void(int64_t first, int64_t count)> sample) {
  const BucketInputs& inputs = memory_.buckets[work.bucket].device;
  const size_t number = work.bucket + (head_ ? memory_.buckets.size() : 0);
  const Bucket& bucket = (head_ ? memory_.heads : memory_.buckets)[work.bucket];
  cpu::CpuOps& ops = ops_[number];
  Poison();
  plan_ = &parts_.buckets[number].plans->Make(work.seqs, work.uses, pool_, options_.faults);
  const ForwardArgs rows{.tokens = inputs.tokens.first(work.num_tokens),
                         .positions = inputs.positions.first(work.num_tokens),
                         .slots = inputs.slots.first(work.num_tokens),
                         .plan = *plan_,
                         .stores = std::span(stores_).subspan(NumTrunkStores(config_)),
                         .buffers = bucket.forward,
                         .chooses = !head_ && Chooses()};
  RunDraft(Drafting(), rows, memory_, draft.num_rows, ops, sample);
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

void CpuStepDevice::FollowDraft(const StepWork& work, const DraftWork& draft) {
  DraftNow(work, draft, [](int64_t, int64_t) {});
}

}  // namespace quire
