#include "testing/compare.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace quire::testing {
namespace {

// 1 - cosine of the angle between two vectors; 0 for two zero vectors.
double AngleDefect(std::span<const float> a, std::span<const double> b) {
  double dot = 0, norm_a = 0, norm_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(b[i])) continue;
    dot += double{a[i]} * b[i];
    norm_a += double{a[i]} * a[i];
    norm_b += b[i] * b[i];
  }
  if (norm_a == 0 && norm_b == 0) return 0;
  return 1 - dot / std::sqrt(norm_a * norm_b);
}

bool SameNonFinite(float a, double b) {
  if (std::isnan(b)) return std::isnan(a);
  return double{a} == b;
}

}  // namespace

std::string Mismatch(std::span<const float> actual, std::span<const double> expected,
                     std::span<const double> bounds) {
  if (actual.size() != expected.size()) {
    return fmt::format("{} values, expected {}", actual.size(), expected.size());
  }
  double worst = 0;
  size_t worst_at = 0;
  double bound_sum = 0, norm = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i]) || !std::isfinite(actual[i])) {
      if (SameNonFinite(actual[i], expected[i])) continue;
      return fmt::format("[{}] is {}, expected {}", i, actual[i], expected[i]);
    }
    const double bound = bounds.size() == 1 ? bounds[0] : bounds[i];
    const double error = std::abs(double{actual[i]} - expected[i]);
    bound_sum += bound * bound;
    norm += expected[i] * expected[i];
    const double ratio = error == 0 ? 0 : error / bound;
    if (ratio > worst) {
      worst = ratio;
      worst_at = i;
    }
  }
  if (worst > 1) {
    return fmt::format("[{}] is {}, expected {}: {:.3g} times the bound", worst_at,
                       actual[worst_at], expected[worst_at], worst);
  }
  // An error vector of length e turns a vector of length n by at most e / n.
  const double angle = norm == 0 ? 0 : std::sqrt(bound_sum / norm);
  const double defect = AngleDefect(actual, expected);
  if (defect > angle * angle + 1e-12) {
    return fmt::format("1 - cosine is {:.3g}, expected at most {:.3g}", defect, angle * angle);
  }
  return {};
}

std::string BitMismatch(std::span<const float> actual, std::span<const float> expected) {
  if (actual.size() != expected.size()) {
    return fmt::format("{} values, expected {}", actual.size(), expected.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::bit_cast<uint32_t>(actual[i]) != std::bit_cast<uint32_t>(expected[i])) {
      return fmt::format("bits differ at [{}]: {:.9g}, expected {:.9g}", i, actual[i], expected[i]);
    }
  }
  return {};
}

}  // namespace quire::testing
