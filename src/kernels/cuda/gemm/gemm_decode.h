// Products of few rows whose weights the copy engine brings: tiles of kernels/cuda/gemm/gemm_tile.h, which two CTAs a
// multiprocessor take one after the other. Bits are those of the tile kernel.
#ifndef QUIRE_KERNELS_CUDA_GEMM_GEMM_DECODE_H_
#define QUIRE_KERNELS_CUDA_GEMM_GEMM_DECODE_H_

#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm_tile.h"

namespace quire::cuda {

// Whether LaunchDecodeTiles is to take params as they are: aligned rows and up to 512 experts; kDecode and kMedium of
// kFp8 with an even number of inputs, and kMedium of experts' kBf16.
bool DecodeTakes(const TileParams& params, const TileChoice& tile);
void LaunchDecodeTiles(const TileParams& params, const TileChoice& tile, const Stream& stream);

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_GEMM_GEMM_DECODE_H_
