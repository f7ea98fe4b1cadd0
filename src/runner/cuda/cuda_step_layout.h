// What steps on a Hopper GPU keep in memory, and the model as they run it: for the memory plan, which counts
// the bytes, and for the device, which takes them.
#ifndef QUIRE_RUNNER_CUDA_CUDA_STEP_LAYOUT_H_
#define QUIRE_RUNNER_CUDA_CUDA_STEP_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attn/cuda/plan.h"
#include "base/units.h"
#include "decode/cuda/sampling.h"
#include "decode/tree_growth.h"
#include "device/arena.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/mla_attention/mla_attention.h"
#include "model/config.h"
#include "runner/runner_options.h"
#include "runner/step_memory.h"

namespace quire::cuda {

// New pages that one step brings; more come in steps before it (attn/step_pack.h). Of 64 tokens
// each, that is a prompt of 256k tokens that was found in the prefix tree.
inline constexpr PageCount kNewPages{4096};

// The model as the options have it run on a device: prompts attend in multi-head form where there is a
// kernel for it, unless rows are to have the same bits in every batch.
ModelConfig CudaConfigFor(const ModelConfig& model, const RunnerOptions& options);

// What a device's steps have besides StepMemory.
struct CudaStepParts {
  struct BucketParts {
    std::unique_ptr<PlanStorage> plan;
    OpScratch scratch = {};
  };
  std::vector<BucketParts> buckets;  // and StepMemory's heads behind them
  SampleScratch sampling = {};
  std::span<std::byte> gemm = {};
  std::span<std::byte> side_gemm = {};     // of products beside others
  std::span<int32_t> router_arrived = {};  // zeros: OpDevice::router_arrived
  std::span<std::byte> gathers = {};       // of several ranks: DeviceRank::TakeStaging
  // Where trees grow:
  TreeGrowths growths = {};
  std::span<KeptDraft> kept = {};       // [growths] of the pass at hand
  std::span<GrowingRows> growing = {};  // [growths]
  std::span<GrownTree> trees = {};      // [growths] of the step at hand
  std::span<int32_t> token_ids = {};    // of an EAGLE-3 head's tokens; empty where none drafts
  std::span<std::byte> staging = {};    // pinned
};

// Whether drafts grow on the device: ranks would have to be told of it.
bool GrowsTrees(const RunnerOptions& options);

// Sizes, or takes, the memory of steps on a device that runs so much at once.
StepMemory LayOutCudaSteps(const ModelConfig& config, const RunnerLimits& limits,
                           const RunnerOptions& options, const MlaRoom& room, CudaStepParts& parts,
                           Carver& device, Carver& pinned);

}  // namespace quire::cuda

#endif  // QUIRE_RUNNER_CUDA_CUDA_STEP_LAYOUT_H_
