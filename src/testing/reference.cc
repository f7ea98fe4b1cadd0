#include "testing/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/narrow_float.h"

namespace quire::testing {
namespace {

template <class T>
T LoadAt(std::span<const std::byte> pool, int64_t offset) {
  T value;
  std::memcpy(&value, pool.data() + offset, sizeof(T));
  return value;
}

// A reference takes most of the time of the kernels' tests under a sanitizer, and most of that to look at
// every value that it reads. These loops are not instrumented; a span's bounds are checked before them.
// They call what is an instruction, and no template, which clang would not inline here.
#if defined(__clang__)
#define QUIRE_NOT_SANITIZED __attribute__((no_sanitize("address", "undefined", "thread"), noinline))
#else
#define QUIRE_NOT_SANITIZED
#endif

struct Products {
  double sum = 0;
  double size = 0;  // the sum of their magnitudes
};

QUIRE_NOT_SANITIZED Products SumProducts(const float* a, const double* b, size_t n) {
  Products products;
  for (size_t i = 0; i < n; ++i) {
    const double product = double{a[i]} * b[i];
    products.sum += product;
    products.size += std::fabs(product);
  }
  return products;
}

Products Multiply(std::span<const float> a, std::span<const double> b) {
  QUIRE_CHECK(a.size() <= b.size(), "{} factors, and {}", a.size(), b.size());
  return SumProducts(a.data(), b.data(), a.size());
}

// to[i] += weight * values[i]. Returns the greatest magnitude of the values, or `greatest`.
QUIRE_NOT_SANITIZED double AddInto(double weight, const double* values, size_t n, double greatest,
                                   double* to) {
  for (size_t i = 0; i < n; ++i) {
    to[i] += weight * values[i];
    const double size = std::fabs(values[i]);
    greatest = greatest < size ? size : greatest;
  }
  return greatest;
}

std::vector<double> LatentFp8Row(std::span<const std::byte> pool, const KvLayout& layout,
                                 int64_t slot) {
  const KvDims dims = layout.dims();
  const int64_t num_scales = (dims.latent_dim + 127) / 128;
  const int64_t scales = (dims.latent_dim + 3) / 4 * 4;
  const int64_t rope = scales + 4 * num_scales;
  const int64_t row = slot * ((rope + 2 * dims.rope_dim + 15) / 16 * 16);
  std::vector<double> values;
  for (int64_t i = 0; i < dims.latent_dim; ++i) {
    const float scale = LoadAt<float>(pool, row + scales + 4 * (i / 128));
    // The product as a kernel forms it, in f32: dequantisation is part of the format.
    values.push_back(ToFloat(LoadAt<Fp8E4m3>(pool, row + i)) * scale);
  }
  for (int64_t i = 0; i < dims.rope_dim; ++i) {
    values.push_back(ToFloat(LoadAt<Bf16>(pool, row + rope + 2 * i)));
  }
  return values;
}

}  // namespace

int64_t IndexKeyOffset(Slot slot, int64_t d, PageSize page_size, int64_t dim, bool preshuffled) {
  const int64_t page = slot.raw() / page_size.raw();
  const int64_t offset = slot.raw() % page_size.raw();
  const int64_t base = page * page_size.raw() * (dim + 4);
  if (!preshuffled) return base + offset * dim + d;
  return base + offset / 16 * (16 * dim) + d / 16 * 256 + offset % 16 * 16 + d % 16;
}

int64_t IndexScaleOffset(Slot slot, PageSize page_size, int64_t dim) {
  const int64_t page = slot.raw() / page_size.raw();
  const int64_t offset = slot.raw() % page_size.raw();
  return page * page_size.raw() * (dim + 4) + page_size.raw() * dim + 4 * offset;
}

std::vector<double> ReferenceRow(std::span<const std::byte> pool, const KvLayout& layout,
                                 Slot slot) {
  const int64_t n = layout.dims().values();
  std::vector<double> values;
  switch (layout.format()) {
    case KvFormat::kLatentF32:
    case KvFormat::kIndexKeyF32:
      for (int64_t i = 0; i < n; ++i) {
        values.push_back(LoadAt<float>(pool, (slot.raw() * n + i) * 4));
      }
      break;
    case KvFormat::kLatentBf16:
    case KvFormat::kIndexKeyBf16:
      for (int64_t i = 0; i < n; ++i) {
        values.push_back(ToFloat(LoadAt<Bf16>(pool, (slot.raw() * n + i) * 2)));
      }
      break;
    case KvFormat::kLatentFp8:
      values = LatentFp8Row(pool, layout, slot.raw());
      break;
    case KvFormat::kIndexKeyFp8:
    case KvFormat::kIndexKeyFp8Preshuffled: {
      const bool preshuffled = layout.format() == KvFormat::kIndexKeyFp8Preshuffled;
      const float scale = LoadAt<float>(pool, IndexScaleOffset(slot, layout.page_size(), n));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = IndexKeyOffset(slot, i, layout.page_size(), n, preshuffled);
        values.push_back(ToFloat(LoadAt<Fp8E4m3>(pool, at)) * scale);
      }
      break;
    }
  }
  return values;
}

