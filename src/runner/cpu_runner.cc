#include "runner/cpu_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "decode/sampling.h"
#include "kernels/cpu/store.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
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

// The token that a score row is the score of: the next one given.
int32_t NextGiven(const StepSequence& seq, int32_t token) {
  const auto next = static_cast<size_t>(token) + 1;
  return next < seq.tokens.size() ? seq.tokens[next] : seq.next_token;
}

int32_t NumResults(const StepSequence& seq) {
  switch (seq.want) {
    case Want::kNothing:
      return 0;
    case Want::kNextToken:
      return seq.num_samples;
    case Want::kScores:
      return static_cast<int32_t>(seq.tokens.size());
  }
  return 0;
}

}  // namespace

CpuRunner::CpuRunner(const ModelConfig& config, WeightSource& source, const RunnerOptions& options,
                     const MemoryPlan& plan, const LoadProgress& progress)
    : options_(options),
      plan_(plan),
      pool_(options.num_threads),
      arena_("arena", plan.total()),
      carver_(arena_.bytes()),
      model_(config, LoadWeights(config, source, carver_, pool_, progress), plan.limits.context),
      stores_(LayOutStores(config, plan.limits, options, carver_)),
      memory_(LayOutSteps(config, plan.limits, options, carver_)) {
  QUIRE_CHECK(carver_.used() == plan.total(), "{} bytes laid out, {} planned", carver_.used(),
              plan.total());
  TakeFromMachine(arena_.bytes().subspan(Size(plan.weights.raw()), Size(plan.kv.raw())), pool_);
  for (const Bucket& bucket : memory_.buckets) bucket_sizes_.push_back(bucket.size);
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

void CpuRunner::ResetTimes() {
  clock_.Reset();
  stats_.plan_seconds = 0;
  stats_.sample_seconds = 0;
}

// ---- The caller's side ----

void CpuRunner::Submit(const StepBatch& batch) {
  CheckBatch(batch);
  {
    const std::lock_guard lock(mutex_);
    QUIRE_CHECK(state_ == State::kIdle, "a step is still to be collected");
    batch_ = batch;
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
  return result_;
}

void CpuRunner::CheckBatch(const StepBatch& batch) const {
  const RunnerLimits& limits = plan_.limits;
  const int64_t num_seqs = std::ssize(batch.sequences);
  Require(num_seqs >= 1 && num_seqs <= limits.max_seqs, "step: sequences: expected 1..{}, got {}",
          limits.max_seqs, num_seqs);
  int64_t num_tokens = 0;
  int64_t num_samples = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    CheckSequence(i, batch.sequences[i]);
    num_tokens += std::ssize(batch.sequences[i].tokens);
    if (batch.sequences[i].want == Want::kNextToken) num_samples += batch.sequences[i].num_samples;
  }
  Require(num_tokens <= limits.max_step_tokens.raw(),
          "step: tokens of all sequences: expected at most {}, got {}", limits.max_step_tokens,
          num_tokens);
  Require(num_samples <= limits.max_samples,
          "step: samples of all sequences: expected at most {}, got {}", limits.max_samples,
          num_samples);
  Require(std::ssize(batch.copies) <= limits.max_seqs,
          "step: page copies: expected at most {}, got {}", limits.max_seqs, batch.copies.size());
  for (const StepPageCopy& copy : batch.copies) {
    const auto in_pool = [&](PageId page) {
      return page != kScratchPage && page.raw() > 0 && page.raw() < limits.pool_pages.raw();
    };
    Require(in_pool(copy.from) && in_pool(copy.to),
            "step: page copy from {} to {}: expected pages 1..{}", copy.from, copy.to,
            limits.pool_pages.raw() - 1);
    Require(copy.count >= 1 && copy.count <= limits.page_size.raw(),
            "step: page copy from {} to {}: tokens: expected 1..{}, got {}", copy.from, copy.to,
            limits.page_size.raw(), copy.count);
  }
}

void CpuRunner::CheckSequence(size_t index, const StepSequence& seq) const {
  const RunnerLimits& limits = plan_.limits;
  Require(!seq.tokens.empty(), "step: sequence {}: no tokens", index);
  for (size_t i = 0; i < seq.tokens.size(); ++i) {
    Require(seq.tokens[i] >= 0 && seq.tokens[i] < limits.vocab_size,
            "step: sequence {}: token {}: expected 0..{}, got {}", index, i, limits.vocab_size - 1,
            seq.tokens[i]);
  }
  Require(seq.position >= TokenCount(0), "step: sequence {}: position: expected >= 0, got {}",
          index, seq.position);
  Require(seq.position <= limits.context &&
              TokenCount(seq.tokens.size()) <= limits.context - seq.position,
          "step: sequence {}: {} tokens in the cache and {} more exceed the context length of {}",
          index, seq.position, seq.tokens.size(), limits.context);
  const PageCount need = limits.page_size.PagesFor(seq.position + TokenCount(seq.tokens.size()));
  Require(PageCount(seq.pages.size()) >= need,
          "step: sequence {}: pages: expected at least {} for {} tokens, got {}", index, need,
          seq.position + TokenCount(seq.tokens.size()), seq.pages.size());
  for (int64_t i = 0; i < need.raw(); ++i) {
    const PageId page = seq.pages[Size(i)];
    Require(page.raw() >= 1 && page.raw() < limits.pool_pages.raw(),
            "step: sequence {}: page {}: expected 1..{}, got {}", index, i,
            limits.pool_pages.raw() - 1, page);
  }
  if (seq.want == Want::kNothing) return;
  Validate(seq.sampling, limits.vocab_size);
  Require(seq.want != Want::kNextToken || seq.num_samples >= 1,
          "step: sequence {}: samples: expected at least 1, got {}", index, seq.num_samples);
  Require(seq.want != Want::kScores ||
              (seq.next_token >= kNoToken && seq.next_token < limits.vocab_size),
          "step: sequence {}: next token: expected 0..{} or none, got {}", index,
          limits.vocab_size - 1, seq.next_token);
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
    }
    lock.lock();
    state_ = State::kDone;
    changed_.notify_all();
  }
}

