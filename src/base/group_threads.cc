#include "base/group_threads.h"

namespace quire {

GroupThreads::GroupThreads(size_t num_groups) {
  for (size_t group = 1; group < num_groups; ++group) {
    threads_.emplace_back([this, group] { ThreadMain(group); });
  }
}

GroupThreads::~GroupThreads() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  begins_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void GroupThreads::Run(FunctionRef<void(size_t group)> fn) {
  {
    const std::lock_guard lock(mutex_);
    fn_ = &fn;
    num_busy_ = threads_.size();
    ++num_runs_;
  }
  begins_.notify_all();
  fn(0);
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return num_busy_ == 0; });
}

void GroupThreads::ThreadMain(size_t group) {
  std::unique_lock lock(mutex_);
  for (int64_t run = 1;; ++run) {
    begins_.wait(lock, [&] { return is_stopping_ || num_runs_ == run; });
    if (is_stopping_) return;
    const FunctionRef<void(size_t)> fn = *fn_;
    lock.unlock();
    fn(group);
    lock.lock();
    if (--num_busy_ == 0) ended_.notify_all();
  }
}

}  // namespace quire
