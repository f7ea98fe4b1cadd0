#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "device/await.h"
#include "device/collective.h"
#include "device/thread_pool.h"

namespace quire {

Share ShareOf(int64_t width, int64_t unit, int32_t rank, int32_t size) {
  QUIRE_CHECK(unit >= 1 && rank >= 0 && rank < size, "units of {}, rank {} of {}", unit, rank,
              size);
  const int64_t units = CeilDiv(width, unit);
  const int64_t first = std::min(width, units * rank / size * unit);
  return {.first = first, .count = std::min(width, units * (rank + 1) / size * unit) - first};
}

namespace {

// What the ranks of a process share.
class LocalGroup {
 public:
  LocalGroup(int32_t size, std::chrono::milliseconds patience)
      : patience_(patience),
        looks_(size <= ThreadPool::DefaultThreads()),
        is_here_(static_cast<size_t>(size)),
        lent_(is_here_.size()),
        letters_(is_here_.size() * is_here_.size()) {}

  int32_t size() const { return static_cast<int32_t>(is_here_.size()); }

  // `memory` can be read by all from the next meeting to the one behind it.
  void Lend(int32_t rank, void* memory) { lent_[static_cast<size_t>(rank)] = memory; }
  void* lent(int32_t rank) const { return lent_[static_cast<size_t>(rank)]; }

  // Returns when all ranks are here.
  void Meet(int32_t rank, const char* what, bool is_patient = false) {
    std::unique_lock lock(mutex_);
    ThrowIfFailedLocked();
    if (std::ranges::find(is_here_, 1) == is_here_.end()) what_ = what;
    if (std::strcmp(what, what_) != 0) {
      FailLocked(rank, fmt::format("came to {} while others came to {}", what, what_));
      ThrowIfFailedLocked();
    }
    is_here_[static_cast<size_t>(rank)] = 1;
    if (std::ranges::find(is_here_, 0) == is_here_.end()) {
      std::ranges::fill(is_here_, uint8_t{0});
      ++num_meetings_;
      ++num_changes_;
      changed_.notify_all();
      return;
    }
    const uint64_t meeting = num_meetings_;
    const auto is_over = [&] { return num_meetings_ != meeting || !failure_.empty(); };
    const uint64_t changes = num_changes_.load(std::memory_order_relaxed);
    lock.unlock();
    LookForChange(changes);
    lock.lock();
    if (is_patient) {
      changed_.wait(lock, is_over);
    } else if (!changed_.wait_for(lock, patience_, is_over)) {
      const auto missing = std::ranges::find(is_here_, 0) - is_here_.begin();
      FailLocked(static_cast<int32_t>(missing),
                 fmt::format("did not come to {} within {} ms", what, patience_.count()));
    }
    if (num_meetings_ == meeting) ThrowIfFailedLocked();
  }

  void Send(int32_t from, int32_t to, std::span<const std::byte> message) {
    const std::lock_guard lock(mutex_);
    ThrowIfFailedLocked();
    LettersOf(from, to).emplace_back(message.begin(), message.end());
    changed_.notify_all();
  }
  void Receive(int32_t from, int32_t to, std::vector<std::byte>& message, bool is_patient) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<std::byte>>& letters = LettersOf(from, to);
    const auto is_over = [&] { return !letters.empty() || !failure_.empty(); };
    uint64_t meetings = num_meetings_;
    while (!is_over()) {
      if (is_patient) {
        changed_.wait(lock, is_over);
      } else if (!changed_.wait_for(lock, patience_, is_over) &&
                 std::exchange(meetings, num_meetings_) == num_meetings_) {
        FailLocked(from, fmt::format("did not answer within {} ms", patience_.count()));
      }
    }
    ThrowIfFailedLocked();
    message = std::move(letters.front());
    letters.pop_front();
  }

  void Fail(int32_t rank, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    FailLocked(rank, reason);
  }
  void ThrowIfFailed() const {
    const std::lock_guard lock(mutex_);
    ThrowIfFailedLocked();
  }

 private:
  // For a moment, without the lock: ranks meet again after some microseconds of work, and waking up takes as
  // long.
  void LookForChange(uint64_t changes) const {
    if (!looks_) return;
    const Awaiting awaiting;
    while (num_changes_.load(std::memory_order_acquire) == changes && awaiting.Look()) {
    }
  }

  std::deque<std::vector<std::byte>>& LettersOf(int32_t from, int32_t to) {
    return letters_[static_cast<size_t>(from * size() + to)];
  }
  void FailLocked(int32_t rank, const std::string& reason) {
    if (!failure_.empty()) return;
    ++num_changes_;
    failure_ = fmt::format("rank {} of {}: {}", rank, size(), reason);
    changed_.notify_all();
  }
  void ThrowIfFailedLocked() const {
    if (!failure_.empty()) throw DeviceError(DeviceError::Lasts::kForever, failure_);
  }

