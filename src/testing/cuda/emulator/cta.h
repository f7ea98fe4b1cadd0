// What the emulated machine keeps of one CTA: its threads as fibers, its warps, its barriers, and what ends later in
// it. Only the sources of the machine itself include this.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_CTA_H_
#define QUIRE_TESTING_CUDA_EMULATOR_CTA_H_

#include <cuda_runtime_api.h>

#include <array>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/meetings.h"

namespace quire::emulator {

inline constexpr int kBarriers = 16;

class Cta;

struct Meeting {
  uint32_t lanes = 0, arrived = 0;
  Act act = nullptr;
  void* theirs[kLanes] = {};
  uint64_t times = 0;  // that it took place
};

struct Warp {
  std::deque<Meeting> meetings;
  uint32_t alive = 0;
  // Products of the warp since it last committed some, and those that it committed and that have not ended.
  std::vector<std::function<void()>> open_products;
  std::deque<std::vector<std::function<void()>>> product_groups;
  uint64_t groups_committed = 0;
};

// Four warps, whose products are parts of the same ones and end together.
struct Warpgroup {
  uint64_t committed = 0, ended = 0;  // groups that all warps have committed; that have ended
};

// Returns whether the meeting took place. Lanes that have ended are not waited for.
bool TakePlaceIfAllAreThere(Meeting& meeting, const Warp& warp);

struct Fiber {
  boost::context::fiber here, scheduler;
  uint3 index = {};
  int number = 0;  // in its CTA
  bool has_ended = false;
  const uint64_t* word = nullptr;  // it waits while (*word & mask) == value
  uint64_t mask = 0, value = 0;
  const char* what = "";
  int64_t yielded = -1;  // the round that it leaves to others
  std::vector<std::function<void()>> open_copies;
  std::deque<std::vector<std::function<void()>>> copy_groups;
  // Copies that somebody is told of (AfterCopies), and that may not have ended.
  std::vector<std::shared_ptr<std::vector<std::function<void()>>>> told_copies;
  uint64_t stores_under_way = 0;
  bool has_stored = false;  // from shared memory, since it last waited for its stores
  uint64_t cluster_phase = 0;

  bool MayRun(int64_t round) const {
    return !has_ended && yielded != round && (word == nullptr || (*word & mask) != value);
  }
};

struct CtaBarrier {
  int arrived = 0, expected = 0, say_so = 0, said = 0;
  uint64_t phase = 0;

  // One more, of `threads` that are expected; 0: of all that have not ended.
  void Arrive(int threads);
  void EndPhase();
};

// The CTAs of a cluster, which see each other's shared memory.
struct Cluster {
  std::vector<Cta*> ctas;
  int64_t threads = 0, arrived = 0;  // that have not ended; of those, at the cluster's barrier
  uint64_t phase = 0;
  uint64_t may_go_on = 1;  // 0: the kernel before is not done

  void EndPhaseIfAllAreThere();
};

// The memory that a launch asks for. All shared memory is a thread's own, one of this process: so each
// CTA of a cluster is a thread.
inline constexpr size_t kRedZone = 1024;  // behind what a launch asks for: nobody writes there
alignas(1024) extern constinit thread_local std::byte dynamic_shared[kSharedBytes + kRedZone];
// The thread of a kernel that runs, and its CTA.
extern constinit thread_local Fiber* current;
extern constinit thread_local Cta* cta;

class Cta {
 public:
  Cta(const Grid& grid, uint3 index, unsigned rank, Cluster& cluster,
      const std::function<void()>& body);

  // Runs every thread that can go on, once around. Returns whether one could; `idle` says that they only looked
  // again.
  bool RunRound(bool& idle);

  // Draws whether something that may happen at once does.
  bool Draw() { return random_() % 2 == 0; }

  bool has_ended() const { return left_ == 0; }
  unsigned rank() const { return rank_; }
  int64_t round() const { return round_; }
  std::byte* shared() const { return shared_; }
  size_t shared_bytes() const { return grid_.shared_bytes; }
  Cluster& cluster() { return cluster_; }
  CtaBarrier& barrier(int id) {
    if (id < 0 || id >= kBarriers) Misuse("a barrier of a CTA that has 16");
    return barriers_[static_cast<size_t>(id)];
  }
  int left() const { return left_; }
  Warp& warp() { return warps_[static_cast<size_t>(current->number / kLanes)]; }
  Warpgroup& warpgroup() { return warpgroups_[static_cast<size_t>(current->number / kLanes / 4)]; }
  // The four warps of the warpgroup at hand.
  std::span<Warp> warps_beside() {
    const size_t first = static_cast<size_t>(current->number / kLanes / 4 * 4);
    if (first + 4 > warps_.size()) Misuse("a product of fewer than four warps");
    return std::span(warps_).subspan(first, 4);
  }
  void AddLater(std::function<void()> work) { later_.push_back(std::move(work)); }

  // What its threads wait for, and how many of them.
  std::string Waiting() const;

 private:
  void Prepare(unsigned number);
  bool RunWarp(size_t number, bool& idle);
  void Run(Fiber& fiber);
  void End(Fiber& fiber);
  std::function<void()> Take();
  bool RunLater(bool& idle);

  std::byte* const shared_;
  const unsigned rank_;
  const uint3 index_;
  Cluster& cluster_;
  const std::function<void()>& body_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
  std::array<CtaBarrier, kBarriers> barriers_;
  std::vector<std::function<void()>> later_;
  std::minstd_rand random_;
  const Grid& grid_;
  std::exception_ptr failed_;
  int left_ = 0;
  int64_t round_ = 0;
};

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_CTA_H_
