#include "testing/invariants/store_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "attn/kv_layout.h"
#include "attn/kv_store.h"
#include "base/error.h"
#include "base/executor.h"
#include "base/narrow_float.h"
#include "base/tensor_view.h"
#include "base/units.h"
#include "kernels/cpu/store.h"
#include "testing/active_faults.h"
#include "testing/compare.h"
#include "testing/red_zone.h"
#include "testing/reference.h"

namespace quire::testing {
namespace {

// A row that every format holds exactly: the largest value of each scale group is 448 times a power
// of two, so the scale is that power, and the others are small multiples of it. `dim` + rope.
std::vector<float> DrawRow(Random& random, const KvDims& dims) {
  std::vector<float> row;
  const float unit = static_cast<float>(uint64_t{1} << random.Between(0, 6)) / 16.0f;
  for (int32_t i = 0; i < dims.values(); ++i) {
    const bool is_largest = i < dims.latent_dim && i % kFp8ScaleGroup == 0;
    const int64_t multiple = is_largest ? random.Pick({-448, 448}) : random.Between(-16, 16);
    row.push_back(static_cast<float>(multiple) * unit);
  }
  return row;
}

// A store, and what it must hold: rows by slot, none where nothing was written.
class ModelledStore {
 public:
  ModelledStore(const KvLayout& layout, PageCount num_pages)
      : layout_(layout),
        memory_(Index(KvStoreBytes(layout, num_pages).raw())),
        store_(memory_.span(), num_pages, layout, ActiveFaults()),
        rows_(Index(layout.page_size().TokensIn(num_pages).raw())) {}

  bool IsWritten(int64_t slot) const { return rows_[Index(slot)].has_value(); }
  std::span<const std::byte> bytes() { return memory_.span(); }

  void Write(const std::vector<Slot>& slots, const std::vector<std::vector<float>>& values) {
    const KvDims dims = layout_.dims();
    std::vector<float> latent;
    std::vector<Bf16> rope;  // the other type that views may have
    for (size_t i = 0; i < slots.size(); ++i) {
      latent.insert(latent.end(), values[i].begin(), values[i].begin() + dims.latent_dim);
      for (int32_t d = dims.latent_dim; d < dims.values(); ++d) {
        rope.push_back(ToBf16(values[i][Index(d)]));
      }
      if (!IsScratch(slots[i])) rows_[Index(slots[i].raw())] = values[i];
    }
    const int64_t n = std::ssize(slots);
    cpu::StoreWrite({.store = store_,
                     .slots = slots,
                     .latent = ConstTensorView(latent.data(), {n, dims.latent_dim}),
                     .rope = dims.rope_dim > 0 ? ConstTensorView(rope.data(), {n, dims.rope_dim})
                                               : ConstTensorView()},
                    serial_);
  }

  void Move(const std::vector<Slot>& from, const std::vector<Slot>& to) {
    std::vector<std::optional<std::vector<float>>> staged;
    for (Slot slot : from) staged.push_back(rows_[Index(slot.raw())]);
    for (size_t i = 0; i < to.size(); ++i) {
      if (!IsScratch(to[i])) rows_[Index(to[i].raw())] = staged[i];
    }
    RedZone<std::byte> workspace(Index(StoreMoveWorkspace(layout_, std::ssize(from)).raw()));
    cpu::StoreMove({.store = store_, .from = from, .to = to, .workspace = workspace.span()},
                   serial_);
    EXPECT_EQ(workspace.Damage(), "");
  }

