// Tokens from logits, on the device: the rules of decode/sampling.h.
//
// What is exactly the CPU's: greedy choices, ties included; bias and penalties, bit for bit; every
// token's weight (exp of its distance to the highest, over the temperature), bit for bit; the order of
// candidates; the draw u of (seed, sample, position); which tokens top-k and min-p keep; which tokens
// TopLogprobs lists.
//
// What is not: sums of weights. The CPU adds them as doubles in an order that is its library's
// (nth_element); here they are integers, multiples of 2^-44 of the highest weight, whose sum has no
// order. So a token depends on its row and its item alone, not on the batch, the grid or the
// schedule. Against exact sums a running weight of n tokens errs by n 2^-45 of the highest: a draw or
// a top-p cut differs from the CPU's only where it falls that close to the edge of two tokens. Over a
// flat row of 129280 tokens that is one draw in a million, over those of a language model far fewer.
// Tokens with less than 2^-45 of the highest probability are never drawn (on the CPU: e^-87).
//
// LogSumExp errs by 2^-32 more than the CPU's bound: sums of 4096 logits at a time, at absolute
// positions, added in a fixed tree.
#ifndef QUIRE_DECODE_CUDA_SAMPLING_H_
#define QUIRE_DECODE_CUDA_SAMPLING_H_

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/tensor_view.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "step/sampling_params.h"
#include "step/step.h"

namespace quire::cuda {

// Weights of a thread's tokens share 64 bits with their number.
inline constexpr int64_t kMaxSampledVocab = int64_t{1} << 18;

// Logits that are summed together.
inline constexpr int64_t kScanChunk = 4096;

struct SampleCapacity {
  int64_t vocab_size = 0;  // 1..kMaxSampledVocab
  int32_t rows = 0;        // of logits
  int32_t items = 0;       // results wanted
  int32_t adjusted = 0;    // of them, with bias or penalties: 8 bytes per token of the vocabulary
  int64_t biases = 0;      // of all items together
  int64_t text = 0;        // tokens of prompts and outputs that penalties read, of all sequences
};

enum class SampleKind : int32_t {
  kGiven,    // the log-probability of a token given, or none
  kHighest,  // the highest logit
  kDraw,
};

// One result wanted. Plain data: made by the host, read by the device.
struct SampleItem {
  int32_t row = 0;
  SampleKind kind = SampleKind::kGiven;
  int32_t given = kNoToken;
  int32_t num_top = 0;  // alternatives: 0..kMaxTopLogprobs
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t adjusted = -1;   // which of the adjusted rows is this item's; -1: no bias, no penalty
  int32_t first_bias = 0;  // in SampleInputs::biases
  int32_t num_biases = 0;
  int32_t first_text = 0;  // in SampleInputs::text: the prompt, then the output
  int32_t num_prompt = 0;
  int32_t num_output = 0;
  int32_t sample = 0;
  uint64_t seed = 0;
  int64_t position = 0;  // of the token to draw
};
static_assert(std::is_trivially_copyable_v<SampleItem>);

struct SampleCounts {
  int32_t num_rows = 0;
  int32_t num_items = 0;
};

// What the host fills and the device reads. Laid out alike on both sides, in one piece of memory: one
// copy brings a step's.
struct SampleInputs {
  std::span<SampleCounts> counts = {};  // [1]
  std::span<SampleItem> items = {};
  std::span<LogitBias> biases = {};
  std::span<int32_t> text = {};
};
// What comes back, in one piece of memory. `top` is written as far as an item wants it. Of a row that
// has NaN, and of one that has nothing above -inf where a token is to be chosen, the log-probability
// is NaN, and a token to be chosen is kNoToken: that is the row's fault alone, and not reported.
struct SampleResults {
  std::span<TokenLogprob> chosen = {};  // [items]
  std::span<TokenLogprob> top = {};     // [items, kMaxTopLogprobs], highest first
};

// What one chunk of a row comes to.
struct ScanPart {
  uint64_t best = 0;  // the highest logit's key, then its token: the least wins
  uint64_t sum = 0;   // of weights below the chunk's highest
  uint32_t nan = 0;   // the first token that is NaN, or 0xffffffff
};
struct SampleScratch {
  std::span<ScanPart> parts = {};        // [rows, chunks]
  std::span<float> adjusted = {};        // [adjusted, vocab]
  std::span<uint32_t> occurrences = {};  // [adjusted, vocab]
};

// Throws Error(kInvalidArgument) naming the field.
void Validate(const SampleCapacity& capacity);
SampleInputs LayOutSampleInputs(const SampleCapacity& capacity, Carver& carver);
SampleResults LayOutSampleResults(const SampleCapacity& capacity, Carver& carver);
SampleScratch LayOutSampleScratch(const SampleCapacity& capacity, Carver& carver);

// Fills the host's side of the inputs, item by item. Item i's result is chosen[i].
class SamplePacker {
 public:
  // `inputs` is of LayOutSampleInputs, of host memory, and outlives this.
  SamplePacker(const SampleCapacity& capacity, const SampleInputs& inputs);

  // Forgets all items. `num_rows` rows of logits will be there: 0..capacity.rows.
  void Begin(int32_t num_rows);
  // The log-probability of `given` (kNoToken: only alternatives) in a row.
  void AddScore(int32_t row, int32_t given, int32_t num_top);
  // `num_samples` tokens of a row, numbered from `first_sample`. The text is read, and takes room,
  // only with penalties.
  struct Samples {
    int32_t row = 0;
    SamplingParams params = {};
    std::span<const int32_t> prompt = {};
    std::span<const int32_t> output = {};
    TokenCount position = {};
    int32_t first_sample = 0;
    int32_t num_samples = 1;
  };
  void Add(const Samples& samples);
  // All throw Error(kInvalidArgument) for what cannot be, and Error(kCapacityExceeded), naming the
  // part, for what does not fit; then nothing was added.

  int32_t num_items() const { return inputs_.counts[0].num_items; }
  // Whether an item needs more than the highest or a given token: if not, SampleWork::kScan will do.
  bool needs_search() const { return needs_search_; }

 private:
  SampleItem& Next(int32_t row);

  SampleCapacity capacity_;
  SampleInputs inputs_;
  int64_t num_biases_ = 0;
  int64_t num_text_ = 0;
  int32_t num_adjusted_ = 0;
  bool needs_search_ = false;
};

enum class SampleWork {
  kScan,  // one pass over the logits: highest and given tokens; other items are not written
  kAll,
};

struct SampleArgs {
  SampleCapacity capacity = {};
  ConstTensorView logits = {};  // [capacity.rows, vocab] f32
  SampleInputs inputs = {};     // of device memory
  SampleScratch scratch = {};
  SampleResults results = {};
  SampleWork work = SampleWork::kAll;
  // A text's token outside the vocabulary is reported (kToken, its place in the text; it is skipped),
  // and so is an item that points outside (kCapacity).
  StatusWord status = {};
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const SampleArgs& args);

// Launches and returns. Grids are of the capacity: a graph that has it serves any inputs.
void Sample(const SampleArgs& args, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_DECODE_CUDA_SAMPLING_H_
