// The PTX that kernels are made of, one function per instruction; that of warpgroups is in warpgroup.cuh.
#ifndef QUIRE_KERNELS_CUDA_PTX_INSTRUCTIONS_CUH_
#define QUIRE_KERNELS_CUDA_PTX_INSTRUCTIONS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/panels.cuh"

namespace quire::cuda {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory, of which the first `bytes` (0..16) are read and the rest are 0. Both
// addresses are multiples of 16. .cg: weights are read once and pass L1 by. L2::128B: a step takes 128
// bytes of a row; asked for the next step's too, memory gives a tenth less.
__device__ inline void CopyAsync16(uint32_t to, const std::byte* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
// How L2 keeps what is read once in a step: it goes before anything else does, so that weights do not drive
// out what every layer uses again, such as activations and the kernels themselves.
__device__ inline uint64_t ReadOncePolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// CopyAsync16, of some bytes and of all, and 16 bytes of memory that nobody writes, with a policy.
__device__ inline void CopyAsync16(uint32_t to, const std::byte* from, int bytes, uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
      "l"(from), "r"(bytes), "l"(policy)
      : "memory");
}
__device__ inline void CopyAsync16(uint32_t to, const std::byte* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "l"(policy)
               : "memory");
}
__device__ inline uint4 LoadConst16(const void* from, uint64_t policy) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from), "l"(policy));
  return v;
}
// The same of 4 bytes, 0 or all of which are read.
__device__ inline void CopyAsync4(uint32_t to, const std::byte* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// 16, 8 or 4 bytes of memory, loaded where it stands: the compiler moves other loads to where they are used, behind
// whatever is waited for before that.
__device__ inline uint4 LoadHere16(const std::byte* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline uint2 LoadHere8(const std::byte* from) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from)
               : "memory");
  return v;
}
template <class T>
__device__ inline T LoadHere(const std::byte* from) {
  static_assert(sizeof(T) == 4);
  uint32_t bits;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");
  T value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
// 4 bytes that were written before the kernel began, and whose neighbours are asked for too: by way of L1.
__device__ inline int32_t LoadNear(const std::byte* from) {
  int32_t value;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Begins to bring the line of an address into L2.
__device__ inline void PrefetchLine(const std::byte* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most kPending of this thread's newest groups are under way.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void StoreShared16(uint32_t to, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
__device__ inline uint4 LoadShared16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline uint32_t LoadShared4(uint32_t from) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
__device__ inline void LoadShared8(uint32_t from, uint32_t& low, uint32_t& high) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(low), "=r"(high) : "r"(from) : "memory");
}

// Four 8 x 8 matrices of 16 bits: lane 8 m + r gives the address of row r of matrix m; lane l gets
// of each matrix the two elements from 2 (l % 4) on of row l / 4.
__device__ inline void LoadMatrices(uint32_t from, uint32_t& m0, uint32_t& m1, uint32_t& m2,
                                    uint32_t& m3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
               : "r"(from)
               : "memory");
}

// The other way: lane 8 m + r gives the address of row r of matrix m.
__device__ inline void StoreMatrices(uint32_t to, const uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}

// As StoreMatrices, with each matrix transposed.
__device__ inline void StoreMatricesTransposed(uint32_t to, const uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}
// An 8 x 8 matrix of 16 bits that lies in a warp's registers as LoadMatrices leaves it, transposed.
__device__ inline uint32_t TransposeMatrix(uint32_t m) {
  uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(m));
  return turned;
}
// As LoadMatrices, with each matrix transposed.
__device__ inline void LoadMatricesTransposed(uint32_t from, uint32_t& m0, uint32_t& m1,
                                              uint32_t& m2, uint32_t& m3) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3)
               : "r"(from)
               : "memory");
}

// `yes` or `no`, of which both are at hand: no branch is made of it, before which much would be loaded.
__device__ inline float Select(bool condition, float yes, float no) {
  float chosen;
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}\n"
      : "=f"(chosen)
      : "f"(yes), "f"(no), "r"(static_cast<int>(condition)));
  return chosen;
}

// 2^x within 2 ulp for x <= 0, and a single instruction.
__device__ inline float Exp2Approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// sum += a b^T: a is 16 x 16, b is 8 x 16, sum is 16 x 8. With group = lane / 4, t = lane % 4:
//   a[0], a[1]: rows group, group + 8, columns 2t, 2t + 1;   a[2], a[3]: columns 2t + 8, 2t + 9
//   b[0], b[1]: row group, columns 2t, 2t + 1;  2t + 8, 2t + 9
//   sum[0..1], sum[2..3]: rows group, group + 8, columns 2t, 2t + 1
__device__ inline void MultiplyBf16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void MultiplyF16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two values as bf16, the low one first.
__device__ inline uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

__device__ inline uint32_t PackF16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
__device__ inline uint32_t MultiplyF16Pairs(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Four e4m3 codes as two pairs of f16; exact, NaN stays NaN.
__device__ inline void WidenToF16(uint32_t codes, uint32_t& low, uint32_t& high) {
  const auto first = static_cast<uint16_t>(codes), second = static_cast<uint16_t>(codes >> 16);
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"(first));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"(second));
}
// The same of a register's halves where they are, without a shift. Not for everybody: two instances of gemm_tile.cu
// store registers away with it.
__device__ inline void WidenHalvesToF16(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n.reg .b16 first, second;\nmov.b32 {first, second}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, first;\ncvt.rn.f16x2.e4m3x2 %1, second;\n}\n"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}

__device__ inline float2 WidenF16(uint32_t pair) {
  __half2 narrow;
  memcpy(&narrow, &pair, sizeof(pair));
  return __half22float2(narrow);
}

// Two values as e4m3, to nearest, ties to even; what is too large becomes the largest.
__device__ inline uint16_t PackCodes(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

// max(x, 0), NaN where x is.
__device__ inline float Relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within an ulp, and a single instruction.
__device__ inline float ReciprocalApprox(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// threadIdx.x in a register: used in a loop, the compiler asks for it again and again, eight times a step, which
// takes long.
__device__ inline int HeldThread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

}  // namespace quire::cuda

#include "kernels/cuda/ptx/values.cuh"  // IWYU pragma: export

#endif  // QUIRE_KERNELS_CUDA_PTX_INSTRUCTIONS_CUH_
