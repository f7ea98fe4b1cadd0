// The cases of the row ops' tests, and what they expect: in double, from the formulas. Every backend
// is held against these.
#ifndef QUIRE_KERNELS_ROW_OPS_CASES_H_
#define QUIRE_KERNELS_ROW_OPS_CASES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/tensor_view.h"
#include "kernels/row_ops.h"
#include "testing/paged_batch.h"

namespace quire::testing {

inline constexpr double kU = 0x1p-24;  // unit roundoff of f32
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr int64_t kWidths[] = {1, 7, 64, 576, 2049};

// DeepSeek-V3's.
inline constexpr RouteShape kV3Route = {.num_experts = 256,
                                        .top_k = 8,
                                        .num_groups = 8,
                                        .top_groups = 4,
                                        .score = ScoreFunction::kSigmoid,
                                        .selection = ExpertSelection::kGroupTopTwo,
                                        .normalize = true,
                                        .scale = 2.5f};

inline std::vector<float> MadeUpRows(uint64_t seed, int64_t num_rows, int64_t width) {
  std::vector<float> rows;
  for (int64_t r = 0; r < num_rows; ++r) {
    const std::vector<float> row = MadeUpValues(seed, r, width);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// Rows by their tokens' numbers; a negative one has nothing but NaN.
inline std::vector<float> RowsOfTokens(uint64_t seed, std::span<const int64_t> tokens,
                                       int64_t width) {
  std::vector<float> rows;
  for (int64_t token : tokens) {
    const std::vector<float> row = token < 0 ? std::vector<float>(static_cast<size_t>(width), kNaN)
                                             : MadeUpValues(seed, token, width);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

struct Reference {
  std::vector<double> values;
  std::vector<double> bounds;

  void Add(double value, double bound) {
    values.push_back(value);
    bounds.push_back(bound);
  }
};

// ---- Against double precision, with the bounds of docs/numerics.md ----

// `sum_roundings`: of the sum of squares, along the longest way.
inline Reference ReferenceRmsNorm(const std::vector<float>& x, const std::vector<float>& weight,
                                  double eps, double sum_roundings) {
  const size_t width = weight.size();
  const double roundings = 0.5 * sum_roundings + 4;
  Reference reference;
  for (size_t row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (size_t i = 0; i < width; ++i) squares += double{x[row + i]} * x[row + i];
    const double factor = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
    for (size_t i = 0; i < width; ++i) {
      const double y = x[row + i] * factor * weight[i];
      reference.Add(y, kU * roundings * std::abs(y));
    }
  }
  return reference;
}

inline Reference ReferenceLayerNorm(const std::vector<float>& x, const std::vector<float>& weight,
                                    const std::vector<float>& bias, double eps) {
  const size_t width = weight.size();
  const double n = static_cast<double>(width);
  const double adds = static_cast<double>(width / 16) + 6;
  Reference reference;
  for (size_t row = 0; row < x.size(); row += width) {
    double sum = 0, magnitude = 0, squares = 0;
    for (size_t i = 0; i < width; ++i) {
      sum += x[row + i];
      magnitude += std::abs(x[row + i]);
    }
    const double mean = sum / n;
    for (size_t i = 0; i < width; ++i) squares += (x[row + i] - mean) * (x[row + i] - mean);
    const double factor = 1 / std::sqrt(squares / n + eps);
    const double mean_error = kU * adds * magnitude / n;
    for (size_t i = 0; i < width; ++i) {
      const double difference = x[row + i] - mean;
      const double scaled = difference * factor * weight[i];
      reference.Add(scaled + bias[i],
                    std::abs(scaled) * (mean_error * factor + kU * (adds / 2 + 6)) +
                        std::abs(factor * weight[i]) * mean_error +
                        kU * std::abs(scaled + bias[i]));
    }
  }
  return reference;
}

// Where the values of pair i stand.
inline std::pair<int64_t, int64_t> PairAt(RopePairs pairs, int64_t i, int64_t rope_dim) {
  if (pairs == RopePairs::kInterleaved) return {2 * i, 2 * i + 1};
  return {i, i + rope_dim / 2};
}

// Of [heads..., nope | rope] rows, every num_heads of which share a row of cos and sin.
inline Reference ReferenceRope(const std::vector<float>& rows, int64_t head_dim, int64_t num_heads,
                               RopePairs pairs, const ConstTensorView& cos,
                               const ConstTensorView& sin) {
  const int64_t rope_dim = 2 * cos.dim(1);
  Reference reference{.values = {rows.begin(), rows.end()},
                      .bounds = std::vector<double>(rows.size(), 0.0)};
  for (int64_t row = 0; row < std::ssize(rows) / head_dim; ++row) {
    for (int64_t i = 0; i < rope_dim / 2; ++i) {
      const auto [first, second] = PairAt(pairs, i, rope_dim);
      const int64_t begin = (row + 1) * head_dim - rope_dim;
      const size_t at_a = static_cast<size_t>(begin + first);
      const size_t at_b = static_cast<size_t>(begin + second);
      const double a = rows[at_a], b = rows[at_b];
      const double c = cos.Row<float>(row / num_heads)[i], s = sin.Row<float>(row / num_heads)[i];
      reference.values[at_a] = a * c - b * s;
      reference.values[at_b] = b * c + a * s;
      reference.bounds[at_a] = 2 * kU * (std::abs(a * c) + std::abs(b * s));
      reference.bounds[at_b] = 2 * kU * (std::abs(b * c) + std::abs(a * s));
    }
  }
  return reference;
}

inline double ReferenceSilu(double x) { return x / (1 + std::exp(-x)); }

// Where x / (1 + exp(-x)) overflows, or loses what is left.
inline const std::vector<float>& FarGates() {
  static const std::vector<float> gates = {0.0f,    -0.0f,  87.0f,  104.0f, 3e38f,
                                           kInf,    -20.0f, -80.0f, -87.0f, -100.0f,
                                           -104.5f, -1e4f,  -3e38f, -kInf,  kNaN};
  return gates;
}

inline Reference ReferenceFarSilu() {
  Reference reference;
  for (float x : FarGates()) {
    const double silu = x == -kInf ? 0.0 : ReferenceSilu(x);
    // Below -87, exp(x) is subnormal and has an absolute error, which x multiplies.
    const double subnormal = x < -87 && x > -110 ? 2 * 0x1p-149 * -x : 0;
    // Nothing of exp(x) is left below -104.
    const double lost = x < -103 && std::isfinite(x) ? std::abs(silu) : 0;
    reference.Add(silu, 8 * kU * std::abs(silu) + subnormal + lost);
  }
  return reference;
}

// ---- Routing ----

inline RouteShape RandomRouteShape(std::mt19937_64& random) {
  auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  RouteShape shape;
  shape.selection = std::array{ExpertSelection::kGreedy, ExpertSelection::kGroupMax,
                               ExpertSelection::kGroupTopTwo}[static_cast<size_t>(pick(0, 2))];
  shape.num_groups = pick(1, 9);
  const int32_t group_size = pick(2, 40);
  shape.num_experts = shape.num_groups * group_size;
  shape.top_groups = pick(1, shape.num_groups);
  shape.top_k = pick(1, std::min(kMaxTopK, shape.top_groups * group_size));
  shape.score = pick(0, 1) == 0 ? ScoreFunction::kSoftmax : ScoreFunction::kSigmoid;
  shape.normalize = pick(0, 1) == 0;
  shape.scale = pick(0, 1) == 0 ? 1.0f : 2.5f;
  return shape;
}

// `levels` different values, so that nearly all tie with others.
inline std::vector<float> TieStorm(std::mt19937_64& random, int32_t size, uint64_t levels) {
  std::vector<float> values;
  for (int32_t i = 0; i < size; ++i) {
    values.push_back(0.5f * static_cast<float>(random() % levels) - 1.0f);
  }
  return values;
}

}  // namespace quire::testing

#endif  // QUIRE_KERNELS_ROW_OPS_CASES_H_
