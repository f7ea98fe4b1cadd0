#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace quire {
namespace {

// Frequencies are computed in f32, in the same operations as in transformers: at position 100000
// the last bit of a frequency is up to 0.006 radians, so more exact ones would be other angles.

// theta^(2i / rope_dim): positions per radian of pair i.
float Wavelength(const ModelConfig& config, int32_t pair) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(config.rope_dim);
  return std::pow(static_cast<float>(config.rope.theta), exponent);
}

// The pair, in fractions, that turns `rotations` times within the original context.
double PairThatTurns(double rotations, const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const double wavelength =
      static_cast<double>(rope.original_context) / (rotations * 2 * std::numbers::pi);
  return config.rope_dim * std::log(wavelength) / (2 * std::log(rope.theta));
}

// YaRN's way from frequencies that are left alone (0) to frequencies divided by the factor (1).
struct Ramp {
  double begin;  // pairs
  double end;

  float At(int32_t pair) const {
    const float along = static_cast<float>(pair) - static_cast<float>(begin);
    return std::clamp(along / static_cast<float>(end - begin), 0.0f, 1.0f);
  }
};

Ramp YarnRamp(const ModelConfig& config) {
  double begin = PairThatTurns(config.rope.beta_fast, config);
  double end = PairThatTurns(config.rope.beta_slow, config);
  if (config.rope.truncate) {
    begin = std::floor(begin);
    end = std::ceil(end);
  }
  begin = std::max(begin, 0.0);
  end = std::min(end, static_cast<double>(config.rope_dim - 1));
  if (begin == end) end += 0.001;  // a step, without a division by 0
  return {.begin = begin, .end = end};
}

float YarnFrequency(const ModelConfig& config, const Ramp& ramp, int32_t pair) {
  const float wavelength = Wavelength(config, pair);
  const float kept = 1.0f - ramp.At(pair);
  const float divided = 1.0f / (static_cast<float>(config.rope.factor) * wavelength);
  return divided * (1.0f - kept) + 1.0f / wavelength * kept;
}

std::vector<float> Frequencies(const ModelConfig& config, TokenCount context) {
  const RopeConfig& rope = config.rope;
  const Ramp ramp = rope.scaling == RopeScaling::kYarn ? YarnRamp(config) : Ramp{0, 1};
  const bool is_long = UsesLongFactors(rope, context);
  const std::vector<double>& factors = is_long ? rope.long_factor : rope.short_factor;
  std::vector<float> frequencies;
  for (int32_t pair = 0; pair < config.rope_dim / 2; ++pair) {
    switch (rope.scaling) {
      case RopeScaling::kNone:
        frequencies.push_back(1.0f / Wavelength(config, pair));
        break;
      case RopeScaling::kYarn:
        frequencies.push_back(YarnFrequency(config, ramp, pair));
        break;
      case RopeScaling::kLongRope:
        frequencies.push_back(1.0f / (static_cast<float>(factors[static_cast<size_t>(pair)]) *
                                      Wavelength(config, pair)));
        break;
    }
  }
  return frequencies;
}

// By how much YaRN wants attention sharpened when the context grows by `factor`.
double YarnMscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnMagnitude(const RopeConfig& rope) {
  // The rule of transformers: one of the two alone counts for nothing.
  if (rope.mscale == 0.0 || rope.mscale_all_dim == 0.0) return YarnMscale(rope.factor, 1.0);
  return YarnMscale(rope.factor, rope.mscale) / YarnMscale(rope.factor, rope.mscale_all_dim);
}

double LongRopeMagnitude(const RopeConfig& rope) {
  if (rope.factor <= 1.0) return 1.0;
  return std::sqrt(1.0 +
                   std::log(rope.factor) / std::log(static_cast<double>(rope.original_context)));
}

double Magnitude(const RopeConfig& rope) {
  if (rope.scaling == RopeScaling::kNone) return 1.0;
  if (rope.attention_factor.has_value()) return *rope.attention_factor;
  return rope.scaling == RopeScaling::kYarn ? YarnMagnitude(rope) : LongRopeMagnitude(rope);
}

