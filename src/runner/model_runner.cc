#include "runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <utility>

#include "attn/expansion.h"
#include "base/error.h"
#include "base/group_threads.h"
#include "kernels/mha_prefill.h"
#include "model/cost.h"
#include "model/forward.h"
#include "runner/batch_checks.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

size_t ToSize(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

ModelRunner::ModelRunner(std::unique_ptr<StepDevice> device, const MemoryPlan& plan)
    : ModelRunner(std::move(device), plan, Ready::kNow) {}

ModelRunner::ModelRunner(std::unique_ptr<StepDevice> device, const MemoryPlan& plan, Ready ready)
    : plan_(plan),
      device_(std::move(device)),
      memory_(device_->memory()),
      book_(plan.limits.max_seqs, memory_.page_rows.width) {
  for (const Bucket& bucket : memory_.buckets) {
    bucket_sizes_.push_back(bucket.size);
    expanded_keys_ = Max(expanded_keys_, bucket.expanded_keys);
  }
  trees_.reserve(ToSize(plan.limits.max_seqs));
  meeting_.resize(1 + (device_->steps_alike() ? RefusalWords(bucket_sizes_.size()) : 0));
  if (ready == Ready::kNow) GetReady();
}

// Runners go when all threads have ended: what one has may be read by another one until then.
std::vector<std::unique_ptr<ModelRunner>> ModelRunner::OfGroups(
    std::vector<std::unique_ptr<StepDevice>> devices, std::span<const MemoryPlan> plans) {
  std::vector<std::unique_ptr<ModelRunner>> runners;
  for (size_t i = 0; i < devices.size(); ++i) {
    runners.emplace_back(new ModelRunner(std::move(devices[i]), plans[i], Ready::kLater));
  }
  std::vector<std::exception_ptr> thrown(runners.size());
  GroupThreads(runners.size()).Run([&](size_t i) {
    try {
      runners[i]->GetReady();
    } catch (...) {
      thrown[i] = std::current_exception();
      runners[i]->device_->Abandon(thrown[i]);  // the others may wait for it
    }
  });
  for (const std::exception_ptr& each : thrown) {
    if (each) std::rethrow_exception(each);
  }
  return runners;
}

void ModelRunner::GetReady() {
  device_->Enter();
  PrepareBuckets();
  device_->Ready(plan_);
}

// What the device still does reads memory that is about to go.
ModelRunner::~ModelRunner() { device_->Abandon(nullptr); }

// The largest first: what a device takes for them besides is then taken once.
void ModelRunner::PrepareBuckets() {
  if (!device_->pads()) return;
  std::vector<size_t> by_size(memory_.buckets.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::ranges::stable_sort(by_size, [&](size_t a, size_t b) {
    return bucket_sizes_[a].num_tokens > bucket_sizes_[b].num_tokens;
  });
  batch_ = {};
  for (const size_t number : by_size) {
    PackBucket(number);
    AssignRows();
    device_->Prepare(work_);
  }
}

ByteOffset ModelRunner::WeightBytesPerStep(int64_t num_tokens, int64_t experts_with_rows) const {
  // Every rank reads its own, much alike.
  return quire::WeightBytesPerStep(model().config(), model().weights(), num_tokens,
                                   experts_with_rows) *
         plan_.num_ranks;
}

// ---- A step ----

void ModelRunner::Submit(const StepBatch& batch) {
  device_->Enter();
  const PageCount looked_at = CheckBatchOfGroup(batch, plan_.limits, plan_.num_groups);
  QUIRE_CHECK(!is_running_, "a step is still to be collected");
  stats_.pages_looked_at = looked_at;
  try {
    Start(batch);
    is_running_ = true;
  } catch (...) {
    grown_ = {};
    book_.ForgetPages();  // a step that was packed may not have been brought
    device_->Abandon(std::current_exception());
    throw;
  }
}

// What can be wrong with a batch is found before anything is given to the device.
void ModelRunner::Start(const StepBatch& batch) {
  batch_ = batch;
  const auto num_seqs = static_cast<int32_t>(batch.sequences.size());
  stats_.bucket = device_->steps_alike() ? MeetForBucket(Rows::kOwn, SizeOf(batch)).value()
                                         : ChooseBucket(bucket_sizes_, SizeOf(batch));
  const Clock::time_point begin = Clock::now();
  PackBucket(stats_.bucket);
  stats_.padded_rows = static_cast<int32_t>(work_.seqs.size()) - num_seqs;
  stats_.padded_tokens = TokenCount(work_.num_tokens) - NumTokens(batch);
  stats_.expanded_tokens =
      bucket_sizes_[stats_.bucket].expands() ? NumTokens(batch) - NumLatent(batch) : TokenCount(0);
  stats_.copied_pages = static_cast<int32_t>(batch.copies.size());
  stats_.logit_rows = memory_.results.num_rows();
  PackCopies();
  PackTrees();
  AssignRows();
  host_seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  device_->Bring(work_);
  NoteRows();
  device_->Run(work_);
  // Masks are the caller's to write until Collect.
  if (!memory_.results.has_masks()) device_->Sample(work_);
}

StepSize ModelRunner::SizeOf(const StepBatch& batch) const {
  return {.num_seqs = static_cast<int32_t>(batch.sequences.size()),
          .num_tokens = NumTokens(batch),
          .num_latent = NumLatent(batch)};
}

// How many passes a rank has is its own affair: all of them meet before each, and those that have none until
// nobody has.
std::optional<size_t> ModelRunner::MeetForBucket(Rows rows, const StepSize& size) {
  const std::span<uint32_t> refusals = std::span(meeting_).subspan(1);
  std::ranges::fill(meeting_, 0);
  meeting_[0] = rows == Rows::kOwn ? 1 : 0;
  if (device_->steps_alike()) Refuse(bucket_sizes_, size, refusals);
  device_->MeetRanks(meeting_);
  if (meeting_[0] == 0) return std::nullopt;
  return device_->steps_alike() ? FirstWithRoom(bucket_sizes_, refusals)
                                : ChooseBucket(bucket_sizes_, size);
}

void ModelRunner::SampleMasked() {
  memory_.results.TakeMasks(*memory_.buckets[work_.bucket].next);
  device_->Sample(work_);
}

// The batch's inputs, and what is wanted of its rows.
void ModelRunner::PackBucket(size_t number) {
  Bucket& bucket = memory_.buckets[number];
  memory_.results.Pick(batch_, *bucket.next, memory_.scores);
  PackRows(number);
  work_.num_score_blocks = memory_.results.num_score_blocks();
  if (bucket.size.expands()) PackExpansion(bucket);
}

// The batch's tokens and sequences, padded where the device pads.
void ModelRunner::PackRows(size_t number) {
  const Bucket& bucket = memory_.buckets[number];
  const StepInputs inputs = Inputs(bucket);
  Pack(batch_, plan_.limits.page_size, inputs);
  DropChains();
  const TokenCount num_tokens = NumTokens(batch_);
  bucket.host.live_tokens[0] = static_cast<int32_t>(num_tokens.raw());
  work_ = {.bucket = number};
  if (device_->pads()) {
    PadTo(bucket.size, plan_.limits.page_size, batch_.sequences.size(), num_tokens, inputs);
    work_.num_tokens = ToSize(bucket.size.num_tokens.raw());
    work_.seqs = memory_.seqs.first(ToSize(bucket.size.num_seqs));
  } else {
    work_.num_tokens = ToSize(num_tokens.raw());
    work_.seqs = memory_.seqs.first(batch_.sequences.size());
  }
}

// Chains are computed as any sequence of several tokens, whose queries go over their last keys together: a
// tree's go one by one, each over the keys of its path.
void ModelRunner::DropChains() {
  for (size_t i = 0; i < batch_.sequences.size(); ++i) {
    const auto stands_for_tree = [&](const quire::Draft& draft) {
      return draft.sequence == i && draft.grown != nullptr && draft.grown->branches > 1;
    };
    if (IsChain(batch_.sequences[i].tree_parents) &&
        std::ranges::none_of(grown_, stands_for_tree)) {
      memory_.seqs[i].tree_parents = {};
    }
  }
}

// Prompts come last in a batch. Those that see every key, whose keys find room, and for which it pays, are
// expanded.
size_t ModelRunner::FirstExpanded(const StepBatch& batch) const {
  const ModelConfig& config = model().config();
  TokenCount room = expanded_keys_;
  size_t first = batch.sequences.size();
  for (; first > 0; --first) {
    const StepSequence& seq = batch.sequences[first - 1];
    const TokenCount q_len(seq.tokens.size()), kv_len = seq.position + q_len;
    const bool sees_all = !config.indexer || kv_len <= TokenCount(config.indexer->top_k);
    if (!seq.tree_parents.empty() || !sees_all || ExpandedRows(kv_len) > room ||
        !PaysToExpand(HeadShape(config), q_len, kv_len)) {
      break;
    }
    room -= ExpandedRows(kv_len);
  }
  return first;
}

TokenCount ModelRunner::NumLatent(const StepBatch& batch) const {
  TokenCount tokens{0};
  for (const StepSequence& seq : batch.sequences.first(FirstExpanded(batch))) {
    tokens += TokenCount(seq.tokens.size());
  }
  return tokens;
}

// Padding is nobody's to attend to.
void ModelRunner::PackExpansion(const Bucket& bucket) {
  const std::span<SequenceStep> seqs = memory_.seqs.first(ToSize(bucket.size.num_seqs));
  for (SequenceStep& seq : seqs.subspan(FirstExpanded(batch_))) seq.expanded = true;
  CutExpansion(seqs, bucket.host.expansion);
}

StepInputs ModelRunner::Inputs(const Bucket& bucket) const {
  return {.tokens = bucket.host.tokens,
          .positions = bucket.host.positions,
          .slots = bucket.host.slots,
          .seqs = memory_.seqs};
}

void ModelRunner::PackCopies() {
  const PageSize page_size = plan_.limits.page_size;
  for (const StepSlotMove& move : batch_.moves) {
    memory_.host_rare.move_from[work_.num_moves] = move.from;
    memory_.host_rare.move_to[work_.num_moves++] = move.to;
  }
  for (const StepPageCopy& copy : batch_.copies) {
    for (int32_t i = 0; i < copy.count; ++i, ++work_.num_copies) {
      memory_.host_rare.copy_from[work_.num_copies] = page_size.SlotOf(copy.from, i);
      memory_.host_rare.copy_to[work_.num_copies] = page_size.SlotOf(copy.to, i);
    }
  }
}

// ---- Pages ----

void ModelRunner::AssignRows() {
  const size_t num_seqs = batch_.sequences.size();
  const std::span<RowUse> uses = memory_.uses.first(work_.seqs.size());
  std::ranges::fill(uses, RowUse{});
  book_.Assign(batch_.sequences, work_.seqs.first(num_seqs), uses.first(num_seqs));
  BringMany(work_.seqs.first(num_seqs), uses.first(num_seqs));
  work_.uses = uses;
}

// The rows of the batch's sequences hold their pages.
void ModelRunner::NoteRows() {
  for (size_t i = 0; i < batch_.sequences.size(); ++i) {
    book_.Set(work_.uses[i].row, work_.uses[i].unchanged, work_.seqs[i].pages);
  }
}

// Where a step has more new pages than it can bring, others that compute nothing bring some before.
void ModelRunner::BringMany(std::span<const SequenceStep> seqs, std::span<RowUse> uses) {
  const auto missing = [&](size_t i) {
    return PageCount(seqs[i].pages.size()) - uses[i].unchanged;
  };
  const PageCount most = device_->max_new_pages();
  PageCount left{0};
  for (size_t i = 0; i < seqs.size(); ++i) left += missing(i);
  const std::span<SequenceStep> carriers = memory_.carriers.first(seqs.size());
  const std::span<RowUse> carrier_uses = memory_.carrier_uses.first(seqs.size());
  while (left > most) {
    PageCount room = most;
    for (size_t i = 0; i < seqs.size(); ++i) {
      const PageCount taken = Min(room, missing(i));
      const PageCount end = uses[i].unchanged + taken;
      const bool brings = taken > PageCount(0);
      carriers[i] = {.pages = brings ? seqs[i].pages.first(ToSize(end.raw()))
                                     : std::span<const PageId>()};
      carrier_uses[i] = brings ? uses[i] : RowUse{};
      room -= taken;
    }
    device_->BringPages(work_.bucket, carriers, carrier_uses);
    for (size_t i = 0; i < seqs.size(); ++i) {
      if (carrier_uses[i].row == kNoRow) continue;
      book_.Set(uses[i].row, uses[i].unchanged, carriers[i].pages);
      uses[i].unchanged = PageCount(carriers[i].pages.size());
    }
    left -= most;
  }
}

// ---- Drafting ----

std::span<const TokenLogprob> ModelRunner::Draft(const DraftPass& pass) {
  const DraftWork draft =
      RunPass(pass, Tops::kHost, [&](const DraftWork& work) { device_->Draft(work_, work); });
  const std::span<TokenLogprob> tops =
      memory_.host_tops.top.first(draft.num_wanted * kMaxTopLogprobs);
  if (!device_->draft_token_ids().empty()) TranslateTops(tops, ToSize(pass.num_top));
  return tops;
}

void ModelRunner::EndPasses() {
  device_->Enter();
  while (const std::optional<size_t> bucket = MeetForBucket(Rows::kOthers, {})) {
    RunPassIn(*bucket, {}, Tops::kHost,
              [&](const DraftWork& work) { device_->Draft(work_, work); });
  }
}

// A pass that writes keys alone has no experts, so that nobody else takes part in it.
size_t ModelRunner::BucketOf(const DraftPass& pass) {
  const TokenCount num_tokens = NumTokens({.sequences = pass.sequences});
  const StepSize size{.num_seqs = static_cast<int32_t>(pass.sequences.size()),
                      .num_tokens = num_tokens,
                      .num_latent = num_tokens};
  const bool has_experts = device_->pads() || !pass.wanted.empty();
  return has_experts ? MeetForBucket(Rows::kOwn, size).value() : ChooseBucket(bucket_sizes_, size);
}

DraftWork ModelRunner::RunPass(const DraftPass& pass, Tops tops,
                               FunctionRef<void(const DraftWork&)> run) {
  device_->Enter();
  QUIRE_CHECK(!is_running_, "a step is still to be collected");
  return RunPassIn(BucketOf(pass), pass, tops, run);
}

// As a step of its own: results of the last one stay as they are.
DraftWork ModelRunner::RunPassIn(size_t number, const DraftPass& pass, Tops tops,
                                 FunctionRef<void(const DraftWork&)> run) {
  grown_ = {};  // of a step that was refused
  batch_ = {.sequences = pass.sequences};
  PackRows(number);
  const DraftWork draft = PackDraft(pass, tops);
  try {
    AssignRows();
    run(draft);
    NoteRows();
  } catch (...) {
    book_.ForgetPages();
    device_->Abandon(std::current_exception());
    throw;
  }
  return draft;
}

void ModelRunner::Extend(const DraftPass& pass, std::span<const KeptDraft> kept) {
  const GrowthWork growth{.kept = kept, .branches = pass.num_top};
  if (!pass.sequences.empty()) {
    RunPass(pass, Tops::kDevice,
            [&](const DraftWork& work) { device_->Grow(work_, work, growth); });
    return;
  }
  device_->Enter();
  try {
    device_->Grow({}, {}, growth);
  } catch (...) {
    device_->Abandon(std::current_exception());
    throw;
  }
}

void ModelRunner::Grow(const DraftPass& pass, std::span<const GrowingRows> rows,
                       bool forgets_parents) {
  const GrowthWork growth{
      .rows = rows, .branches = pass.num_top, .forgets_parents = forgets_parents};
  RunPass(pass, Tops::kDevice, [&](const DraftWork& work) { device_->Grow(work_, work, growth); });
}

void ModelRunner::UseTrees(std::span<const quire::Draft> drafts) {
  QUIRE_CHECK(!is_running_, "a step is still to be collected");
  grown_ = drafts;
}

void ModelRunner::PackTrees() {
  trees_.clear();
  for (const quire::Draft& draft : grown_) {
    if (draft.grown == nullptr) continue;
    int64_t first_row = 0, first_item = 0;
    for (const StepSequence& before : batch_.sequences.first(draft.sequence)) {
      first_row += std::ssize(before.tokens);
      first_item += NumNextItems(before);
    }
    GrownTree& tree = trees_.emplace_back(*draft.grown);
    tree.sequence = static_cast<int32_t>(draft.sequence);
    tree.first_row = static_cast<int32_t>(first_row);
    tree.first_item = static_cast<int32_t>(first_item);
    tree.position = batch_.sequences[draft.sequence].position.raw();
  }
  work_.trees = trees_;
}

// The drafts as they were verified.
void ModelRunner::TakeTrees() {
  const TreeNodes& nodes = memory_.host_outputs.trees;
  const auto room = ToSize(plan_.limits.max_tree_nodes.raw());
  for (const quire::Draft& draft : grown_) {
    if (draft.grown == nullptr) continue;
    const size_t first = room * ToSize(draft.grown->growth);
    std::ranges::copy(nodes.tokens.subspan(first, draft.num_nodes), draft.tokens.begin());
    std::ranges::copy(nodes.parents.subspan(first, draft.num_nodes), draft.parents.begin());
  }
  grown_ = {};
}

// To the model's tokens: the first num_top of every row.
void ModelRunner::TranslateTops(std::span<TokenLogprob> tops, size_t num_top) const {
  const std::span<const int32_t> ids = device_->draft_token_ids();
  for (size_t i = 0; i < tops.size(); i += kMaxTopLogprobs) {
    for (TokenLogprob& top : tops.subspan(i, num_top)) top.token = ids[ToSize(top.token)];
  }
}

// Rows of padding take state 0, and what is wanted of them is row 0: nobody reads what comes of it.
DraftWork ModelRunner::PackDraft(const DraftPass& pass, Tops tops) {
  const auto most_rows = ToSize(memory_.buckets[work_.bucket].draft_rows);
  const DraftWork draft{.num_rows = device_->pads() ? most_rows : pass.wanted.size(),
                        .num_wanted = pass.wanted.size()};
  QUIRE_CHECK(draft.num_wanted <= most_rows, "{} rows are wanted of {}", draft.num_wanted,
              most_rows);
  const DraftInputs& inputs = memory_.host_draft;
  const auto put = [](std::span<const int32_t> values, std::span<int32_t> to) {
    std::fill(std::ranges::copy(values, to.begin()).out, to.end(), 0);
  };
  put(pass.state_of, inputs.state_of.first(work_.num_tokens));
  put(pass.wanted, inputs.wanted.first(draft.num_rows));
  memory_.draft_tops->Begin(static_cast<int32_t>(draft.num_wanted));
  for (int32_t i = 0; i < std::ssize(pass.wanted); ++i) {
    if (tops == Tops::kDevice && pass.num_top == 1) {
      memory_.draft_tops->Add({.row = i, .params = {.temperature = 0}});
    } else {
      memory_.draft_tops->AddScore(i, kNoToken, pass.num_top);
    }
  }
  return draft;
}

// ---- Results ----

// A step that is lost has ended, too, when this throws: it reads what it was given no more.
const StepResult& ModelRunner::Collect() {
  if (!is_running_) device_->Enter();
  QUIRE_CHECK(is_running_, "no step was submitted");
  is_running_ = false;
  try {
    device_->Enter();
    if (memory_.results.has_masks()) SampleMasked();
    device_->Wait();
  } catch (...) {
    grown_ = {};
    book_.ForgetPages();  // the step may not have come as far as its pages
    device_->Abandon(std::current_exception());
    throw;
  }
  TakeTrees();
  times_ = device_->times();
  times_[StepPart::kPlan] += host_seconds_;
  CountExperts();
  return memory_.results.Fill(memory_.host_outputs.next, memory_.host_outputs.scores);
}

// Layers without experts have none.
void ModelRunner::CountExperts() {
  stats_.fewest_experts = 0;
  stats_.experts_with_rows = 0;
  for (const int32_t used : memory_.host_outputs.experts_used) {
    if (used == 0) continue;
    const int32_t fewest = stats_.fewest_experts;
    stats_.fewest_experts = fewest == 0 ? used : std::min(fewest, used);
    stats_.experts_with_rows += used;
  }
}

}  // namespace quire
