// Multi-head prefill: gathering a chunk's rows, and attention over what was expanded from them. A CTA
// of four warps has 64 queries of one head, a warp 16 of them with all keys of a tile; weights go
// from accumulators to the next product's operands without leaving registers.
#include "kernels/cuda/mha_prefill/mha_prefill_launch.h"
#include "kernels/cuda/mha_prefill/mha_prefill_tile.cuh"

namespace quire::cuda {
namespace mha {

// ---- Gather ----

// A warp per key. A row with a value that is not finite becomes zeros, and is remembered.
__global__ void MhaGather(Sequences seqs, StoreView store, MhaChunk chunk, StatusWord status) {
  const int32_t key = static_cast<int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (key >= chunk.num_keys) return;
  const int32_t position = chunk.begin + key;
  const int32_t index = position / store.page_size;
  const int32_t page = index < seqs.row_width.raw() ? seqs.Row(chunk.seq)[index].raw() : -1;
  int64_t slot = int64_t{page} * store.page_size + position % store.page_size;
  if (!store.Holds(slot)) {
    if (lane == 0) {
      Report(status, DeviceFault::kPage, Launch::kMhaPrefill, static_cast<uint32_t>(chunk.seq));
    }
    slot = position % store.page_size;
  }
  const RowReader reader(store, slot);
  const int32_t latent_dim = store.dims.latent_dim, rope_dim = store.dims.rope_dim;
  bool finite = true;
  auto check = [&](float4 v) {
    finite = finite && isfinite(v.x) && isfinite(v.y) && isfinite(v.z) && isfinite(v.w);
  };
  for (int32_t i = 4 * lane; i < latent_dim; i += 4 * kWarp) check(reader.Latent(i));
  for (int32_t i = 4 * lane; i < rope_dim; i += 4 * kWarp) check(reader.Rope(i));
  finite = __all_sync(kAllLanes, finite);
  const float4 zeros{0.0f, 0.0f, 0.0f, 0.0f};
  for (int32_t i = 4 * lane; i < latent_dim; i += 4 * kWarp) {
    StoreQuad(finite ? reader.Latent(i) : zeros, chunk.latent + int64_t{key} * latent_dim, i,
              latent_dim);
  }
  for (int32_t i = 4 * lane; i < rope_dim; i += 4 * kWarp) {
    StoreQuad(finite ? reader.Rope(i) : zeros, chunk.rope + int64_t{key} * rope_dim, i, rope_dim);
  }
  if (lane == 0) chunk.poison[key] = finite ? 0 : 1;
}

// ---- Attend ----

struct AttendArgs {
  MhaChunk chunk;
  HeadsView q, out, lse;
  float scale;
  int32_t num_heads, nope_dim, rope_dim, value_dim;
  bool vectors;  // rows of q, rope and expanded are whole, aligned chunks of 16 bytes
};

template <int kKeyDim, int kValueDim>
class Block {
 public:
  __device__ Block(const AttendArgs& args, Shared<kKeyDim, kValueDim>& shared)
      : args_(args),
        shared_(shared),
        head_(static_cast<int32_t>(blockIdx.y)),
        first_query_(static_cast<int32_t>(blockIdx.x) * kQueries),
        num_queries_(min(kQueries, args.chunk.q_len - first_query_)),
        warp_(threadIdx.x / kWarp),
        lane_(threadIdx.x % kWarp) {}

  __device__ void Run() {
    const MhaChunk& chunk = args_.chunk;
    const int32_t most = VisibleTo(num_queries_ - 1);
    if (chunk.begin > 0 && most <= chunk.begin) return;  // finished by an earlier chunk
    const int32_t num_keys = min(chunk.num_keys, most - chunk.begin);
    const int32_t num_tiles = num_keys > 0 ? (num_keys + kTileKeys - 1) / kTileKeys : 0;
    LoadQueries();
    LoadState();
    if (num_tiles > 0) LoadTile(0);
    CommitCopies();
    for (int32_t tile = 0; tile < num_tiles; ++tile) {
      if (tile + 1 < num_tiles) LoadTile(tile + 1);
      CommitCopies();
      WaitForCopies<1>();
      __syncthreads();  // queries and this tile are whole
      Attend(tile);
      __syncthreads();  // nobody reads this tile any more
    }
    Finish(most <= chunk.begin + chunk.num_keys);
  }

