// The machine that kernels run on where there is no GPU: CTAs of a grid one after the other, CTAs of a
// cluster beside each other, threads as fibers, of which one runs at a time until it has to wait.
//
// What overlaps on a GPU ends later here (later.h). What a launch asks for of shared memory holds ones at first,
// NaNs as floats; variables that a kernel declares hold what the CTA before it left.
// A kernel none of whose threads can go on is a misuse that says where each waits. Nothing is known of
// time, of caches, of the order of memory, or of fences.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_MACHINE_H_
#define QUIRE_TESTING_CUDA_EMULATOR_MACHINE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace quire::emulator {

inline constexpr int kLanes = 32;  // of a warp
inline constexpr int kNumSms = 8;
inline constexpr size_t kSharedBytes = 227 << 10;  // the most that a CTA can ask for
inline constexpr int kMostThreads = 1024;          // of a CTA

struct Grid {
  dim3 ctas, threads;
  unsigned cluster = 1;  // CTAs beside each other in the first dimension
  size_t shared_bytes = 0;
};

// Runs `thread` once for each thread. Throws std::runtime_error for a kernel whose threads wait for each
// other, or that does what a GPU would not.
void RunGrid(const Grid& grid, const std::function<void()>& thread);
// The same of a kernel that begins while the one before it is not done. `before`, on a thread of its own, does what that
// still has to do: when no thread of the cluster that begins first can go on without its turn (TakeTurn), and so as late
// as may be. Others begin later, so `first`, modulo the number of clusters, says which one begins.
void RunGridAhead(const Grid& grid, const std::function<void()>& thread,
                  std::function<void()> before, uint64_t first);

// ---- What follows is called by threads of a kernel ----

// Waits while (*word & mask) == value; `what` is said where that never ends.
void WaitWhile(const uint64_t* word, uint64_t mask, uint64_t value, const char* what);
// Lets others run.
void Yield();
// Waits until the kernel before is done.
void TakeTurn();
// Ends the kernel: `what` is no GPU's to do.
[[noreturn]] void Misuse(const char* what);

unsigned RankInCluster();

// Addresses of shared memory count from where that which a launch asked for begins, and bits from kRankShift on are a
// CTA's rank and 1 where it is another one of the cluster.
inline constexpr uint32_t kRankShift = 24;
constexpr uint32_t PlaceOf(uint32_t address) { return address & ((1u << kRankShift) - 1); }
std::byte* DynamicShared();
uint32_t SharedAddress(const void* pointer);
// Where an address lies: one of this CTA, or of another one of the cluster (AddressIn).
std::byte* AtShared(uint32_t address);
uint32_t AddressIn(uint32_t rank, uint32_t address);
// The same place in the shared memory of CTA `rank`.
void* InCta(uint32_t rank, void* pointer);

uint64_t Clock();

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_MACHINE_H_
