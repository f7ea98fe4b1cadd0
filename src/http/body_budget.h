// The memory that the bodies of all requests of a server may take together.
#ifndef QUIRE_HTTP_BODY_BUDGET_H_
#define QUIRE_HTTP_BODY_BUDGET_H_

#include <cstddef>
#include <memory>
#include <utility>

namespace quire::internal {

struct BodyBudget {
  size_t most = 0;
  size_t used = 0;  // never more than `most`
};

// One request's part of a budget, given back when it goes. Keeps the budget: a handler may end after
// its server.
class BodyShare {
 public:
  BodyShare() = default;
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  BodyShare(BodyShare&& other) noexcept
      : budget_(std::move(other.budget_)), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyShare& operator=(BodyShare&&) = delete;
  ~BodyShare() { Release(); }

  // Makes it `bytes` large. False, and it is as it was, if that is more than is left.
  bool Resize(size_t bytes) {
    if (bytes > budget_->most - (budget_->used - bytes_)) return false;
    budget_->used = budget_->used - bytes_ + bytes;
    bytes_ = bytes;
    return true;
  }
  void Release() {
    if (budget_) budget_->used -= std::exchange(bytes_, 0);
  }

 private:
  std::shared_ptr<BodyBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace quire::internal

#endif  // QUIRE_HTTP_BODY_BUDGET_H_
