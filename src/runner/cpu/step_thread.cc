#include "runner/cpu/step_thread.h"

#include <utility>

#include "base/error.h"

namespace quire {

StepThread::StepThread() : thread_([this] { ThreadMain(); }) {}

StepThread::~StepThread() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepThread::Give(const Part& part) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;  // what comes behind a failure is dropped
    if (next_ == end_) next_ = end_ = 0;
    QUIRE_CHECK(end_ < kMaxParts, "more than {} parts of a step", kMaxParts);
    parts_[end_++] = part;
  }
  changed_.notify_all();
}

void StepThread::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return next_ == end_ && !is_busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StepThread::Drop() noexcept {
  std::unique_lock lock(mutex_);
  end_ = is_busy_ ? next_ + 1 : next_;
  changed_.wait(lock, [&] { return next_ == end_ && !is_busy_; });
  failure_ = nullptr;
}

void StepThread::ThreadMain() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return next_ < end_ || is_stopping_; });
    if (next_ == end_) return;
    const Part part = parts_[next_];
    is_busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      part.do_part(part.object, part.work);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    is_busy_ = false;
    ++next_;
    if (failure) {
      failure_ = failure;
      end_ = next_;
    }
    changed_.notify_all();
  }
}

}  // namespace quire
