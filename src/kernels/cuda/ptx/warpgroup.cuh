// The PTX of kernels whose warps have roles: products of a warpgroup (four warps) over tiles in shared
// memory, and barriers that count arrivals and bytes.
#ifndef QUIRE_KERNELS_CUDA_PTX_WARPGROUP_CUH_
#define QUIRE_KERNELS_CUDA_PTX_WARPGROUP_CUH_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/ptx/panels.cuh"

namespace quire::cuda {

// ---- Products ----

// As Uniform, computed where it is used: the compiler keeps nothing that follows from it.
__device__ inline uint32_t UniformHere(uint32_t value) {
  asm volatile("" : "+r"(value));
  return Uniform(value);
}

// Before the first product after registers or shared memory changed.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending of the newest groups are under way.
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Sums that products are adding to: the compiler moves nothing of them over this.
template <int kSums>
__device__ inline void HoldSums(float (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
// The same of an operand in registers.
__device__ inline void HoldOperand(uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// clang-format off
// Operands %0, %1, ..., and the sums that they stand for.
#define QUIRE_NAMES4 "%0, %1, %2, %3"
#define QUIRE_NAMES8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define QUIRE_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_NAMES32 \
  QUIRE_NAMES16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES64                                                                \
  QUIRE_NAMES32                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_NAMES96                                                                \
  QUIRE_NAMES64                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define QUIRE_NAMES128                                                                           \
  QUIRE_NAMES96                                                                                  \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define QUIRE_SUMS4(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define QUIRE_SUMS8(s, i) QUIRE_SUMS4(s, i), QUIRE_SUMS4(s, i + 4)
#define QUIRE_SUMS16(s, i) QUIRE_SUMS8(s, i), QUIRE_SUMS8(s, i + 8)
#define QUIRE_SUMS32(s, i) QUIRE_SUMS16(s, i), QUIRE_SUMS16(s, i + 16)
#define QUIRE_SUMS64(s, i) QUIRE_SUMS32(s, i), QUIRE_SUMS32(s, i + 32)
#define QUIRE_SUMS96(s, i) QUIRE_SUMS64(s, i), QUIRE_SUMS32(s, i + 64)
#define QUIRE_SUMS128(s, i) QUIRE_SUMS64(s, i), QUIRE_SUMS64(s, i + 64)
// clang-format on

// sum += a b^T, or = where `adds` is false: a is 64 x 16 and b is n x 16, n twice the sums of a
// thread, both in shared memory. Warp w has rows [16 w, + 16); sum[4 j + i] lies as MultiplyBf16's
// sum[i], with columns [8 j, + 8).
#define QUIRE_MULTIPLY(name, instruction, count, operands, predicate, transposed)      \
  __device__ inline void name(float(&sum)[count], uint64_t a, uint64_t b, bool adds) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " predicate                         \
                 ", 0;\n"                                                              \
                 "wgmma.mma_async.sync.aligned." instruction " {" QUIRE_NAMES##count   \
                 "}, " operands ", p, 1, 1" transposed ";\n}\n"                        \
                 : QUIRE_SUMS##count(sum, 0)                                           \
                 : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                       \
  }
QUIRE_MULTIPLY(MultiplyPanels, "m64n8k16.f32.bf16.bf16", 4, "%4, %5", "%6", ", 0, 0")
QUIRE_MULTIPLY(MultiplyPanels, "m64n16k16.f32.bf16.bf16", 8, "%8, %9", "%10", ", 0, 0")
QUIRE_MULTIPLY(MultiplyPanels, "m64n32k16.f32.bf16.bf16", 16, "%16, %17", "%18", ", 0, 0")
QUIRE_MULTIPLY(MultiplyPanels, "m64n64k16.f32.bf16.bf16", 32, "%32, %33", "%34", ", 0, 0")
QUIRE_MULTIPLY(MultiplyPanels, "m64n128k16.f32.bf16.bf16", 64, "%64, %65", "%66", ", 0, 0")
QUIRE_MULTIPLY(MultiplyPanels, "m64n256k16.f32.bf16.bf16", 128, "%128, %129", "%130", ", 0, 0")
QUIRE_MULTIPLY(MultiplyPanelsF16, "m64n8k16.f32.f16.f16", 4, "%4, %5", "%6", ", 0, 0")
QUIRE_MULTIPLY(MultiplyPanelsF16, "m64n64k16.f32.f16.f16", 32, "%32, %33", "%34", ", 0, 0")
// The same of e4m3, which is never transposed: a is 64 x 32 and b is n x 32.
QUIRE_MULTIPLY(MultiplyCodes, "m64n8k32.f32.e4m3.e4m3", 4, "%4, %5", "%6", "")
QUIRE_MULTIPLY(MultiplyCodes, "m64n16k32.f32.e4m3.e4m3", 8, "%8, %9", "%10", "")
QUIRE_MULTIPLY(MultiplyCodes, "m64n32k32.f32.e4m3.e4m3", 16, "%16, %17", "%18", "")
QUIRE_MULTIPLY(MultiplyCodes, "m64n64k32.f32.e4m3.e4m3", 32, "%32, %33", "%34", "")
QUIRE_MULTIPLY(MultiplyCodes, "m64n128k32.f32.e4m3.e4m3", 64, "%64, %65", "%66", "")
QUIRE_MULTIPLY(MultiplyCodes, "m64n192k32.f32.e4m3.e4m3", 96, "%96, %97", "%98", "")
// The same with a transposed: 16 rows of a panel's 64 columns.
QUIRE_MULTIPLY(MultiplyTurned, "m64n16k16.f32.bf16.bf16", 8, "%8, %9", "%10", ", 1, 0")
#undef QUIRE_MULTIPLY

// sum += a b: a is 64 x 16 in registers, as MultiplyBf16's, and b is 16 x n in shared memory, n twice the
// sums of a thread: rows of 16 keys over panels of 64 columns.
#define QUIRE_MULTIPLY_ROWS(instruction, count, operands)                                        \
  __device__ inline void MultiplyRows(float(&sum)[count], const uint32_t(&a)[4], uint64_t b) {   \
    asm volatile(                                                                                \
        "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"                                               \
        "wgmma.mma_async.sync.aligned." instruction " {" QUIRE_NAMES##count "}, " operands       \
                                                                            ", p, 1, 1, 1;\n}\n" \
        : QUIRE_SUMS##count(sum, 0)                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                   \
  }
QUIRE_MULTIPLY_ROWS("m64n64k16.f32.bf16.bf16", 32, "{%32, %33, %34, %35}, %36")
QUIRE_MULTIPLY_ROWS("m64n128k16.f32.bf16.bf16", 64, "{%64, %65, %66, %67}, %68")
QUIRE_MULTIPLY_ROWS("m64n256k16.f32.bf16.bf16", 128, "{%128, %129, %130, %131}, %132")
#undef QUIRE_MULTIPLY_ROWS
// The same of f16, with a in shared memory, as MultiplyPanels'.
__device__ inline void MultiplyValuesF16(float (&sum)[64], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" QUIRE_NAMES64
      "}, %64, %65, p, 1, 1, 0, 1;\n}\n"
      : QUIRE_SUMS64(sum, 0)
      : "l"(a), "l"(b));
}
// sum += a b^T, or = where `adds` is false, with a in registers and b as MultiplyPanels'.
#define QUIRE_MULTIPLY_ROWS(name, instruction)                                                \
  __device__ inline void name(float(&sum)[8], const uint32_t(&a)[4], uint64_t b, bool adds) { \
    asm volatile(                                                                             \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"                                          \
        "wgmma.mma_async.sync.aligned." instruction " {" QUIRE_NAMES8                         \
        "}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}\n"                                        \
        : QUIRE_SUMS8(sum, 0)                                                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(adds)));   \
  }
QUIRE_MULTIPLY_ROWS(MultiplyRowsByPanels, "m64n16k16.f32.bf16.bf16")
QUIRE_MULTIPLY_ROWS(MultiplyRowsByPanelsF16, "m64n16k16.f32.f16.f16")
#undef QUIRE_MULTIPLY_ROWS
#undef QUIRE_SUMS128
#undef QUIRE_SUMS96
#undef QUIRE_SUMS64
#undef QUIRE_SUMS32
#undef QUIRE_SUMS16
#undef QUIRE_SUMS8
#undef QUIRE_SUMS4
#undef QUIRE_NAMES128
#undef QUIRE_NAMES96
#undef QUIRE_NAMES64
#undef QUIRE_NAMES32
#undef QUIRE_NAMES16
#undef QUIRE_NAMES8
#undef QUIRE_NAMES4

// ---- Registers and barriers of a CTA ----

// All warps of a warpgroup call it.
template <int kRegisters>
__device__ inline void GiveRegistersBack() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier `id` (1..15; 0 is __syncthreads) of kThreads threads.
template <int kThreads>
__device__ inline void SyncThreads(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
// Counts as one of its threads, and does not wait.
template <int kThreads>
__device__ inline void ArriveAtThreads(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
// As SyncThreads; whether any thread says so.
template <int kThreads>
__device__ inline bool SyncThreadsAny(int id, bool says) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\n"
      "selp.b32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(static_cast<int>(says)), "r"(id), "n"(kThreads)
      : "memory");
  return any != 0;
}
// Of the warpgroup at hand.
__device__ inline void SyncWarpgroup(int id) { SyncThreads<kWarpgroup>(id); }
__device__ inline bool SyncWarpgroupAny(int id, bool says) {
  return SyncThreadsAny<kWarpgroup>(id, says);
}

// What threads wrote to shared memory is seen by products and bulk copies from here on.
__device__ inline void FenceForProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- Barriers in shared memory ----

// Counts arrivals, and bytes that were announced; a phase ends when none is missing.
struct PhaseBarrier {
  uint64_t state;

  __device__ uint32_t Address() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&state));
  }
  __device__ void Init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(Address()), "r"(arrivals)
                 : "memory");
  }
  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(Address()) : "memory");
  }
  // Arrives `count` times.
  __device__ void Arrive(uint32_t count) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(Address()), "r"(count)
                 : "memory");
  }
  // Arrives, and announces bytes that copies or another CTA's stores will bring.
  __device__ void ArriveExpecting(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
  }
  // Announces more bytes, of a phase that still waits for an arrival.
  __device__ void Expect(uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(Address()),
                 "r"(bytes)
                 : "memory");
  }
  // Arrives when the thread's copies so far (CopyAsync16) have ended.
  __device__ void ArriveAfterCopies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(Address())
                 : "memory");
  }
  // Whether the phase of this parity (0, 1, 0, ...) has ended; does not wait.
  __device__ bool HasEnded(uint32_t parity) const {
    uint32_t ended;
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;\n}\n"
        : "=r"(ended)
        : "r"(Address()), "r"(parity)
        : "memory");
    return ended != 0;
  }
  // Arrives at the same barrier of CTA `rank` of the cluster, which has not ended: what this thread has read or
  // written, or was told of, is before whatever waits there (WaitInCluster).
  __device__ void ArriveAt(uint32_t rank) const {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}\n" ::"r"(Address()),
        "r"(rank)
        : "memory");
  }
  // The same without an order of memory, which would wait for all that is under way: enough where what was read has
  // come, such as operands of products that have ended.
  __device__ void ArriveLooselyAt(uint32_t rank) const {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there];\n}\n" ::"r"(Address()),
        "r"(rank)
        : "memory");
  }
  // As Wait, where other CTAs of the cluster arrive or store.
  __device__ void WaitInCluster(uint32_t parity) const {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(Address()),
        "r"(parity)
        : "memory");
  }
  // Until the phase of this parity (0, 1, 0, ...) has ended.
  __device__ void Wait(uint32_t parity) const {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(Address()),
        "r"(parity)
        : "memory");
  }
};

