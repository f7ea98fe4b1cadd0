#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "device/thread_pool.h"
#include "kernels/cpu/store.h"
#include "kernels/store_cases.h"
#include "testing/active_faults.h"
#include "testing/compare.h"
#include "testing/error_message.h"
#include "testing/paged_batch.h"
#include "testing/reference.h"

namespace quire {
namespace {

using testing::ActiveFaults;
using testing::ErrorMessage;
using testing::ForAllCases;
using testing::FormatCase;
using testing::kFormatCases;
using testing::MadeUpValues;
using testing::ReferenceRow;
using testing::RowsFor;
using testing::ShuffledSlots;

// A pool with one store, every byte 0xff, and rows to put into it.
class Pool {
 public:
  Pool(const FormatCase& c, int page_size, int64_t num_pages)
      : layout_(c.format, c.dims, PageSize(page_size)),
        memory_("pool", KvStoreBytes(layout_, PageCount(num_pages))),
        store_(memory_.bytes(), PageCount(num_pages), layout_, ActiveFaults()) {
    std::memset(memory_.data(), 0xff, memory_.bytes().size());
  }

  const KvStore& store() const { return store_; }
  std::span<std::byte> bytes() const { return memory_.bytes(); }
  int64_t num_slots() const { return (store_.num_pages().raw()) * store_.page_size().raw(); }

  void Write(std::span<const Slot> slots, const std::vector<float>& rows, Executor& executor) {
    cpu::StoreWrite({.store = store_,
                     .slots = slots,
                     .latent = Latent<const float>(rows.data(), slots.size()),
                     .rope = Rope<const float>(rows.data(), slots.size())},
                    executor);
  }

  std::vector<float> Gather(std::span<const Slot> slots, Executor& executor) const {
    std::vector<float> rows(slots.size() * static_cast<size_t>(layout_.dims().values()));
    cpu::StoreGather({.store = store_,
                      .slots = slots,
                      .latent = Latent<float>(rows.data(), slots.size()),
                      .rope = Rope<float>(rows.data(), slots.size())},
                     executor);
    return rows;
  }

 private:
  template <class T>
  using View = std::conditional_t<std::is_const_v<T>, ConstTensorView, TensorView>;
  template <class T>
  View<T> Latent(T* rows, size_t n) const {
    return View<T>(rows, {static_cast<int64_t>(n), layout_.dims().latent_dim})
        .WithRowStride(layout_.dims().values());
  }
  template <class T>
  View<T> Rope(T* rows, size_t n) const {
    if (layout_.dims().rope_dim == 0) return {};
    return View<T>(n == 0 ? rows : rows + layout_.dims().latent_dim,
                   {static_cast<int64_t>(n), layout_.dims().rope_dim})
        .WithRowStride(layout_.dims().values());
  }

