#include "decode/sample_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "decode/sample_items_cases.h"
#include "decode/sampling.h"
#include "device/buffer.h"
#include "device/thread_pool.h"
#include "testing/allocation_count.h"
#include "testing/error_message.h"
#include "testing/red_zone.h"

namespace quire {
namespace {

using testing::AllocationCount;
using testing::ErrorMessage;
using testing::RedZone;
using testing::Sampled;

// Inputs and scratch of one capacity, in memory of exactly the size that they count.
class ItemSampler {
 public:
  ItemSampler(const SampleCapacity& capacity, int32_t num_workers)
      : inputs_("inputs", Bytes([&](Carver& carver) { LayOutSampleInputs(capacity, carver); })),
        scratch_("scratch", Bytes([&](Carver& carver) {
                   LayOutSampleWorkers(capacity.vocab_size, num_workers, carver);
                 })),
        packer_(capacity,
                [&] {
                  Carver carver(inputs_.bytes());
                  return LayOutSampleInputs(capacity, carver);
                }()),
        workers_([&] {
          Carver carver(scratch_.bytes());
          return LayOutSampleWorkers(capacity.vocab_size, num_workers, carver);
        }()),
        chosen_(static_cast<size_t>(capacity.items)),
        top_(static_cast<size_t>(capacity.items) * kMaxTopLogprobs) {}
  ~ItemSampler() {
    EXPECT_EQ(chosen_.Damage(), "");
    EXPECT_EQ(top_.Damage(), "");
  }

  SamplePacker& packer() { return packer_; }
  SampleRowsArgs Args(ConstTensorView logits, int32_t first_row = 0) {
    return {.logits = logits,
            .first_row = first_row,
            .inputs = packer_.inputs(),
            .workers = workers_,
            .results = {.chosen = chosen_.span(), .top = top_.span()}};
  }
  std::vector<Sampled> Results() {
    std::vector<Sampled> results;
    for (size_t i = 0; i < static_cast<size_t>(packer_.num_items()); ++i) {
      const auto first = top_.span().begin() + static_cast<ptrdiff_t>(i * kMaxTopLogprobs);
      results.push_back(
          {.chosen = chosen_.span()[i], .top = {first, first + packer_.inputs().items[i].num_top}});
    }
    return results;
  }

 private:
  template <class LayOut>
  static ByteOffset Bytes(LayOut lay_out) {
    Carver counter;
    lay_out(counter);
    return counter.used();
  }

  Buffer inputs_, scratch_;
  SamplePacker packer_;
  SampleWorkers workers_;
  RedZone<TokenLogprob> chosen_, top_;
};

// Backend of sample_items_cases.h, on as many threads as there are rows.
class CpuItems : public ::testing::Test {
 protected:
  static constexpr int kMostOtherDraws = 0;
  static constexpr double kSumError = 0;

  std::vector<Sampled> Run(const SampleCapacity& capacity, FunctionRef<void(SamplePacker&)> pack,
                           std::vector<float> logits) {
    logits.resize(static_cast<size_t>(capacity.rows * capacity.vocab_size), testing::kNaN);
    ItemSampler sampler(capacity, 3);
    pack(sampler.packer());
    SampleRows(sampler.Args({logits.data(), {capacity.rows, capacity.vocab_size}}), pool_);
    return sampler.Results();
  }
  void ExpectNoReport() {}  // the CPU throws

 private:
  ThreadPool pool_{3};
};

}  // namespace

namespace testing {
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, SampleItemsTest, CpuItems);
}  // namespace testing

namespace {

// ---- Rows at a time ----

constexpr int32_t kFewRows = 7;
constexpr int64_t kSmallVocab = 50;

std::vector<float> SomeLogits() {
  std::vector<float> logits(kFewRows * kSmallVocab);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 101) / 20;
  return logits;
}

// Items of all kinds, of every row, not in its order and some rows twice.
void AddItems(SamplePacker& packer) {
  const std::vector<int32_t> text = {1, 2, 3, 2};
  packer.Begin(kFewRows);
  for (const int32_t row : {3, 0, 6, 1, 5, 2, 4, 0, 6}) {
    packer.AddScore(row, row, 2);
    packer.Add({.row = row,
                .params = {.presence_penalty = 0.5f, .seed = 9, .top_logprobs = 3},
                .prompt = text,
                .output = text,
                .position = TokenCount(row),
                .num_samples = 3});
  }
}

const SampleCapacity kSome = {
    .vocab_size = kSmallVocab, .rows = kFewRows, .items = 36, .adjusted = 27, .text = 72};

TEST(SampleRowsTest, RowsThatComeInPiecesHaveTheSameResults) {
  std::vector<float> logits = SomeLogits();
  ThreadPool pool(2);
  ItemSampler whole(kSome, 2);
  AddItems(whole.packer());
  SampleRows(whole.Args({logits.data(), {kFewRows, kSmallVocab}}), pool);
  ItemSampler pieces(kSome, 2);
  AddItems(pieces.packer());
  for (int32_t first = 0; first < kFewRows; first += 3) {
    const int64_t count = std::min(3, kFewRows - first);
    SampleRows(pieces.Args({logits.data() + first * kSmallVocab, {count, kSmallVocab}}, first),
               pool);
  }
  const std::vector<Sampled> expected = whole.Results(), actual = pieces.Results();
  ASSERT_EQ(actual.size(), 36u);
  for (size_t i = 0; i < actual.size(); ++i) testing::ExpectSame(actual[i], expected[i]);
}

