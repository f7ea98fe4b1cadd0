#include "decode/cuda/sampling.h"

#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {
namespace {

void RequireSize(const char* name, size_t actual, int64_t expected) {
  Require(std::cmp_greater_equal(actual, expected), "sample.{}: expected {} values or more, got {}",
          name, expected, actual);
}

int64_t NumChunks(const SampleCapacity& capacity) {
  return CeilDiv(capacity.vocab_size, kScanChunk);
}

}  // namespace

SearchShape SearchShapeOf(const SampleCapacity& capacity) {
  // A cluster lies within one of the GPU's groups of multiprocessors, each of which has some left over: 16 rows took
  // 91 us with 8 CTAs each and 76 with 4.
  constexpr int32_t kLeftOver = 12;
  const auto room = [](int32_t ctas) {
    return ctas > 2 ? kMultiprocessors - kLeftOver : kMultiprocessors;
  };
  int32_t ctas = kMostSearchCtas;
  while (ctas > 1 && int64_t{capacity.items} * ctas > room(ctas)) ctas /= 2;
  const int64_t slice = CeilDiv(capacity.vocab_size, int64_t{32} * ctas) * 32;  // whole lines
  return {.ctas = ctas, .slice = static_cast<int32_t>(slice), .is_held = slice <= kMostHeldLogits};
}

void ValidateForDevice(const SampleCapacity& capacity) {
  Validate(capacity);
  Require(capacity.vocab_size <= kMaxSampledVocab, "sample.vocab_size: expected 1..{}, got {}",
          kMaxSampledVocab, capacity.vocab_size);
  Require(capacity.rows <= 65535, "sample.rows: expected 0..65535, got {}", capacity.rows);
}

SampleScratch LayOutSampleScratch(const SampleCapacity& capacity, Carver& carver) {
  const int64_t values = capacity.adjusted * capacity.vocab_size;
  return {.parts = carver.Take<ScanPart>(capacity.rows * NumChunks(capacity)),
          .adjusted = carver.Take<float>(values),
          .occurrences = carver.Take<uint32_t>(values)};
}

void Validate(const SampleArgs& args) {
  const SampleCapacity& capacity = args.capacity;
  ValidateForDevice(capacity);
  RequireShape("sample.logits", args.logits, {capacity.rows, capacity.vocab_size});
  Require(args.logits.dtype() == DType::kF32, "sample.logits: expected f32, got {}",
          DTypeName(args.logits.dtype()));
  RequireSize("counts", args.inputs.counts.size(), 1);
  RequireSize("items", args.inputs.items.size(), capacity.items);
  RequireSize("biases", args.inputs.biases.size(), capacity.biases);
  RequireSize("text", args.inputs.text.size(), capacity.text);
  RequireSize("masks", args.inputs.masks.size(), capacity.masks * MaskWords(capacity.vocab_size));
  RequireSize("parts", args.scratch.parts.size(), capacity.rows * NumChunks(capacity));
  RequireSize("adjusted", args.scratch.adjusted.size(), capacity.adjusted * capacity.vocab_size);
  RequireSize("occurrences", args.scratch.occurrences.size(),
              capacity.adjusted * capacity.vocab_size);
  RequireSize("chosen", args.results.chosen.size(), capacity.items);
  RequireSize("top", args.results.top.size(), int64_t{capacity.items} * kMaxTopLogprobs);
}

}  // namespace quire::cuda