  KvLayout layout_;
  Buffer memory_;
  KvStore store_;
};

// Rounding of one stored value, relative to the value or to its scale group's largest.
double StorageBound(const FormatCase& c, const std::vector<float>& row, int64_t i) {
  const bool rope = i >= c.dims.latent_dim;
  if (c.format == KvFormat::kLatentF32) return 0;
  if (c.format == KvFormat::kLatentBf16 || rope) {
    return std::abs(row[static_cast<size_t>(i)]) * 0x1p-8;
  }
  const int64_t begin = c.format == KvFormat::kLatentFp8 ? i / 128 * 128 : 0;
  const int64_t end = c.format == KvFormat::kLatentFp8
                          ? std::min<int64_t>(begin + 128, c.dims.latent_dim)
                          : c.dims.latent_dim;
  double amax = 0;
  for (int64_t j = begin; j < end; ++j) {
    amax = std::max<double>(amax, std::abs(row[static_cast<size_t>(j)]));
  }
  // e4m3: half an ulp is 2^-4 of the value, or half of 2^-9 scales for subnormals.
  return std::max(std::abs(row[static_cast<size_t>(i)]) * 0x1p-4, amax / 448 * 0x1p-10) * 1.0001;
}

TEST(StoreTest, WhatIsWrittenIsReadBackWithinTheFormatsRounding) {
  ThreadPool executor(3);
  ForAllCases([&](const FormatCase& c, int page_size) {
    Pool pool(c, page_size, 5);
    const int64_t values = c.dims.values();
    const std::vector<Slot> slots = ShuffledSlots(page_size, pool.num_slots(), 3);
    const std::vector<float> rows = RowsFor(slots, values);
    pool.Write(slots, rows, executor);
    const std::vector<float> back = pool.Gather(slots, executor);
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::vector<float> row(rows.begin() + static_cast<int64_t>(i) * values,
                                   rows.begin() + static_cast<int64_t>(i + 1) * values);
      for (int64_t j = 0; j < values; ++j) {
        const float read = back[i * static_cast<size_t>(values) + static_cast<size_t>(j)];
        ASSERT_LE(std::abs(double{read} - row[static_cast<size_t>(j)]), StorageBound(c, row, j))
            << "index key bytes read back differ from those written: slot " << slots[i].raw()
            << " value " << j << ": " << read << " for " << row[static_cast<size_t>(j)];
      }
    }
  });
}

TEST(StoreTest, EveryByteIsWhereTheFormatSays) {
  SerialExecutor executor;
  ForAllCases([&](const FormatCase& c, int page_size) {
    Pool pool(c, page_size, 4);
    const std::vector<Slot> slots = ShuffledSlots(page_size, pool.num_slots(), 4);
    pool.Write(slots, RowsFor(slots, c.dims.values()), executor);
    const std::vector<float> back = pool.Gather(slots, executor);
    for (size_t i = 0; i < slots.size(); ++i) {
      const std::vector<double> expected =
          ReferenceRow(pool.bytes(), pool.store().layout(), slots[i]);
      const double exact[] = {0.0};
      ASSERT_EQ(testing::Mismatch(std::span(back).subspan(i * expected.size(), expected.size()),
                                  expected, exact),
                "")
          << "index key bytes read back differ from those written: slot " << slots[i].raw();
    }
  });
}

TEST(StoreTest, PreshuffleIsABijectionWithTheWorkedExamplesOffsets) {
  for (int page_size : {16, 64}) {
    const KvLayout layout(KvFormat::kIndexKeyFp8Preshuffled, {128, 0}, PageSize(page_size));
    std::vector<int> hits(static_cast<size_t>(layout.page_bytes().raw()), 0);
    for (int32_t row = 0; row < page_size; ++row) {
      for (int32_t d = 0; d < 128; ++d) {
        const int32_t at = layout.parts()[0].OffsetOf(row, d);
        EXPECT_EQ(at, testing::IndexKeyOffset(Slot(row), d, PageSize(page_size), 128, true));
        ++hits[static_cast<size_t>(at)];
      }
      for (int32_t b = 0; b < 4; ++b) {
        ++hits[static_cast<size_t>(layout.parts()[1].OffsetOf(row, b))];
      }
    }
    EXPECT_EQ(hits, std::vector<int>(hits.size(), 1));
  }
  const KvLayout plain(KvFormat::kIndexKeyFp8, {128, 0}, PageSize(64));
  const KvLayout tiled(KvFormat::kIndexKeyFp8Preshuffled, {128, 0}, PageSize(64));
  EXPECT_EQ(plain.page_bytes(), ByteOffset(8448));
  EXPECT_EQ(tiled.parts()[0].OffsetOf(17, 33), 2577);
  EXPECT_EQ(plain.parts()[0].OffsetOf(17, 33), 2209);
  EXPECT_EQ(plain.parts()[1].OffsetOf(17, 0), 8260);
  const int64_t page3 = 3 * plain.page_bytes().raw();  // slot 200 = page 3, offset 8
  EXPECT_EQ(page3 + plain.parts()[0].OffsetOf(8, 0), 26368);
  EXPECT_EQ(page3 + tiled.parts()[0].OffsetOf(8, 0), 25472);
  EXPECT_EQ(page3 + tiled.parts()[1].OffsetOf(8, 0), 33568);
  EXPECT_EQ(KvLayout(KvFormat::kLatentFp8, {512, 64}, PageSize(1)).page_bytes(), ByteOffset(656));
}

TEST(StoreTest, MovesReadEverySourceBeforeTheyWriteAndKeepTheBytes) {
  ThreadPool executor(2);
  ForAllCases([&](const FormatCase& c, int page_size) {
    Pool pool(c, page_size, 6);
    const std::vector<Slot> slots = ShuffledSlots(page_size, pool.num_slots(), 5);
    pool.Write(slots, RowsFor(slots, c.dims.values()), executor);
    // A rotation of overlapping rows: each row goes where another one is read from.
    std::vector<Slot> from, to;
    const size_t n = std::min<size_t>(slots.size(), 100);
    for (size_t i = 0; i < n; ++i) {
      from.push_back(slots[i]);
      to.push_back(slots[(i + 1) % n]);
    }
    const std::vector<float> before = pool.Gather(from, executor);
    const std::vector<float> others = pool.Gather(std::span(slots).subspan(n), executor);
    std::vector<std::byte> workspace(static_cast<size_t>(
        StoreMoveWorkspace(pool.store().layout(), static_cast<int64_t>(n)).raw()));
    cpu::StoreMove({.store = pool.store(), .from = from, .to = to, .workspace = workspace},
                   executor);
    EXPECT_EQ(testing::BitMismatch(pool.Gather(to, executor), before), "");
    EXPECT_EQ(testing::BitMismatch(pool.Gather(std::span(slots).subspan(n), executor), others), "");
  });
}

TEST(StoreTest, ZeroTilesAndExtremesStayFinite) {
  SerialExecutor executor;
  const FormatCase c{"fp8", KvFormat::kLatentFp8, {256, 64}};
  Pool pool(c, 16, 2);
  std::vector<float> row(320, 0.0f);
  row[0] = 1e-40f;                                    // a scale that would not be normal
  row[128] = std::numeric_limits<float>::infinity();  // saturates
  row[129] = 3.0f;
  row[130] = std::numeric_limits<float>::quiet_NaN();  // stays, and spoils nothing else
  const Slot slot(20);
  pool.Write({&slot, 1}, row, executor);
  const std::vector<float> back = pool.Gather({&slot, 1}, executor);
  for (size_t i = 0; i < back.size(); ++i) {
    if (i == 130) {
      EXPECT_TRUE(std::isnan(back[i]));
    } else {
      EXPECT_TRUE(std::isfinite(back[i])) << i;
    }
  }
  EXPECT_EQ(back[0], 0.0f);
  EXPECT_EQ(back[128], std::numeric_limits<float>::max() / 448 * 448);
}

TEST(StoreTest, WritesToTheScratchPageAreDropped) {
  ThreadPool executor(2);
  Pool pool(kFormatCases[1], 4, 2);
  const std::vector<Slot> slots = {Slot(0), Slot(0), Slot(5), Slot(3)};
  pool.Write(slots, RowsFor(slots, 576), executor);
  for (size_t i = 0; i < 4 * 1152; ++i) ASSERT_EQ(pool.bytes()[i], std::byte{0xff});
  EXPECT_NE(pool.bytes()[5 * 1152], std::byte{0xff});
}

TEST(StoreTest, Bf16ViewsReadAndWriteTheSameRows) {
  SerialExecutor executor;
  Pool pool(kFormatCases[1], 16, 3);
  const std::vector<Slot> slots = {Slot(17), Slot(40)};
  std::vector<Bf16> rows;
  for (float value : MadeUpValues(9, 0, 2 * 576)) rows.push_back(ToBf16(value));
  cpu::StoreWrite({.store = pool.store(),
                   .slots = slots,
                   .latent = ConstTensorView(rows.data(), {2, 512}).WithRowStride(576),
                   .rope = ConstTensorView(rows.data() + 512, {2, 64}).WithRowStride(576)},
                  executor);
  std::vector<Bf16> back(rows.size());
  cpu::StoreGather({.store = pool.store(),
                    .slots = slots,
                    .latent = TensorView(back.data(), {2, 512}).WithRowStride(576),
                    .rope = TensorView(back.data() + 512, {2, 64}).WithRowStride(576)},
                   executor);
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(back[i].bits, rows[i].bits);
}

TEST(StoreTest, APoolBeyondTwoGibibytesIsAddressedInFull) {
  SerialExecutor executor;
  const FormatCase c{"bf16", KvFormat::kLatentBf16, {512, 64}};
  // 64 tokens of 1152 bytes: page 30,000 begins at 2.2e9 bytes. Only touched memory is taken.
  const KvLayout layout(c.format, c.dims, PageSize(64));
  const PageCount num_pages(30001);
  const Buffer memory("pool", KvStoreBytes(layout, num_pages));
  ASSERT_GT(memory.size().raw() - layout.page_bytes().raw(), int64_t{1} << 31);
  const KvStore store(memory.bytes(), num_pages, layout);
  const Slot slot = PageSize(64).SlotOf(PageId(30000), 63);
  const std::vector<float> row = MadeUpValues(1, 1, 576);
  cpu::StoreWrite({.store = store,
                   .slots = {&slot, 1},
                   .latent = ConstTensorView(row.data(), {1, 512}),
                   .rope = ConstTensorView(row.data() + 512, {1, 64})},
                  executor);
  std::vector<Bf16> last(576);
  std::memcpy(last.data(), memory.data() + memory.size().raw() - 1152, 1152);
  for (size_t i = 0; i < 576; ++i) ASSERT_EQ(last[i].bits, ToBf16(row[i]).bits);
}

class BadStoreCall : public ::testing::Test {
 protected:
  BadStoreCall()
      : pool_(kFormatCases[1], 4, 3), before_(pool_.bytes().begin(), pool_.bytes().end()) {}

