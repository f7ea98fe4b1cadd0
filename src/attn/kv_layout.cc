#include "attn/kv_layout.h"

#include "base/error.h"
#include "base/maths.h"

namespace quire {

const char* KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kLatentF32:
      return "latent_f32";
    case KvFormat::kLatentBf16:
      return "latent_bf16";
    case KvFormat::kLatentFp8:
      return "latent_fp8";
    case KvFormat::kIndexKeyF32:
      return "index_key_f32";
    case KvFormat::kIndexKeyBf16:
      return "index_key_bf16";
    case KvFormat::kIndexKeyFp8:
      return "index_key_fp8";
    case KvFormat::kIndexKeyFp8Preshuffled:
      return "index_key_fp8_preshuffled";
  }
  return "unknown";
}

KvLayout::KvLayout(KvFormat format, KvDims dims, PageSize page_size)
    : format_(format), dims_(dims), page_size_(page_size) {
  Require(dims.latent_dim >= 1 && dims.rope_dim >= 0 && dims.latent_dim <= kMaxRowValues &&
              dims.rope_dim <= kMaxRowValues - dims.latent_dim,
          "{}: latent_dim + rope_dim: expected 1..{} (latent_dim >= 1, rope_dim >= 0), got {} + {}",
          KvFormatName(format), kMaxRowValues, dims.latent_dim, dims.rope_dim);
  Require(!is_index_key() || dims.rope_dim == 0, "{}: rope_dim: expected 0, got {}",
          KvFormatName(format), dims.rope_dim);
  const int32_t rows = page_size.raw();
  switch (format) {
    case KvFormat::kLatentF32:
    case KvFormat::kLatentBf16:
    case KvFormat::kIndexKeyF32:
    case KvFormat::kIndexKeyBf16: {
      const bool is_f32 = format == KvFormat::kLatentF32 || format == KvFormat::kIndexKeyF32;
      const int32_t bytes = dims.values() * (is_f32 ? 4 : 2);
      AddPart({.row_bytes = bytes, .row_stride = bytes, .chunk_bytes = bytes});
      page_bytes_ = ByteOffset(bytes) * rows;
      break;
    }
    case KvFormat::kLatentFp8: {
      const int32_t scale_bytes = 4 * num_scales();
      const int32_t rope_bytes = 2 * dims.rope_dim;
      // Scales start on a 4-byte boundary whatever the latent_dim.
      const int32_t scale_begin = RoundUp(dims.latent_dim, 4);
      const int32_t rope_begin = scale_begin + scale_bytes;
      const int32_t stride = RoundUp(rope_begin + rope_bytes, 16);
      AddPart({.row_bytes = dims.latent_dim, .row_stride = stride, .chunk_bytes = dims.latent_dim});
      AddPart({.begin = scale_begin,
               .row_bytes = scale_bytes,
               .row_stride = stride,
               .chunk_bytes = scale_bytes});
      if (rope_bytes > 0) {
        AddPart({.begin = rope_begin,
                 .row_bytes = rope_bytes,
                 .row_stride = stride,
                 .chunk_bytes = rope_bytes});
      }
      page_bytes_ = ByteOffset(stride) * rows;
      break;
    }
    case KvFormat::kIndexKeyFp8:
    case KvFormat::kIndexKeyFp8Preshuffled: {
      const bool preshuffled = format == KvFormat::kIndexKeyFp8Preshuffled;
      Require(dims.latent_dim % 4 == 0, "{}: key dim: expected a multiple of 4, got {}",
              KvFormatName(format), dims.latent_dim);
      Require(!preshuffled || rows % kPreshuffleTile == 0,
              "{}: page_size: expected a multiple of {}, got {}", KvFormatName(format),
              kPreshuffleTile, rows);
      Require(!preshuffled || dims.latent_dim % kPreshuffleTile == 0,
              "{}: key dim: expected a multiple of {}, got {}", KvFormatName(format),
              kPreshuffleTile, dims.latent_dim);
      AddPart({.row_bytes = dims.latent_dim,
               .row_stride = dims.latent_dim,
               .tile_rows = preshuffled ? kPreshuffleTile : 1,
               .chunk_bytes = preshuffled ? kPreshuffleTile : dims.latent_dim});
      AddPart({.begin = rows * dims.latent_dim, .row_bytes = 4, .row_stride = 4, .chunk_bytes = 4});
      page_bytes_ = ByteOffset(dims.latent_dim + 4) * rows;
      break;
    }
  }
}

int32_t KvLayout::num_scales() const {
  if (format_ == KvFormat::kLatentFp8) return CeilDiv(dims_.latent_dim, kFp8ScaleGroup);
  return format_ >= KvFormat::kIndexKeyFp8 ? 1 : 0;
}

void KvLayout::AddPart(KvPart part) {
  parts_[static_cast<size_t>(num_parts_++)] = part;
  packed_row_bytes_ += part.row_bytes;
}

}  // namespace quire
