#include "interop/cuda/test_exports.h"

#include <fmt/format.h>

#include <cstring>

#include "attn/checks.h"

namespace quire::cuda {
namespace {

// Outputs in one block, each between guards.
class Outputs {
 public:
  static constexpr size_t kGuard = 256;

  // Returns the offset of the output.
  size_t Add(size_t bytes, size_t skew_bytes = 0) {
    const size_t begin = size_ + kGuard + skew_bytes;
    pieces_.push_back({begin, begin + bytes});
    size_ = (begin + bytes + kGuard + 255) / 256 * 256;
    return begin;
  }
  size_t size() const { return size_; }

  std::string Damage(const std::vector<std::byte>& block) const {
    size_t begin = 0;
    for (size_t i = 0; i <= pieces_.size(); ++i) {
      const size_t end = i < pieces_.size() ? pieces_[i].begin : block.size();
      for (size_t at = begin; at < end; ++at) {
        if (block[at] != kUnwritten) return fmt::format("written beside output {} at {}", i, at);
      }
      if (i < pieces_.size()) begin = pieces_[i].end;
    }
    return {};
  }

 private:
  struct Piece {
    size_t begin, end;
  };
  std::vector<Piece> pieces_;
  size_t size_ = 0;
};

template <class T>
std::span<T> SpanAt(std::byte* block, size_t begin, int64_t count) {
  return {reinterpret_cast<T*>(block + begin), Index(count)};
}

template <class T>
std::vector<T> ValuesAt(const std::vector<std::byte>& block, size_t begin, int64_t count) {
  std::vector<T> values(Index(count));
  if (count > 0) std::memcpy(values.data(), block.data() + begin, values.size() * sizeof(T));
  return values;
}

size_t Int32Bytes(int64_t count) { return Index(count) * sizeof(int32_t); }

}  // namespace

FlatCopy TestExports::Flat(const StepCapacity& capacity, int skew) {
  const int64_t rows = IndptrEntries(capacity), entries = FlatIndexEntries(capacity).raw();
  Outputs outputs;
  const size_t indptr = outputs.Add(Int32Bytes(rows));
  const size_t indices = outputs.Add(Int32Bytes(entries), Int32Bytes(skew));
  std::byte* block = NewBlock(outputs.size());
  DoFlat(capacity, {.kv_indptr = SpanAt<int32_t>(block, indptr, rows),
                    .kv_indices = SpanAt<int32_t>(block, indices, entries)});
  const std::vector<std::byte> copy = CopyBlock();
  return {.indptr = ValuesAt<int32_t>(copy, indptr, rows),
          .indices = ValuesAt<int32_t>(copy, indices, entries),
          .damage = outputs.Damage(copy)};
}

TableCopy TestExports::Table(const StepCapacity& capacity, BlockTableRule rule, int32_t fill) {
  const int64_t entries = BlockTableEntries(rule, capacity);
  Outputs outputs;
  const size_t table = outputs.Add(Int32Bytes(entries));
  const size_t kv_lens = outputs.Add(Int32Bytes(capacity.num_seqs));
  std::byte* block = NewBlock(outputs.size());
  DoTable(capacity, {.rule = rule,
                     .fill = fill,
                     .table = SpanAt<int32_t>(block, table, entries),
                     .kv_lens = SpanAt<int32_t>(block, kv_lens, capacity.num_seqs)});
  const std::vector<std::byte> copy = CopyBlock();
  return {.table = ValuesAt<int32_t>(copy, table, entries),
          .kv_lens = ValuesAt<int32_t>(copy, kv_lens, capacity.num_seqs),
          .damage = outputs.Damage(copy)};
}

DraftCopy TestExports::Drafts(const StepCapacity& capacity, const DraftShape& shape, int skew) {
  const int64_t rows = DraftIndptrEntries(capacity, shape) * shape.steps;
  const int64_t entries = (DraftRowEntries(capacity, shape) * shape.steps).raw();
  const int64_t slots = DraftSlotEntries(capacity, shape);
  Outputs outputs;
  const size_t indptr = outputs.Add(Int32Bytes(rows));
  const size_t indices = outputs.Add(Int32Bytes(entries), Int32Bytes(skew));
  const size_t write_slots = outputs.Add(Index(slots) * sizeof(int64_t));
  std::byte* block = NewBlock(outputs.size());
  DoDrafts(capacity, {.shape = shape,
                      .kv_indptr = SpanAt<int32_t>(block, indptr, rows),
                      .kv_indices = SpanAt<int32_t>(block, indices, entries),
                      .write_slots = SpanAt<int64_t>(block, write_slots, slots)});
  const std::vector<std::byte> copy = CopyBlock();
  return {.indptr = ValuesAt<int32_t>(copy, indptr, rows),
          .indices = ValuesAt<int32_t>(copy, indices, entries),
          .write_slots = ValuesAt<int64_t>(copy, write_slots, slots),
          .damage = outputs.Damage(copy)};
}

}  // namespace quire::cuda
