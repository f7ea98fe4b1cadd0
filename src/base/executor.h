// An Executor runs parallel loops. Layers below `device` take an Executor, so that planning and
// exporting know nothing of threads; device::ThreadPool is the one that has them.
#ifndef QUIRE_BASE_EXECUTOR_H_
#define QUIRE_BASE_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <type_traits>

namespace quire {

// A borrowed callable: never owns, never allocates. Valid only while the callable is.
template <class Signature>
class FunctionRef;

template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class Fn>
  requires(!std::is_same_v<std::remove_cvref_t<Fn>, FunctionRef>)
      FunctionRef(Fn&& fn)  // NOLINT: implicit on purpose, as for std::function
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(fn)))),
        call_([](void* object, Args... args) -> Result {
          return (*static_cast<std::remove_reference_t<Fn>*>(object))(args...);
        }) {}

  Result operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

class Executor {
 public:
  virtual ~Executor() = default;

  // Calls fn(0) .. fn(count - 1), each once, in any order and possibly at the same time, and
  // returns when all have returned. If any throws, others may not be called any more, and one of
  // the exceptions is rethrown once every call that began has ended.
  virtual void Run(int64_t count, FunctionRef<void(int64_t)> fn) = 0;

  virtual int num_threads() const = 0;
};

// Runs everything on the calling thread, in order.
class SerialExecutor final : public Executor {
 public:
  void Run(int64_t count, FunctionRef<void(int64_t)> fn) override {
    for (int64_t i = 0; i < count; ++i) fn(i);
  }
  int num_threads() const override { return 1; }
};

}  // namespace quire

#endif  // QUIRE_BASE_EXECUTOR_H_
