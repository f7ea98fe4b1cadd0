#include "testing/cuda/emulator/matrices.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/narrow_float.h"
#include "testing/cuda/emulator/later.h"
#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/meetings.h"

namespace quire::emulator {
namespace {

constexpr int kRows = 8;  // of a matrix of 16 bits, which has as many columns

// Two elements of a row, as a lane has them.
uint16_t Half(uint32_t word, int which) { return static_cast<uint16_t>(word >> (16 * which)); }

template <class T>
T* TheirsAs(void* theirs) {
  if (theirs == nullptr) Misuse("an instruction of a warp whose lanes are not all there");
  return static_cast<T*>(theirs);
}

// ---- Between shared memory and registers ----

struct Moved {
  std::byte* row;
  std::array<uint32_t*, 4> words;
  bool transposed;
};

// Element (row, column) of a matrix, and the lane's word that it is half of.
int LaneOf(int row, int column, bool transposed) {
  return transposed ? column * 4 + row / 2 : row * 4 + column / 2;
}
int HalfOf(int row, int column, bool transposed) { return (transposed ? row : column) % 2; }

template <class Move>
void ForEachElement(void* const (&theirs)[kLanes], Move move) {
  for (int matrix = 0; matrix < 4; ++matrix) {
    for (int row = 0; row < kRows; ++row) {
      auto* at = TheirsAs<Moved>(theirs[matrix * kRows + row]);
      for (int column = 0; column < kRows; ++column) {
        auto* lane = TheirsAs<Moved>(theirs[LaneOf(row, column, at->transposed)]);
        move(at->row + column * 2, *lane->words[static_cast<size_t>(matrix)],
             HalfOf(row, column, at->transposed));
      }
    }
  }
}

void LoadAll(void* const (&theirs)[kLanes]) {
  ForEachElement(theirs, [](const std::byte* from, uint32_t& word, int half) {
    uint16_t value;
    std::memcpy(&value, from, sizeof(value));
    word = (word & ~(0xffffu << 16 * half)) | static_cast<uint32_t>(value) << 16 * half;
  });
}
void StoreAll(void* const (&theirs)[kLanes]) {
  ForEachElement(theirs, [](std::byte* to, uint32_t& word, int half) {
    const uint16_t value = Half(word, half);
    std::memcpy(to, &value, sizeof(value));
  });
}

void TransposeAll(void* const (&theirs)[kLanes]) {
  uint32_t turned[kLanes] = {};
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kRows; ++column) {
      const uint32_t word = *TheirsAs<uint32_t>(theirs[row * 4 + column / 2]);
      turned[column * 4 + row / 2] |= static_cast<uint32_t>(Half(word, column % 2))
                                      << 16 * (row % 2);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) *TheirsAs<uint32_t>(theirs[lane]) = turned[lane];
}

// ---- Products ----

double Value(const std::byte* from, Element element) {
  if (element == Element::kE4m3) return ToFloat(Fp8E4m3{static_cast<uint8_t>(*from)});
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return element == Element::kBf16 ? ToFloat(Bf16{bits}) : ToFloat(F16{bits});
}

double Value(uint32_t word, int which, Element element) {
  const uint16_t bits = Half(word, which);
  return element == Element::kBf16 ? ToFloat(Bf16{bits}) : ToFloat(F16{bits});
}

// As std::ilogb of a number that a narrower type has, and that double has with all of its bits; of 0 less than that of
// any product.
constexpr int kOfZero = -10'000, kOfNoNumber = 1024;
int ExponentOf(double value) {
  if (value == 0) return kOfZero;
  return static_cast<int>(std::bit_cast<uint64_t>(value) >> 52 & 0x7ff) - 1023;
}

// The inputs of a row or a column in one instruction.
struct Inputs {
  static constexpr int kMost = 32;

  double values[kMost] = {};
  int exponents[kMost] = {};
  bool are_finite = true;

