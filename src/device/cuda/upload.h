// Bytes from the host's memory to the device's: weights, out of mapped files.
#ifndef QUIRE_DEVICE_CUDA_UPLOAD_H_
#define QUIRE_DEVICE_CUDA_UPLOAD_H_

#include <array>
#include <cstddef>
#include <span>

#include "base/executor.h"
#include "base/units.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

// The device copies by itself from pinned memory only, and a mapped file cannot be pinned. So bytes
// go through two pinned halves: while the device copies from one, the host fills the other. Both stay
// in use from one upload to the next.
//
// For one thread at a time.
class Uploader {
 public:
  // 2 * 16 MiB: long enough that a copy's start costs nothing, short enough for any machine.
  static constexpr ByteOffset kPinnedBytes{int64_t{32} << 20};

  // A half begins on a multiple of this, and so does every piece.
  static constexpr size_t kAlignment = 64;

  // Throws Error(kInvalidArgument) unless `pinned` is enough for two halves. `executor` outlives
  // this.
  explicit Uploader(Executor& executor, ByteOffset pinned = kPinnedBytes);
  ~Uploader();  // waits for copies that are under way
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Copies `from` to `to`, memory of the device with the same size. When it returns, `from` has been
  // read; `to` is written once Finish returns, or behind what stream() was given. Calls `progress`
  // after each piece with what this Uploader has read in all.
  using Progress = FunctionRef<void(ByteOffset done)>;
  void Upload(std::span<const std::byte> from, std::span<std::byte> to, Progress progress);
  void Upload(std::span<const std::byte> from, std::span<std::byte> to);

  // For what is made on the way (converted, packed): calls `fill` with every next piece of `to`,
  // which it writes whole: the bytes of `to` from `begin` on. `begin` is a multiple of `unit`, so
  // that no element of that many bytes lies in two pieces; throws Error(kInvalidArgument) unless one
  // fits a half.
  using Fill = FunctionRef<void(std::span<std::byte> piece, ByteOffset begin)>;
  void UploadMade(std::span<std::byte> to, ByteOffset unit, Fill fill, Progress progress);

  // Blocks until all that was uploaded is on the device; throws DeviceError if a copy failed.
  void Finish();

  const Stream& stream() const { return stream_; }

 private:
  struct Half {
    std::span<std::byte> bytes;
    Event copied;  // behind the last copy from here
  };

  Executor& executor_;
  Stream stream_;
  PinnedBuffer pinned_;
  std::array<Half, 2> halves_;
  size_t next_ = 0;  // the half to fill
  ByteOffset done_;
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_UPLOAD_H_
