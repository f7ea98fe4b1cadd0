#include "testing/cuda/emulator/cta.h"

#include <algorithm>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstring>
#include <map>
#include <memory>

#include "base/error.h"
#include "testing/cuda/emulator/later.h"

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace quire::emulator {
namespace {

namespace context = boost::context;

// A kernel's own arrays are a few KiB, and compiled without optimisation a few times that.
constexpr size_t kStackBytes = 256 << 10;

}  // namespace

alignas(1024) constinit thread_local std::byte dynamic_shared[kSharedBytes + kRedZone];
constinit thread_local Fiber* current = nullptr;
constinit thread_local Cta* cta = nullptr;

Cta::Cta(const Grid& grid, uint3 index, unsigned rank, Cluster& cluster,
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

bool Cta::RunRound(bool& idle) {
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

std::string Cta::Waiting() const {
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

void Cta::Prepare(unsigned number) {
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

bool Cta::RunWarp(size_t number, bool& idle) {
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

void Cta::Run(Fiber& fiber) {
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

void Cta::End(Fiber& fiber) {
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
  if (fiber.has_stored) Misuse("an end of a thread that did not wait for its stores");
  for (Meeting& meeting : warp.meetings) TakePlaceIfAllAreThere(meeting, warp);
  if (barriers_[0].arrived >= left_ && left_ > 0 && barriers_[0].arrived > 0)
    barriers_[0].EndPhase();
  if (left_ > 0) return;
  while (!later_.empty())
    Take()();  // what comes to other CTAs; to one that has ended, as this one, it is a misuse
  const std::byte* red = dynamic_shared + grid_.shared_bytes;
  if (!std::all_of(red, red + kRedZone, [](std::byte one) { return one == std::byte{0xff}; })) {
    Misuse("a write behind the shared memory that the launch asked for");
  }
}

std::function<void()> Cta::Take() {
  const size_t chosen = random_() % later_.size();
  std::swap(later_[chosen], later_.back());
  std::function<void()> work = std::move(later_.back());
  later_.pop_back();
  return work;
}

bool Cta::RunLater(bool& idle) {
  if (later_.empty()) return false;
  Take()();
  idle = false;
  return true;
}

}  // namespace quire::emulator
