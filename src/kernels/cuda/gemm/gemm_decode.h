// The products of few rows of codes, whose weights the copy engine brings: tiles of kernels/cuda/gemm/gemm_tile.h, which
// two CTAs a multiprocessor take one after the other. Rows begin on multiples of 16 bytes.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_DECODE_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_DECODE_H_

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {

// Whether LaunchDecodeCodes takes params as they are: e4m3 of both, an even number of inputs, and up to 512 experts.
bool DecodeCodesTake(const TileParams& params);
// In tiles of the rows of `size`, kDecode or kMedium.
void LaunchDecodeCodes(const TileParams& params, TileSize size, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_DECODE_H_