  // The message of the Error that fn throws; and nothing may have been written.
  template <class Fn>
  std::string MessageOf(Fn fn) {
    const std::string message = ErrorMessage(fn);
    EXPECT_TRUE(std::equal(before_.begin(), before_.end(), pool_.bytes().begin()));
    return message;
  }

  SerialExecutor executor_;
  Pool pool_;
  std::vector<std::byte> before_;
};

TEST_F(BadStoreCall, ASlotPastThePoolIsNamedAndNothingIsWritten) {
  const std::vector<Slot> slots = {Slot(5), Slot(12)};
  EXPECT_EQ(MessageOf([&] { pool_.Write(slots, RowsFor(slots, 576), executor_); }),
            "slots[1]: expected a slot in 0..11 (3 pages of 4), got 12");
  const std::vector<Slot> negative = {Slot(5), Slot(-1)};
  EXPECT_EQ(MessageOf([&] { pool_.Write(negative, RowsFor(negative, 576), executor_); }),
            "slots[1]: expected a slot in 0..11 (3 pages of 4), got -1");
}

TEST_F(BadStoreCall, GatherAndMoveCheckTheirSlotsToo) {
  const std::vector<Slot> good = {Slot(5)}, bad = {Slot(99)};
  std::vector<std::byte> workspace(1152);
  EXPECT_EQ(MessageOf([&] { (void)pool_.Gather(bad, executor_); }),
            "slots[0]: expected a slot in 0..11 (3 pages of 4), got 99");
  EXPECT_EQ(MessageOf([&] {
              cpu::StoreMove(
                  {.store = pool_.store(), .from = bad, .to = good, .workspace = workspace},
                  executor_);
            }),
            "from[0]: expected a slot in 0..11 (3 pages of 4), got 99");
  EXPECT_EQ(MessageOf([&] {
              cpu::StoreMove(
                  {.store = pool_.store(), .from = good, .to = bad, .workspace = workspace},
                  executor_);
            }),
            "to[0]: expected a slot in 0..11 (3 pages of 4), got 99");
}

TEST_F(BadStoreCall, MismatchedShapesAreNamed) {
  const std::vector<Slot> slots = {Slot(5), Slot(6)};
  const std::vector<float> rows(2 * 576);
  EXPECT_EQ(MessageOf([&] {
              cpu::StoreWrite({.store = pool_.store(),
                               .slots = slots,
                               .latent = ConstTensorView(rows.data(), {2, 511}),
                               .rope = ConstTensorView(rows.data(), {2, 64})},
                              executor_);
            }),
            "latent: expected shape [2, 512], got [2, 511]");
  EXPECT_EQ(MessageOf([&] {
              cpu::StoreMove({.store = pool_.store(),
                              .from = slots,
                              .to = std::span(slots).first(1),
                              .workspace = {}},
                             executor_);
            }),
            "move: 2 source slots but 1 targets");
  EXPECT_EQ(MessageOf([&] {
              cpu::StoreMove({.store = pool_.store(), .from = slots, .to = slots, .workspace = {}},
                             executor_);
            }),
            "move.workspace: expected 2304 bytes (2 rows of 1152), got 0");
}

TEST(KvLayoutTest, WhatAFormatCannotHaveIsRefused) {
  auto message = [](KvFormat format, KvDims dims, int page_size) -> std::string {
    return ErrorMessage([&] { KvLayout(format, dims, PageSize(page_size)); });
  };
  EXPECT_EQ(message(KvFormat::kIndexKeyFp8Preshuffled, {128, 0}, 24),
            "index_key_fp8_preshuffled: page_size: expected a multiple of 16, got 24");
  EXPECT_EQ(message(KvFormat::kIndexKeyFp8Preshuffled, {120, 0}, 16),
            "index_key_fp8_preshuffled: key dim: expected a multiple of 16, got 120");
  EXPECT_EQ(message(KvFormat::kIndexKeyFp8, {128, 64}, 16),
            "index_key_fp8: rope_dim: expected 0, got 64");
  EXPECT_EQ(
      message(KvFormat::kLatentBf16, {0, 64}, 16),
      "latent_bf16: latent_dim + rope_dim: expected 1..4096 (latent_dim >= 1, rope_dim >= 0), "
      "got 0 + 64");
}

TEST(KvStoreTest, MemoryOfTheWrongSizeIsRefusedWithEveryFactor) {
  std::vector<std::byte> memory(100);
  const KvLayout layout(KvFormat::kLatentBf16, {512, 64}, PageSize(4));
  EXPECT_EQ(ErrorMessage([&] { KvStore(memory, PageCount(3), layout); }),
            "kv store: expected 13824 bytes (3 pages of 4608 bytes, latent_bf16, page_size 4), "
            "got 100");
}

}  // namespace
}  // namespace quire