void RequireFactors(const char* name, const std::vector<double>& factors, int32_t rope_dim) {
  Require(std::ssize(factors) == rope_dim / 2, "rope.{}: expected {} values, got {}", name,
          rope_dim / 2, factors.size());
}

void RequireComputable(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  Require(config.rope_dim >= 0 && config.rope_dim % 2 == 0,
          "rope_dim: expected an even number, got {}", config.rope_dim);
  Require(rope.theta > 1.0, "rope.theta: expected more than 1, got {}", rope.theta);
  if (rope.scaling == RopeScaling::kNone) return;
  Require(rope.original_context > 1, "rope.original_context: expected more than 1, got {}",
          rope.original_context);
  Require(rope.factor > 0.0, "rope.factor: expected more than 0, got {}", rope.factor);
  if (rope.scaling == RopeScaling::kYarn) {
    Require(rope.beta_fast > 0.0 && rope.beta_slow > 0.0,
            "rope.beta_fast, beta_slow: expected more than 0, got {} and {}", rope.beta_fast,
            rope.beta_slow);
  } else {
    RequireFactors("short_factor", rope.short_factor, config.rope_dim);
    RequireFactors("long_factor", rope.long_factor, config.rope_dim);
  }
}

}  // namespace

RopeTable::RopeTable(const ModelConfig& config, TokenCount context) {
  RequireComputable(config);
  frequencies_ = Frequencies(config, context);
  magnitude_ = static_cast<float>(Magnitude(config.rope));
}

void RopeTable::Fill(std::span<const TokenCount> positions, TensorView cos, TensorView sin) const {
  const int64_t num_tokens = std::ssize(positions);
  const int64_t num_pairs = std::ssize(frequencies_);
  RequireShape("cos", cos, {num_tokens, num_pairs});
  RequireShape("sin", sin, {num_tokens, num_pairs});
  Require(cos.dtype() == DType::kF32 && sin.dtype() == DType::kF32,
          "cos, sin: expected f32, got {} and {}", DTypeName(cos.dtype()), DTypeName(sin.dtype()));
  for (int64_t t = 0; t < num_tokens; ++t) {
    const float position = static_cast<float>(positions[static_cast<size_t>(t)].raw());
    for (int64_t i = 0; i < num_pairs; ++i) {
      // In double: rounded to f32, libraries agree on these; on f32 functions they do not.
      const double angle = position * frequencies_[static_cast<size_t>(i)];
      cos.Row<float>(t)[i] = static_cast<float>(std::cos(angle)) * magnitude_;
      sin.Row<float>(t)[i] = static_cast<float>(std::sin(angle)) * magnitude_;
    }
  }
}

RopeAngles MakeRopeAngles(const ModelConfig& config, TokenCount context, WeightPacker& packer) {
  const int64_t pairs = config.rope_dim / 2;
  const int64_t values = context.raw() * pairs;
  const auto fill = [&](std::span<float> to) {
    const RopeTable table(config, context);
    packer.executor().Run(context.raw(), [&](int64_t p) {
      const TokenCount position(p);
      table.Fill({&position, 1}, {to.data() + p * pairs, {1, pairs}},
                 {to.data() + values + p * pairs, {1, pairs}});
    });
  };
  const float* cos = packer.Floats(2 * values, fill).data();
  const float* sin = cos == nullptr ? nullptr : cos + values;
  return {.cos = ConstTensorView(cos, {context.raw(), pairs}, packer.side()),
          .sin = ConstTensorView(sin, {context.raw(), pairs}, packer.side())};
}

float SoftmaxScale(const ModelConfig& config) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim()));
  if (config.rope.scaling != RopeScaling::kYarn || config.rope.mscale_all_dim == 0.0) {
    return static_cast<float>(scale);
  }
  const double mscale = YarnMscale(config.rope.factor, config.rope.mscale_all_dim);
  return static_cast<float>(scale * mscale * mscale);
}

}  // namespace quire
