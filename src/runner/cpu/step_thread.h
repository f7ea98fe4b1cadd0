// A thread that does what it is given, in order, without taking memory.
#ifndef QUIRE_RUNNER_CPU_STEP_THREAD_H_
#define QUIRE_RUNNER_CPU_STEP_THREAD_H_

#include <array>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>

#include "runner/step_device.h"

namespace quire {

class StepThread {
 public:
  // A part of a step: do_part(object, work).
  struct Part {
    void (*do_part)(void* object, const StepWork& work) = nullptr;
    void* object = nullptr;
    StepWork work = {};
  };

  StepThread();
  ~StepThread();  // what was given is done first
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  void Give(const Part& part);
  // Returns when all is done. If a part has thrown, those behind it were dropped, and that is thrown.
  void Wait();
  // Returns when nothing is under way; what was not begun is dropped, and failures are forgotten.
  void Drop() noexcept;

 private:
  void ThreadMain();

  // Invariants, under mutex_: parts [next_, end_) are still to be done, the first of them may be under
  // way (is_busy_); a failure leaves none.
  static constexpr size_t kMaxParts = 8;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Part, kMaxParts> parts_ = {};
  size_t next_ = 0;
  size_t end_ = 0;
  bool is_busy_ = false;
  bool is_stopping_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_CPU_STEP_THREAD_H_
