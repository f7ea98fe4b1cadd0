// Exports from the plan of a test's machine (attn/cuda/test_machine.h): on the device, or by the same
// code on the host's threads. Two binaries run the same tests (export_test.cc); each links one kind.
// The exporters of interop/export.h, which are the truth, are a third.
#ifndef QUIRE_INTEROP_CUDA_TEST_EXPORTS_H_
#define QUIRE_INTEROP_CUDA_TEST_EXPORTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attn/cuda/test_machine.h"
#include "attn/sequence_step.h"
#include "interop/capacity.h"
#include "interop/export.h"

namespace quire::cuda {

// What outputs are full of before an export: kUnwritten.
inline constexpr int32_t kUnwrittenEntry = static_cast<int32_t>(0xA5A5A5A5u);

// ---- Outputs ----

// The outputs of an export in one block of bytes, each between guards.
class OutputBlock {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // `base` is a multiple of 16; null: only counts. Output number `short_output` gets an entry less
  // than it asks for.
  explicit OutputBlock(std::byte* base, size_t short_output = kNone)
      : base_(base), short_output_(short_output) {}

  // Begins `skew` entries behind a 16-byte address.
  template <class T = int32_t>
  std::span<T> Take(int64_t count, int skew = 0) {
    const size_t taken = static_cast<size_t>(count) - (pieces_.size() == short_output_ ? 1 : 0);
    const size_t begin = Add(taken * sizeof(T), static_cast<size_t>(skew) * sizeof(T));
    if (base_ == nullptr) return {};
    return {reinterpret_cast<T*>(base_ + begin), taken};
  }

  size_t size() const { return size_; }
  size_t num_outputs() const { return pieces_.size(); }
  // "" if nothing was written beside the outputs.
  std::string Damage() const;

 private:
  struct Piece {
    size_t begin, end;
  };
  size_t Add(size_t bytes, size_t skew_bytes);

  std::byte* base_;
  size_t short_output_;
  std::vector<Piece> pieces_;
  size_t size_ = 0;
};

// A form's outputs, sized for a capacity by its sizing functions and nothing else.
template <class Out>
using Layout = std::function<Out(OutputBlock&)>;

Layout<FlatIndices> FlatIndicesOf(const StepCapacity& capacity, int skew = 0);
Layout<FlatPages> FlatPagesOf(const StepCapacity& capacity);
Layout<BlockTable> BlockTableOf(const StepCapacity& capacity, BlockTableRule rule, int32_t fill);
Layout<UnifiedPageTable> UnifiedTableOf(const StepCapacity& capacity);
Layout<DraftRows> DraftRowsOf(const StepCapacity& capacity, const DraftShape& shape, int skew = 0);
Layout<DraftTables> DraftTablesOf(const StepCapacity& capacity, const DraftShape& shape,
                                  int32_t fill);

// The case table: calls fn(name, layout) for every form whose rows end at kv_len.
template <class Fn>
void ForEachSequenceForm(const StepCapacity& capacity, int skew, Fn fn) {
  fn("flat token indices", FlatIndicesOf(capacity, skew));
  fn("flat page indices", FlatPagesOf(capacity));
  fn("block table", BlockTableOf(capacity, BlockTableRule::kCeil, -1));
  if (capacity.page_size == PageSize(64)) {
    fn("trtllm table", BlockTableOf(capacity, BlockTableRule::kTrtllm, -1));
    fn("flashmla table", BlockTableOf(capacity, BlockTableRule::kFlashMlaGraph, 1));
  }
  fn("unified page table", UnifiedTableOf(capacity));
}

// The same for every form that goes on to drafts.
template <class Fn>
void ForEachDraftForm(const StepCapacity& capacity, const DraftShape& shape, int skew, Fn fn) {
  fn("draft rows", DraftRowsOf(capacity, shape, skew));
  fn("draft tables", DraftTablesOf(capacity, shape, -1));
}

// ---- Who exports ----

class TestExports {
 public:
  virtual ~TestExports() = default;

  // A block full of kUnwritten, at a multiple of 256 of the exporter's memory; and what it holds.
  virtual std::byte* NewBlock(size_t bytes) = 0;
  virtual std::vector<std::byte> CopyBlock() = 0;

  virtual void Export(const StepCapacity& capacity, const FlatIndices& out) = 0;
  virtual void Export(const StepCapacity& capacity, const FlatPages& out) = 0;
  virtual void Export(const StepCapacity& capacity, const BlockTable& out) = 0;
  virtual void Export(const StepCapacity& capacity, const UnifiedPageTable& out) = 0;
  virtual void Export(const StepCapacity& capacity, const DraftRows& out) = 0;
  virtual void Export(const StepCapacity& capacity, const DraftTables& out) = 0;
};

// From the plans of this machine, which MakeMachine has made.
std::unique_ptr<TestExports> MakeExports(TestMachine& machine);
// By interop/export.h; `seqs` outlive it.
std::unique_ptr<TestExports> MakeReference(std::span<const SequenceStep> seqs);

// What an export wrote; the spans of `out` are of `bytes`.
template <class Out>
struct Exported {
  std::vector<std::byte> bytes;
  Out out;
  std::string damage;
};

// Throws what Export throws; what it has written by then, nothing, is checked by the caller
// (CopyBlock). Output number `short_output` is an entry too short.
template <class Out>
Exported<Out> RunExport(TestExports& exports, const StepCapacity& capacity,
                        const Layout<Out>& layout, size_t short_output = OutputBlock::kNone) {
  OutputBlock counted(nullptr, short_output);
  layout(counted);
  OutputBlock block(exports.NewBlock(counted.size()), short_output);
  exports.Export(capacity, layout(block));
  std::vector<std::byte> bytes = exports.CopyBlock();
  OutputBlock copy(bytes.data(), short_output);
  Out out = layout(copy);
  std::string damage = copy.Damage();
  return {.bytes = std::move(bytes), .out = out, .damage = std::move(damage)};
}

}  // namespace quire::cuda

#endif  // QUIRE_INTEROP_CUDA_TEST_EXPORTS_H_
