#include "decode/cuda/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
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

// The least number of items for each of which a search has no more CTAs than `ctas`.
int32_t LeastItems(int32_t ctas) {
  int32_t items = 1;
  while (SearchShapeOf({.vocab_size = 1, .items = items}).ctas > ctas) ++items;
  return items;
}

// Backend of sample_items_cases.h, whose capacity has so many items that a search has kCtas CTAs for each.
template <int32_t kCtas>
class CudaItems : public StreamTest {
 protected:
  static constexpr int kMostOtherDraws = 2;
  static constexpr double kSumError = 0x1p-32;

  std::vector<Sampled> Run(SampleCapacity capacity, FunctionRef<void(SamplePacker&)> pack,
                           const std::vector<float>& logits) {
    capacity.items = std::max(capacity.items, LeastItems(kCtas));
    Sampler sampler(capacity);
    pack(sampler.packer());
    return sampler.Run(logits, status(), stream());
  }
  void ExpectNoReport() { EXPECT_EQ(Reported(), kNothing); }
};

}  // namespace
}  // namespace quire::cuda

namespace quire::testing {
using SearchForms = ::testing::Types<cuda::CudaItems<cuda::kMostSearchCtas>, cuda::CudaItems<1>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, SampleItemsTest, SearchForms);
}  // namespace quire::testing

namespace quire::cuda {
namespace {

// All but the last are the most or the least of which a search has so many CTAs.
constexpr int32_t kNumbersOfItems[] = {1, 15, 16, 30, 31, 66, 67, 300};

TEST(CudaSearchShapeTest, TheFewerItemsTheMoreCtasEachHas) {
  std::vector<int32_t> ctas;
  for (const int32_t items : kNumbersOfItems) {
    ctas.push_back(SearchShapeOf({.vocab_size = 129280, .items = items}).ctas);
  }
  EXPECT_EQ(ctas, (std::vector<int32_t>{8, 8, 4, 4, 2, 2, 1, 1}));
}

TEST(CudaSearchShapeTest, SlicesAreTheWholeRowAndHeldIfThereIsRoom) {
  for (const int64_t vocab_size : {int64_t{1}, int64_t{33}, int64_t{102400}, int64_t{129280},
                                   int64_t{163840}, int64_t{163841}, kMaxSampledVocab}) {
    for (const int32_t items : kNumbersOfItems) {
      const SearchShape shape = SearchShapeOf({.vocab_size = vocab_size, .items = items});
      EXPECT_GE(int64_t{shape.slice} * shape.ctas, vocab_size);
      EXPECT_LT(int64_t{shape.slice} * shape.ctas, vocab_size + int64_t{32} * shape.ctas);
      EXPECT_EQ(shape.is_held, shape.slice <= kMostHeldLogits);
    }
  }
  EXPECT_TRUE(SearchShapeOf({.vocab_size = 163840, .items = 15}).is_held);
  EXPECT_FALSE(SearchShapeOf({.vocab_size = 163841, .items = 15}).is_held);
}

// ---- Forms of a search ----

class CudaSearchTest : public StreamTest {
 protected:
  // Of one row, by capacities of each number of items.
  void ExpectTheSameOfEveryForm(const std::vector<float>& logits) {
    const auto vocab_size = static_cast<int32_t>(logits.size());
    const int32_t most_top = std::min(kMaxTopLogprobs, vocab_size);
    const std::vector<int32_t> text = {0, vocab_size / 2, vocab_size - 1, vocab_size / 2};
    const std::vector<LogitBias> biases = {
        {vocab_size - 1, 2.5f}, {vocab_size / 3, -1}, {vocab_size - 1, 1}};
    const std::vector<SamplingParams> kinds = {
        {},
        {.temperature = 50},
        {.temperature = 0.7f, .top_p = 0.95f},
        {.top_k = (vocab_size + 1) / 2, .top_p = 0.999f},
        {.min_p = 0.02f, .top_logprobs = most_top},
        {.temperature = 50, .top_k = (vocab_size + 1) / 2, .min_p = 0.5f},
        {.temperature = 0, .top_logprobs = most_top},
        {.temperature = 0, .logit_bias = biases},
        {.top_p = 0.9f,
         .repetition_penalty = 1.3f,
         .frequency_penalty = 0.2f,
         .logit_bias = biases,
         .top_logprobs = most_top}};
    std::vector<Sampled> first;
    for (const int32_t items : kNumbersOfItems) {
      // What has no room is left out.
      const SampleCapacity capacity = {.vocab_size = vocab_size,
                                       .rows = 1,
                                       .items = items,
                                       .adjusted = std::min(items, 8),
                                       .biases = 64,
                                       .text = 400};
      const size_t passes = items == 1 ? kinds.size() : 1;
      std::vector<Sampled> all;
      for (size_t pass = 0; pass < passes; ++pass) {
        Sampler sampler(capacity);
        sampler.packer().Begin(1);
        for (size_t k = pass; k < (items == 1 ? pass + 1 : kinds.size()); ++k) {
          sampler.packer().Add({.params = kinds[k],
                                .prompt = text,
                                .output = text,
                                .position = TokenCount(static_cast<int64_t>(k))});
        }
        for (const Sampled& sampled : sampler.Run(logits, status(), stream())) {
          all.push_back(sampled);
        }
      }
      if (first.empty()) first = all;
      SCOPED_TRACE(::testing::Message() << vocab_size << " tokens, " << items << " items");
      ASSERT_EQ(all.size(), first.size());
      for (size_t k = 0; k < all.size(); ++k) testing::ExpectSame(all[k], first[k]);
    }
    EXPECT_EQ(Reported(), kNothing);
  }
};

TEST_F(CudaSearchTest, EveryFormFindsTheSame) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 3);
  // With slices that are empty, of one token, full, and too long to be held.
  for (const size_t vocab_size : {1, 33, 257, 9000, 129280, 163840, 163841, 262144}) {
    std::vector<float> logits(vocab_size);
    for (float& logit : logits) logit = normal(random);
    ExpectTheSameOfEveryForm(logits);
  }
}

// Where min-p keeps less than top-k: what is added up for it is read before the list that top-k left is
// searched, also by the one CTA of a row among many.
TEST_F(CudaSearchTest, EveryFormCutsWhatTopKLeft) {
  for (const size_t vocab_size : {257, 1000, 2000}) {
    std::vector<float> logits(vocab_size);
    for (size_t i = 0; i < vocab_size; ++i)
      logits[i] = -0.3f * static_cast<float>(i * 7 % vocab_size);
    ExpectTheSameOfEveryForm(logits);
  }
}

// More tokens with one key than a list has room for, over all slices; and few keys.
TEST_F(CudaSearchTest, EveryFormTakesTiesInTheirOrder) {
  for (const size_t vocab_size : {1004, 1005, 20000, 129280}) {
    std::vector<float> logits(vocab_size, 0.25f);
    ExpectTheSameOfEveryForm(logits);
    for (size_t i = 0; i < vocab_size; ++i)
      logits[i] = static_cast<float>((i * 2654435761u >> 8) % 4);
    ExpectTheSameOfEveryForm(logits);
    logits[vocab_size / 2] = 9;
    ExpectTheSameOfEveryForm(logits);
  }
}

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