  // All rows, read back; the scratch page and everything around the pages as it was.
  void Check() {
    const KvDims dims = layout_.dims();
    std::vector<Slot> slots;
    for (int64_t slot = 0; slot < std::ssize(rows_); ++slot) {
      if (IsWritten(slot)) slots.push_back(Slot(slot));
    }
    const int64_t n = std::ssize(slots);
    RedZone<float> latent(Index(n * dims.latent_dim)), rope(Index(n * dims.rope_dim));
    cpu::StoreGather(
        {.store = store_,
         .slots = slots,
         .latent = TensorView(latent.data(), {n, dims.latent_dim}),
         .rope = dims.rope_dim > 0 ? TensorView(rope.data(), {n, dims.rope_dim}) : TensorView()},
        serial_);
    EXPECT_EQ(latent.Damage() + rope.Damage() + memory_.Damage(), "");
    for (int64_t i = 0; i < n; ++i) {
      std::vector<float> row = Values(latent, i * dims.latent_dim, dims.latent_dim);
      const std::vector<float> tail = Values(rope, i * dims.rope_dim, dims.rope_dim);
      row.insert(row.end(), tail.begin(), tail.end());
      ASSERT_EQ(BitMismatch(row, *rows_[Index(slots[Index(i)].raw())]), "")
          << KvFormatName(layout_.format()) << ", slot " << slots[Index(i)].raw();
    }
    const auto scratch = memory_.span().first(Index(layout_.page_bytes().raw()));
    EXPECT_TRUE(std::all_of(scratch.begin(), scratch.end(), [](std::byte byte) {
      return byte == std::byte{RedZone<std::byte>::kFill};
    })) << "written to the scratch page";
  }

 private:
  bool IsScratch(Slot slot) const { return layout_.page_size().PageOf(slot) == kScratchPage; }

  KvLayout layout_;
  RedZone<std::byte> memory_;
  KvStore store_;
  std::vector<std::optional<std::vector<float>>> rows_;
  SerialExecutor serial_;
};

// Distinct slots of any page, and some of the scratch page.
std::vector<Slot> DrawSlots(Random& random, int64_t num_slots, int64_t count) {
  std::vector<Slot> slots;
  std::vector<bool> taken(Index(num_slots), false);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = random.OneIn(16) ? 0 : random.Between(0, num_slots - 1);
    if (taken[Index(slot)] && slot != 0) continue;
    taken[Index(slot)] = true;
    slots.push_back(Slot(slot));
  }
  return slots;
}

// The same operations on every store.
void OperateAtRandom(Random& random, const KvDims& dims, int64_t num_slots,
                     std::span<ModelledStore* const> stores) {
  for (int64_t i = random.Between(3, 8); i > 0; --i) {
    std::vector<Slot> to = DrawSlots(random, num_slots, random.Between(1, 12));
    if (i % 2 == 0 || !stores[0]->IsWritten(to[0].raw())) {
      std::vector<std::vector<float>> rows(to.size());
      for (std::vector<float>& row : rows) row = DrawRow(random, dims);
      for (ModelledStore* store : stores) store->Write(to, rows);
    } else {
      // Sources may repeat, overlap the targets, and be rows that were never written.
      std::vector<Slot> from(to.size());
      for (Slot& slot : from) slot = Slot(random.Between(0, num_slots - 1));
      for (size_t j = 1; j < to.size(); j += 2) from[j] = to[j - 1];
      for (ModelledStore* store : stores) store->Move(from, to);
    }
  }
}

KvDims DrawLatentDims(Random& random) {
  return {.latent_dim = ToInt32(random.Pick({1, 21, 32, 130})),
          .rope_dim = ToInt32(random.Pick({0, 5, 8}))};
}

// Rows of latents and index keys in every format that has no layout to disagree about.
void CheckPlainStore(const Trial& trial) {
  constexpr KvFormat kFormats[] = {KvFormat::kLatentF32, KvFormat::kLatentBf16,
                                   KvFormat::kLatentFp8, KvFormat::kIndexKeyF32,
                                   KvFormat::kIndexKeyBf16};
  const KvFormat format = kFormats[trial.random.Between(0, 4)];
  KvDims dims = DrawLatentDims(trial.random);
  if (format >= KvFormat::kIndexKeyF32) dims.rope_dim = 0;
  const KvLayout layout(format, dims, trial.config.page_size);
  const PageCount num_pages(trial.random.Between(2, 4));
  ModelledStore store(layout, num_pages);
  ModelledStore* const stores[] = {&store};
  OperateAtRandom(trial.random, layout.dims(), trial.page() * num_pages.raw(), stores);
  store.Check();
  trial.facts.set(Index(kFormatF32 + static_cast<int>(format)));
}

// Preshuffling is a bijection on the key bytes of a page, and the formula of docs/formats.md.
void CheckPreshuffle(const KvLayout& layout) {
  const int64_t dim = layout.dims().latent_dim, page = layout.page_size().raw();
  const KvPart& keys = layout.parts()[0];
  std::vector<bool> hit(Index(page * dim), false);
  for (int64_t row = 0; row < page; ++row) {
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t at = keys.OffsetOf(ToInt32(row), ToInt32(d));
      ASSERT_EQ(at, IndexKeyOffset(Slot(row), d, layout.page_size(), dim, true));
      ASSERT_TRUE(at >= 0 && at < page * dim && !hit[Index(at)]) << "row " << row << ", " << d;
      hit[Index(at)] = true;
      // The inverse: tiles of 16 rows, column tiles of 256 bytes in them, 16 bytes of a row in
      // those.
      const int64_t in_tile = at % (16 * dim);
      ASSERT_EQ(at / (16 * dim) * 16 + in_tile % 256 / 16, row);
      ASSERT_EQ(in_tile / 256 * 16 + at % 16, d);
    }
  }
}

