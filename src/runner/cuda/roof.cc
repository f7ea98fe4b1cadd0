#include "runner/cuda/roof.h"

#include <algorithm>

#include "base/narrow_float.h"
#include "base/units.h"
#include "device/arena.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_planner.h"

namespace quire::cuda {
namespace {

// 20 times the L2 cache: what is read comes from memory.
constexpr ByteOffset kCopied{int64_t{1} << 30};
// Large enough that all multiprocessors are busy almost all the time.
constexpr int64_t kSide = 8192;
constexpr int kRuns = 8;  // between two events

// The least seconds of one run of `work`, which gives the stream kRuns of it.
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

double ReadRoof(int repeats, const Stream& stream) {
  const DeviceBuffer memory("the roof of memory", kCopied * 2);
  const auto bytes = static_cast<size_t>(kCopied.raw());
  const double seconds = BestSeconds(repeats, stream, [&] {
    Check(cudaMemcpyAsync(memory.data(), memory.data() + bytes, bytes, cudaMemcpyDeviceToDevice,
                          stream.get()),
          "a copy within the device");
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

double ArithmeticRoof(int repeats, const Stream& stream) {
  const DeviceBuffer memory("the roof of arithmetic",
                            ByteOffset(3 * kSide * kSide * 2) + GemmPlanner::kWorkspaceBytes);
  Check(cudaMemsetAsync(memory.data(), 0, memory.bytes().size(), stream.get()), "zeros");
  Carver carver = DeviceCarver(memory);
  // The workspace first: it wants to begin where the buffer does.
  GemmPlanner gemms(GemmBackend::kCublasLt, carver.TakeBytes(GemmPlanner::kWorkspaceBytes));
  Bf16* const x = carver.Take<Bf16>(kSide * kSide).data();
  Bf16* const w = carver.Take<Bf16>(kSide * kSide).data();
  Bf16* const y = carver.Take<Bf16>(kSide * kSide).data();
  const GemmArgs args{.x = ConstTensorView(x, {kSide, kSide}),
                      .w = DenseWeights(w, {kSide, kSide}),
                      .y = {y, {kSide, kSide}}};
  gemms.Plan(ShapeOf(args));
  const double seconds = BestSeconds(repeats, stream, [&] { gemms.Gemm(args, stream); });
  return GemmFlops(args) / seconds;
}

}  // namespace

Roofs MeasureRoofs(int repeats) {
  const Stream stream;
  return {.read_bytes_per_s = ReadRoof(repeats, stream),
          .flops_per_s = ArithmeticRoof(repeats, stream)};
}

}  // namespace quire::cuda
