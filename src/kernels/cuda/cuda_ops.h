// The op table on a device: every op gives its launches to a stream and returns.
#ifndef QUIRE_KERNELS_CUDA_CUDA_OPS_H_
#define QUIRE_KERNELS_CUDA_CUDA_OPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/tensor_view.h"
#include "device/arena.h"
#include "device/collective.h"
#include "device/cuda/cuda.h"
#include "device/cuda/device_ranks.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_planner.h"
#include "kernels/cuda/mha_prefill/mha_prefill.h"
#include "kernels/cuda/part_marks.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/ops.h"

namespace quire::cuda {

// What the ops of a step need besides their arguments, in device memory.
struct OpScratch {
  TensorView route_logits = {};         // [tokens, experts] f32
  std::span<float> router_parts = {};   // of such logits, where RouteTokens computes them
  std::span<float> route_weights = {};  // [tokens, top_k]
  // From here on, of ranks with tokens of their own: those of all of them.
  std::span<int32_t> route_experts = {};   // [tokens, top_k]
  std::span<int32_t> route_rows = {};      // [tokens, top_k]: the choice's row below
  std::span<int32_t> route_sort = {};      // workspace
  std::span<int32_t> expert_offsets = {};  // [experts + 1]
  std::span<int32_t> expert_tokens = {};   // [choices]: whose row it is, ordered by expert
  TensorView expert_activated = {};        // [choices, width] bf16
  TensorView expert_out = {};              // [choices, hidden] bf16
  TensorView visiting = {};                // [tokens, hidden] bf16, of such ranks alone
  QuantisedRows visiting_codes = {};       // of visiting, with e4m3 weights
  QuantisedRows codes = {};                // of the widest input without any, with e4m3 weights
  QuantisedRows side_codes = {};           // the same, of what runs beside
  QuantisedRows expert_codes = {};         // of expert_activated
  // And of this rank's again.
  std::span<std::byte> attention = {};
  std::span<std::byte> selection = {};  // of a sparse model
  ExpandedKeys expanded = {};           // of prompts in multi-head form
};
OpScratch LayOutOps(const OpLimits& limits, Carver& carver);

// What launches go to. All of it outlives the ops.
struct OpDevice {
  const Stream& stream;
  Branch& branch;  // off the stream, from Fork to Join
  const GemmPlanner& gemms;
  StatusWord status = {};
  // How many of the step's tokens are no padding: experts do not compute the others, whose rows hold
  // anything from then on.
  LiveRows live = {};
  // kRouterCounts zeros, which every launch leaves so. They lie in no bucket's scratch, which others write over.
  std::span<int32_t> router_arrived = {};
  DeviceRank* ranks = nullptr;  // this rank's end of the group, where there is one
  // With kOwn all ranks have as many tokens, padding among them.
  RankTokens tokens = RankTokens::kSame;
};

class CudaOps final : public Ops {
 public:
  CudaOps(const OpScratch& scratch, const OpDevice& device);

  // Where the time of what is launched next is marked; null: nowhere.
  void MarkIn(PartMarks* marks) { marks_ = marks; }

  DType activation() const override { return DType::kBf16; }

  void Embed(const EmbedArgs& args) override;
  void GatherAngles(const StepAngles& angles) override;
  void Norm(const RmsNormArgs& args) override;
  void Add(const AddArgs& args) override;
  void AddNorm(const AddNormArgs& args) override;
  using Ops::Matmul;
  // Two products of one input whose weights and results lie side by side are one launch. An input without
  // codes is made e4m3 once.
  void Matmul(std::span<const ProductArgs> products) override;
  void WriteKv(const WriteKvArgs& args) override;
  void Rotate(const RotateArgs& args) override;
  void MatmulAndRotate(const ProductArgs& product, const RotateArgs& rotate) override;
  void Attend(const MlaAttentionArgs& args) override;
  void AttendExpanded(const AttendExpandedArgs& args) override;
  void WriteIndexKeys(const WriteIndexKeysArgs& args) override;
  void SelectKeys(const SelectKeysArgs& args) override;
  void AttendChosen(const SparseAttentionArgs& args) override;
  void SiluMul(const SiluMulArgs& args) override;
  void GateUp(const GateUpArgs& args) override;
  ExpertRows Experts(const ExpertsArgs& args) override;
  void Combine(const ExpertRows& rows, TensorView y) override;
  void PickRows(const PickRowsArgs& args) override;
  void CopyRows(const CopyRowsArgs& args) override;
  void Gather(TensorView whole, int64_t unit) override;
  // Ranks that compute the same tokens have no branch: they make collective calls in one order. With tokens of
  // their own they make those in Experts alone.
  Ops& Fork() override;
  void Join() override;
  void Mark(ForwardPart part) override;

