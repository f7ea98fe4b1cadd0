// The KV stores of as many layers as it takes to leave the L2 cache behind, full of random rows; and the
// time of what runs over them.
#ifndef QUIRE_BENCH_CUDA_LAYERS_H_
#define QUIRE_BENCH_CUDA_LAYERS_H_

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "attn/kv_store.h"
#include "base/maths.h"
#include "bench/manual_time.h"
#include "bench/random_bf16.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/mla_attention/mla_attention_testing.h"
#include "kernels/cuda/store/store.h"

namespace quire::bench {

class CudaLayers {
 public:
  CudaLayers(const KvLayout& layout, PageCount num_pages)
      : layout_(layout),
        num_pages_(num_pages),
        layer_bytes_(KvStoreBytes(layout, num_pages)),
        num_layers_(
            std::clamp<int64_t>(CeilDiv(ByteOffset(kBytesToVisit), layer_bytes_), 1, kMaxLayers)),
        kv_("KV of all layers", layer_bytes_ * num_layers_) {
    Fill();
  }

  int64_t size() const { return num_layers_; }
  KvStore operator[](int64_t layer) const {
    return {kv_.bytes().subspan(static_cast<size_t>((layer_bytes_ * layer).raw()),
                                static_cast<size_t>(layer_bytes_.raw())),
            num_pages_, layout_};
  }

 private:
  // Visited in turn: many times the 50 MB of L2.
  static constexpr int64_t kBytesToVisit = int64_t{1} << 29;
  static constexpr int64_t kMaxLayers = 64;

  // The same random rows over and over, by the store's own writer: right for every format.
  void Fill() const {
    constexpr int64_t kRows = 65536;
    const cuda::Stream stream;
    cuda::DeviceArrays arrays;
    const KvDims dims = layout_.dims();
    const std::span<Bf16> rows = arrays.Put(RandomBf16(kRows * dims.values()));
    std::vector<Slot> slots;
    const PageSize page_size = layout_.page_size();
    const int64_t end = page_size.TokensIn(num_pages_).raw();
    for (int64_t slot = 0; slot < end; ++slot) slots.emplace_back(slot);
    const std::span<const Slot> all = arrays.Put(slots);
    for (int64_t layer = 0; layer < num_layers_; ++layer) {
      const KvStore store = (*this)[layer];
      for (int64_t first = page_size.raw(); first < end; first += kRows) {
        const int64_t n = std::min(kRows, end - first);
        StoreWriteArgs write{
            .store = store,
            .slots = all.subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
            .latent =
                ConstTensorView(rows.data(), {n, dims.latent_dim}).WithRowStride(dims.values())};
        if (dims.rope_dim > 0) {
          write.rope = ConstTensorView(rows.data() + dims.latent_dim, {n, dims.rope_dim})
                           .WithRowStride(dims.values());
        }
        cuda::StoreWrite(write, stream);
      }
    }
    stream.Synchronize();
  }

  KvLayout layout_;
  PageCount num_pages_;
  ByteOffset layer_bytes_;
  int64_t num_layers_;
  cuda::DeviceBuffer kv_;
};

// Of one call of `launch`, by events, after two to warm up.
template <class Launch>
double SecondsOf(const cuda::Stream& stream, int repeats, Launch launch) {
  cuda::Event begin(true), end(true);
  launch();
  launch();
  begin.Record(stream);
  for (int i = 0; i < repeats; ++i) launch();
  end.Record(stream);
  return end.SecondsSince(begin) / repeats;
}

// The mean seconds of run(layer), all layers being one graph.
template <class Run>
double SecondsOfLayers(benchmark::State& state, const cuda::Stream& stream, int64_t num_layers,
                       Run run) {
  const cuda::Graph graph = cuda::Graph::Capture(stream, [&] {
    for (int64_t layer = 0; layer < num_layers; ++layer) run(layer);
  });
  return MeanSeconds(state, [&] {
    return SecondsOf(stream, 1, [&] { graph.Launch(stream); }) / static_cast<double>(num_layers);
  });
}

}  // namespace quire::bench

#endif  // QUIRE_BENCH_CUDA_LAYERS_H_
