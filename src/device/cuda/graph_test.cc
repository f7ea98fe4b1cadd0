#include "device/cuda/graph.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda.h"
#include "device/cuda/test_kernels.h"
#include "device/cuda/test_memory.h"

namespace quire::cuda {
namespace {

void ExpectUsable(const Stream& stream) {
  cudaStreamCaptureStatus recording = cudaStreamCaptureStatusActive;
  Check(cudaStreamIsCapturing(stream.get(), &recording), "cudaStreamIsCapturing");
  EXPECT_EQ(recording, cudaStreamCaptureStatusNone);
  const DeviceVector<int32_t> values({1, 2});
  AddToAll(values.span(), 1, stream);
  EXPECT_EQ(values.Values(stream), (std::vector<int32_t>{2, 3}));
  const Graph graph = Graph::Capture(stream, [&] { AddToAll(values.span(), 1, stream); });
  graph.Launch(stream);
  EXPECT_EQ(values.Values(stream), (std::vector<int32_t>{3, 4}));
}

TEST(CudaGraphTest, RecordsWithoutRunningAndRunsAsOftenAsLaunched) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream, other;
  const DeviceVector<int32_t> values(std::vector<int32_t>(1000, 1));
  Graph first = Graph::Capture(stream, [&] {
    AddToAll(values.span(), 1, stream);
    AddToAll(values.span().first(500), 10, stream);
  });
  EXPECT_EQ(values.Values(stream), std::vector<int32_t>(1000, 1));
  const Graph graph = std::move(first);
  graph.Launch(stream);
  graph.Launch(stream);
  stream.Synchronize();
  graph.Launch(other);
  std::vector<int32_t> expected(1000, 4);
  for (int i = 0; i < 500; ++i) expected[i] += 30;
  EXPECT_EQ(values.Values(other), expected);
}

TEST(CudaGraphTest, BranchesAreRecordedAndWhatFollowsTheirJoinSeesBoth) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Branch branch;
  const DeviceVector<int32_t> main(std::vector<int32_t>(2, 0)), side(std::vector<int32_t>(2, 0));
  const DeviceVector<int32_t> seen(std::vector<int32_t>(4, -1));
  const auto copy = [&](const DeviceVector<int32_t>& from, size_t to) {
    Check(cudaMemcpyAsync(seen.span().data() + to, from.bytes().data(), 8, cudaMemcpyDeviceToDevice,
                          stream.get()),
          "memcpy");
  };
  // Long enough that a copy that did not wait would come first.
  constexpr int64_t kWhile = 2'000'000;
  const Graph graph = Graph::Capture(stream, [&] {
    for (int i = 0; i < 2; ++i) {
      branch.Fork(stream);
      AddAfterAWhile(side.span(), kWhile, branch.stream());
      AddToAll(side.span(), 10, branch.stream());
      AddAfterAWhile(main.span(), kWhile, stream);
      branch.Join(stream);
    }
    copy(main, 0);
    copy(side, 2);
  });
  ExpectUsable(branch.stream());
  for (int32_t launch = 1; launch <= 3; ++launch) {
    graph.Launch(stream);
    EXPECT_EQ(seen.Values(stream), (std::vector<int32_t>{2 * launch, 0, 22 * launch, 20 * launch}));
  }
  // And in a stream that does not record, with the same events.
  branch.Fork(stream);
  AddAfterAWhile(side.span(), kWhile, branch.stream());
  branch.Join(stream);
  copy(side, 2);
  EXPECT_EQ(seen.Values(stream), (std::vector<int32_t>{6, 0, 67, 60}));
}

TEST(CudaGraphTest, WhatIsThrownBesideABranchLeavesBothStreamsUsable) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Branch branch;
  const DeviceVector<int32_t> values({1});
  EXPECT_THROW(Graph::Capture(stream,
                              [&] {
                                branch.Fork(stream);
                                AddToAll(values.span(), 1, branch.stream());
                                throw std::out_of_range("before the join");
                              }),
               std::out_of_range);
  ExpectUsable(stream);
  ExpectUsable(branch.stream());
  EXPECT_EQ(values.Values(stream), std::vector<int32_t>{1});
}

TEST(CudaGraphTest, TheStatusWordIsReadByAGraph) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  Status status;
  const Graph graph = Graph::Capture(stream, [&] {
    ReportFromAll(status.word(), DeviceFault::kSlot, 1, 1, stream);
    status.Read(stream);
  });
  EXPECT_FALSE(status.report().has_value());
  graph.Launch(stream);
  stream.Synchronize();
  EXPECT_TRUE(status.report().has_value());
}

TEST(CudaGraphTest, WhatTheBodyThrowsComesOutAndTheStreamIsUsable) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const DeviceVector<int32_t> values({1});
  EXPECT_THROW(Graph::Capture(stream,
                              [&] {
                                AddToAll(values.span(), 1, stream);
                                throw std::out_of_range("in the body");
                              }),
               std::out_of_range);
  ExpectUsable(stream);
  EXPECT_EQ(values.Values(stream), std::vector<int32_t>{1});
}

TEST(CudaGraphTest, WaitingInTheBodyIsRefusedAndTheStreamIsUsable) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  const DeviceVector<int32_t> values({1});
  EXPECT_THROW(Graph::Capture(stream,
                              [&] {
                                AddToAll(values.span(), 1, stream);
                                stream.Synchronize();
                              }),
               DeviceError);
  ExpectUsable(stream);
  // Even if the body takes no notice.
  EXPECT_THROW(Graph::Capture(stream,
                              [&] {
                                AddToAll(values.span(), 1, stream);
                                EXPECT_THROW(stream.Synchronize(), DeviceError);
                              }),
               DeviceError);
  ExpectUsable(stream);
}

TEST(CudaGraphTest, AStreamThatRecordsCannotBeginAgain) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const Stream stream;
  EXPECT_THROW(Graph::Capture(stream, [&] { Graph::Capture(stream, [] {}); }), DeviceError);
  ExpectUsable(stream);
}

}  // namespace
}  // namespace quire::cuda
