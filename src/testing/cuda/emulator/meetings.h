// Where threads of a kernel meet: lanes of a warp, threads of a CTA at its barriers, CTAs of a cluster. The last one
// to come does what they came for. Threads of a kernel call this.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_MEETINGS_H_
#define QUIRE_TESTING_CUDA_EMULATOR_MEETINGS_H_

#include <cstdint>

#include "testing/cuda/emulator/machine.h"

namespace quire::emulator {

// Lanes of a warp meet: all of `lanes` give what is theirs, and wait; the last one calls `act` with what
// each gave, by lane; null: the lane has ended, or is not among them.
using Act = void (*)(void* const (&theirs)[kLanes]);
void Meet(uint32_t lanes, void* mine, Act act, const char* what);

// Waits at barrier `id` until `threads` threads of the CTA are there; 0: all that have not ended. Returns how many
// of them passed `says`.
int Sync(int id, int threads, bool says = false);
void Arrive(int id, int threads);
void ArriveAtCluster();
void WaitForCluster();

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_MEETINGS_H_