std::vector<int64_t> VisiblePositions(const SequenceStep& seq, int64_t j) {
  std::vector<int64_t> positions;
  if (seq.tree_parents.empty()) {
    for (int64_t p = 0; p < seq.kv_len.raw() - seq.q_len.raw() + j + 1; ++p) positions.push_back(p);
    return positions;
  }
  const int64_t nodes = static_cast<int64_t>(seq.tree_parents.size());
  const int64_t committed = seq.kv_len.raw() - nodes;
  std::vector<int64_t> path;
  for (int64_t node = nodes - seq.q_len.raw() + j; node >= 0;
       node = seq.tree_parents[static_cast<size_t>(node)]) {
    path.push_back(committed + node);
  }
  for (int64_t p = 0; p < committed; ++p) positions.push_back(p);
  positions.insert(positions.end(), path.rbegin(), path.rend());
  return positions;
}

void AppendReferenceRow(const ReferenceQuery& query, size_t value_dim, ReferenceAttention& to) {
  const double infinity = std::numeric_limits<double>::infinity();
  const size_t num_keys = query.keys.size();
  std::vector<double> scores(num_keys);
  double max_score = -infinity, score_size = 0;
  for (size_t k = 0; k < num_keys; ++k) {
    const Products products = Multiply(query.q, query.keys[k]);
    scores[k] = query.scale * products.sum;
    if (scores[k] > max_score) max_score = scores[k];
    score_size = std::max(score_size, std::abs(query.scale) * products.size);
  }
  const double anchor = max_score == -infinity ? 0 : max_score;
  double sum = 0, value_size = 0;
  std::vector<double> out(value_dim, 0.0);
  for (size_t k = 0; k < num_keys; ++k) {
    const double weight = std::exp(scores[k] - anchor);
    sum += weight;
    QUIRE_CHECK(value_dim <= query.values[k].size(), "a value of {}", query.values[k].size());
    value_size = AddInto(weight, query.values[k].data(), value_dim, value_size, out.data());
  }
  // docs/numerics.md: scores err by dim roundings, weights by twice that and those of exp, sums by
  // one rounding per key, tile and split.
  const double dim = static_cast<double>(query.q.size());
  const double keys = static_cast<double>(num_keys);
  const double score_error = kUnitRoundoff * (dim + 3) * score_size + query.score_slack;
  const double weight_error = 2 * score_error + kUnitRoundoff * (keys + 2 * keys / 64 + 16);
  for (size_t i = 0; i < value_dim; ++i) {
    to.out.push_back(sum == 0 ? 0.0 : out[i] / sum);
    to.out_bound.push_back(2 * weight_error * value_size + query.value_slack + 1e-37);
  }
  to.lse.push_back(sum == 0 ? -infinity : anchor + std::log(sum));
  to.lse_bound.push_back(weight_error + kUnitRoundoff * (std::abs(anchor) + 16));
}

