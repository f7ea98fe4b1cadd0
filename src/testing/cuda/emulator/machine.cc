#include "testing/cuda/emulator/machine.h"

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace quire::emulator {
namespace {

namespace context = boost::context;

constexpr int kBarriers = 16;
// A kernel's own arrays are a few KiB, and compiled without optimisation a few times that.
constexpr size_t kStackBytes = 256 << 10;
// Rounds in which threads only look at something again, before that counts as waiting for ever.
constexpr int kMostIdleRounds = 100'000;

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
bool TakePlaceIfAllAreThere(Meeting& meeting, const Warp& warp) {
  if (meeting.arrived == 0 || (meeting.lanes & warp.alive & ~meeting.arrived) != 0) return false;
  meeting.arrived = 0;
  ++meeting.times;
  meeting.act(meeting.theirs);
  return true;
}

struct Fiber {
  context::fiber here, scheduler;
  uint3 index = {};
  int number = 0;  // in its CTA
  bool has_ended = false;
  const uint64_t* word = nullptr;  // it waits while (*word & mask) == value
  uint64_t mask = 0, value = 0;
  const char* what = "";
  int64_t yielded = -1;  // the round that it leaves to others
  std::vector<std::function<void()>> open_copies;
  std::deque<std::vector<std::function<void()>>> copy_groups;
  uint64_t stores_under_way = 0;
  uint64_t cluster_phase = 0;

  bool MayRun(int64_t round) const {
    return !has_ended && yielded != round && (word == nullptr || (*word & mask) != value);
  }
};

struct CtaBarrier {
  int arrived = 0, expected = 0, say_so = 0, said = 0;
  uint64_t phase = 0;

  // One more, of `threads` that are expected; 0: of all that have not ended.
  void Arrive(int threads) {
    if (threads % kLanes != 0) Misuse("a barrier of part of a warp");
    if (arrived > 0 && expected != threads)
      Misuse("a barrier that threads expect different numbers at");
    expected = threads;
    ++arrived;
  }

  void EndPhase() {
    said = std::exchange(say_so, 0);
    arrived = 0;
    ++phase;
  }
};

// The CTAs of a cluster, which see each other's shared memory.
struct Cluster {
  std::vector<Cta*> ctas;
  int64_t threads = 0, arrived = 0;  // that have not ended; of those, at the cluster's barrier
  uint64_t phase = 0;

  void EndPhaseIfAllAreThere() {
    if (arrived < threads || arrived == 0) return;
    arrived = 0;
    ++phase;
  }
};

// The memory that a launch asks for. All shared memory is a thread's own, one of this process: so each
// CTA of a cluster is a thread.
constexpr size_t kRedZone = 1024;  // behind what a launch asks for: nobody writes there
alignas(1024) thread_local std::byte dynamic_shared[kSharedBytes + kRedZone];
thread_local Fiber* current = nullptr;
thread_local Cta* cta = nullptr;

class Cta {
 public:
  Cta(const Grid& grid, uint3 index, unsigned rank, Cluster& cluster,
      const std::function<void()>& body)
      : shared_(dynamic_shared),
        rank_(rank),
        index_(index),
        cluster_(cluster),
        body_(body),
        fibers_(grid.threads.x * grid.threads.y * grid.threads.z),
        warps_((fibers_.size() + kLanes - 1) / kLanes),
        warpgroups_((warps_.size() + 3) / 4),
        random_(index.x * 7919 + index.y * 31 + index.z),
        grid_(grid) {
    cta = this;
    std::memset(dynamic_shared, 0xff, grid.shared_bytes + kRedZone);
    left_ = static_cast<int>(fibers_.size());
    for (size_t i = 0; i < fibers_.size(); ++i) Prepare(static_cast<unsigned>(i));
  }

  // Runs every thread that can go on, once around. Returns whether one could; `idle` says that they only looked
  // again.
  bool RunRound(bool& idle) {
    ++round_;
    bool any = false;
    idle = true;
    const size_t first = random_() % warps_.size();
    for (size_t w = 0; w < warps_.size(); ++w) {
      any |= RunWarp((first + w) % warps_.size(), idle);
      if (!later_.empty() && random_() % 4 == 0) any |= RunLater(idle);
    }
    if (!any) any = RunLater(idle);
    return any;
  }

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
  std::string Waiting() const {
    std::map<std::string, std::pair<int, int>> places;
    for (const Fiber& fiber : fibers_) {
      if (fiber.has_ended) continue;
      auto [place, is_new] = places.try_emplace(fiber.what, fiber.number, 0);
      ++place->second.second;
    }
    std::string text = fmt::format("CTA {} ({} of its cluster):", index_.x, rank_);
    for (const auto& [what, where] : places) {
      text += fmt::format(" {} threads from {} on wait for {};", where.second, where.first, what);
    }
    return text;
  }

 private:
  void Prepare(unsigned number) {
    Fiber& fiber = fibers_[number];
    fiber.number = static_cast<int>(number);
    const dim3& shape = grid_.threads;
    fiber.index = {number % shape.x, number / shape.x % shape.y, number / shape.x / shape.y};
    warps_[number / kLanes].alive |= 1u << number % kLanes;
    static thread_local context::pooled_fixedsize_stack stacks(kStackBytes);
    fiber.here = context::fiber(std::allocator_arg, stacks, [this, &fiber](context::fiber&& from) {
      fiber.scheduler = std::move(from);
      try {
        body_();
      } catch (const context::detail::forced_unwind&) {
        throw;
      } catch (...) {
        failed_ = std::current_exception();
      }
      return std::move(fiber.scheduler);
    });
  }

  bool RunWarp(size_t number, bool& idle) {
    bool any = false, again = true;
    const size_t begin = number * kLanes, end = std::min(begin + kLanes, fibers_.size());
    while (again) {
      again = false;
      const size_t first = random_() % kLanes;
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const size_t i = begin + (first + lane) % kLanes;
        if (i >= end) continue;
        Fiber& fiber = fibers_[i];
        if (!fiber.MayRun(round_)) continue;
        again = any = true;
        Run(fiber);
        if (fiber.has_ended || fiber.yielded != round_) idle = false;
      }
    }
    return any;
  }

  void Run(Fiber& fiber) {
    current = &fiber;
    fiber.word = nullptr;
    threadIdx = fiber.index;
    blockIdx = index_;
    blockDim = grid_.threads;
    gridDim = grid_.ctas;
    fiber.here = std::move(fiber.here).resume();
    if (failed_) std::rethrow_exception(failed_);
    if (!fiber.here) End(fiber);
  }

  void End(Fiber& fiber) {
    CommitCopies();
    WaitForCopies(0);
    fiber.has_ended = true;
    --left_;
    --cluster_.threads;
    cluster_.EndPhaseIfAllAreThere();
    Warp& warp = warps_[static_cast<size_t>(fiber.number / kLanes)];
    warp.alive &= ~(1u << fiber.number % kLanes);
    if (!warp.open_products.empty() || !warp.product_groups.empty()) {
      Misuse("an end of a thread whose products nobody waited for");
    }
    for (Meeting& meeting : warp.meetings) TakePlaceIfAllAreThere(meeting, warp);
    if (barriers_[0].arrived >= left_ && left_ > 0 && barriers_[0].arrived > 0)
      barriers_[0].EndPhase();
    if (left_ > 0) return;
    while (!later_.empty())
      Take()();  // stores to memory; others are a misuse, of a CTA that has ended
    const std::byte* red = dynamic_shared + grid_.shared_bytes;
    if (!std::all_of(red, red + kRedZone, [](std::byte one) { return one == std::byte{0xff}; })) {
      Misuse("a write behind the shared memory that the launch asked for");
    }
  }

  std::function<void()> Take() {
    const size_t chosen = random_() % later_.size();
    std::swap(later_[chosen], later_.back());
    std::function<void()> work = std::move(later_.back());
    later_.pop_back();
    return work;
  }
  bool RunLater(bool& idle) {
    if (later_.empty()) return false;
    Take()();
    idle = false;
    return true;
  }

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

uint3 CtaIndex(const Grid& grid, uint64_t number) {
  const uint64_t plane = uint64_t{grid.ctas.x} * grid.ctas.y;
  return {static_cast<unsigned>(number % grid.ctas.x),
          static_cast<unsigned>(number % plane / grid.ctas.x),
          static_cast<unsigned>(number / plane)};
}

// CTAs of one cluster after the other, each in a thread of its own, of which one runs at a time.
class ClusterRun {
 public:
  ClusterRun(const Grid& grid, const std::function<void()>& body) : grid_(grid), body_(body) {}

  void Run() {
    const unsigned size = grid_.cluster;
    std::vector<std::jthread> threads;
    for (unsigned rank = 1; rank < size; ++rank) {
      threads.emplace_back([this, rank] { RunRank(rank); });
    }
    RunRank(0);
    threads.clear();
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  // Every rank's part of every cluster. Turns go around: each makes its CTA ready in the first, runs it in
  // those that follow, and keeps its shared memory until all have ended, which rank 0 says.
  void RunRank(unsigned rank) {
    const uint64_t ctas = uint64_t{grid_.ctas.x} * grid_.ctas.y * grid_.ctas.z;
    bool stops = false;
    for (uint64_t first = 0; first < ctas && !stops; first += grid_.cluster) {
      AwaitTurn(rank);
      if (rank == 0) Begin();
      auto mine =
          std::make_unique<Cta>(grid_, CtaIndex(grid_, first + rank), rank, cluster_, body_);
      cluster_.ctas.push_back(mine.get());
      PassTurn();
      for (bool is_over = false; !is_over;) {
        AwaitTurn(rank);
        if (rank == 0) is_over_ = failed_ || ended_ == grid_.cluster;
        is_over = is_over_;
        if (is_over) {
          stops = failed_ != nullptr;
          mine.reset();
        } else if (!failed_) {
          RunSome(*mine);
        }
        PassTurn();
      }
    }
  }

  void Begin() {
    cluster_ = {};
    cluster_.threads = int64_t{grid_.cluster} * grid_.threads.x * grid_.threads.y * grid_.threads.z;
    ended_ = quiet_ = 0;
    idle_rounds_ = 0;
    is_over_ = false;
  }

  void RunSome(Cta& mine) {
    try {
      if (mine.has_ended()) {
        ++quiet_;
      } else {
        bool idle = true;
        bool any = false;
        while (mine.RunRound(idle)) {
          any = true;
          if (mine.has_ended()) break;
          if (!idle) {
            idle_rounds_ = 0;
          } else if (++idle_rounds_ > kMostIdleRounds || grid_.cluster > 1) {
            break;
          }
        }
        quiet_ = any ? 0 : quiet_ + 1;
        if (mine.has_ended()) ++ended_;
      }
      if (ended_ < grid_.cluster && (quiet_ > grid_.cluster || idle_rounds_ > kMostIdleRounds)) {
        std::string text = "no thread can go on. ";
        for (const Cta* one : cluster_.ctas) text += one->Waiting() + " ";
        throw std::runtime_error(text);
      }
    } catch (...) {
      failed_ = std::current_exception();
    }
  }

  void AwaitTurn(unsigned rank) {
    if (grid_.cluster == 1) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == rank; });
  }
  void PassTurn() {
    if (grid_.cluster == 1) return;
    {
      const std::lock_guard lock(mutex_);
      turn_ = (turn_ + 1) % grid_.cluster;
    }
    changed_.notify_all();
  }

  const Grid& grid_;
  const std::function<void()>& body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  unsigned turn_ = 0;
  // What follows is the turn's.
  Cluster cluster_;
  unsigned ended_ = 0, quiet_ = 0;
  int idle_rounds_ = 0;
  bool is_over_ = false;
  std::exception_ptr failed_;
};

void Suspend() {
  Fiber& fiber = *current;
  fiber.scheduler = std::move(fiber.scheduler).resume();
}

void DoAll(std::vector<std::function<void()>>& work) {
  for (const std::function<void()>& one : work) one();
  work.clear();
}

}  // namespace

