#include "testing/cuda/emulator/machine.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "testing/cuda/emulator/cta.h"

namespace quire::emulator {
namespace {

// Rounds in which threads only look at something again, before that counts as waiting for ever, and before the kernel
// before gets done.
constexpr int kMostIdleRounds = 100'000, kIdleRoundsAhead = 1000;

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
  ClusterRun(const Grid& grid, const std::function<void()>& body, std::function<void()> before,
             uint64_t first)
      : grid_(grid), body_(body), before_(std::move(before)), first_(first * grid.cluster) {}

  void Run() {
    const unsigned size = grid_.cluster;
    std::vector<std::jthread> threads;
    for (unsigned rank = 1; rank < size; ++rank) {
      threads.emplace_back([this, rank] { RunRank(rank); });
    }
    RunRank(0);
    threads.clear();
    const bool waited = before_ == nullptr;
    EndBefore();
    if (failed_) std::rethrow_exception(failed_);
    if (!waited) throw std::runtime_error("a kernel that has ended without its turn");
  }

 private:
  // Every rank's part of every cluster. Turns go around: each makes its CTA ready in the first, runs it in
  // those that follow, and keeps its shared memory until all have ended, which rank 0 says.
  void RunRank(unsigned rank) {
    const uint64_t ctas = uint64_t{grid_.ctas.x} * grid_.ctas.y * grid_.ctas.z;
    bool stops = false;
    for (uint64_t i = 0; i < ctas && !stops; i += grid_.cluster) {
      const uint64_t first = (first_ + i) % ctas;
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
    cluster_.may_go_on = before_ == nullptr ? 1 : 0;
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
      if (ended_ == grid_.cluster) return;
      if (before_ != nullptr && (quiet_ > grid_.cluster || idle_rounds_ > kIdleRoundsAhead)) {
        EndBefore();
        cluster_.may_go_on = 1;
        quiet_ = 0;
        idle_rounds_ = 0;
      }
      if (quiet_ > grid_.cluster || idle_rounds_ > kMostIdleRounds) {
        std::string text = "no thread can go on. ";
        for (const Cta* one : cluster_.ctas) text += one->Waiting() + " ";
        throw std::runtime_error(text);
      }
    } catch (...) {
      failed_ = std::current_exception();
    }
  }

  // On a thread of its own, which has shared memory of its own.
  void EndBefore() {
    if (before_ != nullptr) std::jthread(std::exchange(before_, nullptr)).join();
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
  std::function<void()> before_;  // what the kernel before still has to do
  const uint64_t first_ = 0;      // the CTA that begins
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

void RequireLaunchable(const Grid& grid) {
  const uint64_t threads = uint64_t{grid.threads.x} * grid.threads.y * grid.threads.z;
  Require(threads > 0 && threads <= kMostThreads && grid.shared_bytes <= kSharedBytes &&
              grid.cluster > 0 && grid.ctas.x % grid.cluster == 0,
          "a launch of {} x {} x {} CTAs of {} threads, in clusters of {}, with {} bytes of shared "
          "memory",
          grid.ctas.x, grid.ctas.y, grid.ctas.z, threads, grid.cluster, grid.shared_bytes);
}

}  // namespace

void RunGrid(const Grid& grid, const std::function<void()>& thread) {
  RequireLaunchable(grid);
  ClusterRun(grid, thread).Run();
}

void RunGridAhead(const Grid& grid, const std::function<void()>& thread,
                  std::function<void()> before, uint64_t first) {
  RequireLaunchable(grid);
  ClusterRun(grid, thread, std::move(before), first).Run();
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

void TakeTurn() { WaitWhile(&cta->cluster().may_go_on, 1, 0, "its turn"); }

void Misuse(const char* what) {
  throw std::runtime_error(
      fmt::format("thread {} of CTA {}: {}", current->number, blockIdx.x, what));
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

uint64_t Clock() {
  static thread_local uint64_t clock = 0;
  return clock += 100'000;
}

}  // namespace quire::emulator