ReferenceAttention ReferenceMla(std::span<const SequenceStep> seqs,
                                const std::vector<std::vector<std::vector<double>>>& rows,
                                std::span<const float> q, int64_t num_heads, KvDims dims,
                                double scale) {
  ReferenceAttention result;
  size_t row = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    for (int64_t j = 0; j < seqs[b].q_len.raw(); ++j) {
      ReferenceQuery query{.q = {}, .keys = {}, .values = {}, .scale = scale};
      for (int64_t p : VisiblePositions(seqs[b], j)) {
        query.keys.push_back(rows[b][static_cast<size_t>(p)]);
      }
      query.values = query.keys;
      for (int64_t h = 0; h < num_heads; ++h, ++row) {
        const size_t values = static_cast<size_t>(dims.values());
        query.q = q.subspan(row * values, values);
        AppendReferenceRow(query, static_cast<size_t>(dims.latent_dim), result);
      }
    }
  }
  return result;
}

namespace {

// One head's keys and values of one sequence, and how far f32 may be off in any of them.
struct ExpandedHead {
  std::vector<std::vector<double>> keys, values;
  double error = 0;
};

ExpandedHead Expand(const std::vector<std::vector<double>>& rows, std::span<const float> w_kv_b,
                    const MultiHeadShape& shape, int64_t head) {
  ExpandedHead expanded;
  const int64_t latent_dim = shape.dims.latent_dim;
  const int64_t outputs = shape.nope_dim + shape.value_dim;
  for (const std::vector<double>& row : rows) {
    std::vector<double> both;
    for (int64_t o = 0; o < outputs; ++o) {
      const auto first = static_cast<size_t>((head * outputs + o) * latent_dim);
      QUIRE_CHECK(first + static_cast<size_t>(latent_dim) <= w_kv_b.size(), "{} weights",
                  w_kv_b.size());
      const Products products =
          Multiply(w_kv_b.subspan(first, static_cast<size_t>(latent_dim)), row);
      both.push_back(products.sum);
      expanded.error = std::max(
          expanded.error, kUnitRoundoff * static_cast<double>(latent_dim + 1) * products.size);
    }
    expanded.keys.emplace_back(both.begin(), both.begin() + shape.nope_dim);
    expanded.keys.back().insert(expanded.keys.back().end(), row.begin() + latent_dim, row.end());
    expanded.values.emplace_back(both.begin() + shape.nope_dim, both.end());
  }
  return expanded;
}

}  // namespace

ReferenceAttention ReferenceMha(std::span<const SequenceStep> seqs,
                                const std::vector<std::vector<std::vector<double>>>& rows,
                                std::span<const float> q, std::span<const float> w_kv_b,
                                const MultiHeadShape& shape, double scale) {
  ReferenceAttention result;
  const size_t q_dim = static_cast<size_t>(shape.nope_dim + shape.dims.rope_dim);
  size_t first_token = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    std::vector<ExpandedHead> heads;
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      heads.push_back(Expand(rows[b], w_kv_b, shape, h));
    }
    for (int64_t j = 0; j < seqs[b].q_len.raw(); ++j) {
      for (size_t h = 0; h < heads.size(); ++h) {
        const size_t row = (first_token + static_cast<size_t>(j)) * heads.size() + h;
        ReferenceQuery query{.q = q.subspan(row * q_dim, q_dim),
                             .keys = {},
                             .values = {},
                             .scale = scale,
                             .value_slack = heads[h].error};
        for (size_t i = 0; i < static_cast<size_t>(shape.nope_dim); ++i) {
          query.score_slack += scale * std::abs(double{query.q[i]}) * heads[h].error;
        }
        for (int64_t p : VisiblePositions(seqs[b], j)) {
          query.keys.push_back(heads[h].keys[static_cast<size_t>(p)]);
          query.values.push_back(heads[h].values[static_cast<size_t>(p)]);
        }
        AppendReferenceRow(query, static_cast<size_t>(shape.value_dim), result);
      }
    }
    first_token += static_cast<size_t>(seqs[b].q_len.raw());
  }
  return result;
}

}  // namespace quire::testing