TEST(SampleRowsTest, ResultsOfRowsThatAreNotThereAreNotWritten) {
  std::vector<float> logits = SomeLogits();
  SerialExecutor serial;
  ItemSampler sampler(kSome, 1);
  AddItems(sampler.packer());
  const std::vector<Sampled> before = sampler.Results();
  SampleRows(sampler.Args({logits.data() + 2 * kSmallVocab, {3, kSmallVocab}}, 2), serial);
  const std::vector<Sampled> after = sampler.Results();
  for (size_t i = 0; i < after.size(); ++i) {
    const int32_t row = sampler.packer().inputs().items[i].row;
    EXPECT_EQ(after[i].chosen.token != before[i].chosen.token, row >= 2 && row < 5) << i;
  }
}

TEST(SampleRowsTest, NothingAllocates) {
  std::vector<float> logits = SomeLogits();
  ThreadPool pool(2);
  ItemSampler sampler(kSome, 2);
  AddItems(sampler.packer());
  const SampleRowsArgs args = sampler.Args({logits.data(), {kFewRows, kSmallVocab}});
  const int64_t before = AllocationCount();
  SampleRows(args, pool);
  EXPECT_EQ(AllocationCount(), before);
}

TEST(SampleRowsTest, ArgumentsThatDoNotFitAreRefused) {
  std::vector<float> logits = SomeLogits();
  SerialExecutor serial;
  ItemSampler sampler(kSome, 2);
  AddItems(sampler.packer());
  const SampleRowsArgs good = sampler.Args({logits.data(), {kFewRows, kSmallVocab}});
  const auto refusal = [&](auto change) {
    SampleRowsArgs args = good;
    change(args);
    return ErrorMessage([&] { SampleRows(args, serial); });
  };
  EXPECT_EQ(refusal([](auto&) {}), "no error");
  EXPECT_EQ(refusal([](auto& a) { a.first_row = -1; }), "sample.first_row: expected >= 0, got -1");
  EXPECT_EQ(refusal([](auto& a) { a.workers.count = 3; }),
            "sample.workers: expected 2496 values or more, got 1664");
  EXPECT_EQ(refusal([](auto& a) { a.workers.count = 0; }),
            "sample.workers: expected 1 or more, got 0");
  EXPECT_EQ(refusal([](auto& a) { a.results.chosen = a.results.chosen.first(35); }),
            "sample.chosen: expected 36 values or more, got 35");
  EXPECT_EQ(refusal([](auto& a) { a.results.top = a.results.top.first(719); }),
            "sample.top: expected 720 values or more, got 719");
}

// ---- The packer ----

TEST(SamplePackerTest, WhatDoesNotFitIsRefusedAndNothingIsAdded) {
  const SampleCapacity capacity = {
      .vocab_size = 40, .rows = 2, .items = 3, .adjusted = 1, .biases = 2, .text = 4};
  Carver counting;
  (void)LayOutSampleInputs(capacity, counting);
  const Buffer memory("inputs", counting.used());
  Carver carver(memory.bytes());
  SamplePacker packer(capacity, LayOutSampleInputs(capacity, carver));
  packer.Begin(2);
  const std::vector<int32_t> text = {1, 2, 3}, wild = {1, 40};
  const auto refusal = [&](const SamplePacker::Samples& samples) {
    return ErrorMessage([&] { packer.Add(samples); });
  };
  const SamplingParams penalty = {.presence_penalty = 1};
  EXPECT_EQ(refusal({.row = 2}), "sample.row: expected 0..1, got 2");
  EXPECT_EQ(refusal({.num_samples = 4}), "sample.items: expected at most 3, got 4");
  EXPECT_EQ(refusal({.params = penalty, .num_samples = 2}),
            "sample.adjusted: expected at most 1, got 2");
  EXPECT_EQ(refusal({.params = penalty, .prompt = text, .output = text}),
            "sample.text: expected at most 4, got 6");
  EXPECT_EQ(refusal({.params = penalty, .output = wild}),
            "output[1]: expected a token of 0..39, got 40");
  EXPECT_EQ(refusal({.params = {.top_k = -1}}), "top_k: expected >= 0 (0: all tokens), got -1");
  EXPECT_EQ(packer.num_items(), 0);
  EXPECT_EQ(refusal({.params = {.temperature = 0}, .prompt = wild}), "no error");  // not read
  EXPECT_FALSE(packer.needs_search());
  EXPECT_EQ(refusal({.row = 1, .params = penalty, .prompt = text}), "no error");
  EXPECT_TRUE(packer.needs_search());
  EXPECT_EQ(packer.num_items(), 2);
  EXPECT_EQ(ErrorMessage([&] { packer.AddScore(0, 40, 0); }),
            "sample.given: expected 0..39 or none, got 40");
  EXPECT_EQ(ErrorMessage([&] { packer.AddScore(0, kNoToken, 21); }),
            "top_logprobs: expected 0..20, got 21");
}

}  // namespace
}  // namespace quire
