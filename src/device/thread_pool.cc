#include "device/thread_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <sched.h>

#include "base/error.h"

namespace quire {

int ThreadPool::DefaultThreads() {
  // The affinity mask, not the machine: containers and taskset give fewer.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) {
  Require(num_threads >= 1 && num_threads <= kMaxThreads, "threads: expected 1..{}, got {}",
          kMaxThreads, num_threads);
  threads_.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { ThreadMain(); });
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    StopThreads();
    throw Error(ErrorCode::kCapacityExceeded, "threads: only {} of {} could be started: {}",
                started + 1, num_threads, error.what());
  }
}

ThreadPool::~ThreadPool() { StopThreads(); }

void ThreadPool::StopThreads() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  loop_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t count, FunctionRef<void(int64_t)> fn) {
  if (threads_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    QUIRE_CHECK(loop_ == nullptr, "ThreadPool::Run called while a loop is running");
    next_index_.store(0, std::memory_order_relaxed);
    loop_ = &fn;
    loop_count_ = count;
    ++generation_;
  }
  loop_changed_.notify_all();
  DrainLoop(fn, count);
  std::unique_lock lock(mutex_);
  // A thread that wakes after this point finds no loop and goes back to sleep, so `fn` may die.
  loop_ = nullptr;
  loop_drained_.wait(lock, [this] { return num_running_ == 0; });
  if (first_exception_) std::rethrow_exception(std::exchange(first_exception_, nullptr));
}

void ThreadPool::DrainLoop(const FunctionRef<void(int64_t)>& fn, int64_t count) {
  // Eight grabs per thread: enough to even out, few enough that short bodies are not all handing
  // out.
  const int64_t grab = std::max<int64_t>(1, count / (int64_t{num_threads()} * 8));
  for (;;) {
    const int64_t begin = next_index_.fetch_add(grab, std::memory_order_relaxed);
    if (begin >= count) return;
    for (int64_t i = begin; i < std::min(begin + grab, count); ++i) {
      try {
        fn(i);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!first_exception_) first_exception_ = std::current_exception();
      }
    }
  }
}

void ThreadPool::ThreadMain() {
  int64_t seen_generation = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    loop_changed_.wait(lock, [&] { return stopping_ || generation_ != seen_generation; });
    if (stopping_) return;
    seen_generation = generation_;
    if (loop_ == nullptr) continue;
    const FunctionRef<void(int64_t)>* loop = loop_;
    const int64_t count = loop_count_;
    ++num_running_;
    lock.unlock();
    DrainLoop(*loop, count);
    lock.lock();
    if (--num_running_ == 0) loop_drained_.notify_one();
  }
}

}  // namespace quire