void CheckIndexKeyStores(const Trial& trial) {
  const PageSize page_size = trial.config.page_size;
  const bool can_preshuffle = trial.page() % kPreshuffleTile == 0;
  const KvDims dims{.latent_dim = ToInt32(trial.random.Pick({16, 32, 48})), .rope_dim = 0};
  const PageCount num_pages(trial.random.Between(2, 3));
  const KvLayout plain_layout(KvFormat::kIndexKeyFp8, dims, page_size);
  ModelledStore plain(plain_layout, num_pages);
  trial.facts.set(kFormatIndexKey);
  const int64_t num_slots = trial.page() * num_pages.raw();
  if (!can_preshuffle) {
    ExpectRefused("preshuffle", ErrorCode::kInvalidArgument,
                  [&] { KvLayout(KvFormat::kIndexKeyFp8Preshuffled, dims, page_size); });
    ModelledStore* const stores[] = {&plain};
    OperateAtRandom(trial.random, dims, num_slots, stores);
    return plain.Check();
  }
  trial.facts.set(kFormatPreshuffled);
  const KvLayout layout(KvFormat::kIndexKeyFp8Preshuffled, dims, page_size);
  ModelledStore preshuffled(layout, num_pages);
  ModelledStore* const stores[] = {&plain, &preshuffled};
  OperateAtRandom(trial.random, dims, num_slots, stores);
  plain.Check();
  preshuffled.Check();
  QUIRE_RETURN_IF_FAILED();
  CheckPreshuffle(layout);
  // Byte for byte: the one is the other, shuffled.
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    if (!plain.IsWritten(slot)) continue;
    const auto scale_at = Index(IndexScaleOffset(Slot(slot), page_size, dims.latent_dim));
    ASSERT_EQ(std::memcmp(&plain.bytes()[scale_at], &preshuffled.bytes()[scale_at], 4), 0);
    for (int64_t d = 0; d < dims.latent_dim; ++d) {
      const auto at = [&](bool is_preshuffled) {
        return Index(IndexKeyOffset(Slot(slot), d, page_size, dims.latent_dim, is_preshuffled));
      };
      ASSERT_EQ(plain.bytes()[at(false)], preshuffled.bytes()[at(true)]);
    }
  }
}

}  // namespace

void CheckStores(const Trial& trial) {
  CheckPlainStore(trial);
  QUIRE_RETURN_IF_FAILED();
  CheckIndexKeyStores(trial);
}

}  // namespace quire::testing
