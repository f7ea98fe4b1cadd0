#include "bench/cuda_row_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/manual_time.h"
#include "decode/cuda/sampling.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/moe/route.h"
#include "kernels/cuda/row_ops/row_ops.h"
#include "testing/splitmix64.h"

namespace quire::bench {
namespace {

using namespace quire::cuda;  // NOLINT: all of it is about the device

constexpr int64_t kWidth = 7168;
constexpr int64_t kExpertWidth = 2048;
constexpr int32_t kNumExperts = 256, kExpertsPerToken = 8;
constexpr int64_t kVocab = 129280;
constexpr int64_t kRowBytesToVisit = int64_t{256} << 20;  // several times the 50 MB of L2
constexpr int64_t kMaxCopies = 64;
constexpr int64_t kPoolBytes = int64_t{2} << 30;

// One op on the inputs that begin `copy` copies further on.
struct RowJob {
  double bytes = 0;  // read and written by one launch
  int64_t copies = 1;
  std::function<void(int64_t copy, const Stream& stream)> launch;
};

class RowBench {
 public:
  RowBench() {
    Fill();
    copy_roof_ = MeasureCopy();
    fmt::print("roof: copy {:.2f} TB/s\n", copy_roof_ / 1e12);
  }

  RowJob AddNorm(int64_t rows) {
    return Make(static_cast<double>(rows * kWidth) * (4 + 4 + 2 + 2), rows * kWidth * 4,
                [this, rows](int64_t at, const Stream& stream) {
                  AddRmsNorm({.hidden = View<float>(in_, at, rows, kWidth),
                              .update = View<Bf16>(out_, at, rows, kWidth),
                              .weight = Floats(kWidth),
                              .normed = View<Bf16>(out_, at + kPoolBytes / 4, rows, kWidth)},
                             stream);
                });
  }
  RowJob Silu(int64_t rows) {
    return Make(
        static_cast<double>(rows * kExpertsPerToken * kExpertWidth) * 6,
        rows * kExpertsPerToken * kExpertWidth * 4, [this, rows](int64_t at, const Stream& stream) {
          SiluMul({.gate_up = View<Bf16>(in_, at, rows * kExpertsPerToken, 2 * kExpertWidth),
                   .y = View<Bf16>(out_, at, rows * kExpertsPerToken, kExpertWidth)},
                  stream);
        });
  }
  RowJob RouteAndSort(int64_t rows) {
    const auto choices = static_cast<size_t>(rows * kExpertsPerToken);
    return Make(
        static_cast<double>(rows) * (4.0 * kNumExperts + 12.0 * kExpertsPerToken),
        rows * kNumExperts * 4, [this, rows, choices](int64_t at, const Stream& stream) {
          const RouteShape shape = {.num_experts = kNumExperts,
                                    .top_k = kExpertsPerToken,
                                    .num_groups = 8,
                                    .top_groups = 4,
                                    .score = ScoreFunction::kSigmoid,
                                    .selection = ExpertSelection::kGroupTopTwo,
                                    .normalize = true};
          Route({.shape = shape,
                 .logits = View<float>(in_, at, rows, kNumExperts),
                 .experts = Ints(0, choices),
                 .weights = {reinterpret_cast<float*>(Ints(choices, choices).data()), choices}},
                {}, stream);
          SortByExpert({.num_experts = kNumExperts,
                        .top_k = kExpertsPerToken,
                        .experts = Ints(0, choices),
                        .offsets = Ints(2 * choices, kNumExperts + 1),
                        .row_of = RowOf(choices),
                        .token_of = Ints(3 * choices + 4096, choices),
                        .workspace = Ints(4 * choices + 4096, 1 << 20)},
                       stream);
        });
  }
  // Behind RouteAndSort, which leaves the rows.
  RowJob CombineRows(int64_t rows) {
    const auto choices = static_cast<size_t>(rows * kExpertsPerToken);
    RouteAndSort(rows).launch(0, stream_);
    return Make(
        static_cast<double>(rows * kWidth) * (2 * kExpertsPerToken + 4),
        rows * kExpertsPerToken * kWidth * 2,
        [this, rows, choices](int64_t at, const Stream& stream) {
          Combine(
              {.rows = View<Bf16>(in_, at, rows * kExpertsPerToken, kWidth),
               .row_of = RowOf(choices),
               .weights = {reinterpret_cast<const float*>(Ints(choices, choices).data()), choices},
               .y = View<float>(out_, at / kExpertsPerToken, rows, kWidth)},
              stream);
        });
  }

