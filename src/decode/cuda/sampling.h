// Tokens from logits, on the device: the items of decode/sample_items.h by the rules of
// decode/sampling.h.
//
// What is exactly the CPU's: greedy choices, ties included; masks, bias and penalties, bit for bit; every
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

#include "base/tensor_view.h"
#include "decode/sample_items.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {

// Weights of a thread's tokens share 64 bits with their number.
inline constexpr int64_t kMaxSampledVocab = int64_t{1} << 18;

// Logits that are summed together.
inline constexpr int64_t kScanChunk = 4096;

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

// How a search for items is spread: an item's row is cut into slices, one for each CTA of a cluster.
inline constexpr int32_t kMostSearchCtas = 8;  // of a cluster that every Hopper has
// Logits of a slice that a CTA keeps in its shared memory: 163840 by eight.
inline constexpr int32_t kMostHeldLogits = 20480;
struct SearchShape {
  int32_t ctas = 1;      // of an item: 8, 4, 2 or 1
  int32_t slice = 0;     // tokens of a CTA; the last may have fewer, or none
  bool is_held = false;  // in shared memory, read once
};
// The more CTAs the fewer items there are, as many as there are multiprocessors for.
SearchShape SearchShapeOf(const SampleCapacity& capacity);

// Throws Error(kInvalidArgument) naming the field, also for what only the device cannot do.
void ValidateForDevice(const SampleCapacity& capacity);
SampleScratch LayOutSampleScratch(const SampleCapacity& capacity, Carver& carver);

enum class SampleWork {
  kScan,  // one pass over the logits: highest and given tokens; other items are not written
  kAll,
};
inline SampleWork WorkOf(const SamplePacker& packer) {
  return packer.needs_search() ? SampleWork::kAll : SampleWork::kScan;
}

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
