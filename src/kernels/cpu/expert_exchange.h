// Experts of several ranks that have tokens of their own: the tokens' rows go to the ranks of their experts,
// and come back to where they stood.
#ifndef QUIRE_KERNELS_CPU_EXPERT_EXCHANGE_H_
#define QUIRE_KERNELS_CPU_EXPERT_EXCHANGE_H_

#include <cstdint>
#include <span>

#include "base/tensor_view.h"
#include "device/arena.h"
#include "device/collective.h"
#include "kernels/ops.h"

namespace quire::cpu {

// Empty where no ranks have tokens of their own.
struct ExchangeScratch {
  std::span<int32_t> counts = {};   // [ranks, experts]: rows that each rank has for each expert
  std::span<int32_t> offsets = {};  // [own experts + 1]: of visiting rows
  std::span<GivenRows> given = {};  // [experts]
  std::span<RowPart> parts = {};    // [experts]
  TensorView rows = {};             // [most visiting rows, hidden] f32
};
ExchangeScratch LayOutExchange(const OpLimits& limits, Carver& carver);

// Rows in the order of experts: those of expert i are [offsets[i], offsets[i + 1]).
struct SortedRows {
  TensorView rows = {};
  std::span<const int32_t> offsets = {};
};

class ExpertExchange {
 public:
  // `ranks` outlives it.
  ExpertExchange(const ExchangeScratch& scratch, Collective& ranks)
      : scratch_(scratch), ranks_(ranks) {}

  // Brings the rows that all ranks have for this rank's experts. `home` are this rank's, of all experts.
  SortedRows Bring(const SortedRows& home);
  // Afterwards `home`, which Bring was given, has what all ranks have made of its rows, where they lay.
  void Return(const SortedRows& home);

 private:
  int32_t num_experts() const { return static_cast<int32_t>(std::ssize(scratch_.parts)); }
  int32_t& count(int32_t rank, int64_t expert) const {
    return scratch_.counts[static_cast<size_t>(int64_t{rank} * num_experts() + expert)];
  }
  void GatherCounts(std::span<const int32_t> offsets) const;

  const ExchangeScratch scratch_;
  Collective& ranks_;
};

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_EXPERT_EXCHANGE_H_
