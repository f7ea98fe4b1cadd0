#include "kernels/cuda/store/store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/cpu/store.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/store_cases.h"
#include "testing/compare.h"
#include "testing/error_message.h"

namespace quire::cuda {
namespace {

using testing::ErrorMessage;
using testing::ForAllCases;
using testing::FormatCase;
using testing::kFormatCases;
using testing::MadeUpValues;
using testing::RowsFor;
using testing::ShuffledSlots;

// The same store twice, on the host and on the device, every byte 0xff at first. What the CPU's
// kernels do to one and ours to the other must leave the same bytes.
class TwoPools {
 public:
  TwoPools(const FormatCase& c, int page_size, int64_t num_pages)
      : layout_(c.format, c.dims, PageSize(page_size)),
        memory_(static_cast<size_t>(KvStoreBytes(layout_, PageCount(num_pages)).raw()),
                std::byte{0xff}),
        device_(arrays_.Put(memory_)),
        host_store_(memory_, PageCount(num_pages), layout_),
        store_(device_, PageCount(num_pages), layout_) {}

  const KvStore& host_store() const { return host_store_; }
  const KvStore& store() const { return store_; }
  const Stream& stream() const { return stream_; }
  DeviceArrays& arrays() { return arrays_; }
  int64_t num_slots() const { return store_.num_pages().raw() * store_.page_size().raw(); }

  template <class T>
  void Write(const std::vector<Slot>& slots, const std::vector<T>& rows, StatusWord status = {}) {
    SerialExecutor executor;
    const std::span<T> on_device = arrays_.Put(rows);
    cpu::StoreWrite({.store = host_store_,
                     .slots = slots,
                     .latent = Latent<ConstTensorView>(rows.data(), slots.size()),
                     .rope = Rope<ConstTensorView>(rows.data(), slots.size())},
                    executor);
    StoreWrite({.store = store_,
                .slots = arrays_.Put(slots),
                .latent = Latent<ConstTensorView>(on_device.data(), slots.size()),
                .rope = Rope<ConstTensorView>(on_device.data(), slots.size())},
               stream_, status);
  }

  template <class T>
  std::vector<T> GatherOnDevice(const std::vector<Slot>& slots, StatusWord status = {}) {
    const GuardedArray<T> rows(arrays_,
                               slots.size() * static_cast<size_t>(layout_.dims().values()));
    StoreGather({.store = store_,
                 .slots = arrays_.Put(slots),
                 .latent = Latent<TensorView>(rows.data(), slots.size()),
                 .rope = Rope<TensorView>(rows.data(), slots.size())},
                stream_, status);
    return rows.Values(stream_);
  }
  template <class T>
  std::vector<T> GatherOnHost(const std::vector<Slot>& slots) const {
    SerialExecutor executor;
    std::vector<T> rows(slots.size() * static_cast<size_t>(layout_.dims().values()));
    cpu::StoreGather({.store = host_store_,
                      .slots = slots,
                      .latent = Latent<TensorView>(rows.data(), slots.size()),
                      .rope = Rope<TensorView>(rows.data(), slots.size())},
                     executor);
    return rows;
  }

  // "" if host and device hold the same bytes.
  std::string Difference() const {
    const std::vector<std::byte> bytes = ToHost(std::span<const std::byte>(device_), stream_);
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != memory_[i]) {
        return "byte " + std::to_string(i) + ": " + std::to_string(static_cast<int>(bytes[i])) +
               " on the device, " + std::to_string(static_cast<int>(memory_[i])) + " on the host";
      }
    }
    return "";
  }

 private:
  template <class View, class T>
  View Latent(T* rows, size_t n) const {
    return View(rows, {static_cast<int64_t>(n), layout_.dims().latent_dim})
        .WithRowStride(layout_.dims().values());
  }
  template <class View, class T>
  View Rope(T* rows, size_t n) const {
    if (layout_.dims().rope_dim == 0) return {};
    return View(rows + layout_.dims().latent_dim,
                {static_cast<int64_t>(n), layout_.dims().rope_dim})
        .WithRowStride(layout_.dims().values());
  }