  void Set(int k, double value) {
    values[k] = value;
    exponents[k] = ExponentOf(value);
    are_finite &= exponents[k] != kOfNoNumber;
  }
};

// To f32, towards 0.
float CutOff(double value) {
  if (std::fabs(value) < 0x1p-126) {  // fewer bits than 24
    const auto nearest = static_cast<float>(value);
    return std::fabs(double{nearest}) > std::fabs(value) ? std::nextafter(nearest, 0.0f) : nearest;
  }
  constexpr uint64_t kBitsOfFloat = ~uint64_t{0} << 29;
  return static_cast<float>(std::bit_cast<double>(std::bit_cast<uint64_t>(value) & kBitsOfFloat));
}

float AddedAtOnce(float sum, const Inputs& a, const Inputs& b) {
  constexpr int kProducts = 16, kBits = 25;
  int top = ExponentOf(sum);
  for (int k = 0; k < kProducts; ++k) top = std::max(top, a.exponents[k] + b.exponents[k]);
  if (top <= kOfZero / 2) return sum;
  const auto power = [](int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  };
  const double scale = power(kBits - top);
  int32_t of_products = 0;  // less than 2^27 of each, and so of all 16 less than 2^31
  for (int k = 0; k < kProducts; ++k) {
    of_products += static_cast<int32_t>(a.values[k] * b.values[k] * scale);
  }
  const int64_t units = int64_t{of_products} + static_cast<int32_t>(sum * scale);
  return CutOff(static_cast<double>(units) * power(top - kBits));
}

float Added(float sum, const Inputs& a, const Inputs& b, Element element) {
  if (element != Element::kE4m3 && a.are_finite && b.are_finite && std::isfinite(sum)) {
    return AddedAtOnce(sum, a, b);
  }
  // Those of codes are exact, in whatever order; of what is not finite only that is to be seen.
  double products[4] = {};
  const int count = element == Element::kE4m3 ? 32 : 16;
  for (int k = 0; k < count; k += 4) {
    for (int i = 0; i < 4; ++i) products[i] += a.values[k + i] * b.values[k + i];
  }
  return static_cast<float>(sum + ((products[0] + products[1]) + (products[2] + products[3])));
}

// Rows of 16 that a warp's lanes have as words of a product's first operand.
struct RowsOfWarp {
  Inputs rows[16];

  template <class WordsOf>
  RowsOfWarp(Element element, WordsOf words_of) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t* words = words_of(lane);
      for (int i = 0; i < 4; ++i) {
        for (int half = 0; half < 2; ++half) {
          rows[lane / 4 + i % 2 * 8].Set(lane % 4 * 2 + i / 2 * 8 + half,
                                         Value(words[i], half, element));
        }
      }
    }
  }
};

struct InWarp {
  float* sum;
  const uint32_t* a;
  uint32_t b[2];
  Element element;
};

void MultiplyAll(void* const (&theirs)[kLanes]) {
  const Element element = TheirsAs<InWarp>(theirs[0])->element;
  const RowsOfWarp a(element, [&](int lane) { return TheirsAs<InWarp>(theirs[lane])->a; });
  Inputs columns[8];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 2; ++i) {
      for (int half = 0; half < 2; ++half) {
        columns[lane / 4].Set(lane % 4 * 2 + i * 8 + half,
                              Value(TheirsAs<InWarp>(theirs[lane])->b[i], half, element));
      }
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float* sum = TheirsAs<InWarp>(theirs[lane])->sum;
    for (int i = 0; i < 4; ++i) {
      sum[i] = Added(sum[i], a.rows[lane / 4 + i / 2 * 8], columns[lane % 4 * 2 + i % 2], element);
    }
  }
}

// ---- Products of a warpgroup ----

