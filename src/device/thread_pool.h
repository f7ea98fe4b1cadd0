// A fixed set of threads that run parallel loops.
#ifndef QUIRE_DEVICE_THREAD_POOL_H_
#define QUIRE_DEVICE_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
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

  // Invariants, under mutex_:
  // 1. loop_ is non-null exactly while a Run with work for other threads is in progress.
  // 2. num_running_ is the number of pool threads inside DrainLoop; Run returns only when it is 0.
  std::mutex mutex_;
  std::condition_variable loop_changed_;  // generation_ or stopping_ changed: pool threads wait
  std::condition_variable loop_drained_;  // num_running_ became 0: Run waits
  const FunctionRef<void(int64_t)>* loop_ = nullptr;
  int64_t loop_count_ = 0;
  int64_t generation_ = 0;
  int num_running_ = 0;
  bool stopping_ = false;
  std::exception_ptr first_exception_;

  std::atomic<int64_t> next_index_{0};
  std::vector<std::thread> threads_;
};

}  // namespace quire

#endif  // QUIRE_DEVICE_THREAD_POOL_H_
