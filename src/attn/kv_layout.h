// The byte layout of KV pages: one descriptor, used by write, read, gather and move.
//
// A row is what one token leaves in one layer's cache. Formats (docs/formats.md):
//   kLatentF32, kLatentBf16    [latent | rope], contiguous, in that type
//   kLatentFp8                 latent as e4m3, one f32 scale per 128 values, rope as bf16;
//                              row stride rounded up to 16 bytes (656 for 512 + 64)
//   kIndexKeyF32, kIndexKeyBf16  the key, contiguous, in that type
//   kIndexKeyFp8               per page: the keys as e4m3, row after row, then a f32 scale per row
//   kIndexKeyFp8Preshuffled    the same, but keys in tiles of 16 tokens x 16 bytes
#ifndef QUIRE_ATTN_KV_LAYOUT_H_
#define QUIRE_ATTN_KV_LAYOUT_H_

#include <array>
#include <cstdint>
#include <span>

#include "base/units.h"

namespace quire {

enum class KvFormat {
  kLatentF32,
  kLatentBf16,
  kLatentFp8,
  kIndexKeyF32,
  kIndexKeyBf16,
  kIndexKeyFp8,
  kIndexKeyFp8Preshuffled,
};

const char* KvFormatName(KvFormat format);

// Values of one row: latent_dim + rope_dim of them. An index key has rope_dim 0.
struct KvDims {
  int32_t latent_dim = 512;
  int32_t rope_dim = 64;
  int32_t values() const { return latent_dim + rope_dim; }
  friend bool operator==(const KvDims&, const KvDims&) = default;
};

// The most values a row can have: rows are staged on the stack. Models have 288 and 576.
inline constexpr int32_t kMaxRowValues = 4096;
// Values that share one scale in kLatentFp8.
inline constexpr int32_t kFp8ScaleGroup = 128;
// Tokens and bytes along the sides of a preshuffled tile.
inline constexpr int32_t kPreshuffleTile = 16;

// Where one part of every row of a page lies. Bytes of a row come in chunks; chunks of tile_rows
// neighbouring rows are interleaved. tile_rows 1 with chunk_bytes = row_bytes is plain row-major.
struct KvPart {
  int32_t begin = 0;       // offset of the part in the page
  int32_t row_bytes = 0;   // bytes of one row
  int32_t row_stride = 0;  // bytes from row to row, on average over a tile
  int32_t tile_rows = 1;
  int32_t chunk_bytes = 0;

  // Offset in the page of byte `byte` of row `row`. The chunk_bytes from a chunk's start lie
  // together.
  QUIRE_HD int32_t OffsetOf(int32_t row, int32_t byte) const {
    const int32_t tile = row / tile_rows;
    const int32_t chunk = byte / chunk_bytes;
    const int32_t row_in_tile = row - tile * tile_rows;
    return begin + tile * tile_rows * row_stride + chunk * tile_rows * chunk_bytes +
           row_in_tile * (tile_rows == 1 ? row_stride : chunk_bytes) + (byte - chunk * chunk_bytes);
  }
};

class KvLayout {
 public:
  // Throws Error(kInvalidArgument) if the format cannot have these dims or this page size.
  KvLayout(KvFormat format, KvDims dims, PageSize page_size);

  KvFormat format() const { return format_; }
  KvDims dims() const { return dims_; }
  PageSize page_size() const { return page_size_; }
  bool is_index_key() const { return format_ >= KvFormat::kIndexKeyF32; }

  // The parts of a row, in the order in which a packed row holds them.
  std::span<const KvPart> parts() const { return {parts_.data(), static_cast<size_t>(num_parts_)}; }
  ByteOffset page_bytes() const { return page_bytes_; }
  // Bytes of a row without padding: the form in which rows are staged.
  int32_t packed_row_bytes() const { return packed_row_bytes_; }
  // f32 scales of one row: 0 for unscaled formats.
  int32_t num_scales() const;

 private:
  void AddPart(KvPart part);

  KvFormat format_;
  KvDims dims_;
  PageSize page_size_;
  std::array<KvPart, 3> parts_{};
  int32_t num_parts_ = 0;
  ByteOffset page_bytes_;
  int32_t packed_row_bytes_ = 0;
};

}  // namespace quire

#endif  // QUIRE_ATTN_KV_LAYOUT_H_
