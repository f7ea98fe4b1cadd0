// A fixed set of threads that run parallel loops.
#ifndef QUIRE_DEVICE_THREAD_POOL_H_
#define QUIRE_DEVICE_THREAD_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/executor.h"

namespace quire {

// The thread that calls Run works too, so a pool of n has n - 1 threads of its own. Indices are
// handed out in order, in short runs, to whichever thread is free. Run may be called from one
// thread at a time, and not from inside a loop body.
//
// A model runs several loops in each layer, so threads look for the next one for a while before
// they sleep.
class ThreadPool final : public Executor {
 public:
  // Throws Error(kInvalidArgument) unless 1 <= num_threads <= kMaxThreads, and
  // Error(kCapacityExceeded) if the machine does not start that many.
  explicit ThreadPool(int num_threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static constexpr int kMaxThreads = 1024;
  // One per hardware thread this process may run on.
  static int DefaultThreads();

  void Run(int64_t count, FunctionRef<void(int64_t)> fn) override;
  int num_threads() const override { return static_cast<int>(threads_.size()) + 1; }

 private:
  void ThreadMain();
  void StopThreads();
  void DrainLoop(const FunctionRef<void(int64_t)>& fn, int64_t count);
  // Blocks while `value` is `old`; returns what it is then.
  uint32_t AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) const;

  // entered_: kClosed, unless a loop may be entered, plus the number of threads that entered.
  static constexpr uint32_t kClosed = 1u << 31;

  // Invariants:
  // 1. loop_ and loop_count_ change only while entered_ is kClosed plus threads that are about to
  //    leave again without looking at them. A thread reads them only if it found entered_ open.
  // 2. Run returns only when no thread that found entered_ open is still inside.
  std::atomic<uint32_t> entered_{kClosed};
  std::atomic<uint32_t> generation_{0};  // of loops; the threads wait for it to change
  std::atomic<bool> stopping_{false};
  const FunctionRef<void(int64_t)>* loop_ = nullptr;
  int64_t loop_count_ = 0;
  std::atomic<int64_t> next_index_{0};

  std::mutex exception_mutex_;
  std::exception_ptr first_exception_;

  const std::chrono::nanoseconds look_time_;  // before a waiting thread sleeps
  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_DEVICE_THREAD_POOL_H_