 private:
  static constexpr int kSteps = kKeyDim / 16;
  static constexpr int kColumnGroups = kValueDim / 8;

  __device__ int32_t VisibleTo(int32_t query) const {
    const int32_t seen = args_.chunk.kv_len - args_.chunk.q_len + first_query_ + query + 1;
    return max(0, seen);
  }
  __device__ int32_t Row(int half) const {
    return static_cast<int32_t>(warp_ * 16 + lane_ / 4) + 8 * half;
  }

  __device__ void LoadQueries() {
    const uint32_t tile = SharedAddress(shared_.q);
    constexpr int kChunks = kKeyDim / 8;
    const int32_t dim = args_.nope_dim + args_.rope_dim;
    for (int e = static_cast<int>(threadIdx.x); e < kQueries * kChunks; e += kThreads) {
      const int32_t row = e / kChunks, i = e % kChunks * 8;
      uint32_t words[4] = {0, 0, 0, 0};
      for (int32_t j = 0; j < 8 && row < num_queries_ && i + j < dim; ++j) {
        words[j / 2] |= static_cast<uint32_t>(QueryAt(row, i + j).bits) << (j % 2 * 16);
      }
      StoreShared16(
          AddressOf<kKeyDim>(tile, static_cast<uint32_t>(row), static_cast<uint32_t>(e % kChunks)),
          words);
    }
  }
  __device__ Bf16 QueryAt(int32_t row, int32_t i) const {
    const int64_t token = args_.chunk.q_begin + first_query_ + row;
    return args_.q.is_bf16 ? args_.q.Row<Bf16>(token, head_)[i]
                           : ToBf16(args_.q.Row<float>(token, head_)[i]);
  }

  __device__ void LoadTile(int32_t tile) {
    const MhaChunk& chunk = args_.chunk;
    const int64_t first = int64_t{tile} * kTileKeys;
    const int32_t num_rows = min(kTileKeys, chunk.num_keys - static_cast<int32_t>(first));
    const int64_t head_dim = args_.nope_dim + args_.value_dim;
    const int64_t stride = args_.num_heads * head_dim;
    const Bf16* expanded = chunk.expanded + first * stride + head_ * head_dim;
    CopyRows<kKeyDim>(SharedAddress(shared_.keys[tile % 2]), expanded, stride, args_.nope_dim,
                      chunk.rope + first * args_.rope_dim, args_.rope_dim, args_.rope_dim, num_rows,
                      args_.vectors);
    CopyRows<kValueDim>(SharedAddress(shared_.values[tile % 2]), expanded + args_.nope_dim, stride,
                        args_.value_dim, nullptr, 0, 0, num_rows, args_.vectors);
    if (threadIdx.x < kTileKeys) {
      const int32_t key = static_cast<int32_t>(threadIdx.x);
      shared_.poison[tile % 2][key] = key < num_rows ? chunk.poison[first + key] : 0;
    }
  }

  __device__ void Attend(int32_t tile) {
    float s[kTileKeys / 8][4] = {};
    Score(SharedAddress(shared_.keys[tile % 2]), s);
    Softmax(tile, s);
    AddValues(SharedAddress(shared_.values[tile % 2]), s);
  }

  __device__ void Score(uint32_t keys, float (&s)[kTileKeys / 8][4]) {
    const uint32_t q = SharedAddress(shared_.q);
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      uint32_t a[4];
      LoadMatrices(AddressOf<kKeyDim>(q, warp_ * 16 + lane_ % 16, 2 * step + lane_ / 16), a[0],
                   a[1], a[2], a[3]);
#pragma unroll
      for (uint32_t n = 0; n < kTileKeys / 16; ++n) {
        uint32_t b[4];
        LoadMatrices(
            AddressOf<kKeyDim>(keys, n * 16 + lane_ % 8 + lane_ / 16 * 8, 2 * step + lane_ / 8 % 2),
            b[0], b[1], b[2], b[3]);
        MultiplyBf16(s[2 * n], a, b[0], b[1]);
        MultiplyBf16(s[2 * n + 1], a, b[2], b[3]);
      }
    }
  }

