#include "testing/cuda/emulator/meetings.h"

#include <cstring>
#include <utility>

#include "testing/cuda/emulator/cta.h"

namespace quire::emulator {

bool TakePlaceIfAllAreThere(Meeting& meeting, const Warp& warp) {
  if (meeting.arrived == 0 || (meeting.lanes & warp.alive & ~meeting.arrived) != 0) return false;
  meeting.arrived = 0;
  ++meeting.times;
  meeting.act(meeting.theirs);
  return true;
}

void CtaBarrier::Arrive(int threads) {
  if (threads % kLanes != 0) Misuse("a barrier of part of a warp");
  if (arrived > 0 && expected != threads)
    Misuse("a barrier that threads expect different numbers at");
  expected = threads;
  ++arrived;
}

void CtaBarrier::EndPhase() {
  said = std::exchange(say_so, 0);
  arrived = 0;
  ++phase;
}

void Cluster::EndPhaseIfAllAreThere() {
  if (arrived < threads || arrived == 0) return;
  arrived = 0;
  ++phase;
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

}  // namespace quire::emulator
