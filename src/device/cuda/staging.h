// Pinned memory for what is on its way to the device while the host writes what comes next to where it
// was: one piece behind the other, until all of them have arrived.
#ifndef QUIRE_DEVICE_CUDA_STAGING_H_
#define QUIRE_DEVICE_CUDA_STAGING_H_

#include <algorithm>
#include <cstddef>
#include <span>

namespace quire::cuda {

class Staging {
 public:
  // `room` is pinned, or empty: then nothing has room.
  explicit Staging(std::span<std::byte> room = {}) : room_(room), left_(room) {}

  // A copy of `bytes` that stays until Clear, or nothing where there is no room.
  std::span<const std::byte> Put(std::span<const std::byte> bytes) {
    constexpr size_t kAlignment = 16;
    const size_t taken = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    if (taken > left_.size()) return {};
    const std::span<std::byte> to = left_.first(bytes.size());
    std::ranges::copy(bytes, to.begin());
    left_ = left_.subspan(taken);
    return to;
  }

  // Once all has arrived.
  void Clear() { left_ = room_; }

 private:
  std::span<std::byte> room_, left_;
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_STAGING_H_