  // A row's weights are in the four lanes of a quad.
  __device__ void Softmax(int32_t tile, float (&s)[kTileKeys / 8][4]) {
    const int32_t first_key = args_.chunk.begin + tile * kTileKeys;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = Row(half);
      const int32_t count = row < num_queries_ ? VisibleTo(row) - first_key : 0;
      float top = m_[half];
#pragma unroll
      for (int i = 0; i < kTileKeys / 4; ++i) {
        const int32_t key = i / 2 * 8 + static_cast<int32_t>(lane_ % 4) * 2 + i % 2;
        float& score = s[i / 2][2 * half + i % 2];
        score = score * (args_.scale * 0x1.715476p0f);
        if (shared_.poison[tile % 2][key] != 0) score = NAN;
        if (key >= count) score = -INFINITY;
        top = fmaxf(top, score);
      }
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float anchor = Anchor(top);
      const float alpha = Base2Exponent::Exp(m_[half] - anchor);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kTileKeys / 4; ++i) {
        float& score = s[i / 2][2 * half + i % 2];
        score = Base2Exponent::Exp(score - anchor);
        sum += score;
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      l_[half] = __fmaf_rn(alpha, l_[half], sum);
      m_[half] = top;
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
        o_[n][2 * half] *= alpha;
        o_[n][2 * half + 1] *= alpha;
      }
    }
  }

  // The accumulators of 16 keys are laid out as the left operand of a product over them.
  __device__ void AddValues(uint32_t values, const float (&s)[kTileKeys / 8][4]) {
#pragma unroll
    for (uint32_t step = 0; step < kTileKeys / 16; ++step) {
      const uint32_t a[4] = {PackBf16(s[2 * step][0], s[2 * step][1]),
                             PackBf16(s[2 * step][2], s[2 * step][3]),
                             PackBf16(s[2 * step + 1][0], s[2 * step + 1][1]),
                             PackBf16(s[2 * step + 1][2], s[2 * step + 1][3])};
#pragma unroll
      for (uint32_t c = 0; c < kColumnGroups / 2; ++c) {
        uint32_t b[4];
        LoadMatricesTransposed(
            AddressOf<kValueDim>(values, step * 16 + lane_ % 16, 2 * c + lane_ / 16), b[0], b[1],
            b[2], b[3]);
        MultiplyBf16(o_[2 * c], a, b[0], b[1]);
        MultiplyBf16(o_[2 * c + 1], a, b[2], b[3]);
      }
    }
  }

  // ---- States ----

  __device__ float* SumsOf(int32_t row) const {
    const int64_t at = (int64_t{first_query_} + row) * args_.num_heads + head_;
    return args_.chunk.sums + at * (args_.value_dim + 2);
  }
  __device__ int32_t Column(int n) const { return n * 8 + static_cast<int32_t>(lane_ % 4) * 2; }

  __device__ void LoadState() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool has = args_.chunk.begin > 0 && Row(half) < num_queries_;
      const float* sums = SumsOf(has ? Row(half) : 0);
      m_[half] = has ? sums[args_.value_dim] : -INFINITY;
      l_[half] = has ? sums[args_.value_dim + 1] : 0.0f;
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool is_value = has && Column(n) + i < args_.value_dim;
          o_[n][2 * half + i] = is_value ? sums[Column(n) + i] : 0.0f;
        }
      }
    }
  }

  // Writes results, or what the next chunk goes on with.
  __device__ void Finish(bool is_last) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = Row(half);
      if (row >= num_queries_) continue;
      const int64_t token = args_.chunk.q_begin + first_query_ + row;
      float* sums = SumsOf(row);
      const float l = l_[half];
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t column = Column(n) + i;
          if (column >= args_.value_dim) continue;
          const float sum = o_[n][2 * half + i];
          const float value = l == 0.0f ? 0.0f : __fdiv_rn(sum, l);
          if (!is_last) {
            sums[column] = sum;
          } else if (args_.out.is_bf16) {
            args_.out.Row<Bf16>(token, head_)[column] = ToBf16(value);
          } else {
            args_.out.Row<float>(token, head_)[column] = value;
          }
        }
      }
      if (lane_ % 4 != 0) continue;
      if (!is_last) {
        sums[args_.value_dim] = m_[half];
        sums[args_.value_dim + 1] = l;
      } else if (args_.lse.data != nullptr) {
        *args_.lse.Row<float>(token, head_) =
            l == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(m_[half], l);
      }
    }
  }

  const AttendArgs& args_;
  Shared<kKeyDim, kValueDim>& shared_;
  const int32_t head_;
  const int32_t first_query_;
  const int32_t num_queries_;
  const uint32_t warp_, lane_;
  float o_[kColumnGroups][4];  // rows lane / 4 and lane / 4 + 8 of the warp's 16
  float m_[2], l_[2];
};