  // Invariants, under mutex_: is_here_ are the ranks that wait in the meeting at hand, never all of them;
  // failure_ never changes once it is said. lent_[r] is rank r's to write, before it comes to a meeting.
  const std::chrono::milliseconds patience_;
  const bool looks_;  // with more ranks than CPUs, one that looks keeps another from working
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint8_t> is_here_;  // 0 or 1
  const char* what_ = "";         // they came to
  std::vector<void*> lent_;
  std::vector<std::deque<std::vector<std::byte>>> letters_;  // [from, to]: messages on their way
  uint64_t num_meetings_ = 0;
  std::atomic<uint64_t> num_changes_ = 0;  // of meetings and failures; can be read without the lock
  std::string failure_;
};

class LocalRank final : public Collective {
 public:
  LocalRank(std::shared_ptr<LocalGroup> group, int32_t rank)
      : group_(std::move(group)), rank_(rank) {}

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return group_->size(); }

  void AllGather(TensorView whole, std::span<const Share> shares) override {
    QUIRE_CHECK(std::ssize(shares) == size(), "{} shares for {} ranks", shares.size(), size());
    group_->Lend(rank_, whole.data());
    group_->Meet(rank_, "a gather");
    const int64_t bytes = DTypeBytes(whole.dtype());
    for (int32_t from = 0; from < size(); ++from) {
      if (from != rank_) CopyColumns(whole, shares[static_cast<size_t>(from)], bytes, from);
    }
    group_->Meet(rank_, "the end of a gather");
  }

  // Each makes its share of the words, and then takes the others'.
  void AllReduceOr(std::span<uint32_t> words) override {
    group_->Lend(rank_, words.data());
    group_->Meet(rank_, "a reduction");
    const auto share_of = [&](int32_t rank) { return ShareOf(std::ssize(words), 1, rank, size()); };
    const Share own = share_of(rank_);
    for (int32_t from = 0; from < size(); ++from) {
      if (from == rank_) continue;
      const auto* theirs = static_cast<const uint32_t*>(group_->lent(from));
      for (int64_t i = own.first; i < own.end(); ++i) words[static_cast<size_t>(i)] |= theirs[i];
    }
    group_->Meet(rank_, "the middle of a reduction");
    for (int32_t from = 0; from < size(); ++from) {
      if (from == rank_) continue;
      const Share share = share_of(from);
      const auto* theirs = static_cast<const uint32_t*>(group_->lent(from));
      std::copy_n(theirs + share.first, share.count, words.data() + share.first);
    }
    group_->Meet(rank_, "the end of a reduction");
  }

  void FetchRows(ConstTensorView rows, std::span<const GivenRows>, std::span<const RowPart> parts,
                 TensorView taken) override {
    group_->Lend(rank_, const_cast<std::byte*>(rows.data()));  // nobody writes to what is lent
    group_->Meet(rank_, "an exchange of rows");
    const int64_t row_bytes = taken.dim(1) * DTypeBytes(taken.dtype());
    for (const RowPart& part : parts) {
      QUIRE_CHECK(part.to + part.count <= taken.dim(0), "rows {}..{} of {}", part.to,
                  part.to + part.count, taken.dim(0));
      const auto* theirs = static_cast<const std::byte*>(group_->lent(part.from));
      if (part.count == 0) continue;
      std::memcpy(taken.data() + part.to * row_bytes, theirs + part.first * row_bytes,
                  static_cast<size_t>(part.count * row_bytes));
    }
    group_->Meet(rank_, "the end of an exchange of rows");
  }

  void Broadcast(std::vector<std::byte>& message) override {
    group_->Lend(rank_, &message);
    group_->Meet(rank_, "a message", /*is_patient=*/rank_ != 0);
    if (rank_ != 0) message = *static_cast<const std::vector<std::byte>*>(group_->lent(0));
    group_->Meet(rank_, "the end of a message");
  }

  void Send(int32_t to, std::span<const std::byte> message) override {
    group_->Send(rank_, to, message);
  }
  void Receive(int32_t from, std::vector<std::byte>& message, Waits waits) override {
    group_->Receive(from, rank_, message, waits == Waits::kForever);
  }

  void WaitForAll() override { group_->Meet(rank_, "a meeting", /*is_patient=*/true); }

  void Fail(const std::string& reason) noexcept override { group_->Fail(rank_, reason); }
  void ThrowIfFailed() const override { group_->ThrowIfFailed(); }

 private:
  void CopyColumns(TensorView whole, Share share, int64_t bytes, int32_t from) const {
    const auto* theirs = static_cast<const std::byte*>(group_->lent(from));
    for (int64_t row = 0; row < whole.dim(0) && share.count > 0; ++row) {
      const int64_t begin = (row * whole.stride(0) + share.first) * bytes;
      std::memcpy(whole.data() + begin, theirs + begin, static_cast<size_t>(share.count * bytes));
    }
  }

  const std::shared_ptr<LocalGroup> group_;
  const int32_t rank_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeLocalRanks(int32_t size,
                                                        std::chrono::milliseconds patience) {
  QUIRE_CHECK(size >= 1, "{} ranks", size);
  const auto group = std::make_shared<LocalGroup>(size, patience);
  std::vector<std::unique_ptr<Collective>> ranks;
  for (int32_t rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<LocalRank>(group, rank));
  }
  return ranks;
}

}  // namespace quire
