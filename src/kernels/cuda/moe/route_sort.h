// How choices are cut up for sorting.
#ifndef QUIRE_KERNELS_CUDA_MOE_ROUTE_SORT_H_
#define QUIRE_KERNELS_CUDA_MOE_ROUTE_SORT_H_

namespace quire::cuda {

// A segment is a run of choices that one warp counts and places. Where it begins changes no result.
inline constexpr int kSegmentChoices = 256;  // with several CTAs; a multiple of 32
inline constexpr int kSegmentWarps = 8;      // per CTA then
inline constexpr int kSortWarps = 32;        // of the one CTA that sorts few choices

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_ROUTE_SORT_H_