  RowJob SampleRows(const SamplingParams& params, int32_t rows) {
    const SampleCapacity capacity = {.vocab_size = kVocab, .rows = rows, .items = rows};
    Carver host(pinned_.bytes());
    SamplePacker packer(capacity, LayOutSampleInputs(capacity, host));
    packer.Begin(rows);
    for (int32_t row = 0; row < rows; ++row) {
      packer.Add({.row = row, .params = params, .position = TokenCount(row)});
    }
    CopyAndWait(small_.data(), pinned_.data(), pinned_.bytes().size(), "inputs");
    const SampleWork work = packer.needs_search() ? SampleWork::kAll : SampleWork::kScan;
    return Make(static_cast<double>(rows) * 4 * kVocab, rows * kVocab * 4,
                [this, capacity, work](int64_t at, const Stream& stream) {
                  Carver carver = DeviceCarver(small_);
                  const SampleInputs inputs = LayOutSampleInputs(capacity, carver);
                  const SampleScratch scratch = LayOutSampleScratch(capacity, carver);
                  Sample({.capacity = capacity,
                          .logits = View<float>(in_, at, capacity.rows, kVocab),
                          .inputs = inputs,
                          .scratch = scratch,
                          .results = LayOutSampleResults(capacity, carver),
                          .work = work},
                         stream);
                });
  }

  void Run(const RowJob& job, benchmark::State& state) {
    const Graph graph = Graph::Capture(stream_, [&] {
      for (int64_t copy = 0; copy < job.copies; ++copy) job.launch(copy, stream_);
    });
    Seconds(graph, 2);
    const double seconds =
        MeanSeconds(state, [&] { return Seconds(graph, 1) / static_cast<double>(job.copies); });
    const auto rate = [&](double amount) { return amount / seconds; };
    state.counters["TB/s"] = rate(job.bytes / 1e12);
    state.counters["%copy"] = rate(100 * job.bytes / copy_roof_);
  }

 private:
  // `step`: bytes of the largest array, by which the copies lie apart.
  RowJob Make(double bytes, int64_t step,
              std::function<void(int64_t at, const Stream& stream)> launch) {
    step = (step + 255) / 256 * 256;
    // All arrays of a copy stay in their half of a pool.
    const int64_t most = std::max<int64_t>(1, kPoolBytes / 4 / step);
    RowJob job;
    job.bytes = bytes;
    job.copies = std::min(std::clamp<int64_t>(kRowBytesToVisit / step, 1, kMaxCopies), most);
    job.launch = [step, launch](int64_t copy, const Stream& stream) {
      launch(copy * step, stream);
    };
    return job;
  }

  template <class T>
  static TensorView View(const DeviceBuffer& pool, int64_t at, int64_t rows, int64_t width) {
    return {reinterpret_cast<T*>(pool.data() + at / 256 * 256), {rows, width}};
  }
  std::span<const float> Floats(int64_t count) const {
    return {reinterpret_cast<const float*>(in_.data()), static_cast<size_t>(count)};
  }
  std::span<int32_t> Ints(size_t first, size_t count) const {
    return {reinterpret_cast<int32_t*>(ints_.data()) + first, count};
  }
  std::span<int32_t> RowOf(size_t choices) const { return Ints(2 * choices + 4096, choices); }