 private:
  struct Lane {
    const Stream* stream = nullptr;
    GemmLane gemms = GemmLane::kMain;
    QuantisedRows codes = {};
  };
  CudaOps(const OpScratch& scratch, const OpDevice& device, const Lane& lane);

  RowLaunch Launch() const { return {.status = device_.status}; }
  // Of ops whose rows are the step's tokens.
  RowLaunch LiveLaunch() const { return {.live = device_.live, .status = device_.status}; }
  // Which experts every token has, and where their rows lie: of `all` choices, of which this rank's own tokens' are those of
  // `route`. Returns the tokens' rows.
  ProductInput Choose(const ExpertsArgs& args, const RouteArgs& route, size_t all);
  // All ranks' tokens where each has its own, of which this rank has chosen `experts`, a part of route_experts.
  ConstTensorView BringTokens(ConstTensorView x, std::span<int32_t> experts);
  void RunExperts(const ExpertsArgs& args, int64_t num_choices);
  TensorView ExpertOut(const ExpertsArgs& args, int64_t num_choices) const;
  bool has_own_tokens() const { return device_.tokens == RankTokens::kOwn; }
  // But for experts.
  bool is_alone() const { return device_.ranks == nullptr || has_own_tokens(); }
  void AllGather(TensorView whole, int64_t unit);
  // Brings the rows of all ranks' experts together.
  void GatherExperts(const ExpertsArgs& args, TensorView rows);
  void AllReduceOr(const TensorView& rows);

  const OpScratch scratch_;
  const OpDevice device_;
  const Lane lane_;
  std::unique_ptr<CudaOps> side_;  // on the branch; none there
  std::vector<Share> shares_;      // of every rank
  PartMarks* marks_ = nullptr;
};

// Launches nothing: only plans the products of what it is asked to do, so that the pass that runs
// later finds their algorithms fixed.
class ProductPlanningOps final : public Ops {
 public:
  ProductPlanningOps(const OpScratch& scratch, GemmPlanner& gemms)
      : scratch_(scratch), gemms_(gemms) {}

  DType activation() const override { return DType::kBf16; }

  void Embed(const EmbedArgs&) override {}
  void GatherAngles(const StepAngles&) override {}
  void Norm(const RmsNormArgs&) override {}
  void Add(const AddArgs&) override {}
  void AddNorm(const AddNormArgs&) override {}
  using Ops::Matmul;
  void Matmul(std::span<const ProductArgs> products) override;
  void WriteKv(const WriteKvArgs&) override {}
  void Rotate(const RotateArgs&) override {}
  void Attend(const MlaAttentionArgs&) override {}
  void AttendExpanded(const AttendExpandedArgs&) override {}
  void WriteIndexKeys(const WriteIndexKeysArgs&) override {}
  void SelectKeys(const SelectKeysArgs&) override {}
  void AttendChosen(const SparseAttentionArgs&) override {}
  void SiluMul(const SiluMulArgs&) override {}
  ExpertRows Experts(const ExpertsArgs& args) override;
  void Combine(const ExpertRows&, TensorView) override {}
  void PickRows(const PickRowsArgs&) override {}
  void CopyRows(const CopyRowsArgs&) override {}

 private:
  const OpScratch scratch_;
  GemmPlanner& gemms_;
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_CUDA_OPS_H_