void CpuRunner::RunStep() {
  const Clock::time_point begin = Clock::now();
  if (options_.checks == StepChecks::kPoison) {
    std::memset(memory_.activations.data(), 0xff, memory_.activations.size());
  }
  CopyPages();
  TokenCount num_tokens{0};
  for (const StepSequence& seq : batch_.sequences) num_tokens += TokenCount(seq.tokens.size());
  stats_.bucket =
      ChooseBucket(bucket_sizes_, static_cast<int32_t>(batch_.sequences.size()), num_tokens);
  Bucket& bucket = memory_.buckets[stats_.bucket];
  Pack(bucket);
  const Plan& plan = bucket.plans->Make(
      bucket.inputs.seqs.first(batch_.sequences.size() + Size(stats_.padded_rows)), pool_,
      options_.faults);
  const size_t step_tokens = Size((num_tokens + stats_.padded_tokens).raw());
  stats_.plan_seconds += SecondsSince(begin);
  const TensorView hidden = model_.Forward({.tokens = bucket.inputs.tokens.first(step_tokens),
                                            .positions = bucket.inputs.positions.first(step_tokens),
                                            .slots = bucket.inputs.slots.first(step_tokens),
                                            .plan = plan,
                                            .stores = stores_,
                                            .buffers = bucket.forward},
                                           pool_, clock_);
  PickLogitRows();
  ComputeResults(hidden);
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

// The batch as arrays over its tokens. In graph mode padding fills the bucket: rows without keys,
// whose tokens are written to the scratch page.
void CpuRunner::Pack(Bucket& bucket) {
  const PageSize page_size = plan_.limits.page_size;
  const StepInputs& in = bucket.inputs;
  size_t t = 0;
  size_t row = 0;
  for (const StepSequence& seq : batch_.sequences) {
    const TokenCount q_len(seq.tokens.size());
    in.seqs[row++] = {.q_len = q_len, .kv_len = seq.position + q_len, .pages = seq.pages};
    for (size_t i = 0; i < seq.tokens.size(); ++i, ++t) {
      const TokenCount position = seq.position + TokenCount(i);
      const PageId page = seq.pages[Size(page_size.FullPages(position).raw())];
      in.tokens[t] = seq.tokens[i];
      in.positions[t] = position;
      in.slots[t] = page_size.SlotOf(page, page_size.OffsetOf(position));
    }
  }
  stats_.padded_rows = 0;
  stats_.padded_tokens = TokenCount(0);
  if (options_.mode == StepMode::kEager) return;
  stats_.padded_rows = bucket.size.num_seqs - static_cast<int32_t>(row);
  stats_.padded_tokens = bucket.size.num_tokens - TokenCount(t);
  const bool one_each = stats_.padded_tokens == TokenCount(stats_.padded_rows);
  TokenCount left = stats_.padded_tokens;
  for (; row < Size(bucket.size.num_seqs); ++row) {
    // A decode bucket's rows have a token each; elsewhere the first padded row has all of them.
    const TokenCount q_len = one_each ? TokenCount(1) : left;
    in.seqs[row] = {.q_len = q_len};
    left -= q_len;
  }
  for (; t < Size(bucket.size.num_tokens.raw()); ++t) {
    in.tokens[t] = 0;
    in.positions[t] = TokenCount(0);
    in.slots[t] = page_size.SlotOf(kScratchPage, 0);
  }
}

// Which rows of the hidden state need logits, and where their results go.
void CpuRunner::PickLogitRows() {
  int32_t num_rows = 0;
  int32_t num_results = 0;
  int32_t first_row = 0;
  for (size_t i = 0; i < batch_.sequences.size(); ++i) {
    const StepSequence& seq = batch_.sequences[i];
    const auto q_len = static_cast<int32_t>(seq.tokens.size());
    const int32_t first = seq.want == Want::kScores      ? 0
                          : seq.want == Want::kNextToken ? q_len - 1
                                                         : q_len;
    for (int32_t token = first; token < q_len; ++token) {
      memory_.logit_rows[Size(num_rows++)] = {.seq = static_cast<int32_t>(i),
                                              .token = token,
                                              .row = first_row + token,
                                              .result = num_results + token - first};
    }
    memory_.results[i].tokens = memory_.tokens.subspan(Size(num_results), Size(NumResults(seq)));
    num_results += NumResults(seq);
    first_row += q_len;
  }
  stats_.logit_rows = num_rows;
  result_.sequences = memory_.results.first(batch_.sequences.size());
}

void CpuRunner::ComputeResults(ConstTensorView hidden) {
  const std::span<const LogitRow> rows = memory_.logit_rows.first(Size(stats_.logit_rows));
  for (size_t begin = 0; begin < rows.size(); begin += kLogitBlock) {
    ComputeBlock(hidden, rows.subspan(begin, std::min<size_t>(kLogitBlock, rows.size() - begin)));
  }
}

void CpuRunner::ComputeBlock(ConstTensorView hidden, std::span<const LogitRow> rows) {
  const int64_t num_rows = std::ssize(rows);
  const int64_t width = hidden.dim(1);
  const int64_t vocab_size = plan_.limits.vocab_size;
  for (int64_t i = 0; i < num_rows; ++i) {
    std::copy_n(hidden.Row<float>(rows[Size(i)].row), width, memory_.picked.data() + i * width);
  }
  model_.Logits({memory_.picked.data(), {num_rows, width}},
                {memory_.normed.data(), {num_rows, width}},
                {memory_.logits.data(), {num_rows, vocab_size}}, pool_, clock_);
  const Clock::time_point begin = Clock::now();
  const int64_t num_workers = std::min<int64_t>(num_rows, pool_.num_threads());
  pool_.Run(num_workers, [&](int64_t worker) {
    for (int64_t i = worker; i < num_rows; i += num_workers) {
      FillResults(rows[Size(i)], memory_.logits.subspan(Size(i * vocab_size), Size(vocab_size)),
                  memory_.samplers[Size(worker)]);
    }
  });
  stats_.sample_seconds += SecondsSince(begin);
}

void CpuRunner::FillResults(const LogitRow& row, std::span<const float> logits,
                            std::span<std::byte> workspace) {
  const StepSequence& seq = batch_.sequences[Size(row.seq)];
  const float log_sum_exp = LogSumExp(logits);
  if (seq.want == Want::kScores) {
    FillToken(seq, row.result, NextGiven(seq, row.token), logits, log_sum_exp);
    return;
  }
  for (int32_t i = 0; i < seq.num_samples; ++i) {
    const int32_t token = Sample({.logits = logits,
                                  .params = seq.sampling,
                                  .prompt = seq.prompt,
                                  .output = seq.output,
                                  .position = seq.position + TokenCount(seq.tokens.size()),
                                  .sample = seq.first_sample + i,
                                  .workspace = workspace});
    FillToken(seq, row.result + i, token, logits, log_sum_exp);
  }
}

void CpuRunner::FillToken(const StepSequence& seq, int32_t result, int32_t token,
                          std::span<const float> logits, float log_sum_exp) {
  const auto num_top = Size(std::min<int64_t>(seq.sampling.top_logprobs, plan_.limits.vocab_size));
  const std::span<TokenLogprob> top = memory_.tops.subspan(Size(result) * kMaxTopLogprobs, num_top);
  TopLogprobs(logits, log_sum_exp, top);
  StepToken& out = memory_.tokens[Size(result)];
  out.chosen = {.token = token,
                .logprob = token == kNoToken ? 0.0f : Logprob(logits[Size(token)], log_sum_exp)};
  out.top = top;
}

}  // namespace quire
