// Combine, group by group: in a launch of its own, or ahead of a norm.
#ifndef QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_COMBINE_CUH_
#define QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_COMBINE_CUH_

#include <cstdint>
#include <iterator>

#include "device/cuda/status.cuh"
#include "kernels/cuda/row_ops/row_ops.h"
#include "kernels/cuda/row_ops/row_ops_math.cuh"

namespace quire::cuda {

// What a token's update is made of. T is float or Bf16.
template <class T>
struct CombineParts {
  Rows<const T> rows;
  const int32_t* row_of;  // [num_tokens, top_k]
  const float* weights;   // as row_of
  int64_t top_k;
  int64_t num_rows;
  Rows<const T> shared;  // or none
  StatusWord status;
};

// num_tokens > 0.
template <class T>
CombineParts<T> PartsOf(const CombineArgs& args, StatusWord status) {
  return {.rows = RowsOf<const T>(args.rows),
          .row_of = args.row_of.data(),
          .weights = args.weights.data(),
          .top_k = std::ssize(args.row_of) / args.y.dim(0),
          .num_rows = args.rows.dim(0),
          .shared = RowsOf<const T>(args.shared),
          .status = status};
}

// The eight values from `begin` on of a token's update. As many choices' rows as kRegisters hold are
// loaded before the first is used: one by one, a token would wait for memory twice per choice. It
// changes no bit.
template <bool kVector, int kRegisters, class T>
__device__ void CombineGroup(const CombineParts<T>& parts, int64_t token, int64_t begin,
                             int64_t width, float (&sum)[kGroup]) {
  constexpr int kAtOnce =
      kRegisters / (kVector ? kGroup * static_cast<int>(sizeof(T)) / 4 : kGroup);
  const auto top_k = static_cast<int>(parts.top_k);
  const int64_t first_choice = token * parts.top_k;
  float last[kGroup] = {};
  if (parts.shared.data != nullptr) {
    LoadGroup<kVector>(parts.shared[token], begin, width, last);
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) sum[i] = 0.0f;
  for (int first = 0; first < top_k; first += kAtOnce) {
    int64_t from[kAtOnce];
    float weight[kAtOnce];
    bool there[kAtOnce];
    float v[kAtOnce][kGroup];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      // Past the last choice that one again, unused: loads without branches are all under way.
      const int64_t choice = first_choice + min(first + j, top_k - 1);
      from[j] = parts.row_of[choice];
      weight[j] = parts.weights[choice];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      there[j] = from[j] >= 0 && from[j] < parts.num_rows;
      LoadGroup<kVector>(parts.rows[there[j] ? from[j] : 0], begin, width, v[j]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j >= top_k) break;
      if (!there[j]) {
        if (begin == 0) {
          Report(parts.status, DeviceFault::kExpert, Launch::kCombine,
                 static_cast<uint32_t>(first_choice + first + j));
        }
        continue;
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        // The first product is not added to 0: that would turn -0 into 0.
        sum[i] =
            first + j == 0 ? __fmul_rn(weight[j], v[j][i]) : __fmaf_rn(weight[j], v[j][i], sum[i]);
      }
    }
  }
  if (parts.shared.data != nullptr) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) sum[i] = __fadd_rn(sum[i], last[i]);
  }
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_ROW_OPS_ROW_OPS_COMBINE_CUH_
