// The machine that kernels run on where there is no GPU: CTAs of a grid one after the other, CTAs of a
// cluster beside each other, threads as fibers, of which one runs at a time until it has to wait.
//
// What overlaps on a GPU ends here as late as a kernel allows it, or at a moment drawn at random: copies
// of the copy engine, copies of threads, products of warpgroups. So a kernel that does not wait for them, or
// gives their operands away too soon, reads what is not there; shared memory holds NaNs at first. A kernel
// none of whose threads can go on is a fault that says where each waits. Nothing is known of time, of
// caches, of the order of memory, or of fences.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_MACHINE_H_
#define QUIRE_TESTING_CUDA_EMULATOR_MACHINE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

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

// ---- What follows is called by threads of a kernel ----

// Waits while (*word & mask) == value; `what` is said where that never ends.
void WaitWhile(const uint64_t* word, uint64_t mask, uint64_t value, const char* what);
// Lets others run.
void Yield();
[[noreturn]] void Fault(const char* what);

// Lanes of a warp meet: all of `lanes` give what is theirs, and wait; the last one calls `act` with what
// each gave, by lane; null: the lane has ended, or is not among them.
using Act = void (*)(void* const (&theirs)[kLanes]);
void Meet(uint32_t lanes, void* mine, Act act, const char* what);

// Barrier `id` of a CTA, of `threads` of them; 0 threads: all that have not ended. Returns how many of the
// threads said so.
int Sync(int id, int threads, bool says = false);
void Arrive(int id, int threads);
void ArriveAtCluster();
void WaitForCluster();

unsigned RankInCluster();
unsigned ClusterSize();

// Addresses of shared memory are what a GPU's would be: 0 is where that which a launch asked for begins.
std::byte* DynamicShared();
uint32_t SharedAddress(const void* pointer);
// Where an address lies: one of this CTA, or of another one of the cluster (AddressIn).
std::byte* AtShared(uint32_t address);
uint32_t AddressIn(uint32_t rank, uint32_t address);
// The same place in the shared memory of CTA `rank`.
void* InCta(uint32_t rank, void* pointer);

// Work that ends later, at any time.
void Later(std::function<void()> work);
// Copies of this thread: they are done in order, when the thread waits for the group that they are in.
void CopyLater(std::function<void()> copy);
void CommitCopies();
void WaitForCopies(int pending);
// All copies of this thread so far end later, and `then` is done behind them.
void AfterCopies(std::function<void()> then);
// Stores of this thread from shared memory end later; waits for them.
void StoreLater(std::function<void()> store);
void WaitForStores();

// A warp's part of a product of its warpgroup, which ends when one of the four warps waits for its group and all
// have committed it: PTX has such groups "per warpgroup".
void MultiplyLater(std::function<void()> product);  // called by one lane
void CommitProducts();
void CommitProducts();
void WaitForProducts(int pending);

uint64_t Clock();

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_MACHINE_H_
