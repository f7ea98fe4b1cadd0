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
