#include "testing/sparse_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "testing/reference.h"

namespace quire::testing {
namespace {

size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace

std::vector<ReferenceScores> ReferenceIndexScores(std::span<const SequenceStep> seqs,
                                                  const SequenceRows& rows,
                                                  std::span<const float> q,
                                                  std::span<const float> gates,
                                                  const IndexShape& shape, double scale) {
  const auto dim = Index(shape.head_dim);
  // Roundings of a dot, of the gate, of the sum over heads, and one for what is of second order.
  const double roundings = shape.head_dim + (shape.num_heads + 15) / 16 + 4 + 2;
  std::vector<ReferenceScores> result;
  for (size_t b = 0; b < seqs.size(); ++b) {
    for (int64_t j = 0; j < seqs[b].q_len.raw(); ++j) {
      const size_t token = result.size();
      ReferenceScores& row = result.emplace_back();
      for (const int64_t p : VisiblePositions(seqs[b], j)) {
        const std::vector<double>& key = rows[b][Index(p)];
        double score = 0, size = 0;
        for (int64_t h = 0; h < shape.num_heads; ++h) {
          const size_t head = token * Index(shape.num_heads) + Index(h);
          double dot = 0, dot_size = 0;
          for (size_t i = 0; i < dim; ++i) {
            const double product = double{q[head * dim + i]} * key[i];
            dot += product;
            dot_size += std::abs(product);
          }
          const double gate = scale * double{gates[head]};
          score += gate * (dot < 0 ? 0.0 : dot);
          size += std::abs(gate) * dot_size;
        }
        row.scores.push_back(score);
        if (std::isfinite(size)) row.bound = std::max(row.bound, kUnitRoundoff * roundings * size);
      }
    }
  }
  return result;
}

std::vector<int32_t> ReferenceChoice(std::span<const double> scores, const IndexShape& shape) {
  const auto visible = static_cast<int32_t>(scores.size());
  std::vector<int32_t> positions(scores.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto is_forced = [&](int32_t p) {
    return p < shape.init_tokens || p >= visible - shape.local_tokens;
  };
  const auto comes_first = [&](int32_t a, int32_t b) {
    if (is_forced(a) != is_forced(b)) return is_forced(a);
    const double x = scores[Index(a)], y = scores[Index(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(y);
    if (!is_forced(a) && !std::isnan(x) && x != y) return x > y;
    return a < b;
  };
  if (visible > shape.top_k) {
    std::nth_element(positions.begin(), positions.begin() + shape.top_k - 1, positions.end(),
                     comes_first);
    positions.resize(Index(shape.top_k));
    std::sort(positions.begin(), positions.end());
  }
  positions.resize(Index(shape.top_k), -1);
  return positions;
}

std::string ChoiceMismatch(std::span<const int32_t> row, const ReferenceScores& reference,
                           const IndexShape& shape) {
  const std::vector<double>& scores = reference.scores;
  const std::vector<int32_t> expected = ReferenceChoice(scores, shape);
  if (std::ssize(scores) <= shape.top_k) {
    return std::ranges::equal(row, expected) ? "" : "not all that the query sees";
  }
  if (std::ranges::adjacent_find(row, std::greater_equal<>()) != row.end() || row.front() < 0 ||
      row.back() >= std::ssize(scores)) {
    return "positions do not ascend among those that the query sees";
  }
  const auto is_forced = [&](int64_t p) {
    return p < shape.init_tokens || p >= std::ssize(scores) - shape.local_tokens;
  };
  double last = std::numeric_limits<double>::infinity();
  for (const int32_t p : expected) {
    if (!is_forced(p)) last = std::min(last, scores[Index(p)]);
  }
  for (int64_t p = 0; p < std::ssize(scores); ++p) {
    const bool is_chosen = std::ranges::binary_search(row, static_cast<int32_t>(p));
    const double above = scores[Index(p)] - last;
    const bool is_high = is_forced(p) || above > 2 * reference.bound;
    const bool is_low = !is_forced(p) && above < -2 * reference.bound;
    if ((is_high && !is_chosen) || (is_low && is_chosen)) {
      return fmt::format("position {} is {}chosen, {} above the last one", p,
                         is_chosen ? "" : "not ", above);
    }
  }
  return "";
}

ReferenceAttention ReferenceSparseMla(std::span<const SequenceStep> seqs, const SequenceRows& rows,
                                      std::span<const float> q, int64_t num_heads, KvDims dims,
                                      double scale, std::span<const int32_t> chosen,
                                      int32_t top_k) {
  ReferenceAttention result;
  const auto values = Index(dims.values());
  size_t token = 0;
  for (size_t b = 0; b < seqs.size(); ++b) {
    for (int64_t j = 0; j < seqs[b].q_len.raw(); ++j, ++token) {
      const std::vector<int64_t> visible = VisiblePositions(seqs[b], j);
      ReferenceQuery query{.q = {}, .keys = {}, .values = {}, .scale = scale};
      for (const int32_t p : chosen.subspan(token * Index(top_k), Index(top_k))) {
        if (p >= 0) query.keys.push_back(rows[b][Index(visible.at(Index(p)))]);
      }
      query.values = query.keys;
      for (int64_t h = 0; h < num_heads; ++h) {
        query.q = q.subspan((token * Index(num_heads) + Index(h)) * values, values);
        AppendReferenceRow(query, Index(dims.latent_dim), result);
      }
    }
  }
  return result;
}

}  // namespace quire::testing