// An operand in shared memory, of which the descriptor tells (ptx/panels.cuh): PTX's canonical layouts with
// chunks permuted within 128 bytes.
class Operand {
 public:
  explicit Operand(uint64_t descriptor)
      : start_(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading_(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        eight_rows_(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4) {
    if (descriptor >> 62 != 1) Misuse("an operand whose chunks are not permuted within 128 bytes");
  }

  // Inputs [0, count) of a row; of an operand that is turned, rows of which are inputs, in panels of 64 columns.
  Inputs Row(int row, int count, Element element, bool is_turned) const {
    Inputs inputs;
    if (is_turned) {
      const uint32_t panel = static_cast<uint32_t>(row / 64) * leading_;
      for (int k = 0; k < count; ++k) {
        inputs.Set(k, Value(At(k, row % 64 * 2, panel), element));
      }
      return inputs;
    }
    const int bytes = element == Element::kE4m3 ? 1 : 2, of_chunk = kChunk / bytes;
    for (int first = 0; first < count; first += of_chunk) {
      const std::byte* chunk = At(row, first * bytes);
      for (int k = 0; k < of_chunk; ++k) {
        inputs.Set(first + k, Value(chunk + k * bytes, element));
      }
    }
    return inputs;
  }

 private:
  static constexpr int kChunk = 16;  // bytes that lie together

  const std::byte* At(int row, int byte, uint32_t panel = 0) const {
    const uint32_t address = start_ + panel + static_cast<uint32_t>(row / 8) * eight_rows_ +
                             static_cast<uint32_t>(row % 8) * 128 + static_cast<uint32_t>(byte);
    return AtShared(address ^ (address >> 7 & 7) << 4);
  }

  uint32_t start_, leading_, eight_rows_;
};

struct Offered {
  float* sum;
  int sums;
  const uint32_t* a_words;
  uint64_t a, b;
  bool adds;
  Operands operands;
  int warp;
};

struct WarpProduct {
  Offered first;
  float* sums[kLanes];
  uint32_t words[kLanes][4];

  void Do() const {
    const Element element = first.operands.element;
    const int count = element == Element::kE4m3 ? 32 : 16, columns = first.sums * 2;
    Inputs a[16];
    if (first.a_words != nullptr) {
      const RowsOfWarp given(element, [&](int lane) { return words[lane]; });
      std::copy(std::begin(given.rows), std::end(given.rows), a);
    } else {
      const Operand operand(first.a);
      for (int row = 0; row < 16; ++row) {
        a[row] = operand.Row(16 * first.warp + row, count, element, first.operands.turns_a);
      }
    }
    const Operand operand(first.b);
    for (int column = 0; column < columns; ++column) {
      const Inputs b = operand.Row(column, count, element, first.operands.turns_b);
      for (int row = 0; row < 16; ++row) {
        float& sum = sums[row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 * 2 + column % 2];
        sum = Added(first.adds ? sum : 0.0f, a[row], b, element);
      }
    }
  }
};

void OfferAll(void* const (&theirs)[kLanes]) {
  WarpProduct product = {.first = *TheirsAs<Offered>(theirs[0]), .sums = {}, .words = {}};
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& mine = *TheirsAs<Offered>(theirs[lane]);
    if (mine.a != product.first.a || mine.b != product.first.b || mine.adds != product.first.adds) {
      Misuse("a product whose lanes name different operands");
    }
    product.sums[lane] = mine.sum;
    if (mine.a_words != nullptr)
      std::memcpy(product.words[lane], mine.a_words, sizeof(product.words[lane]));
  }
  MultiplyLater([product] { product.Do(); });
}

}  // namespace

void LoadMatrices(uint32_t from, std::array<uint32_t*, 4> to, bool transposed) {
  Moved mine{AtShared(from), to, transposed};
  Meet(~0u, &mine, LoadAll, "the other lanes that load matrices");
}

void StoreMatrices(uint32_t to, const uint32_t (&m)[4], bool transposed) {
  uint32_t words[4] = {m[0], m[1], m[2], m[3]};
  Moved mine{AtShared(to), {&words[0], &words[1], &words[2], &words[3]}, transposed};
  Meet(~0u, &mine, StoreAll, "the other lanes that store matrices");
}

uint32_t TransposeMatrix(uint32_t m) {
  Meet(~0u, &m, TransposeAll, "the other lanes of a matrix to transpose");
  return m;
}

void MultiplyInWarp(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    Element element) {
  InWarp mine{sum, a, {b0, b1}, element};
  Meet(~0u, &mine, MultiplyAll, "the other lanes of a product");
}

void MultiplyWarpgroup(float* sum, int sums, const uint32_t* a_words, uint64_t a, uint64_t b,
                       bool adds, const Operands& operands) {
  Offered mine{sum, sums, a_words,  a,
               b,   adds, operands, static_cast<int>(threadIdx.x / kLanes % 4)};
  Meet(~0u, &mine, OfferAll, "the other lanes of a product");
}

}  // namespace quire::emulator
