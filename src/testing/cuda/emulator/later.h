// What overlaps on a GPU - copies of the copy engine and of threads, products of warpgroups - ends here at a moment
// that is drawn at random, at once and as late as a kernel allows it among them. So a kernel that does not wait for
// it, or gives its operands away too soon, is likely to read what is not there. Threads of a kernel call this.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_LATER_H_
#define QUIRE_TESTING_CUDA_EMULATOR_LATER_H_

#include <functional>

namespace quire::emulator {

// Work that ends later, at any time.
void Later(std::function<void()> work);
// Copies of this thread, each of which is done at once or when the thread waits for the group that it is in.
void CopyLater(std::function<void()> copy);
void CommitCopies();
void WaitForCopies(int pending);
// All copies of this thread so far end later, and `then` is done behind them.
void AfterCopies(std::function<void()> then);
// Stores of this thread from shared memory end later; waits for them, as a thread has to before it ends.
void StoreLater(std::function<void()> store);
void WaitForStores();

// A warp's part of a product of its warpgroup. All four warps' parts end together, when all have committed the group
// that it is in, at once or when one of them waits for it: PTX has such groups "per warpgroup".
void MultiplyLater(std::function<void()> product);  // called by one lane
void CommitProducts();
void WaitForProducts(int pending);

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_LATER_H_
