// The copy engine: boxes of tensors and bytes, to shared memory of a cluster, and boxes from a CTA's own.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_COPIES_H_
#define QUIRE_TESTING_CUDA_EMULATOR_COPIES_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire::emulator {

// Each ends later, and tells the barrier at `barrier` of its bytes.
void CopyBox(uint32_t to, const void* map, std::array<int32_t, 3> at, uint32_t barrier);
void CopyBytes(uint32_t to, const std::byte* from, uint32_t bytes, uint32_t barrier);
// The thread that stores waits for it with WaitForStores.
void StoreBox(const void* map, uint32_t from, std::array<int32_t, 3> at);
void StoreThere(uint32_t to, const void* values, uint32_t bytes, uint32_t barrier);

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_COPIES_H_