void RunGrid(const Grid& grid, const std::function<void()>& thread) {
  const uint64_t threads = uint64_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  Require(threads > 0 && threads <= kMostThreads && grid.shared_bytes <= kSharedBytes &&
              grid.cluster > 0 && grid.ctas.x % grid.cluster == 0,
          "a launch of {} x {} x {} CTAs of {} threads, in clusters of {}, with {} bytes of shared "
          "memory",
          grid.ctas.x, grid.ctas.y, grid.ctas.z, threads, grid.cluster, grid.shared_bytes);
  ClusterRun(grid, thread).Run();
}

void WaitWhile(const uint64_t* word, uint64_t mask, uint64_t value, const char* what) {
  Fiber& fiber = *current;
  while ((*word & mask) == value) {
    fiber.word = word;
    fiber.mask = mask;
    fiber.value = value;
    fiber.what = what;
    Suspend();
  }
}

void Yield() {
  current->what = "something that it looks at again";
  current->yielded = cta->round();
  Suspend();
}

void Misuse(const char* what) {
  throw std::runtime_error(
      fmt::format("thread {} of CTA {}: {}", current->number, blockIdx.x, what));
}

void Meet(uint32_t lanes, void* mine, Act act, const char* what) {
  Warp& warp = cta->warp();
  const auto lane = static_cast<uint32_t>(current->number % kLanes);
  if ((lanes >> lane & 1) == 0) Misuse("a lane that is none of those that are to meet");
  Meeting* meeting = nullptr;
  for (Meeting& one : warp.meetings) {
    if (one.arrived == 0) {
      if (meeting == nullptr) meeting = &one;
    } else if (one.lanes == lanes && one.act == act && (one.arrived >> lane & 1) == 0) {
      meeting = &one;
      break;
    }
  }
  if (meeting == nullptr) meeting = &warp.meetings.emplace_back();
  if (meeting->arrived == 0) {
    meeting->lanes = lanes;
    meeting->act = act;
    std::memset(meeting->theirs, 0, sizeof(meeting->theirs));
  }
  meeting->arrived |= 1u << lane;
  meeting->theirs[lane] = mine;
  if (TakePlaceIfAllAreThere(*meeting, warp)) return;
  WaitWhile(&meeting->times, ~uint64_t{0}, meeting->times, what);
}

