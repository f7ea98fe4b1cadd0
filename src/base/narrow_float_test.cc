#include "base/narrow_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace quire {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The nearest of `values` (ascending, with the parity of their code) to x, ties to the even code.
struct Code {
  double value;
  int code;
};
int NearestCode(const std::vector<Code>& codes, double x) {
  int best = codes[0].code;
  double best_distance = std::numeric_limits<double>::infinity();
  for (const Code& candidate : codes) {
    const double distance = std::fabs(candidate.value - x);
    if (distance < best_distance || (distance == best_distance && candidate.code % 2 == 0)) {
      best = candidate.code;
      best_distance = distance;
    }
  }
  return best;
}

TEST(NarrowFloatTest, Bf16RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const Bf16 value{static_cast<uint16_t>(code)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToBf16(wide))));
    } else {
      EXPECT_EQ(ToBf16(wide).bits, value.bits);
    }
  }
}

TEST(NarrowFloatTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(ToBf16(1.0f + 0x1p-8f).bits, 0x3f80);             // tie, down to even
  EXPECT_EQ(ToBf16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);         // tie, up to even
  EXPECT_EQ(ToBf16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3f81);  // just above the tie
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(ToBf16(-kInf).bits, 0xff80);
  // A NaN whose payload sits in the dropped half must not turn into an infinity.
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(internal::FloatFromBits(0x7f800001u)))));
}

TEST(NarrowFloatTest, F16DecodesAsTheFormatSaysAndRoundTripsEveryCode) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const F16 value{static_cast<uint16_t>(code)};
    const int exponent = static_cast<int>(code >> 10) & 31;
    const int mantissa = static_cast<int>(code) & 1023;
    const float wide = ToFloat(value);
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(ToFloat(ToF16(wide))));
      continue;
    }
    const double magnitude = exponent == 31  ? double{kInf}
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    EXPECT_EQ(wide, static_cast<float>(code & 0x8000 ? -magnitude : magnitude));
    EXPECT_EQ(ToF16(wide).bits, value.bits);
  }
}

TEST(NarrowFloatTest, F16RoundsToNearestEven) {
  EXPECT_EQ(ToF16(1.0f + 0x1p-11f).bits, 0x3c00);             // tie, down to even
  EXPECT_EQ(ToF16(1.0f + 3 * 0x1p-11f).bits, 0x3c02);         // tie, up to even
  EXPECT_EQ(ToF16(1.0f + 0x1p-11f + 0x1p-20f).bits, 0x3c01);  // just above the tie
  EXPECT_EQ(ToF16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToF16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToF16(-kInf).bits, 0xfc00);
  EXPECT_EQ(ToF16(0x1p-25f).bits, 0);        // tie between 0 and the smallest
  EXPECT_EQ(ToF16(3 * 0x1p-25f).bits, 2);    // tie, up to even
  EXPECT_EQ(ToF16(-0x1p-24f).bits, 0x8001);  // the smallest
  EXPECT_TRUE(std::isnan(ToFloat(ToF16(internal::FloatFromBits(0x7f800001u)))));
}

TEST(NarrowFloatTest, Fp8E4m3DecodesAsTheFormatSays) {
  for (int code = 0; code < 256; ++code) {
    const float value = ToFloat(Fp8E4m3{static_cast<uint8_t>(code)});
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(value, static_cast<float>(code & 0x80 ? -magnitude : magnitude)) << code;
    EXPECT_EQ(std::signbit(value), (code & 0x80) != 0) << code;
  }
}

TEST(NarrowFloatTest, Fp8E4m3RoundsToNearestEvenAndSaturates) {
  std::vector<Code> codes;
  for (int code = 0; code < 0x7f; ++code) {
    codes.push_back({ToFloat(Fp8E4m3{static_cast<uint8_t>(code)}), code});
  }
  auto expect = [&](float x) {
    const int code = NearestCode(codes, std::fabs(x)) | (std::signbit(x) ? 0x80 : 0);
    EXPECT_EQ(ToFp8E4m3(x).bits, code) << x;
  };
  // Every representable value, every midpoint, and a float to either side of both.
  for (size_t i = 0; i + 1 < codes.size(); ++i) {
    const float low = static_cast<float>(codes[i].value);
    const float middle = static_cast<float>((codes[i].value + codes[i + 1].value) / 2);
    for (float x : {low, middle}) {
      for (float y : {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)}) {
        expect(y);
        expect(-y);
      }
    }
  }
  for (float x : {448.0f, 463.9f, 464.0f, 465.0f, 480.0f, 1e30f, kInf}) {
    EXPECT_EQ(ToFp8E4m3(x).bits, 0x7e) << x;
    EXPECT_EQ(ToFp8E4m3(-x).bits, 0xfe) << x;
  }
  EXPECT_EQ(ToFp8E4m3(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f, 0x7f);
  EXPECT_EQ(ToFp8E4m3(1e-30f).bits, 0);
  std::mt19937 random(7);
  std::uniform_real_distribution<float> log_magnitude(-14.0f, 9.0f);
  for (int i = 0; i < 20000; ++i) {
    expect(std::exp2(log_magnitude(random)) * (i % 2 == 0 ? 1.0f : -1.0f));
  }
}

}  // namespace
}  // namespace quire
