// kernels/cuda/ptx/warpgroup.cuh of the emulated GPU: the same functions.
#ifndef QUIRE_KERNELS_CUDA_PTX_WARPGROUP_CUH_
#define QUIRE_KERNELS_CUDA_PTX_WARPGROUP_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/panels.cuh"
#include "testing/cuda/emulator/copies.h"
#include "testing/cuda/emulator/later.h"
#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/matrices.h"
#include "testing/cuda/emulator/meetings.h"
#include "testing/cuda/emulator/phase.h"

namespace quire::cuda {

inline uint32_t UniformHere(uint32_t value) { return Uniform(value); }

// ---- Products ----

inline void BeginProducts() {}
inline void CommitProducts() { emulator::CommitProducts(); }
template <int kPending>
inline void WaitForProducts() {
  emulator::WaitForProducts(kPending);
}
template <int kSums>
inline void HoldSums(float (&)[kSums]) {}
inline void HoldOperand(uint32_t (&)[4]) {}

template <int kSums>
inline void MultiplyPanels(float (&sum)[kSums], uint64_t a, uint64_t b, bool adds) {
  emulator::Multiply<kSums>(sum, a, b, adds, {.element = emulator::Element::kBf16});
}
template <int kSums>
inline void MultiplyPanelsF16(float (&sum)[kSums], uint64_t a, uint64_t b, bool adds) {
  emulator::Multiply<kSums>(sum, a, b, adds, {.element = emulator::Element::kF16});
}
template <int kSums>
inline void MultiplyCodes(float (&sum)[kSums], uint64_t a, uint64_t b, bool adds) {
  emulator::Multiply<kSums>(sum, a, b, adds, {.element = emulator::Element::kE4m3});
}
inline void MultiplyTurned(float (&sum)[8], uint64_t a, uint64_t b, bool adds) {
  emulator::Multiply<8>(sum, a, b, adds, {.element = emulator::Element::kBf16, .turns_a = true});
}
inline void MultiplyValuesF16(float (&sum)[64], uint64_t a, uint64_t b) {
  emulator::Multiply<64>(sum, a, b, true, {.element = emulator::Element::kF16, .turns_b = true});
}
template <int kSums>
inline void MultiplyRows(float (&sum)[kSums], const uint32_t (&a)[4], uint64_t b) {
  emulator::MultiplyRows<kSums>(sum, a, b, true,
                                {.element = emulator::Element::kBf16, .turns_b = true});
}
inline void MultiplyRowsByPanels(float (&sum)[8], const uint32_t (&a)[4], uint64_t b, bool adds) {
  emulator::MultiplyRows<8>(sum, a, b, adds, {.element = emulator::Element::kBf16});
}
inline void MultiplyRowsByPanelsF16(float (&sum)[8], const uint32_t (&a)[4], uint64_t b,
                                    bool adds) {
  emulator::MultiplyRows<8>(sum, a, b, adds, {.element = emulator::Element::kF16});
}

// ---- Registers and barriers of a CTA ----

template <int kRegisters>
inline void GiveRegistersBack() {}
template <int kRegisters>
inline void TakeRegisters() {}
template <int kThreads>
inline void SyncThreads(int id) {
  emulator::Sync(id, kThreads);
}
template <int kThreads>
inline void ArriveAtThreads(int id) {
  emulator::Arrive(id, kThreads);
}
template <int kThreads>
inline bool SyncThreadsAny(int id, bool says) {
  return emulator::Sync(id, kThreads, says) > 0;
}
inline void SyncWarpgroup(int id) { SyncThreads<kWarpgroup>(id); }
inline bool SyncWarpgroupAny(int id, bool says) { return SyncThreadsAny<kWarpgroup>(id, says); }
inline void FenceForProducts() {}

// ---- Barriers in shared memory ----

struct PhaseBarrier {
  uint64_t state;