int Sync(int id, int threads, bool says) {
  CtaBarrier& barrier = cta->barrier(id);
  barrier.say_so += says ? 1 : 0;
  barrier.Arrive(threads);
  const uint64_t phase = barrier.phase;
  if (barrier.arrived >= (threads == 0 ? cta->left() : threads)) {
    barrier.EndPhase();
  } else {
    static constexpr const char* kNames[kBarriers] = {
        "__syncthreads", "barrier 1",  "barrier 2",  "barrier 3", "barrier 4",  "barrier 5",
        "barrier 6",     "barrier 7",  "barrier 8",  "barrier 9", "barrier 10", "barrier 11",
        "barrier 12",    "barrier 13", "barrier 14", "barrier 15"};
    WaitWhile(&barrier.phase, ~uint64_t{0}, phase, kNames[id]);
  }
  return barrier.said;
}

void Arrive(int id, int threads) {
  CtaBarrier& barrier = cta->barrier(id);
  barrier.Arrive(threads);
  if (barrier.arrived >= threads) barrier.EndPhase();
}

void ArriveAtCluster() {
  Cluster& cluster = cta->cluster();
  current->cluster_phase = cluster.phase;
  ++cluster.arrived;
  cluster.EndPhaseIfAllAreThere();
}

void WaitForCluster() {
  WaitWhile(&cta->cluster().phase, ~uint64_t{0}, current->cluster_phase, "the cluster");
}

