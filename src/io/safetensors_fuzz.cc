// Bytes -> a safetensors file: refused with an Error, or opened with tensors that lie in it, have
// the size they say and cover the data.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/safetensors.h"

namespace quire {
namespace {

void CheckTensors(std::span<const std::byte> file, const std::vector<StoredTensor>& tensors) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const std::span<const std::byte> data = file.subspan(sizeof(header_bytes) + header_bytes);
  size_t total = 0;
  for (const StoredTensor& tensor : tensors) {
    const ptrdiff_t begin = tensor.bytes.data() - data.data();
    QUIRE_CHECK(begin >= 0 && begin + tensor.bytes.size() <= data.size());
    int64_t bytes = FileDTypeBytes(tensor.dtype).raw();
    for (int64_t extent : tensor.shape) bytes *= extent;
    QUIRE_CHECK(std::cmp_equal(tensor.bytes.size(), bytes));
    QUIRE_CHECK(&tensor == tensors.data() || (&tensor - 1)->name < tensor.name);
    total += tensor.bytes.size();
  }
  QUIRE_CHECK(total == data.size(), "{} of {} bytes", total, data.size());
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(bytes, size));
  try {
    quire::CheckTensors(file, quire::ParseSafetensors(file, "fuzz"));
  } catch (const quire::Error&) {
    // Refused.
  }
  return 0;
}
