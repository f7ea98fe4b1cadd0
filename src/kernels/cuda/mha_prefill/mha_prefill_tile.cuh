// Tiles of multi-head prefill in shared memory, and how they get there.
#ifndef QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_TILE_CUH_
#define QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_TILE_CUH_

#include "kernels/cuda/mla_attention/mla_attention_work.cuh"

namespace quire::cuda::mha {

inline constexpr uint32_t kLine = 128;  // bytes within which chunks are permuted

// Offset of chunk `chunk` (of the line it lies in: 0..7) of a row whose number is `row` mod 8.
__device__ inline uint32_t Permuted(uint32_t chunk, uint32_t row) {
  return ((chunk ^ row) & 7) * 16;
}

inline constexpr int kThreads = 128;
inline constexpr int kQueries = 64;  // of a CTA

// Tiles of rows of kDim values, chunks permuted so that eight rows lie in different banks; zeros behind the dims that a
// model has.
template <int kKeyDim, int kValueDim>
struct Shared {
  alignas(128) std::byte q[kQueries * kKeyDim * 2];
  std::byte keys[2][kTileKeys * kKeyDim * 2];
  std::byte values[2][kTileKeys * kValueDim * 2];
  uint8_t poison[2][kTileKeys];
};

template <int kDim>
__device__ uint32_t AddressOf(uint32_t tile, uint32_t row, uint32_t chunk) {
  return tile + row * (kDim * 2) + chunk / 8 * kLine + Permuted(chunk, row);
}

// 16 bytes of a row that is [first | second], from value `i` on; zeros at and past the end.
__device__ inline uint4 LoadChunk(const Bf16* first, int32_t first_dim, const Bf16* second,
                                  int32_t second_dim, int32_t i) {
  uint32_t words[4] = {0, 0, 0, 0};
  for (int32_t j = 0; j < 8; ++j) {
    const int32_t at = i + j;
    Bf16 value{0};
    if (at < first_dim) {
      value = first[at];
    } else if (at < first_dim + second_dim) {
      value = second[at - first_dim];
    }
    words[j / 2] |= static_cast<uint32_t>(value.bits) << (j % 2 * 16);
  }
  return {words[0], words[1], words[2], words[3]};
}

// Copies rows of [first | second] into a tile, asynchronously where they are made of whole chunks.
// Row r comes from first + r * first_stride; at and past num_rows there are zeros.
template <int kDim>
__device__ void CopyRows(uint32_t tile, const Bf16* first, int64_t first_stride, int32_t first_dim,
                         const Bf16* second, int64_t second_stride, int32_t second_dim,
                         int32_t num_rows, bool vectors) {
  constexpr int kChunks = kDim / 8;
  for (int e = static_cast<int>(threadIdx.x); e < kTileKeys * kChunks; e += kThreads) {
    const int32_t row = e / kChunks, i = e % kChunks * 8;
    const Bf16* a = first + row * first_stride;
    const Bf16* b = second + row * second_stride;
    const uint32_t to =
        AddressOf<kDim>(tile, static_cast<uint32_t>(row), static_cast<uint32_t>(e % kChunks));
    if (vectors) {
      const bool is_first = i < first_dim;
      const bool is_value = row < num_rows && i < first_dim + second_dim;
      const Bf16* from = !is_value ? first : is_first ? a + i : b + (i - first_dim);
      CopyAsync16(to, reinterpret_cast<const std::byte*>(from), is_value ? 16 : 0);
    } else {
      const uint4 v =
          row < num_rows ? LoadChunk(a, first_dim, b, second_dim, i) : uint4{0, 0, 0, 0};
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
      StoreShared16(to, words);
    }
  }
}

}  // namespace quire::cuda::mha

#endif  // QUIRE_KERNELS_CUDA_MHA_PREFILL_MHA_PREFILL_TILE_CUH_
