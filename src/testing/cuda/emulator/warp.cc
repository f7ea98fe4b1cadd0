// CUDA's functions that the lanes of a warp, or the threads of a CTA, call together.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/meetings.h"

namespace quire::emulator {

int Lane() {
  return static_cast<int>((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) %
                          kLanes);
}

namespace {

struct Given {
  uint64_t bits;
  int from;
};

void ShuffleAll(void* const (&theirs)[kLanes]) {
  uint64_t bits[kLanes] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    if (theirs[lane] != nullptr) bits[lane] = static_cast<const Given*>(theirs[lane])->bits;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (theirs[lane] == nullptr) continue;
    auto* mine = static_cast<Given*>(theirs[lane]);
    if (theirs[mine->from] != nullptr) mine->bits = bits[mine->from];
  }
}

void Nothing(void* const (&)[kLanes]) {}

// All get what `fold` makes of the lanes' values, one after the other.
template <class T, class Fold>
void FoldAll(void* const (&theirs)[kLanes], T begin, Fold fold) {
  T all = begin;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (theirs[lane] != nullptr) all = fold(all, *static_cast<const T*>(theirs[lane]), lane);
  }
  for (void* one : theirs) {
    if (one != nullptr) *static_cast<T*>(one) = all;
  }
}

}  // namespace

uint64_t Shuffle(unsigned lanes, uint64_t bits, int from) {
  Given mine{bits, from};
  Meet(lanes, &mine, ShuffleAll, "the other lanes of a shuffle");
  return mine.bits;
}

}  // namespace quire::emulator

using quire::emulator::FoldAll;
using quire::emulator::kLanes;
using quire::emulator::Meet;

void __syncthreads() { quire::emulator::Sync(0, 0); }
int __syncthreads_or(int says) { return quire::emulator::Sync(0, 0, says != 0) > 0 ? 1 : 0; }
int __syncthreads_count(int says) { return quire::emulator::Sync(0, 0, says != 0); }
void __syncwarp(unsigned lanes) {
  Meet(lanes, nullptr, quire::emulator::Nothing, "the other lanes");
}

unsigned __ballot_sync(unsigned lanes, int says) {
  unsigned mine = says != 0 ? 1u : 0u;
  const auto act = [](void* const(&theirs)[kLanes]) {
    FoldAll<unsigned>(theirs, 0,
                      [](unsigned all, unsigned one, int lane) { return all | one << lane; });
  };
  Meet(lanes, &mine, act, "the other lanes of a vote");
  return mine;
}
int __any_sync(unsigned lanes, int says) { return __ballot_sync(lanes, says) != 0 ? 1 : 0; }
int __all_sync(unsigned lanes, int says) { return __ballot_sync(lanes, says == 0) == 0 ? 1 : 0; }
unsigned __match_any_sync(unsigned lanes, unsigned value) {
  uint64_t mine = value;
  const auto act = [](void* const(&theirs)[kLanes]) {
    uint64_t values[kLanes] = {};
    for (int lane = 0; lane < kLanes; ++lane) {
      if (theirs[lane] != nullptr) values[lane] = *static_cast<const uint64_t*>(theirs[lane]);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      if (theirs[lane] == nullptr) continue;
      unsigned same = 0;
      for (int other = 0; other < kLanes; ++other) {
        if (theirs[other] != nullptr && values[other] == values[lane]) same |= 1u << other;
      }
      *static_cast<uint64_t*>(theirs[lane]) = same;
    }
  };
  Meet(lanes, &mine, act, "the other lanes of a match");
  return static_cast<unsigned>(mine);
}

#define QUIRE_REDUCE(name, type, begin, expression)                                           \
  type name(unsigned lanes, type value) {                                                     \
    type mine = value;                                                                        \
    const auto act = [](void* const(&theirs)[kLanes]) {                                       \
      FoldAll<type>(theirs, begin, [](type all, type one, int) { return type(expression); }); \
    };                                                                                        \
    Meet(lanes, &mine, act, "the other lanes of a sum");                                      \
    return mine;                                                                              \
  }
QUIRE_REDUCE(__reduce_add_sync, unsigned, 0u, all + one)
QUIRE_REDUCE(__reduce_min_sync, unsigned, ~0u, std::min(all, one))
QUIRE_REDUCE(__reduce_max_sync, unsigned, 0u, std::max(all, one))
QUIRE_REDUCE(__reduce_xor_sync, unsigned, 0u, all ^ one)
QUIRE_REDUCE(__reduce_add_sync, int, 0, all + one)
QUIRE_REDUCE(__reduce_min_sync, int, INT32_MAX, std::min(all, one))
QUIRE_REDUCE(__reduce_max_sync, int, INT32_MIN, std::max(all, one))
#undef QUIRE_REDUCE

unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned chosen = selector >> (4 * i) & 7;
    result |= static_cast<unsigned>(bytes >> (8 * chosen) & 0xff) << (8 * i);
  }
  return result;
}
unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
int __float2int_rz(float value) {
  if (value != value) return 0;
  if (value >= 0x1p31f) return INT32_MAX;
  if (value < -0x1p31f) return INT32_MIN;
  return static_cast<int>(value);
}
unsigned long long __float2ull_rn(float value) {
  if (value != value) return uint64_t{1} << 63;
  if (value <= 0) return 0;
  if (value >= 0x1p64f) return ~0ull;
  return static_cast<unsigned long long>(std::nearbyint(value));
}
long long clock64() {
  quire::emulator::Yield();
  return static_cast<long long>(quire::emulator::Clock());
}
