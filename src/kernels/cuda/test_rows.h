// What tests on the device share: rows apart from each other between guards, a stream, a status.
#ifndef QUIRE_KERNELS_CUDA_TEST_ROWS_H_
#define QUIRE_KERNELS_CUDA_TEST_ROWS_H_

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "device/cuda/cuda.h"

namespace quire::cuda {

// What a status word says: the fault, and of what.
using Fault = std::pair<DeviceFault, uint32_t>;
inline constexpr Fault kNothing = {DeviceFault::kNone, 0};

// Tests that need a device: a stream, and what kernels reported.
class StreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
    stream_ = std::make_unique<Stream>();
    status_ = std::make_unique<Status>();
  }
  const Stream& stream() const { return *stream_; }
  StatusWord status() const { return status_->word(); }

  // What was reported since the last call.
  Fault Reported() {
    status_->Read(stream());
    stream().Synchronize();
    const auto report = status_->report();
    status_->Clear(stream());
    return report ? Fault{report->fault, report->index} : kNothing;
  }

 private:
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Status> status_;
};

// Where rows begin and how far apart they are: so that kernels can use 16-byte accesses, or not.
enum class Lie { kAligned, kCrooked };
inline constexpr Lie kLies[] = {Lie::kAligned, Lie::kCrooked};

// T is float or Bf16.
template <class T>
class TestRows {
 public:
  TestRows(int64_t num_rows, int64_t width, Lie lie)
      : num_rows_(num_rows),
        width_(width),
        before_(lie == Lie::kAligned ? 8 : 3),
        stride_(lie == Lie::kAligned ? (width + 7) / 8 * 8 + 16 : width + 6),
        host_(static_cast<size_t>(num_rows * stride_ + 8), Untouched()),
        device_("test rows", ByteOffset(host_.size() * sizeof(T))) {
    Upload();
  }
  TestRows(const std::vector<float>& values, int64_t width, Lie lie)
      : TestRows(std::ssize(values) / width, width, lie) {
    for (size_t i = 0; i < values.size(); ++i)
      host_[Place(static_cast<int64_t>(i))] = To(values[i]);
    Upload();
  }

  TensorView view() const {
    const TensorView all(reinterpret_cast<T*>(device_.data()), {num_rows_, stride_});
    return all.Columns(before_, width_);
  }
  // As one head per row.
  TensorView heads() const {
    const TensorView all(reinterpret_cast<T*>(device_.data()), {num_rows_, 1, stride_});
    return all.Columns(before_, width_);
  }

  // What `stream` left there; remembers it for Damage.
  std::vector<float> Values(const Stream& stream) {
    stream.Synchronize();
    CopyAndWait(host_.data(), device_.data(), host_.size() * sizeof(T), "test rows");
    std::vector<float> values;
    for (int64_t i = 0; i < num_rows_ * width_; ++i) values.push_back(From(host_[Place(i)]));
    return values;
  }

  // "" if, by the last Values, nothing but the rows was written.
  std::string Damage() const {
    std::vector<bool> inside(host_.size(), false);
    for (int64_t i = 0; i < num_rows_ * width_; ++i) inside[Place(i)] = true;
    const T untouched = Untouched();
    for (size_t i = 0; i < host_.size(); ++i) {
      if (inside[i] || std::memcmp(&host_[i], &untouched, sizeof(T)) == 0) continue;
      return fmt::format("written at {} of {}, outside the rows", i, host_.size());
    }
    return {};
  }

 private:
  static T Untouched() {
    T value;
    std::memset(static_cast<void*>(&value), 0xA5, sizeof(T));
    return value;
  }
  static T To(float value) {
    if constexpr (std::is_same_v<T, float>) {
      return value;
    } else {
      return ToBf16(value);
    }
  }
  static float From(T value) {
    if constexpr (std::is_same_v<T, float>) {
      return value;
    } else {
      return ToFloat(value);
    }
  }
  size_t Place(int64_t i) const {
    return static_cast<size_t>(i / width_ * stride_ + before_ + i % width_);
  }
  void Upload() {
    CopyAndWait(device_.data(), host_.data(), host_.size() * sizeof(T), "test rows");
  }

  int64_t num_rows_, width_, before_, stride_;
  std::vector<T> host_;
  DeviceBuffer device_;
};

// The values as bf16 has them.
inline std::vector<float> Narrowed(std::vector<float> values) {
  for (float& value : values) value = ToFloat(ToBf16(value));
  return values;
}

// What rounding a result to bf16 adds, relatively: half an ulp, and 1 has one of 2^-7.
inline constexpr double kBf16Rounding = 0x1p-8;

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_TEST_ROWS_H_