  KvLayout layout_;
  std::vector<std::byte> memory_;
  DeviceArrays arrays_;
  std::span<std::byte> device_;
  KvStore host_store_, store_;
  Stream stream_;
};

TEST(CudaStoreTest, WritesTheBytesThatTheCpuWritesAndReadsTheSameValues) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  ForAllCases([&](const FormatCase& c, int page_size) {
    TwoPools pools(c, page_size, 5);
    const std::vector<Slot> slots = ShuffledSlots(page_size, pools.num_slots(), 3);
    const std::vector<float> rows = RowsFor(slots, c.dims.values());
    pools.Write(slots, rows);
    ASSERT_EQ(pools.Difference(), "");
    EXPECT_EQ(
        testing::BitMismatch(pools.GatherOnDevice<float>(slots), pools.GatherOnHost<float>(slots)),
        "");
    pools.Write(slots, AllToBf16(rows));
    ASSERT_EQ(pools.Difference(), "") << "from bf16";
    const std::vector<Bf16> narrow = pools.GatherOnDevice<Bf16>(slots);
    const std::vector<Bf16> expected = pools.GatherOnHost<Bf16>(slots);
    ASSERT_EQ(std::memcmp(narrow.data(), expected.data(), 2 * expected.size()), 0) << "as bf16";
  });
}

TEST(CudaStoreTest, ZerosExtremesAndWhatIsNotANumberAreEncodedAlike) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const float odd[] = {0.0f,
                       -0.0f,
                       1e-40f,
                       -1e-40f,
                       3.0f,
                       448.0f,
                       464.0f,
                       1e-4f,
                       1e30f,
                       -3.4e38f,
                       0x1p-7f,
                       0x1.8p-10f,
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(),
                       -std::numeric_limits<float>::quiet_NaN()};
  for (const FormatCase& c : kFormatCases) {
    SCOPED_TRACE(c.name);
    TwoPools pools(c, 16, 4);
    const std::vector<Slot> slots = ShuffledSlots(16, pools.num_slots(), 3);
    const size_t values = static_cast<size_t>(c.dims.values());
    std::vector<float> rows(slots.size() * values, 0.0f);  // some rows stay zeros
    for (size_t i = values; i < rows.size(); ++i) {
      if (i / values % 3 != 0) rows[i] = odd[(i * 7 + i / values) % std::size(odd)];
    }
    pools.Write(slots, rows);
    EXPECT_EQ(pools.Difference(), "");
  }
}

TEST(CudaStoreTest, MovesReadEverySourceBeforeTheyWriteAndKeepTheBytes) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  SerialExecutor executor;
  ForAllCases([&](const FormatCase& c, int page_size) {
    TwoPools pools(c, page_size, 6);
    const std::vector<Slot> slots = ShuffledSlots(page_size, pools.num_slots(), 5);
    pools.Write(slots, RowsFor(slots, c.dims.values()));
    // A rotation of overlapping rows, and one row to the scratch page.
    std::vector<Slot> from, to;
    const size_t n = std::min<size_t>(slots.size(), 100);
    for (size_t i = 0; i < n; ++i) {
      from.push_back(slots[i]);
      to.push_back(slots[(i + 1) % n]);
    }
    to[0] = Slot(0);
    const size_t bytes = static_cast<size_t>(
        StoreMoveWorkspace(pools.store().layout(), static_cast<int64_t>(n)).raw());
    std::vector<std::byte> workspace(bytes);
    cpu::StoreMove({.store = pools.host_store(), .from = from, .to = to, .workspace = workspace},
                   executor);
    const GuardedArray<std::byte> staged(pools.arrays(), bytes);
    StoreMove({.store = pools.store(),
               .from = pools.arrays().Put(from),
               .to = pools.arrays().Put(to),
               .workspace = staged.span()},
              pools.stream());
    EXPECT_EQ(pools.Difference(), "");
    (void)staged.Values(pools.stream());
  });
}

