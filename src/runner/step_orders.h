// Rank 0 tells the other ranks what to run, and they do it.
#ifndef QUIRE_RUNNER_STEP_ORDERS_H_
#define QUIRE_RUNNER_STEP_ORDERS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/collective.h"
#include "runner/step_device.h"
#include "runner/step_memory.h"
#include "runner/step_message.h"

namespace quire {

// Which rows of a pass have their logits computed apart from it: a device whose pass has those of the rows
// to draw tokens of computes scores alone.
enum class LogitsApart { kAll, kScores };

// What a rank other than 0 does. What `work` refers to stays until the next call.
class StepFollower {
 public:
  virtual ~StepFollower() = default;

  // Before anything of the next order is written to the step's memory.
  virtual void AwaitLastOrder() {}
  // An order that comes with a step: kPrepare, kPages, kRun or kRunTimed.
  virtual void FollowStep(StepOrder order, const StepWork& work) = 0;
  virtual void FollowReady() {}
  // `list` counts the lists of one order.
  virtual void FollowLogits(size_t bucket, size_t list, std::span<const int32_t> rows) = 0;
  virtual void FollowDraft(const StepWork& work, const DraftWork& draft) = 0;
  virtual void FollowCopyState(int32_t from, int32_t to) = 0;
};

// One rank's end of the orders. Without ranks there is nobody to tell, and Tell... return at once.
class StepOrders {
 public:
  // Both outlive it; `ranks` may be null. Ranks with tokens of their own tell each other nothing.
  StepOrders(Collective* ranks, StepMemory& memory, RankTokens tokens = RankTokens::kSame)
      : ranks_(ranks), memory_(memory), tokens_(tokens) {}

  bool leads() const {
    return ranks_ != nullptr && ranks_->rank() == 0 && tokens_ == RankTokens::kSame;
  }
  void Tell(StepOrder order, const StepWork& work);
  void TellDraft(const StepWork& work, const DraftWork& draft);
  void TellReady();
  void TellLogits(const StepWork& work, LogitsApart apart);
  void TellCopyState(int32_t from, int32_t to);
  // Once; later calls tell nothing.
  void TellEnd();

  // Does what rank 0 says until a rank fails, which ends all, or rank 0's runner ends.
  void Follow(StepFollower& follower) noexcept;

  // do_it(), and if that throws, the other ranks end too.
  void WithRanks(FunctionRef<void()> do_it);
  // After `why` was thrown, if anything: the others may be within a step that this rank drops.
  void FailFor(const std::exception_ptr& why) noexcept;

 private:
  bool Obey(StepFollower& follower);

  Collective* const ranks_;
  StepMemory& memory_;
  const RankTokens tokens_;
  std::vector<std::byte> message_;
  bool has_told_end_ = false;
  // A message, read.
  StepReader reader_;
  std::vector<int32_t> rows_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_ORDERS_H_
