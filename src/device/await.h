// Waiting for another thread or process: soon noticed while that is likely, and cheap when it is not.
#ifndef QUIRE_DEVICE_AWAIT_H_
#define QUIRE_DEVICE_AWAIT_H_

#include <algorithm>
#include <chrono>
#include <thread>

namespace quire {

// Leaves the core's resources to its other hardware thread for a moment.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // `yield` takes 0.4 ns on a Neoverse V1, this 30 ns
#endif
}

// Looks at something that nobody tells of: Wait between two looks.
class Awaiting {
 public:
  using Clock = std::chrono::steady_clock;

  // A moment; false once looking again is not worth it any more.
  bool Look() const {
    if (Clock::now() - begin_ >= kLookTime) return false;
    Pause();
    return true;
  }
  // The same, then as long as it takes to let others run, then longer and longer sleeps of up to `most`.
  // Returns how long the waiting has lasted.
  Clock::duration Wait(std::chrono::microseconds most) const {
    const Clock::duration waited = Clock::now() - begin_;
    if (waited >= kYieldTime) {
      std::this_thread::sleep_for(std::min<Clock::duration>(most, waited / 16));
    } else if (!Look()) {
      std::this_thread::yield();
    }
    return waited;
  }

 private:
  static constexpr std::chrono::microseconds kLookTime{50};
  static constexpr std::chrono::microseconds kYieldTime{200};
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace quire

#endif  // QUIRE_DEVICE_AWAIT_H_