  uint32_t Address() const { return emulator::SharedAddress(&state); }
  void Init(uint32_t arrivals) { emulator::InitPhase(state, arrivals); }
  void Arrive() { emulator::ArriveAtPhase(state, 1); }
  void Arrive(uint32_t count) { emulator::ArriveAtPhase(state, count); }
  void ArriveExpecting(uint32_t bytes) {
    emulator::ExpectBytes(state, bytes);
    emulator::ArriveAtPhase(state, 1);
  }
  void Expect(uint32_t bytes) { emulator::ExpectBytes(state, bytes); }
  void ArriveAfterCopies() {
    emulator::AfterCopies([this] { emulator::ArriveAtPhase(state, 1); });
  }
  bool HasEnded(uint32_t parity) const {
    if (emulator::PhaseHasEnded(state, parity)) return true;
    emulator::Yield();
    return false;
  }
  void ArriveAt(uint32_t rank) const {
    emulator::ArriveAtPhase(emulator::PhaseAt(emulator::AddressIn(rank, Address())), 1);
  }
  void ArriveLooselyAt(uint32_t rank) const { ArriveAt(rank); }
  void WaitInCluster(uint32_t parity) const { Wait(parity); }
  void Wait(uint32_t parity) const { emulator::WaitForPhase(state, parity); }
};

// ---- Clusters ----

inline uint32_t RankInCluster() { return emulator::RankInCluster(); }
inline void ArriveAtCluster() { emulator::ArriveAtCluster(); }
inline void WaitForCluster() { emulator::WaitForCluster(); }
inline void SyncCluster() {
  emulator::ArriveAtCluster();
  emulator::WaitForCluster();
}
inline uint32_t WayTo(uint32_t rank, uint32_t address) {
  return emulator::AddressIn(rank, address) - address;
}
inline void StoreThere16(uint32_t there, const uint32_t (&words)[4], uint32_t counts) {
  emulator::StoreThere(there, words, sizeof(words), counts);
}
inline void StoreAt(uint32_t rank, uint32_t to, float v, uint32_t barrier) {
  emulator::StoreThere(emulator::AddressIn(rank, to), &v, sizeof(v),
                       emulator::AddressIn(rank, barrier));
}
inline void StoreAt(uint32_t rank, uint32_t to, float4 v, uint32_t barrier) {
  emulator::StoreThere(emulator::AddressIn(rank, to), &v, sizeof(v),
                       emulator::AddressIn(rank, barrier));
}

// ---- The copy engine ----

inline void PrefetchTensorMap(const void*) {}
inline void CopyBox(uint32_t to, const void* map, int32_t column, int32_t row, uint32_t barrier) {
  emulator::CopyBox(to, map, {column, row, 0}, barrier);
}
inline void CopyBox(uint32_t to, const void* map, int32_t column, int32_t row, int32_t matrix,
                    uint32_t barrier) {
  emulator::CopyBox(to, map, {column, row, matrix}, barrier);
}
inline void CopyBox(uint32_t to, const void* map, int32_t column, int32_t row, int32_t matrix,
                    uint32_t barrier, uint64_t) {
  emulator::CopyBox(to, map, {column, row, matrix}, barrier);
}
inline void CopyBoxToCtas(uint32_t to, const void* map, int32_t column, int32_t row, int32_t matrix,
                          uint32_t barrier, uint16_t ranks) {
  for (uint32_t rank = 0; rank < 16; ++rank) {
    if ((ranks >> rank & 1) == 0) continue;
    emulator::CopyBox(emulator::AddressIn(rank, to), map, {column, row, matrix},
                      emulator::AddressIn(rank, barrier));
  }
}
inline void CopyBytes(uint32_t to, const std::byte* from, uint32_t bytes, uint32_t barrier) {
  emulator::CopyBytes(to, from, bytes, barrier);
}
inline void CopyBytes(uint32_t to, const std::byte* from, uint32_t bytes, uint32_t barrier,
                      uint64_t) {
  emulator::CopyBytes(to, from, bytes, barrier);
}
inline void StoreBytes(std::byte* to, uint32_t from, uint32_t bytes) {
  emulator::StoreLater(
      [to, place = emulator::AtShared(from), bytes] { std::memcpy(to, place, bytes); });
}
inline void StoreBox(const void* map, uint32_t from, int32_t column, int32_t row, int32_t matrix) {
  emulator::StoreBox(map, from, {column, row, matrix});
}
inline void WaitForStores() { emulator::WaitForStores(); }
inline void FenceBarrierInit() {}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PTX_WARPGROUP_CUH_