// ---- Clusters ----

__device__ inline uint32_t RankInCluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all CTAs arrive, and each waits later: then every CTA has begun, and has the barriers that it
// initialised (FenceBarrierInit) before. Nothing else that was written: a fence for that would take its time.
__device__ inline void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// All threads of all CTAs wait for each other: whatever one has sent to another's shared memory is there.
__device__ inline void SyncCluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// How far behind an address of this CTA's shared memory the same place in that of CTA `rank` is.
__device__ inline uint32_t WayTo(uint32_t rank, uint32_t address) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there - address;
}
// Stores at `there`, an address of another CTA's shared memory; `counts`, a barrier there, counts the bytes. Products see
// them after a fence (FenceForProducts) of those who waited.
__device__ inline void StoreThere16(uint32_t there, const uint32_t (&words)[4], uint32_t counts) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(counts)
      : "memory");
}

// Stores at `to`, an address of this CTA's shared memory, in that of CTA `rank`; `barrier`, likewise, counts the bytes
// there.
__device__ inline void StoreAt(uint32_t rank, uint32_t to, float v, uint32_t barrier) {
  asm volatile(
      "{\n.reg .b32 there, counts;\nmapa.shared::cluster.u32 there, %0, %3;\n"
      "mapa.shared::cluster.u32 counts, %1, %3;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %2, [counts];\n"
      "}\n" ::"r"(to),
      "r"(barrier), "f"(v), "r"(rank)
      : "memory");
}
__device__ inline void StoreAt(uint32_t rank, uint32_t to, float4 v, uint32_t barrier) {
  asm volatile(
      "{\n.reg .b32 there, counts;\nmapa.shared::cluster.u32 there, %0, %6;\n"
      "mapa.shared::cluster.u32 counts, %1, %6;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], "
      "{%2, %3, %4, %5}, [counts];\n}\n" ::"r"(to),
      "r"(barrier), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(rank)
      : "memory");
}

