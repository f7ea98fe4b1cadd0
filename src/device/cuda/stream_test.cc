#include "device/cuda/stream.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_kernels.h"
#include "device/cuda/test_memory.h"

namespace quire::cuda {
namespace {

// Some milliseconds: long beside what the host does meanwhile.
constexpr int64_t kWhile = 20'000'000;

TEST(CudaStreamTest, RunsInOrderAndMoves) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  Stream first;
  const DeviceVector<int32_t> values({5});
  AddAfterAWhile(values.span(), kWhile, first);
  const cudaStream_t handle = first.get();
  const Stream stream = std::move(first);
  EXPECT_EQ(stream.get(), handle);
  Check(cudaMemsetAsync(values.bytes().data(), 0, 4, stream.get()), "memset");
  AddToAll(values.span(), 3, stream);
  EXPECT_EQ(values.Values(stream), std::vector<int32_t>{3});
}

TEST(CudaStreamTest, AnEventMakesAnotherStreamWait) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream producer, consumer;
  const DeviceVector<int32_t> from({1}), to({0});
  Event ready;
  AddAfterAWhile(from.span(), kWhile, producer);
  ready.Record(producer);
  ready.MakeWait(consumer);
  Check(cudaMemcpyAsync(to.bytes().data(), from.bytes().data(), 4, cudaMemcpyDeviceToDevice,
                        consumer.get()),
        "memcpy");
  EXPECT_EQ(to.Values(consumer), std::vector<int32_t>{2});
}

TEST(CudaStreamTest, TheHostWaitsForAnEvent) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const DeviceVector<int32_t> values({1});
  const PinnedBuffer pinned("test", ByteOffset(4));
  auto* const copy = reinterpret_cast<volatile int32_t*>(pinned.data());
  *copy = 0;
  Event done;
  EXPECT_NO_THROW(done.Synchronize());  // never recorded
  AddAfterAWhile(values.span(), kWhile, stream);
  Check(cudaMemcpyAsync(pinned.data(), values.bytes().data(), 4, cudaMemcpyDeviceToHost,
                        stream.get()),
        "memcpy");
  done.Record(stream);
  EXPECT_FALSE(done.IsReached());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "asking is no error of a later launch";
  done.Synchronize();
  EXPECT_EQ(*copy, 2);
  EXPECT_TRUE(done.IsReached());
}

TEST(CudaStreamTest, EventsGiveTheTimeBetweenThem) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const DeviceVector<int32_t> values({1});
  Event begin(true), end(true);
  begin.Record(stream);
  AddAfterAWhile(values.span(), kWhile, stream);
  end.Record(stream);
  // No clock of such a device is above 4 GHz, and the unit must be seconds.
  EXPECT_GT(end.SecondsSince(begin), static_cast<double>(kWhile) / 4e9);
  EXPECT_LT(end.SecondsSince(begin), 10.0);
  Event plain;
  plain.Record(stream);
  EXPECT_THROW(plain.SecondsSince(begin), DeviceError);
}

TEST(CudaStreamTest, ABranchSeesWhatWasBeforeItAndIsSeenByWhatFollows) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Branch branch;
  const DeviceVector<int32_t> before({1}), beside({0}), after({0});
  const auto copy = [](const DeviceVector<int32_t>& from, const DeviceVector<int32_t>& to,
                       const Stream& on) {
    Check(cudaMemcpyAsync(to.bytes().data(), from.bytes().data(), 4, cudaMemcpyDeviceToDevice,
                          on.get()),
          "memcpy");
  };
  for (int32_t round = 1; round <= 3; ++round) {
    AddAfterAWhile(before.span(), kWhile, stream);
    branch.Fork(stream);
    copy(before, beside, branch.stream());
    AddAfterAWhile(beside.span(), kWhile, branch.stream());
    branch.Join(stream);
    copy(beside, after, stream);
    EXPECT_EQ(after.Values(stream), std::vector<int32_t>{2 + round});
  }
}

TEST(CudaStreamTest, ABranchRunsBesideItsStream) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Branch branch;
  const DeviceVector<int32_t> values({1}), beside({1});
  Event reached;
  branch.Fork(stream);
  AddToAll(beside.span(), 1, branch.stream());  // loads the kernel
  branch.Join(stream);
  stream.Synchronize();
  branch.Fork(stream);
  AddAfterAWhile(values.span(), 10 * kWhile, stream);
  AddToAll(beside.span(), 1, branch.stream());
  reached.Record(branch.stream());
  reached.Synchronize();
  Event done;
  done.Record(stream);
  EXPECT_FALSE(done.IsReached());
  branch.Join(stream);
  EXPECT_EQ(values.Values(stream), std::vector<int32_t>{2});
  EXPECT_EQ(beside.Values(stream), std::vector<int32_t>{3});
}

}  // namespace
}  // namespace quire::cuda
