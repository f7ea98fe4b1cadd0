// Barriers in shared memory that count arrivals and bytes (mbarrier).
#ifndef QUIRE_TESTING_CUDA_EMULATOR_PHASE_H_
#define QUIRE_TESTING_CUDA_EMULATOR_PHASE_H_

#include <cstdint>

namespace quire::emulator {

// Each kept in the eight bytes of the barrier itself.
void InitPhase(uint64_t& state, uint32_t arrivals);
void ArriveAtPhase(uint64_t& state, uint32_t count);
void ExpectBytes(uint64_t& state, uint32_t bytes);
void BytesAreThere(uint64_t& state, uint32_t bytes);
bool PhaseHasEnded(const uint64_t& state, uint32_t parity);
void WaitForPhase(const uint64_t& state, uint32_t parity);
// At an address of shared memory.
uint64_t& PhaseAt(uint32_t address);

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_PHASE_H_