TEST(CudaStoreTest, SlotsOutsideThePoolAreReportedAndWritesThereAndToTheScratchPageDropped) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (int64_t bad : {int64_t{-1}, int64_t{12}, int64_t{1} << 40}) {
    TwoPools pools(kFormatCases[1], 4, 3);
    Status status;
    const std::vector<Slot> slots = {Slot(0), Slot(5), Slot(bad), Slot(3), Slot(0)};
    const std::vector<float> rows = RowsFor(slots, 576);
    StoreWrite(
        {.store = pools.store(),
         .slots = pools.arrays().Put(slots),
         .latent = ConstTensorView(pools.arrays().Put(rows).data(), {5, 512}).WithRowStride(576),
         .rope =
             ConstTensorView(pools.arrays().Put(rows).data() + 512, {5, 64}).WithRowStride(576)},
        pools.stream(), status.word());
    status.Read(pools.stream());
    pools.stream().Synchronize();
    ASSERT_TRUE(status.report().has_value());
    EXPECT_EQ(status.report()->fault, DeviceFault::kSlot);
    EXPECT_EQ(status.report()->index, 2u);
    // The host's pool has the one good row.
    SerialExecutor executor;
    cpu::StoreWrite({.store = pools.host_store(),
                     .slots = std::span(slots).subspan(1, 1),
                     .latent = ConstTensorView(rows.data() + 576, {1, 512}),
                     .rope = ConstTensorView(rows.data() + 576 + 512, {1, 64})},
                    executor);
    EXPECT_EQ(pools.Difference(), "");
    status.Clear(pools.stream());
    (void)pools.GatherOnDevice<float>(slots, status.word());
    status.Read(pools.stream());
    pools.stream().Synchronize();
    EXPECT_EQ(status.report()->fault, DeviceFault::kSlot);
  }
}

TEST(CudaStoreTest, APoolBeyondTwoGibibytesIsAddressedInFull) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  const KvLayout layout(KvFormat::kLatentBf16, {512, 64}, PageSize(64));
  const PageCount num_pages(30001);
  const DeviceBuffer memory("pool", KvStoreBytes(layout, num_pages));
  const KvStore store(memory.bytes(), num_pages, layout);
  const std::vector<Slot> slots = {PageSize(64).SlotOf(PageId(30000), 63)};
  const std::vector<Bf16> row = AllToBf16(MadeUpValues(1, 1, 576));
  DeviceArrays arrays;
  const Stream stream;
  const std::span<Bf16> on_device = arrays.Put(row);
  StoreWrite({.store = store,
              .slots = arrays.Put(slots),
              .latent = ConstTensorView(on_device.data(), {1, 512}),
              .rope = ConstTensorView(on_device.data() + 512, {1, 64})},
             stream);
  const std::vector<std::byte> last =
      ToHost(std::span<const std::byte>(memory.bytes()).last(1152), stream);
  EXPECT_EQ(std::memcmp(last.data(), row.data(), 1152), 0);
}

// ---- Norm, rotation and write ----

struct RopeRows {
  std::vector<Slot> slots;
  std::vector<TokenCount> positions;
  std::vector<float> kv, weight, cos, sin;
};

RopeRows MakeRopeRows(const KvDims& dims, int64_t num_slots, int page_size) {
  constexpr int64_t kPositions = 50;
  RopeRows rows;
  rows.slots = ShuffledSlots(page_size, num_slots, 3);
  for (size_t i = 0; i < rows.slots.size(); ++i) {
    rows.positions.emplace_back(static_cast<int64_t>(i * 7 % kPositions));
  }
  rows.kv = RoundedToBf16(RowsFor(rows.slots, dims.values()));
  rows.weight = MadeUpValues(8, 1, dims.latent_dim);
  for (int64_t i = 0; i < kPositions * dims.rope_dim / 2; ++i) {
    rows.cos.push_back(std::cos(0.37f * static_cast<float>(i)));
    rows.sin.push_back(std::sin(0.37f * static_cast<float>(i)));
  }
  return rows;
}

