// Tokens from rows of logits, on the CPU: the items of decode/sample_items.h by the rules of
// decode/sampling.h, spread over an executor. What cuda::Sample is to a device.
#ifndef QUIRE_DECODE_SAMPLE_ROWS_H_
#define QUIRE_DECODE_SAMPLE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/executor.h"
#include "base/tensor_view.h"
#include "decode/sample_items.h"
#include "device/arena.h"

namespace quire {

// Scratch of those that sample at the same time.
struct SampleWorkers {
  std::span<std::byte> bytes = {};  // [count, SampleWorkerBytes(vocab)]
  int32_t count = 0;
};
// SamplerWorkspace(vocab_size), up to where the next worker's begins: on a cache line of its own.
ByteOffset SampleWorkerBytes(int64_t vocab_size);
SampleWorkers LayOutSampleWorkers(int64_t vocab_size, int32_t count, Carver& carver);

struct SampleRowsArgs {
  ConstTensorView logits = {};  // [rows, vocab] f32
  int32_t first_row = 0;        // the items' row that is the first of `logits`
  SampleInputs inputs = {};     // as a SamplePacker filled them
  SampleWorkers workers = {};
  SampleResults results = {};
};

// Throws Error(kInvalidArgument) naming the argument, the expected and the actual value.
void Validate(const SampleRowsArgs& args);

// Writes the results of all items whose rows are among `logits`, and no others. An item's result
// depends on its row and itself alone. Allocates nothing.
void SampleRows(const SampleRowsArgs& args, Executor& executor);

}  // namespace quire

#endif  // QUIRE_DECODE_SAMPLE_ROWS_H_
