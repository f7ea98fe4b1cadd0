#include "kernels/cuda/roof.h"

#include <algorithm>

#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_planner.h"

namespace quire::cuda {
namespace {

// 40 times the L2 cache: what is read comes from memory.
constexpr int64_t kReadBytes = int64_t{2} << 30;
// Large enough that all multiprocessors are busy almost all the time.
constexpr int64_t kSide = 8192;
constexpr int kRuns = 8;  // between two events

// The least seconds of one run of `work`, which gives the stream one.
template <class Work>
double BestSeconds(int repeats, const Stream& stream, Work work) {
  Event begin(true), end(true);
  double best = 0;
  for (int i = 0; i <= repeats; ++i) {  // the first is not counted: kernels are loaded in it
    begin.Record(stream);
    for (int run = 0; run < kRuns; ++run) work();
    end.Record(stream);
    const double seconds = end.SecondsSince(begin) / kRuns;
    if (i > 0) best = i == 1 ? seconds : std::min(best, seconds);
  }
  return best;
}

double MeasureArithmeticRoof(int repeats) {
  const Stream stream;
  const DeviceBuffer memory("the roof of arithmetic",
                            ByteOffset(3 * kSide * kSide * 2) + GemmPlanner::kWorkspaceBytes);
  Carver carver = DeviceCarver(memory);
  // The workspace first: it wants to begin where the buffer does.
  GemmPlanner gemms(GemmBackend::kCublasLt, carver.TakeBytes(GemmPlanner::kWorkspaceBytes));
  const std::span<Bf16> x = carver.Take<Bf16>(kSide * kSide);
  const std::span<Bf16> w = carver.Take<Bf16>(kSide * kSide);
  const std::span<Bf16> y = carver.Take<Bf16>(kSide * kSide);
  FillRandom(x, stream);
  FillRandom(w, stream);
  const GemmArgs args{.x = ConstTensorView(x.data(), {kSide, kSide}),
                      .w = DenseWeights(w.data(), {kSide, kSide}),
                      .y = {y.data(), {kSide, kSide}}};
  gemms.Plan(ShapeOf(args));
  const double seconds = BestSeconds(repeats, stream, [&] { gemms.Gemm(args, stream); });
  return GemmFlops(args) / seconds;
}

}  // namespace

double MeasureReadRoof(int repeats) {
  const Stream stream;
  const DeviceBuffer memory("the roof of memory",
                            ByteOffset(kReadBytes) + ByteOffset(Carver::kAlignment));
  Carver carver = DeviceCarver(memory);
  const std::span<Bf16> values = carver.Take<Bf16>(kReadBytes / 2);
  uint32_t* const sum = carver.Take<uint32_t>(1).data();
  FillRandom(values, stream);
  Check(cudaMemsetAsync(sum, 0, sizeof *sum, stream.get()), "a sum of 0");
  const std::span words(reinterpret_cast<const uint32_t*>(values.data()), values.size() / 2);
  const double seconds = BestSeconds(repeats, stream, [&] { XorAll(words, sum, stream); });
  return static_cast<double>(kReadBytes) / seconds;
}

Roofs MeasureRoofs(int repeats) {
  return {.read_bytes_per_s = MeasureReadRoof(repeats),
          .flops_per_s = MeasureArithmeticRoof(repeats)};
}

}  // namespace quire::cuda
