#include "interop/cuda/test_exports.h"

#include <fmt/format.h>

#include "base/executor.h"

namespace quire::cuda {
namespace {

class Reference final : public TestExports {
 public:
  explicit Reference(std::span<const SequenceStep> seqs) : seqs_(seqs) {}

  std::byte* NewBlock(size_t bytes) override {
    block_.assign(bytes, kUnwritten);
    return block_.data();
  }
  std::vector<std::byte> CopyBlock() override { return block_; }

  void Export(const StepCapacity& capacity, const FlatIndices& out) override {
    ExportFlatIndices(seqs_, capacity, out, executor_);
  }
  void Export(const StepCapacity& capacity, const FlatPages& out) override {
    ExportFlatPages(seqs_, capacity, out, executor_);
  }
  void Export(const StepCapacity& capacity, const BlockTable& out) override {
    ExportBlockTable(seqs_, capacity, out, executor_);
  }
  void Export(const StepCapacity& capacity, const UnifiedPageTable& out) override {
    ExportUnifiedPageTable(seqs_, capacity, out, executor_);
  }
  void Export(const StepCapacity& capacity, const DraftRows& out) override {
    ExportDraftRows(seqs_, capacity, out, executor_);
  }
  void Export(const StepCapacity& capacity, const DraftTables& out) override {
    ExportDraftTables(seqs_, capacity, out, executor_);
  }

 private:
  std::span<const SequenceStep> seqs_;
  SerialExecutor executor_;
  std::vector<std::byte> block_;
};

}  // namespace

size_t OutputBlock::Add(size_t bytes, size_t skew_bytes) {
  constexpr size_t kGuard = 256;
  const size_t begin = size_ + kGuard + skew_bytes;
  pieces_.push_back({begin, begin + bytes});
  size_ = (begin + bytes + kGuard + 255) / 256 * 256;
  return begin;
}

std::string OutputBlock::Damage() const {
  size_t begin = 0;
  for (size_t i = 0; i <= pieces_.size(); ++i) {
    const size_t end = i < pieces_.size() ? pieces_[i].begin : size_;
    for (size_t at = begin; at < end; ++at) {
      if (base_[at] != kUnwritten) return fmt::format("written beside output {} at {}", i, at);
    }
    if (i < pieces_.size()) begin = pieces_[i].end;
  }
  return {};
}

Layout<FlatIndices> FlatIndicesOf(const StepCapacity& capacity, int skew) {
  return [=](OutputBlock& block) -> FlatIndices {
    return {.kv_indptr = block.Take(IndptrEntries(capacity)),
            .kv_indices = block.Take(FlatIndexEntries(capacity).raw(), skew)};
  };
}

Layout<FlatPages> FlatPagesOf(const StepCapacity& capacity) {
  return [=](OutputBlock& block) -> FlatPages {
    return {.kv_indptr = block.Take(IndptrEntries(capacity)),
            .kv_pages = block.Take(FlatPageEntries(capacity).raw()),
            .last_page_len = block.Take(capacity.num_seqs)};
  };
}

Layout<BlockTable> BlockTableOf(const StepCapacity& capacity, BlockTableRule rule, int32_t fill) {
  return [=](OutputBlock& block) -> BlockTable {
    return {.rule = rule,
            .fill = fill,
            .table = block.Take(BlockTableEntries(rule, capacity)),
            .kv_lens = block.Take(capacity.num_seqs)};
  };
}

Layout<UnifiedPageTable> UnifiedTableOf(const StepCapacity& capacity) {
  return [=](OutputBlock& block) -> UnifiedPageTable {
    return {.table = block.Take(UnifiedPageTableEntries(capacity)),
            .kv_lens = block.Take(capacity.num_seqs)};
  };
}

Layout<DraftRows> DraftRowsOf(const StepCapacity& capacity, const DraftShape& shape, int skew) {
  return [=](OutputBlock& block) -> DraftRows {
    return {.shape = shape,
            .kv_indptr = block.Take(DraftIndptrEntries(capacity, shape) * shape.steps),
            .kv_indices = block.Take((DraftRowEntries(capacity, shape) * shape.steps).raw(), skew),
            .write_slots = block.Take<int64_t>(DraftSlotEntries(capacity, shape))};
  };
}

Layout<DraftTables> DraftTablesOf(const StepCapacity& capacity, const DraftShape& shape,
                                  int32_t fill) {
  return [=](OutputBlock& block) -> DraftTables {
    return {.shape = shape,
            .fill = fill,
            .prefix_table = block.Take(DraftPrefixEntries(capacity)),
            .prefix_lens = block.Take(capacity.num_seqs),
            .branch_table = block.Take(DraftBranchEntries(capacity, shape) * shape.steps),
            .branch_lens = block.Take(DraftSlotEntries(capacity, shape))};
  };
}

std::unique_ptr<TestExports> MakeReference(std::span<const SequenceStep> seqs) {
  return std::make_unique<Reference>(seqs);
}

}  // namespace quire::cuda
