#include "runner/step_orders.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace quire {

void StepOrders::Tell(StepOrder order, const StepWork& work) {
  if (!leads()) return;
  MessageWriter message(message_);
  message.Put(order);
  WriteStep(work, memory_, message);
  ranks_->Broadcast(message_);
}

void StepOrders::TellDraft(const StepWork& work, const DraftWork& draft) {
  if (!leads()) return;
  MessageWriter message(message_);
  message.Put(StepOrder::kDraft);
  WriteStep(work, memory_, message);
  message.Put(draft);
  message.PutAll(memory_.host_draft.state_of.first(work.num_tokens));
  message.PutAll(memory_.host_draft.wanted.first(draft.num_rows));
  ranks_->Broadcast(message_);
}

void StepOrders::TellReady() {
  if (!leads()) return;
  MessageWriter message(message_);
  message.Put(StepOrder::kReady);
  ranks_->Broadcast(message_);
}

void StepOrders::TellLogits(const StepWork& work, LogitsApart apart) {
  const size_t num_lists = work.num_score_blocks + (apart == LogitsApart::kAll ? 1 : 0);
  if (!leads() || num_lists == 0) return;
  MessageWriter message(message_);
  message.Put(StepOrder::kLogits);
  message.Put(work.bucket);
  message.Put(num_lists);
  const auto put = [&](const SampledRows& sampled) {
    message.PutList(sampled.rows.first(static_cast<size_t>(sampled.packer.num_rows())));
  };
  if (apart == LogitsApart::kAll) put(*memory_.buckets[work.bucket].next);
  for (size_t i = 0; i < work.num_score_blocks; ++i) put(memory_.scores[i]);
  ranks_->Broadcast(message_);
}

void StepOrders::TellCopyState(int32_t from, int32_t to) {
  if (!leads()) return;
  MessageWriter message(message_);
  message.Put(StepOrder::kCopyState);
  message.Put(from);
  message.Put(to);
  ranks_->Broadcast(message_);
}

void StepOrders::TellEnd() {
  if (!leads() || std::exchange(has_told_end_, true)) return;
  MessageWriter message(message_);
  message.Put(StepOrder::kEnd);
  ranks_->Broadcast(message_);
}

void StepOrders::WithRanks(FunctionRef<void()> do_it) {
  try {
    do_it();
  } catch (const std::exception& error) {
    if (ranks_ == nullptr) throw;
    ranks_->Fail(error.what());
    ranks_->ThrowIfFailed();
  }
}

void StepOrders::FailFor(const std::exception_ptr& why) noexcept {
  if (ranks_ == nullptr || !why) return;
  try {
    std::rethrow_exception(why);
  } catch (const std::exception& error) {
    ranks_->Fail(error.what());
  }
}

void StepOrders::Follow(StepFollower& follower) noexcept {
  try {
    do {
      ranks_->Broadcast(message_);
    } while (Obey(follower));
  } catch (const std::exception& error) {
    ranks_->Fail(error.what());
  }
}

bool StepOrders::Obey(StepFollower& follower) {
  MessageReader message(message_);
  follower.AwaitLastOrder();
  const auto order = message.Take<StepOrder>();
  switch (order) {
    case StepOrder::kPrepare:
    case StepOrder::kPages:
    case StepOrder::kRun:
    case StepOrder::kRunTimed:
      follower.FollowStep(order, reader_.Read(message, memory_));
      break;
    case StepOrder::kReady:
      follower.FollowReady();
      break;
    case StepOrder::kLogits: {
      const auto bucket = message.Take<size_t>();
      const auto num_lists = message.Take<size_t>();
      for (size_t list = 0; list < num_lists; ++list) {
        message.TakeList(rows_);
        follower.FollowLogits(bucket, list, rows_);
      }
      break;
    }
    case StepOrder::kDraft: {
      const StepWork work = reader_.Read(message, memory_);
      const auto draft = message.Take<DraftWork>();
      message.TakeAll(memory_.host_draft.state_of.first(work.num_tokens));
      message.TakeAll(memory_.host_draft.wanted.first(draft.num_rows));
      follower.FollowDraft(work, draft);
      break;
    }
    case StepOrder::kCopyState: {
      const auto from = message.Take<int32_t>();
      follower.FollowCopyState(from, message.Take<int32_t>());
      break;
    }
    case StepOrder::kEnd:
      return false;
  }
  return true;
}

}  // namespace quire