template <class T>
void RunRopeStore(TwoPools& pools, const RopeRows& rows, const std::vector<T>& kv, RopePairs pairs,
                  StatusWord status = {}) {
  const KvDims dims = pools.store().layout().dims();
  const int64_t pairs_per_row = dims.rope_dim / 2;
  RopeStoreArgs args{.store = pools.store(),
                     .slots = pools.arrays().Put(rows.slots),
                     .positions = pools.arrays().Put(rows.positions),
                     .kv = {pools.arrays().Put(kv).data(),
                            {static_cast<int64_t>(rows.slots.size()), dims.values()}},
                     .norm_weight = pools.arrays().Put(rows.weight),
                     .eps = 1e-5f,
                     .pairs = pairs};
  if (dims.rope_dim > 0) {
    const int64_t positions = static_cast<int64_t>(rows.cos.size()) / pairs_per_row;
    args.cos = {pools.arrays().Put(rows.cos).data(), {positions, pairs_per_row}};
    args.sin = {pools.arrays().Put(rows.sin).data(), {positions, pairs_per_row}};
  }
  RopeStore(args, pools.stream(), status);
}

// Row i in double precision, and how far f32 may be off: the sum of squares is 128 chains of
// width / 128 and a tree of five (docs/numerics.md, Row ops); a rotation rounds twice.
void ReferenceRopeRow(const RopeRows& rows, const KvDims& dims, RopePairs pairs, size_t i,
                      std::vector<double>& expected, std::vector<double>& bounds) {
  const double u = 0x1p-24;
  const size_t latent = static_cast<size_t>(dims.latent_dim),
               half = static_cast<size_t>(dims.rope_dim) / 2;
  const float* x = rows.kv.data() + i * static_cast<size_t>(dims.values());
  double squares = 0;
  for (size_t j = 0; j < latent; ++j) squares += double{x[j]} * x[j];
  const double factor = 1 / std::sqrt(squares / static_cast<double>(latent) + double{1e-5f});
  for (size_t j = 0; j < latent; ++j) {
    expected.push_back(x[j] * factor * rows.weight[j]);
    bounds.push_back(u * ((static_cast<double>(latent) / 32 + 4 + 5) / 2 + 5) *
                     std::abs(expected.back()));
  }
  const float* rope = x + latent;
  const size_t row = static_cast<size_t>(rows.positions[i].raw()) * half;
  for (size_t j = 0; j < 2 * half; ++j) {
    const bool interleaved = pairs == RopePairs::kInterleaved;
    const size_t pair = interleaved ? j / 2 : j % half;
    const double a = rope[interleaved ? 2 * pair : pair];
    const double b = rope[interleaved ? 2 * pair + 1 : pair + half];
    const double cos = rows.cos[row + pair], sin = rows.sin[row + pair];
    const bool first = interleaved ? j % 2 == 0 : j < half;
    expected.push_back(first ? a * cos - b * sin : b * cos + a * sin);
    bounds.push_back(
        2 * u *
        (first ? std::abs(a * cos) + std::abs(b * sin) : std::abs(b * cos) + std::abs(a * sin)));
  }
}

