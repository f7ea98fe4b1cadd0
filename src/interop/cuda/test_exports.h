// Exports of interop/cuda from the plan of a test's machine (attn/cuda/test_machine.h): on the device,
// or by the same code on the host's threads. Two binaries run the same tests (export_test.cc); each
// links one kind.
#ifndef QUIRE_INTEROP_CUDA_TEST_EXPORTS_H_
#define QUIRE_INTEROP_CUDA_TEST_EXPORTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attn/cuda/test_machine.h"
#include "interop/capacity.h"
#include "interop/export.h"

namespace quire::cuda {

// What an export wrote. `damage` is "" if nothing was written outside the outputs.
struct FlatCopy {
  std::vector<int32_t> indptr, indices;
  std::string damage;
};
struct TableCopy {
  std::vector<int32_t> table, kv_lens;
  std::string damage;
};
struct DraftCopy {
  std::vector<int32_t> indptr, indices;
  std::vector<int64_t> write_slots;
  std::string damage;
};
// What outputs are full of before an export: kUnwritten.
inline constexpr int32_t kUnwrittenEntry = static_cast<int32_t>(0xA5A5A5A5u);

class TestExports {
 public:
  virtual ~TestExports() = default;

  // kv_indices begin `skew` entries behind a 16-byte address.
  FlatCopy Flat(const StepCapacity& capacity, int skew = 0);
  TableCopy Table(const StepCapacity& capacity, BlockTableRule rule, int32_t fill);
  DraftCopy Drafts(const StepCapacity& capacity, const DraftShape& shape, int skew = 0);

 protected:
  // A block full of kUnwritten, on the machine's side, at a multiple of 256; and what it holds.
  virtual std::byte* NewBlock(size_t bytes) = 0;
  virtual std::vector<std::byte> CopyBlock() = 0;
  virtual void DoFlat(const StepCapacity& capacity, const FlatIndices& out) = 0;
  virtual void DoTable(const StepCapacity& capacity, const BlockTable& out) = 0;
  virtual void DoDrafts(const StepCapacity& capacity, const DraftRows& out) = 0;
};

// From the plans of this machine, which MakeMachine has made.
std::unique_ptr<TestExports> MakeExports(TestMachine& machine);

}  // namespace quire::cuda

#endif  // QUIRE_INTEROP_CUDA_TEST_EXPORTS_H_
