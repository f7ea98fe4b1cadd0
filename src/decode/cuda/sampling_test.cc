#include "decode/cuda/sampling.h"

#include <gtest/gtest.h>

#include <vector>

#include "decode/sample_items_cases.h"
#include "kernels/cuda/test_rows.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::ErrorMessage;
using testing::Sampled;

// Inputs, scratch and results of one capacity, and a way through the device.
class Sampler {
 public:
  explicit Sampler(const SampleCapacity& capacity)
      : capacity_(capacity),
        host_inputs_("inputs", Size(LayOutSampleInputs)),
        inputs_("inputs", Size(LayOutSampleInputs)),
        scratch_("scratch", Size(LayOutSampleScratch)),
        results_("results", Size(LayOutSampleResults)),
        packer_(capacity, HostInputs()) {}

  SamplePacker& packer() { return packer_; }

  // `logits`: [rows, vocab]. Rows lie apart, with NaN between.
  std::vector<Sampled> Run(const std::vector<float>& logits, StatusWord status,
                           const Stream& stream) {
    const int64_t vocab = capacity_.vocab_size;
    TestRows<float> rows(Filled(logits), vocab, Lie::kCrooked);
    CopyAndWait(inputs_.data(), host_inputs_.data(), host_inputs_.bytes().size(), "inputs");
    std::vector<std::byte> bytes(results_.bytes().size(), std::byte{0xA5});
    CopyAndWait(results_.data(), bytes.data(), bytes.size(), "results");
    Carver inputs = DeviceCarver(inputs_), scratch = DeviceCarver(scratch_),
           results = DeviceCarver(results_);
    Sample({.capacity = capacity_,
            .logits = rows.view(),
            .inputs = LayOutSampleInputs(capacity_, inputs),
            .scratch = LayOutSampleScratch(capacity_, scratch),
            .results = LayOutSampleResults(capacity_, results),
            .work = WorkOf(packer_),
            .status = status},
           stream);
    rows.Values(stream);
    EXPECT_EQ(rows.Damage(), "");
    CopyAndWait(bytes.data(), results_.data(), bytes.size(), "results");
    const auto* chosen = reinterpret_cast<const TokenLogprob*>(bytes.data());
    const int64_t behind = (capacity_.items * int64_t{sizeof(TokenLogprob)} + 63) / 64 * 64;
    const auto* top = reinterpret_cast<const TokenLogprob*>(bytes.data() + behind);
    std::vector<Sampled> sampled;
    for (int32_t i = 0; i < packer_.num_items(); ++i) {
      const auto* first = top + int64_t{i} * kMaxTopLogprobs;
      const int32_t num_top = packer_.inputs().items[static_cast<size_t>(i)].num_top;
      sampled.push_back({.chosen = chosen[i], .top = {first, first + num_top}});
    }
    return sampled;
  }

 private:
  template <class LayOut>
  ByteOffset Size(LayOut lay_out) const {
    Carver carver;
    (void)lay_out(capacity_, carver);
    return carver.used();
  }
  // Makes every entry anew: to be called once.
  SampleInputs HostInputs() const {
    Carver carver(host_inputs_.bytes());
    return LayOutSampleInputs(capacity_, carver);
  }
  // As many rows as the capacity has; those that are not given are NaN and must not matter.
  std::vector<float> Filled(std::vector<float> logits) const {
    logits.resize(static_cast<size_t>(capacity_.rows * capacity_.vocab_size), testing::kNaN);
    return logits;
  }

  SampleCapacity capacity_;
  PinnedBuffer host_inputs_;
  DeviceBuffer inputs_, scratch_, results_;
  SamplePacker packer_;
};

// Backend of sample_items_cases.h.
class CudaItems : public StreamTest {
 protected:
  static constexpr int kMostOtherDraws = 2;
  static constexpr double kSumError = 0x1p-32;

  std::vector<Sampled> Run(const SampleCapacity& capacity, FunctionRef<void(SamplePacker&)> pack,
                           const std::vector<float>& logits) {
    Sampler sampler(capacity);
    pack(sampler.packer());
    return sampler.Run(logits, status(), stream());
  }
  void ExpectNoReport() { EXPECT_EQ(Reported(), kNothing); }
};

}  // namespace
}  // namespace quire::cuda

namespace quire::testing {
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, SampleItemsTest, cuda::CudaItems);
}  // namespace quire::testing

namespace quire::cuda {
namespace {

TEST(CudaSampleTest, WhatOnlyTheDeviceCannotDoIsRefused) {
  const auto refusal = [](const SampleCapacity& capacity) {
    return ErrorMessage([&] { ValidateForDevice(capacity); });
  };
  EXPECT_EQ(refusal({.vocab_size = kMaxSampledVocab, .rows = 65535}), "no error");
  EXPECT_EQ(refusal({.vocab_size = kMaxSampledVocab + 1, .rows = 1}),
            "sample.vocab_size: expected 1..262144, got 262145");
  EXPECT_EQ(refusal({.vocab_size = 1, .rows = 65536}), "sample.rows: expected 0..65535, got 65536");
  EXPECT_EQ(refusal({.vocab_size = 1, .rows = 1, .items = 1, .adjusted = 2}),
            "sample.adjusted: expected 0..1, got 2");
}

}  // namespace
}  // namespace quire::cuda