template <int kKeyDim, int kValueDim>
__global__ void __launch_bounds__(kThreads) MhaAttend(const __grid_constant__ AttendArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  Block<kKeyDim, kValueDim>(args, *reinterpret_cast<Shared<kKeyDim, kValueDim>*>(memory)).Run();
}

template <int kKeyDim, int kValueDim>
void LaunchAttend(const AttendArgs& args, const Stream& stream) {
  constexpr int kBytes = sizeof(Shared<kKeyDim, kValueDim>);
  Check(cudaFuncSetAttribute(MhaAttend<kKeyDim, kValueDim>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "MhaAttend: shared memory");
  const dim3 grid(static_cast<unsigned>(CeilDiv(args.chunk.q_len, kQueries)),
                  static_cast<unsigned>(args.num_heads));
  MhaAttend<kKeyDim, kValueDim><<<grid, kThreads, kBytes, stream.get()>>>(args);
  CheckLaunch("MhaAttend");
}

}  // namespace mha

void LaunchMhaGather(const MhaPrefillArgs& args, const MhaChunk& chunk, const Stream& stream,
                     StatusWord status) {
  constexpr int kWarpsPerCta = 8;
  mha::MhaGather<<<static_cast<unsigned>(CeilDiv(chunk.num_keys, kWarpsPerCta)),
                   kWarpsPerCta * kWarp, 0, stream.get()>>>(args.plan, ReadViewOf(args.store),
                                                            chunk, status);
  CheckLaunch("MhaGather");
}

void LaunchMhaAttend(const MhaPrefillArgs& args, const MhaChunk& chunk, const Stream& stream) {
  const MhaShape& shape = args.shape;
  // The workspace's parts begin on multiples of 256 bytes, so only the dims decide.
  const mha::AttendArgs attend{.chunk = chunk,
                               .q = HeadsOf(args.q),
                               .out = HeadsOf(args.out),
                               .lse = HeadsOf(args.lse),
                               .scale = args.scale,
                               .num_heads = shape.num_heads,
                               .nope_dim = shape.nope_dim,
                               .rope_dim = shape.dims.rope_dim,
                               .value_dim = shape.value_dim,
                               .vectors = shape.nope_dim % 8 == 0 && shape.dims.rope_dim % 8 == 0 &&
                                          shape.value_dim % 8 == 0};
  const int32_t key_dim = shape.nope_dim + shape.dims.rope_dim;
  if (key_dim <= 128 && shape.value_dim <= 64) {
    mha::LaunchAttend<128, 64>(attend, stream);
  } else if (key_dim <= 192 && shape.value_dim <= 128) {
    mha::LaunchAttend<192, 128>(attend, stream);
  } else {
    mha::LaunchAttend<256, 256>(attend, stream);
  }
}

}  // namespace quire::cuda
