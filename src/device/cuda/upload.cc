#include "device/cuda/upload.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/check.h"

namespace quire::cuda {
namespace {

// Bytes that one thread copies at a time: reading a mapped file waits for the disk, so several
// threads wait for several places of it.
constexpr int64_t kSlice = int64_t{1} << 20;

size_t RoundDown(size_t value, size_t multiple) { return value - value % multiple; }

void CopyInSlices(std::span<const std::byte> from, std::span<std::byte> to, Executor& executor) {
  const int64_t size = static_cast<int64_t>(from.size());
  executor.Run(CeilDiv(size, kSlice), [&](int64_t slice) {
    const int64_t begin = slice * kSlice;
    std::memcpy(to.data() + begin, from.data() + begin,
                static_cast<size_t>(std::min(kSlice, size - begin)));
  });
}

}  // namespace

Uploader::Uploader(Executor& executor, ByteOffset pinned)
    : executor_(executor), pinned_("uploads", pinned) {
  const size_t half = RoundDown(pinned_.bytes().size() / 2, kAlignment);
  Require(half > 0, "uploads: expected at least {} bytes of pinned memory, got {}", 2 * kAlignment,
          pinned);
  halves_[0].bytes = pinned_.bytes().first(half);
  halves_[1].bytes = pinned_.bytes().subspan(half, half);
}

Uploader::~Uploader() {
  cudaStreamSynchronize(stream_.get());  // the pinned memory goes next
}

void Uploader::UploadMade(std::span<std::byte> to, ByteOffset unit, Fill fill, Progress progress) {
  const size_t half = halves_[0].bytes.size();
  const size_t element = static_cast<size_t>(unit.raw());
  Require(unit > ByteOffset(0) && element <= half,
          "uploads: expected a unit of 1 to {} bytes, got {}", half, unit);
  const size_t longest = RoundDown(half, element);
  for (size_t begin = 0; begin < to.size(); begin += longest) {
    Half& place = halves_[next_];
    next_ ^= 1;
    place.copied.Synchronize();
    const size_t size = std::min(longest, to.size() - begin);
    const std::span<std::byte> piece = place.bytes.first(size);
    fill(piece, ByteOffset(begin));
    Check(cudaMemcpyAsync(to.data() + begin, piece.data(), size, cudaMemcpyHostToDevice,
                          stream_.get()),
          "uploading");
    place.copied.Record(stream_);
    done_ += ByteOffset(size);
    progress(done_);
  }
}

void Uploader::Upload(std::span<const std::byte> from, std::span<std::byte> to, Progress progress) {
  Require(from.size() == to.size(), "uploads: expected a place of {} bytes, got {}", from.size(),
          to.size());
  const auto copy = [&](std::span<std::byte> piece, ByteOffset begin) {
    CopyInSlices(from.subspan(static_cast<size_t>(begin.raw()), piece.size()), piece, executor_);
  };
  UploadMade(to, ByteOffset(1), copy, progress);
}

void Uploader::Upload(std::span<const std::byte> from, std::span<std::byte> to) {
  const auto ignore = [](ByteOffset) {};
  Upload(from, to, ignore);
}

void Uploader::Finish() { stream_.Synchronize(); }

}  // namespace quire::cuda