// What a kernel is told of a tensor takes its time to come, too.
__device__ inline void PrefetchTensorMap(const void* tensor_map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

// Begins to copy a box of a tensor (device/cuda/tensor_map.h) to a panel, first row `row`; `barrier`, of
// this CTA, counts its bytes.
__device__ inline void CopyBox(uint32_t to, const void* tensor_map, int32_t column, int32_t row,
                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(tensor_map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// The same of bytes that lie together: both addresses and `bytes` are multiples of 16.
__device__ inline void CopyBytes(uint32_t to, const std::byte* from, uint32_t bytes,
                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same of matrix `matrix` of several.
__device__ inline void CopyBox(uint32_t to, const void* tensor_map, int32_t column, int32_t row,
                               int32_t matrix, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(tensor_map), "r"(column), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}

// The same to the same place of every CTA of the cluster whose bit `ranks` has; `barrier`, likewise, counts the bytes in
// each. It may be told before it expects them, in the same phase.
__device__ inline void CopyBoxToCtas(uint32_t to, const void* tensor_map, int32_t column,
                                     int32_t row, int32_t matrix, uint32_t barrier,
                                     uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(tensor_map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "h"(ranks)
      : "memory");
}

// Copies of this CTA alone with a policy (ReadOncePolicy) for what is read.
__device__ inline void CopyBytes(uint32_t to, const std::byte* from, uint32_t bytes,
                                 uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
__device__ inline void CopyBox(uint32_t to, const void* tensor_map, int32_t column, int32_t row,
                               int32_t matrix, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(tensor_map), "r"(column), "r"(row), "r"(matrix), "r"(barrier), "l"(policy)
      : "memory");
}

// From shared memory; a thread waits for its own with WaitForStores, until they are read.
__device__ inline void StoreBytes(std::byte* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
// The same of a box of a tensor, whose panel lies at `from`. What of it is not in the tensor is not stored.
__device__ inline void StoreBox(const void* tensor_map, uint32_t from, int32_t column, int32_t row,
                                int32_t matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n"
      "cp.async.bulk.commit_group;" ::"l"(tensor_map),
      "r"(column), "r"(row), "r"(matrix), "r"(from)
      : "memory");
}
__device__ inline void WaitForStores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Barriers that were initialised are known to the copy engine, after the next __syncthreads.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PTX_WARPGROUP_CUH_