TEST(CudaRopeStoreTest, NormAndRotationAreNearTheReference) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const KvDims& dims : {KvDims{512, 64}, KvDims{256, 32}, KvDims{21, 6}, KvDims{40, 0}}) {
    for (RopePairs pairs : {RopePairs::kInterleaved, RopePairs::kHalves}) {
      TwoPools pools({"f32", KvFormat::kLatentF32, dims}, 16, 4);
      const RopeRows rows = MakeRopeRows(dims, pools.num_slots(), 16);
      RunRopeStore(pools, rows, rows.kv, pairs);
      const std::vector<float> f32 = pools.GatherOnDevice<float>(rows.slots);
      std::vector<double> expected, bounds;
      for (size_t i = 0; i < rows.slots.size(); ++i) {
        ReferenceRopeRow(rows, dims, pairs, i, expected, bounds);
      }
      EXPECT_EQ(testing::Mismatch(f32, expected, bounds), "");
      RunRopeStore(pools, rows, AllToBf16(rows.kv), pairs);
      EXPECT_EQ(testing::BitMismatch(pools.GatherOnDevice<float>(rows.slots), f32), "")
          << "the same values as bf16";
    }
  }
}

// Whatever the format, the row is the encoding of the f32 values above.
TEST(CudaRopeStoreTest, EveryFormatEncodesTheSameValues) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (const FormatCase& c : kFormatCases) {
    if (c.format >= KvFormat::kIndexKeyF32 || c.dims.rope_dim % 2 != 0) continue;
    SCOPED_TRACE(c.name);
    TwoPools exact({"f32", KvFormat::kLatentF32, c.dims}, 16, 4), pools(c, 16, 4);
    const RopeRows rows = MakeRopeRows(c.dims, pools.num_slots(), 16);
    RunRopeStore(exact, rows, rows.kv, RopePairs::kInterleaved);
    RunRopeStore(pools, rows, rows.kv, RopePairs::kInterleaved);
    TwoPools expected(c, 16, 4);
    expected.Write(rows.slots, exact.GatherOnDevice<float>(rows.slots));
    EXPECT_EQ(testing::BitMismatch(pools.GatherOnDevice<float>(rows.slots),
                                   expected.GatherOnHost<float>(rows.slots)),
              "");
  }
}

TEST(CudaRopeStoreTest, APositionOutsideTheTableIsReportedAndItsRowDropped) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  for (int64_t bad : {int64_t{-1}, int64_t{50}}) {
    TwoPools pools(kFormatCases[1], 16, 4);
    RopeRows rows = MakeRopeRows({512, 64}, pools.num_slots(), 16);
    rows.positions[3] = TokenCount(bad);
    Status status;
    RunRopeStore(pools, rows, rows.kv, RopePairs::kInterleaved, status.word());
    status.Read(pools.stream());
    const std::vector<Bf16> row = pools.GatherOnDevice<Bf16>({rows.slots[3]});
    for (Bf16 value : row) ASSERT_EQ(value.bits, 0xffff);
    ASSERT_TRUE(status.report().has_value());
    EXPECT_EQ(status.report()->fault, DeviceFault::kCapacity);
    EXPECT_EQ(status.report()->index, 3u);
  }
}

TEST(CudaStoreTest, MismatchedShapesAreNamed) {
  if (!HaveDevice()) GTEST_SKIP() << DeviceProblem();
  TwoPools pools(kFormatCases[1], 4, 3);
  const std::vector<Slot> slots = {Slot(5), Slot(6)};
  const std::vector<float> rows(2 * 576);
  EXPECT_EQ(ErrorMessage([&] {
              StoreWrite({.store = pools.store(),
                          .slots = slots,
                          .latent = ConstTensorView(rows.data(), {2, 511}),
                          .rope = ConstTensorView(rows.data(), {2, 64})},
                         pools.stream());
            }),
            "latent: expected shape [2, 512], got [2, 511]");
  EXPECT_EQ(ErrorMessage([&] {
              StoreMove({.store = pools.store(), .from = slots, .to = slots, .workspace = {}},
                        pools.stream());
            }),
            "move.workspace: expected 2304 bytes (2 rows of 1152), got 0");
  EXPECT_EQ(
      ErrorMessage([&] { RopeStore({.store = pools.store(), .slots = slots}, pools.stream()); }),
      "positions: expected 2 (one per slot), got 0");
}

}  // namespace
}  // namespace quire::cuda
