// The op table on the CPU: every op is done when it returns.
#ifndef QUIRE_KERNELS_CPU_CPU_OPS_H_
#define QUIRE_KERNELS_CPU_CPU_OPS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "base/executor.h"
#include "base/tensor_view.h"
#include "device/arena.h"
#include "device/collective.h"
#include "kernels/cpu/expert_exchange.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"

namespace quire::cpu {

// Adds the time since the last lap to a part.
class PartClock {
 public:
  void Restart() { last_ = Clock::now(); }
  void Lap(ForwardPart part) {
    const Clock::time_point now = Clock::now();
    seconds_[static_cast<size_t>(part)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }
  double seconds(ForwardPart part) const { return seconds_[static_cast<size_t>(part)]; }
  void Reset() { seconds_ = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::array<double, std::size(kForwardParts)> seconds_{};
};

// What the ops of a step need besides their arguments.
struct OpScratch {
  TensorView route_logits = {};  // [tokens, experts]
  std::span<float> route_weights = {};
  std::span<int32_t> route_experts = {};   // [tokens, top_k]
  std::span<int32_t> route_rows = {};      // [tokens, top_k]: the choice's row below
  std::span<int32_t> expert_offsets = {};  // [experts + 1]
  TensorView expert_rows = {};             // [choices, hidden], ordered by expert
  TensorView expert_gate_up = {};          // [choices, 2 * width]
  TensorView expert_activated = {};        // [choices, width]
  std::span<MatmulArgs> products = {};     // as many as ever run as one loop
  std::span<std::byte> attention = {};     // dense or sparse: never both at once
  std::span<std::byte> selection = {};     // empty where attention is not sparse
  ExchangeScratch exchange = {};           // with it gate_up and activated are of visiting rows
};
OpScratch LayOutOps(const OpLimits& limits, Carver& carver);
// Of the scratch, what choosing keys takes: the same for every context.
ByteOffset SelectionBytes(const OpLimits& limits);

class CpuOps final : public Ops {
 public:
  // The executor, the clock and the ranks, of which there may be none besides this, outlive it.
  CpuOps(const OpScratch& scratch, Executor& executor, PartClock& clock,
         Collective* ranks = nullptr, RankTokens tokens = RankTokens::kSame)
      : scratch_(scratch),
        executor_(executor),
        clock_(clock),
        ranks_(tokens == RankTokens::kSame ? ranks : nullptr),
        shares_(ranks_ != nullptr ? static_cast<size_t>(ranks_->size()) : 1) {
    if (tokens == RankTokens::kOwn) exchange_.emplace(scratch_.exchange, *ranks);
  }

  DType activation() const override { return DType::kF32; }

  void Embed(const EmbedArgs& args) override;
  void GatherAngles(const StepAngles& angles) override;
  void Norm(const RmsNormArgs& args) override;
  void Add(const AddArgs& args) override;
  void AddNorm(const AddNormArgs& args) override;
  using Ops::Matmul;
  void Matmul(std::span<const ProductArgs> products) override;
  void WriteKv(const WriteKvArgs& args) override;
  void Rotate(const RotateArgs& args) override;
  void Attend(const MlaAttentionArgs& args) override;
  // Nothing is expanded here: throws InternalError.
  void AttendExpanded(const AttendExpandedArgs& args) override;
  void WriteIndexKeys(const WriteIndexKeysArgs& args) override;
  void SelectKeys(const SelectKeysArgs& args) override;
  void AttendChosen(const SparseAttentionArgs& args) override;
  void SiluMul(const SiluMulArgs& args) override;
  ExpertRows Experts(const ExpertsArgs& args) override;
  void Combine(const ExpertRows& rows, TensorView y) override;
  void PickRows(const PickRowsArgs& args) override;
  void CopyRows(const CopyRowsArgs& args) override;
  void Gather(TensorView whole, int64_t unit) override;
  void Mark(ForwardPart part) override { clock_.Lap(part); }

 private:
  bool is_alone() const { return shares_.size() == 1; }
  Share Own(int64_t width, int64_t unit) const;
  void GatherExperts(const ExpertsArgs& args);
  void Route(const ExpertsArgs& args);
  void SortByExpert(const ExpertsArgs& args);
  // Of the experts that are here.
  void RunExperts(const ExpertsArgs& args, const SortedRows& sorted);

  const OpScratch scratch_;
  Executor& executor_;
  PartClock& clock_;
  Collective* const ranks_;                 // that compute the same tokens
  std::vector<Share> shares_;               // of the gather at hand
  std::optional<ExpertExchange> exchange_;  // with ranks that have tokens of their own
};

}  // namespace quire::cpu

#endif  // QUIRE_KERNELS_CPU_CPU_OPS_H_