unsigned RankInCluster() { return cta->rank(); }

// ---- Shared memory ----

std::byte* DynamicShared() { return dynamic_shared; }

uint32_t SharedAddress(const void* pointer) {
  const auto distance = static_cast<const std::byte*>(pointer) - dynamic_shared;
  if (distance < 0 || distance > static_cast<ptrdiff_t>(cta->shared_bytes())) {
    Misuse("an address of what the launch's shared memory does not hold");
  }
  return static_cast<uint32_t>(distance);
}

std::byte* AtShared(uint32_t address) {
  const uint32_t place = PlaceOf(address), rank = address >> kRankShift;
  if (place >= cta->shared_bytes())
    Misuse("an address behind the shared memory that the launch asked for");
  const Cluster& cluster = cta->cluster();
  if (rank > cluster.ctas.size()) Misuse("an address of a CTA that the cluster does not have");
  const Cta& owner = rank == 0 ? *cta : *cluster.ctas[rank - 1];
  if (owner.has_ended()) Misuse("an address of a CTA that has ended");
  return owner.shared() + place;
}

uint32_t AddressIn(uint32_t rank, uint32_t address) {
  return PlaceOf(address) | (rank + 1) << kRankShift;
}

void* InCta(uint32_t rank, void* pointer) {
  const Cluster& cluster = cta->cluster();
  if (rank >= cluster.ctas.size()) Misuse("a CTA that the cluster does not have");
  if (cluster.ctas[rank]->has_ended()) Misuse("memory of a CTA that has ended");
  // A variable is as far from the launch's memory in every thread.
  return static_cast<std::byte*>(pointer) - cta->shared() + cluster.ctas[rank]->shared();
}

