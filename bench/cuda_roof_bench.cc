#include "bench/cuda_roof_bench.h"

#include <cstring>

#include "device/buffer.h"
#include "device/cuda/cuda.h"
#include "device/cuda/upload.h"

namespace quire::bench {
namespace {

using cuda::Check;
using cuda::DeviceBuffer;
using cuda::Event;
using cuda::Graph;
using cuda::PinnedBuffer;
using cuda::Stream;

// Seconds on the device from the begin to the end of what `work` gives `stream`.
double SecondsOf(const Stream& stream, FunctionRef<void()> work) {
  Event begin(true), end(true);
  begin.Record(stream);
  work();
  end.Record(stream);
  return end.SecondsSince(begin);
}

// Bytes per second, from the time that the iterations reported.
void ReportRate(benchmark::State& state, ByteOffset bytes_per_iteration) {
  state.SetBytesProcessed(state.iterations() * bytes_per_iteration.raw());
}

void MeasureCopy(benchmark::State& state, ByteOffset bytes) {
  const Stream stream;
  const DeviceBuffer from("from", bytes), to("to", bytes);
  Check(cudaMemsetAsync(from.data(), 1, from.bytes().size(), stream.get()), "memset");
  for (auto _ : state) {
    state.SetIterationTime(SecondsOf(stream, [&] {
      Check(cudaMemcpyAsync(to.data(), from.data(), from.bytes().size(), cudaMemcpyDeviceToDevice,
                            stream.get()),
            "memcpy");
    }));
  }
  ReportRate(state, bytes * 2);
}

void MeasurePinned(benchmark::State& state, ByteOffset bytes) {
  const Stream stream;
  const PinnedBuffer from("from", bytes);
  const DeviceBuffer to("to", bytes);
  std::memset(from.data(), 1, from.bytes().size());
  for (auto _ : state) {
    state.SetIterationTime(SecondsOf(stream, [&] {
      Check(cudaMemcpyAsync(to.data(), from.data(), from.bytes().size(), cudaMemcpyHostToDevice,
                            stream.get()),
            "memcpy");
    }));
  }
  ReportRate(state, bytes);
}

void MeasureUpload(benchmark::State& state, ByteOffset bytes, Executor& executor) {
  const Buffer from("from", bytes);
  const DeviceBuffer to("to", bytes);
  std::memset(from.data(), 1, from.bytes().size());  // touched: not taken while it is timed
  cuda::Uploader uploader(executor);
  for (auto _ : state) {
    state.SetIterationTime(
        SecondsOf(uploader.stream(), [&] { uploader.Upload(from.bytes(), to.bytes()); }));
  }
  ReportRate(state, bytes);
}

void MeasureEmptyGraph(benchmark::State& state) {
  const Stream stream;
  const DeviceBuffer from("from", ByteOffset(4)), to("to", ByteOffset(4));
  const Graph graph = Graph::Capture(stream, [&] {
    Check(cudaMemcpyAsync(to.data(), from.data(), 4, cudaMemcpyDeviceToDevice, stream.get()),
          "memcpy");
  });
  graph.Launch(stream);  // the first carries the graph to the device
  stream.Synchronize();
  for (auto _ : state) {
    graph.Launch(stream);
    stream.Synchronize();
  }
}

}  // namespace

void RegisterCudaRoofs(Effort effort, Executor& executor) {
  // Many times the 60 MB of cache that an H200 has.
  const ByteOffset large{int64_t{effort == Effort::kQuick ? 1 : 4} << 30};
  const ByteOffset hosts{int64_t{effort == Effort::kQuick ? 256 : 1024} << 20};
  const int repeats = effort == Effort::kQuick ? 3 : 10;
  const auto add = [&](const char* name, auto measure) {
    benchmark::RegisterBenchmark(name, measure)
        ->UseManualTime()
        ->Iterations(10)
        ->Repetitions(repeats)
        ->ReportAggregatesOnly(true);
  };
  add("roof/copy", [=](benchmark::State& state) { MeasureCopy(state, large); });
  add("roof/pinned", [=](benchmark::State& state) { MeasurePinned(state, hosts); });
  add("roof/upload",
      [=, &executor](benchmark::State& state) { MeasureUpload(state, hosts, executor); });
  benchmark::RegisterBenchmark("roof/empty_graph", MeasureEmptyGraph)->UseRealTime();
}

}  // namespace quire::bench
