#include "testing/cuda/emulator/later.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "testing/cuda/emulator/cta.h"
#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/meetings.h"

namespace quire::emulator {
namespace {

void DoAll(std::vector<std::function<void()>>& work) {
  for (const std::function<void()>& one : work) one();
  work.clear();
}

}  // namespace

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
  auto& told = current->told_copies;
  std::erase_if(told, [](const auto& copies) { return copies->empty(); });
  auto& latest = *told.emplace_back(std::make_shared<std::vector<std::function<void()>>>());
  for (auto& group : current->copy_groups) {
    for (auto& copy : group) latest.push_back(std::move(copy));
    group.clear();
  }
  for (auto& copy : current->open_copies) latest.push_back(std::move(copy));
  current->open_copies.clear();
  // All so far, those that somebody else is told of, too.
  Later([told, then = std::move(then)] {
    for (const auto& copies : told) DoAll(*copies);
    then();
  });
}

void StoreLater(std::function<void()> store) {
  Fiber* mine = current;
  ++mine->stores_under_way;
  mine->has_stored = true;
  Later([mine, store = std::move(store)] {
    store();
    --mine->stores_under_way;
  });
}

void WaitForStores() {
  current->has_stored = false;
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

}  // namespace quire::emulator
