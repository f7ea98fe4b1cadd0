// kernels/cuda/ptx/instructions.cuh of the emulated GPU: the same functions.
#ifndef QUIRE_KERNELS_CUDA_PTX_INSTRUCTIONS_CUH_
#define QUIRE_KERNELS_CUDA_PTX_INSTRUCTIONS_CUH_

#include <cstddef>
#include <cstdint>

#include "base/narrow_float.h"
#include "kernels/cuda/ptx/panels.cuh"
#include "testing/cuda/emulator/later.h"
#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/matrices.h"

namespace quire::cuda {

inline uint32_t SharedAddress(const void* pointer) { return emulator::SharedAddress(pointer); }

// ---- Copies and loads ----

inline void RequireAligned(const void* pointer, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) {
    emulator::Misuse("an address that is no multiple of what is moved there");
  }
}

inline void CopyAsync(uint32_t to, const std::byte* from, int bytes, int of) {
  RequireAligned(emulator::AtShared(to), static_cast<size_t>(of));
  RequireAligned(bytes > 0 ? from : nullptr, static_cast<size_t>(of));
  if (bytes < 0 || bytes > of) emulator::Misuse("a copy of more than its place holds");
  emulator::CopyLater([place = emulator::AtShared(to), from, bytes, of] {
    std::memset(place, 0, static_cast<size_t>(of));
    if (bytes > 0) std::memcpy(place, from, static_cast<size_t>(bytes));
  });
}
inline void CopyAsync16(uint32_t to, const std::byte* from, int bytes) {
  CopyAsync(to, from, bytes, 16);
}
inline uint64_t ReadOncePolicy() { return 0; }
inline void CopyAsync16(uint32_t to, const std::byte* from, int bytes, uint64_t) {
  CopyAsync(to, from, bytes, 16);
}
inline void CopyAsync16(uint32_t to, const std::byte* from, uint64_t) {
  CopyAsync(to, from, 16, 16);
}
inline void CopyAsync4(uint32_t to, const std::byte* from, int bytes) {
  CopyAsync(to, from, bytes, 4);
}
inline void CommitCopies() { emulator::CommitCopies(); }
template <int kPending>
inline void WaitForCopies() {
  emulator::WaitForCopies(kPending);
}

template <class T>
inline T LoadHere(const std::byte* from) {
  RequireAligned(from, sizeof(T));
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline uint4 LoadConst16(const void* from, uint64_t) {
  return LoadHere<uint4>(static_cast<const std::byte*>(from));
}
inline uint4 LoadHere16(const std::byte* from) { return LoadHere<uint4>(from); }
inline uint2 LoadHere8(const std::byte* from) { return LoadHere<uint2>(from); }
inline int32_t LoadNear(const std::byte* from) { return LoadHere<int32_t>(from); }
inline void PrefetchLine(const std::byte*) {}

inline void StoreShared16(uint32_t to, const uint32_t (&words)[4]) {
  RequireAligned(emulator::AtShared(to), sizeof(words));
  std::memcpy(emulator::AtShared(to), words, sizeof(words));
}
inline uint4 LoadShared16(uint32_t from) { return LoadHere<uint4>(emulator::AtShared(from)); }
inline uint32_t LoadShared4(uint32_t from) { return LoadHere<uint32_t>(emulator::AtShared(from)); }
inline void LoadShared8(uint32_t from, uint32_t& low, uint32_t& high) {
  const auto words = LoadHere<uint2>(emulator::AtShared(from));
  low = words.x;
  high = words.y;
}

// ---- Matrices of a warp ----

inline void LoadMatrices(uint32_t from, uint32_t& m0, uint32_t& m1, uint32_t& m2, uint32_t& m3) {
  emulator::LoadMatrices(from, {&m0, &m1, &m2, &m3}, false);
}
inline void LoadMatricesTransposed(uint32_t from, uint32_t& m0, uint32_t& m1, uint32_t& m2,
                                   uint32_t& m3) {
  emulator::LoadMatrices(from, {&m0, &m1, &m2, &m3}, true);
}
inline void StoreMatrices(uint32_t to, const uint32_t (&m)[4]) {
  emulator::StoreMatrices(to, m, false);
}
inline void StoreMatricesTransposed(uint32_t to, const uint32_t (&m)[4]) {
  emulator::StoreMatrices(to, m, true);
}
inline uint32_t TransposeMatrix(uint32_t m) { return emulator::TransposeMatrix(m); }
inline void MultiplyBf16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::MultiplyInWarp(sum, a, b0, b1, emulator::Element::kBf16);
}
inline void MultiplyF16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::MultiplyInWarp(sum, a, b0, b1, emulator::Element::kF16);
}

// ---- Values ----

inline float Select(bool condition, float yes, float no) { return condition ? yes : no; }
// Numbers that are not normal become 0.
inline float Flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float Exp2Approx(float x) { return Flushed(std::exp2(Flushed(x))); }
inline float Relu(float x) { return x != x || x > 0 ? x : 0.0f; }
inline float ReciprocalApprox(float x) { return Flushed(1.0f / Flushed(x)); }
inline uint32_t Packed(uint16_t low, uint16_t high) {
  return low | static_cast<uint32_t>(high) << 16;
}
inline uint32_t PackBf16(float low, float high) {
  return Packed(ToBf16(low).bits, ToBf16(high).bits);
}
inline uint32_t PackF16(float low, float high) { return Packed(ToF16(low).bits, ToF16(high).bits); }
inline uint16_t PackCodes(float low, float high) {
  return static_cast<uint16_t>(ToFp8E4m3(low).bits | ToFp8E4m3(high).bits << 8);
}
inline float2 WidenF16(uint32_t pair) {
  return {ToFloat(F16{static_cast<uint16_t>(pair)}),
          ToFloat(F16{static_cast<uint16_t>(pair >> 16)})};
}
inline uint32_t MultiplyF16Pairs(uint32_t a, uint32_t b) {
  const float2 x = WidenF16(a), y = WidenF16(b);
  return PackF16(x.x * y.x, x.y * y.y);
}
inline uint32_t WidenPair(uint32_t codes) {
  return PackF16(ToFloat(Fp8E4m3{static_cast<uint8_t>(codes)}),
                 ToFloat(Fp8E4m3{static_cast<uint8_t>(codes >> 8)}));
}
inline void WidenToF16(uint32_t codes, uint32_t& low, uint32_t& high) {
  low = WidenPair(codes);
  high = WidenPair(codes >> 16);
}
inline void WidenHalvesToF16(uint32_t codes, uint32_t& low, uint32_t& high) {
  WidenToF16(codes, low, high);
}
inline int HeldThread() { return static_cast<int>(threadIdx.x); }

}  // namespace quire::cuda

#include "kernels/cuda/ptx/values.cuh"  // IWYU pragma: export

#endif  // QUIRE_KERNELS_CUDA_PTX_INSTRUCTIONS_CUH_
