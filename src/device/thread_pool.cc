#include "device/thread_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <sched.h>

#include "base/error.h"
#include "device/await.h"

namespace quire {
namespace {

// A loop that both threads of a pool of two enter takes 8 us if the other sleeps and 0.4 us if it is
// looking (Neoverse V1). Long enough for what a model does between two loops; sleeping after as long
// as a few wake-ups take loses little more than sleeping at once.
constexpr std::chrono::microseconds kLookTime{50};
// Looks between two at the clock.
constexpr int kLooksPerClock = 32;

}  // namespace

int ThreadPool::DefaultThreads() {
  // The affinity mask, not the machine: containers and taskset give fewer.
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// With more threads than cores, one that looks keeps another from working.
ThreadPool::ThreadPool(int num_threads)
    : look_time_(num_threads <= DefaultThreads() ? kLookTime : std::chrono::nanoseconds(0)) {
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
  stopping_ = true;
  ++generation_;
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int64_t count, FunctionRef<void(int64_t)> fn) {
  if (threads_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) fn(i);
    return;
  }
  QUIRE_CHECK(loop_ == nullptr, "ThreadPool::Run called while a loop is running");
  next_index_.store(0, std::memory_order_relaxed);
  loop_ = &fn;
  loop_count_ = count;
  entered_.fetch_and(~kClosed);
  ++generation_;
  generation_.notify_all();
  DrainLoop(fn, count);
  // A thread that comes after this point finds the loop closed, so `fn` may die once all that came
  // before have left.
  uint32_t entered = entered_.fetch_or(kClosed) | kClosed;
  while (entered != kClosed) entered = AwaitChange(entered_, entered);
  loop_ = nullptr;
  if (first_exception_) std::rethrow_exception(std::exchange(first_exception_, nullptr));
}

uint32_t ThreadPool::AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) const {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kLooksPerClock; ++i) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (now != old) return now;
      Pause();
    }
  } while (std::chrono::steady_clock::now() - start < look_time_);
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
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
        std::lock_guard lock(exception_mutex_);
        if (!first_exception_) first_exception_ = std::current_exception();
      }
    }
  }
}

void ThreadPool::ThreadMain() {
  for (uint32_t seen = 0; !stopping_;) {
    seen = AwaitChange(generation_, seen);
    if ((entered_.fetch_add(1) & kClosed) == 0) DrainLoop(*loop_, loop_count_);
    if (entered_.fetch_sub(1) - 1 == kClosed) entered_.notify_one();
  }
}

}  // namespace quire
