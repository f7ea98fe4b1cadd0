// What the host brings to the device for a step, behind what a stream was given.
#ifndef QUIRE_DEVICE_CUDA_DELIVERIES_H_
#define QUIRE_DEVICE_CUDA_DELIVERIES_H_

#include <cstddef>
#include <span>
#include <vector>

#include "device/cuda/gather_columns.h"
#include "device/cuda/staging.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

// Copies `pinned` to the first bytes of `device`, behind what `stream` was given.
void CopyToDevice(std::span<std::byte> device, std::span<const std::byte> pinned, const char* what,
                  const Stream& stream);

// With room of its own it keeps what is on its way, so that the host may write the next things to where
// those were; and small pieces wait for Deliver, and come together. For one thread at a time.
class Deliveries {
 public:
  // `room` is pinned, or empty: then everything is copied from where it lies. Both outlive this.
  Deliveries(const Stream& stream, std::span<std::byte> room);

  bool has_room() const { return has_room_; }

  // To the first bytes of `device`, with Deliver at the latest. `pinned` may be written again at once where
  // there is room, and otherwise when the stream has come so far. Waits for the stream only where the room is
  // full.
  void Bring(std::span<std::byte> device, std::span<const std::byte> pinned, const char* what);
  // To the first elements of `device`, which are returned.
  template <class T>
  std::span<const T> BringList(std::span<T> device, std::span<const T> list, const char* what) {
    Bring(std::as_writable_bytes(device), std::as_bytes(list), what);
    return device.first(list.size());
  }

  // Before anything reads what was brought.
  void Deliver();
  // Once all has arrived, or if it will not be read.
  void Clear();

 private:
  const Stream& stream_;
  const bool has_room_;
  Staging staging_;
  std::vector<ColumnCopy> waiting_;  // kMaxColumnCopies at most
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_DELIVERIES_H_
