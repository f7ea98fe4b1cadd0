// Matrices that lie in the registers of a warp, and what multiplies them.
//
// Of bf16 and f16 an instruction adds as an H200 does (docs/numerics.md, "Tensor cores: facts"): its 16 products and
// the sum are cut off at 2^-25 of the largest's exponent and added at once, and that is cut off to f32. How it adds
// 32 of e4m3 is not known: they are added in double precision here, and rounded.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_MATRICES_H_
#define QUIRE_TESTING_CUDA_EMULATOR_MATRICES_H_

#include <array>
#include <cstdint>

namespace quire::emulator {

enum class Element { kBf16, kF16, kE4m3 };

void LoadMatrices(uint32_t from, std::array<uint32_t*, 4> to, bool transposed);
void StoreMatrices(uint32_t to, const uint32_t (&m)[4], bool transposed);
uint32_t TransposeMatrix(uint32_t m);
// 16 x 8 sums of 16 products.
void MultiplyInWarp(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    Element element);

// Of products of a warpgroup. What is turned lies in rows of the inputs.
struct Operands {
  Element element;
  bool turns_a = false, turns_b = false;
};
void MultiplyWarpgroup(float* sum, int sums, const uint32_t* a_words, uint64_t a, uint64_t b,
                       bool adds, const Operands& operands);

template <int kSums>
void Multiply(float (&sum)[kSums], uint64_t a, uint64_t b, bool adds, const Operands& operands) {
  MultiplyWarpgroup(sum, kSums, nullptr, a, b, adds, operands);
}
template <int kSums>
void MultiplyRows(float (&sum)[kSums], const uint32_t (&a)[4], uint64_t b, bool adds,
                  const Operands& operands) {
  MultiplyWarpgroup(sum, kSums, a, 0, b, adds, operands);
}

}  // namespace quire::emulator

#endif  // QUIRE_TESTING_CUDA_EMULATOR_MATRICES_H_
