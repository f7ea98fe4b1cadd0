#include "engine/group_steps.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {

GroupSteps::GroupSteps(std::vector<Runner*> runners)
    : runners_(std::move(runners)),
      runs_(runners_.size()),
      results_(runners_.size()),
      threads_(runners_.size()) {
  QUIRE_CHECK(!runners_.empty(), "no runner");
  for (const Runner* runner : runners_) {
    QUIRE_CHECK(runner->limits().pool_pages == limits().pool_pages &&
                    runner->limits().max_seqs == limits().max_seqs &&
                    runner->limits().context == limits().context,
                "runners of one engine differ in their limits");
  }
}

bool GroupSteps::Attempt(size_t group, FunctionRef<void()> do_it, const OnError& on_error) {
  try {
    do_it();
    return true;
  } catch (const DeviceError& error) {
    const std::lock_guard lock(mutex_);
    if (error.is_sticky()) {  // every step after it would throw it, too
      if (!lost_) lost_ = std::current_exception();
    } else {
      on_error(group, error.what());
    }
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    on_error(group, error.what());
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!lost_) lost_ = std::current_exception();
  }
  return false;
}

bool GroupSteps::IsLost() {
  const std::lock_guard lock(mutex_);
  return lost_ != nullptr;
}

bool GroupSteps::Submit(std::span<const StepBatch> batches, const OnError& on_error) {
  threads_.Run([&](size_t group) {
    const auto submit = [&](const StepBatch& batch) {
      return Attempt(
          group, [&] { runners_[group]->Submit(batch); }, on_error);
    };
    runs_[group] = submit(batches[group]) || (size() > 1 && !IsLost() && submit({}));
  });
  // The others have ended, or will, with what was lost.
  if (IsLost()) Collect([](size_t, const StepResult&) {}, on_error);
  return std::ranges::find(runs_, 1) != runs_.end();
}

void GroupSteps::Collect(const Take& take, const OnError& on_error) {
  threads_.Run([&](size_t group) {
    results_[group] = nullptr;
    if (std::exchange(runs_[group], uint8_t{0}) == 0) return;
    Attempt(
        group, [&] { results_[group] = &runners_[group]->Collect(); }, on_error);
  });
  for (size_t group = 0; group < size(); ++group) {
    if (results_[group] == nullptr) continue;
    Attempt(
        group, [&] { take(group, *results_[group]); }, on_error);
  }
  if (lost_) std::rethrow_exception(lost_);
}

}  // namespace quire
