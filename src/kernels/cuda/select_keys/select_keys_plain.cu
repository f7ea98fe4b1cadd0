// Choosing keys for any shape and type, in f32: one fused multiply-add per value, ascending, in one
// thread. A CTA runs a piece at a time; keys come 64 at a time, 32 values of them at a time through shared
// memory.
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"
#include "kernels/cuda/select_keys/select_keys_search.cuh"
#include "kernels/cuda/store/paged_key.cuh"

namespace quire::cuda {
namespace select {
namespace {

constexpr int kPlainThreads = 256;
constexpr int kSlices =
    kPlainThreads / kTileKeys;   // of heads: a thread has one key and every fourth head
constexpr int kGroupHeads = 64;  // heads at once
constexpr int kOwnHeads = kGroupHeads / kSlices;
constexpr int kChunk = 32;  // values of a key that are staged at once

struct SharedPlain {
  SearchMemory search;
  float keys[kTileKeys][kChunk + 1];  // one more, so that a column's words lie in different banks
  float q[kGroupHeads][kChunk];
  float sums[kSlices][kTileKeys];
  int64_t slots[kTileKeys];  // -1: no key
};

class PlainTile {
 public:
  __device__ PlainTile(const SelectKernelArgs& args, const Piece& piece, SharedPlain& shared)
      : args_(args),
        piece_(piece),
        shared_(shared),
        pages_(args.plan.Row(piece.tile.seq)),
        thread_(static_cast<int>(threadIdx.x)),
        key_(thread_ % kTileKeys),
        slice_(thread_ / kTileKeys) {}

  // The scores of keys [first, end), 64 at most: that of key first + i in the threads whose key is i.
  __device__ float Score(int32_t first, int32_t end) {
    if (thread_ < kTileKeys) shared_.slots[thread_] = first + thread_ < end ? SlotAt(first) : -1;
    float sum = 0.0f;
    for (int32_t head = 0; head < args_.shape.num_heads; head += kGroupHeads) {
      sum = AddHeads(head, sum);
    }
    shared_.sums[slice_][key_] = sum;
    __syncthreads();
    float score = 0.0f;
    for (int slice = 0; slice < kSlices; ++slice) score += shared_.sums[slice][key_];
    __syncthreads();
    return score;
  }

 private:
  __device__ int64_t SlotAt(int32_t first) const {
    const int32_t position = PositionOf(args_.plan, piece_.tile, first + thread_);
    return SlotOfKey(args_.plan, args_.store, piece_.tile.seq, pages_, position,
                     Launch::kSelectKeys, args_.status);
  }

  // sum + those of this thread's heads of the group at `head`.
  __device__ float AddHeads(int32_t head, float sum) {
    float dots[kOwnHeads] = {};
    for (int32_t begin = 0; begin < args_.shape.head_dim; begin += kChunk) {
      Stage(head, begin);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float value = shared_.keys[key_][i];
#pragma unroll
        for (int j = 0; j < kOwnHeads; ++j) {
          dots[j] = __fmaf_rn(shared_.q[slice_ + kSlices * j][i], value, dots[j]);
        }
      }
      __syncthreads();  // the chunk is read
    }
    const float* gates = args_.gates + Token() * args_.gate_stride;
#pragma unroll
    for (int j = 0; j < kOwnHeads; ++j) {
      const int32_t h = head + slice_ + kSlices * j;
      if (h >= args_.shape.num_heads) break;
      const float kept = dots[j] < 0.0f ? 0.0f : dots[j];  // NaN stays
      sum = __fmaf_rn(__fmul_rn(args_.scale, gates[h]), kept, sum);
    }
    return sum;
  }

  // Values [begin, + 32) of the keys and of the group's queries; zeros where there are none.
  __device__ void Stage(int32_t head, int32_t begin) {
    const int32_t n = args_.shape.head_dim;
    __syncthreads();  // slots are written
    for (int e = thread_; e < kTileKeys * kChunk / 4; e += kPlainThreads) {
      const int key = e / (kChunk / 4), at = e % (kChunk / 4) * 4;
      const int64_t slot = shared_.slots[key];
      float4 v{};
      if (slot >= 0 && begin + at < n) v = RowReader(args_.store, slot).Latent(begin + at);
      float* to = shared_.keys[key] + at;
      to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    }
    for (int e = thread_; e < kGroupHeads * kChunk; e += kPlainThreads) {
      const int row = e / kChunk, i = begin + e % kChunk;
      shared_.q[row][e % kChunk] =
          head + row < args_.shape.num_heads && i < n ? args_.q.At(Token(), head + row, i) : 0.0f;
    }
    __syncthreads();
  }

  __device__ int64_t Token() const { return piece_.tile.q_begin.raw(); }

  const SelectKernelArgs& args_;
  const Piece& piece_;
  SharedPlain& shared_;
  const PageId* const pages_;
  const int thread_;
  const int key_, slice_;
};

__global__ void __launch_bounds__(kPlainThreads, 1)
    SelectPlain(const __grid_constant__ SelectKernelArgs args) {
  std::byte* const memory = LaunchedShared<16>();
  SharedPlain& shared = *reinterpret_cast<SharedPlain*>(memory);
  const auto worker = static_cast<int32_t>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  Search<kPlainThreads, 1> search(
      shared.search,
      CandidatesOf(args, worker, reinterpret_cast<uint64_t*>(memory + sizeof(SharedPlain))),
      CandidateRoom(args.shape.top_k), args.shape.top_k, thread);
  TakeTurn();
  ForEachQuery(args, worker, [&](const Piece& piece) {
    const int32_t visible = VisibleTo(args.plan, piece.tile);
    if (ReadsNone(piece)) {
      search.WriteAll(visible, args.chosen + piece.tile.q_begin.raw() * args.shape.top_k);
      return;
    }
    search.Begin();
    PlainTile tile(args, piece, shared);
    const KeyRange keys = KeyRange::Of(piece);
    for (int32_t first = keys.begin; first < keys.end; first += kTileKeys) {
      const float score = tile.Score(first, keys.end);
      if (thread < kTileKeys) {
        const int32_t position = first + thread;
        search.Offer(RankOfKey(args.shape, score, position, visible), position < keys.end);
      }
      search.MakeRoom();
    }
    EndPiece(args, piece, visible, search);
  });
}

}  // namespace
}  // namespace select

void LaunchSelectPlain(const SelectKeysArgs& args, const SelectScratch& scratch,
                       const Stream& stream, StatusWord status) {
  const size_t bytes = sizeof(select::SharedPlain) + select::SharedCandidateBytes(args);
  Check(cudaFuncSetAttribute(select::SelectPlain, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "SelectPlain: shared memory");
  LaunchAhead("SelectPlain", select::SelectPlain,
              {static_cast<unsigned>(args.plan.work.num_workers), select::kPlainThreads, bytes},
              stream, select::KernelArgsOf(args, scratch, status));
}

}  // namespace quire::cuda