  // Floats around 0 with a spread of 3, as logits have; read as bf16 they are numbers too.
  void Fill() {
    std::vector<float> block(size_t{1} << 22);
    for (size_t i = 0; i < block.size(); ++i) {
      const uint64_t bits = testing::SplitMix64(i);
      const double sum = static_cast<double>(bits & 0xffff) + static_cast<double>(bits >> 48) +
                         static_cast<double>((bits >> 16) & 0xffff) - 1.5 * 65536;
      block[i] = static_cast<float>(sum / 65536 * 6);
    }
    const size_t bytes = 4 * block.size();
    for (const DeviceBuffer* pool : {&in_, &out_}) {
      for (int64_t at = 0; at < kPoolBytes; at += static_cast<int64_t>(bytes)) {
        CopyAndWait(pool->data() + at, block.data(), bytes, "fill");
      }
    }
  }

  double Seconds(const Graph& graph, int repeats) {
    begin_.Record(stream_);
    for (int i = 0; i < repeats; ++i) graph.Launch(stream_);
    end_.Record(stream_);
    return end_.SecondsSince(begin_) / repeats;
  }
  double MeasureCopy() {
    const Graph graph = Graph::Capture(stream_, [&] {
      Check(cudaMemcpyAsync(out_.data(), in_.data(), kPoolBytes, cudaMemcpyDeviceToDevice,
                            stream_.get()),
            "copy roof");
    });
    Seconds(graph, 2);
    return 2.0 * static_cast<double>(kPoolBytes) / Seconds(graph, 10);
  }

  DeviceBuffer in_{"in", ByteOffset(kPoolBytes)};
  DeviceBuffer out_{"out", ByteOffset(kPoolBytes)};
  DeviceBuffer ints_{"ints", ByteOffset(int64_t{16} << 20)};
  DeviceBuffer small_{"sampling", ByteOffset(int64_t{64} << 20)};
  PinnedBuffer pinned_{"sampling", ByteOffset(int64_t{1} << 20)};
  Stream stream_;
  Event begin_{true}, end_{true};
  double copy_roof_ = 0;
};

// The device's memory is taken when the first op is to be measured.
using LazyRowBench = std::shared_ptr<std::unique_ptr<RowBench>>;
using MakeRowJob = std::function<RowJob(RowBench& bench)>;

void Register(const std::string& name, const LazyRowBench& lazy, const MakeRowJob& make) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [lazy, make](benchmark::State& state) {
                                 if (*lazy == nullptr) *lazy = std::make_unique<RowBench>();
                                 (*lazy)->Run(make(**lazy), state);
                               })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(50);
}

}  // namespace

void RegisterCudaRows(Effort effort) {
  const auto lazy = std::make_shared<std::unique_ptr<RowBench>>();
  struct Op {
    const char* name;
    RowJob (RowBench::*make)(int64_t rows);
  };
  constexpr Op kOps[] = {{"add_rms_norm", &RowBench::AddNorm},
                         {"silu_mul", &RowBench::Silu},
                         {"route_and_sort", &RowBench::RouteAndSort},
                         {"combine", &RowBench::CombineRows}};
  for (const Op& op : kOps) {
    for (int64_t rows : {1, 64, 256, 2048}) {
      if (effort == Effort::kQuick && rows != 64) continue;
      Register(fmt::format("rows/{}/r{}", op.name, rows), lazy,
               [op, rows](RowBench& bench) { return (bench.*op.make)(rows); });
    }
  }
  struct Kind {
    const char* name;
    SamplingParams params;
  };
  const Kind kinds[] = {
      {"greedy", {.temperature = 0}}, {"plain", {}},
      {"top_p", {.top_p = 0.95f}},    {"top_k_top_p", {.top_k = 50, .top_p = 0.95f}},
      {"min_p", {.min_p = 0.02f}},    {"greedy_top20", {.temperature = 0, .top_logprobs = 20}}};
  for (const Kind& kind : kinds) {
    // A search for 15 has a cluster of eight CTAs each, for 16 of four, for 64 of two, for 256 one CTA.
    for (int32_t rows : {1, 8, 15, 16, 64, 256}) {
      if (effort == Effort::kQuick && rows != 64) continue;
      Register(fmt::format("sample/{}/r{}", kind.name, rows), lazy,
               [kind, rows](RowBench& bench) { return bench.SampleRows(kind.params, rows); });
    }
  }
}

}  // namespace quire::bench