// ---- What ends later ----

void Later(std::function<void()> work) { cta->AddLater(std::move(work)); }

void CopyLater(std::function<void()> copy) {
  if (cta->Draw()) {
    copy();
  } else {
    current->open_copies.push_back(std::move(copy));
  }
}

void CommitCopies() { current->copy_groups.push_back(std::exchange(current->open_copies, {})); }

void WaitForCopies(int pending) {
  auto& groups = current->copy_groups;
  while (static_cast<int>(groups.size()) > pending) {
    DoAll(groups.front());
    groups.pop_front();
  }
}

void AfterCopies(std::function<void()> then) {
  std::vector<std::function<void()>> all;
  for (auto& group : current->copy_groups) {
    for (auto& copy : group) all.push_back(std::move(copy));
    group.clear();
  }
  for (auto& copy : current->open_copies) all.push_back(std::move(copy));
  current->open_copies.clear();
  Later([all = std::move(all), then = std::move(then)] {
    for (const auto& copy : all) copy();
    then();
  });
}

void StoreLater(std::function<void()> store) {
  Fiber* mine = current;
  ++mine->stores_under_way;
  Later([mine, store = std::move(store)] {
    store();
    --mine->stores_under_way;
  });
}

void WaitForStores() {
  while (current->stores_under_way > 0) {
    WaitWhile(&current->stores_under_way, ~uint64_t{0}, current->stores_under_way,
              "its stores of shared memory");
  }
}

// ---- Products ----

namespace {

// Groups up to number `until`, of all warps.
void EndProducts(Warpgroup& group, uint64_t until) {
  for (; group.ended < until; ++group.ended) {
    for (Warp& warp : cta->warps_beside()) {
      DoAll(warp.product_groups.front());
      warp.product_groups.pop_front();
    }
  }
}

void CommitAll(void* const (&)[kLanes]) {
  Warp& warp = cta->warp();
  warp.product_groups.push_back(std::exchange(warp.open_products, {}));
  ++warp.groups_committed;
  uint64_t all = warp.groups_committed;
  for (const Warp& other : cta->warps_beside()) all = std::min(all, other.groups_committed);
  Warpgroup& group = cta->warpgroup();
  if (all > group.committed && cta->Draw()) EndProducts(group, all);
  group.committed = all;
}

}  // namespace

void MultiplyLater(std::function<void()> product) {
  cta->warp().open_products.push_back(std::move(product));
}
void CommitProducts() { Meet(~0u, nullptr, CommitAll, "the other lanes, to commit products"); }
void WaitForProducts(int pending) {
  Warpgroup& group = cta->warpgroup();
  const uint64_t mine = cta->warp().groups_committed;
  const uint64_t until =
      mine > static_cast<uint64_t>(pending) ? mine - static_cast<uint64_t>(pending) : 0;
  while (group.committed < until) {
    WaitWhile(&group.committed, ~uint64_t{0}, group.committed, "the other warps of a product");
  }
  EndProducts(group, until);
  __syncwarp();
}

uint64_t Clock() {
  static thread_local uint64_t clock = 0;
  return clock += 100'000;
}

}  // namespace quire::emulator
