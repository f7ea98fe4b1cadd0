#include "kernels/cpu/roof.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/roof.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Accumulators are unrolled by index sequences: with loops over an array GCC keeps it in memory,
// and the stores halve the rate.

// Reads `words` words, a multiple of as many vectors as there are K: independent sums, so that
// loads wait for memory and not for additions.
template <size_t... K>
uint64_t SumWordsInto(std::index_sequence<K...>, const uint64_t* begin, size_t words) {
  const hn::ScalableTag<uint64_t> d;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> sums[] = {hn::Set(d, K)...};
  for (size_t i = 0; i < words; i += sizeof...(K) * lanes) {
    (void(sums[K] = hn::Add(sums[K], hn::Load(d, begin + i + K * lanes))), ...);
  }
  (void(sums[0] = hn::Add(sums[0], sums[K])), ...);
  return hn::GetLane(hn::SumOfLanes(d, sums[0]));
}

uint64_t SumWords(const uint64_t* begin, size_t words) {
  return SumWordsInto(std::make_index_sequence<8>(), begin, words);
}

// The factors are two vectors in memory: where both come from immediates or broadcasts a Neoverse
// V1 runs the same loop at half the rate (41.6 GFLOP/s for 83.2), as if their registers shared a
// port.
template <size_t... K>
float MultiplyAddsInto(std::index_sequence<K...>, const float* factors, int64_t rounds) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> sums[] = {hn::Set(d, static_cast<float>(K))...};
  const auto a = hn::LoadU(d, factors);
  const auto b = hn::LoadU(d, factors + hn::Lanes(d));
  for (int64_t i = 0; i < rounds; ++i) {
    (void(sums[K] = hn::MulAdd(a, b, sums[K])), ...);
  }
  (void(sums[0] = hn::Add(sums[0], sums[K])), ...);
  return hn::GetLane(hn::SumOfLanes(d, sums[0]));
}

template <size_t kAccumulators>
float MultiplyAdds(const float* factors, int64_t rounds) {
  return MultiplyAddsInto(std::make_index_sequence<kAccumulators>(), factors, rounds);
}

// Multiply-adds with as many independent sums as variant `variant` has: too few leave the units
// waiting for results, too many do not fit the registers, and where that is depends on the machine.
// Returns the operations done; their sum goes to `sum`, so that the loop has a result.
double MultiplyAddLoop(int variant, int64_t multiply_adds, const float* factors, float* sum) {
  constexpr int kAccumulators[] = {8, 12, 16, 24};
  constexpr float (*kLoops[])(const float*, int64_t) = {MultiplyAdds<8>, MultiplyAdds<12>,
                                                        MultiplyAdds<16>, MultiplyAdds<24>};
  const int64_t rounds = multiply_adds / kAccumulators[variant];
  const double lanes = static_cast<double>(hn::Lanes(hn::ScalableTag<float>()));
  *sum = kLoops[variant](factors, rounds);
  return 2.0 * lanes * static_cast<double>(rounds * kAccumulators[variant]);
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace cpu {
namespace {

HWY_EXPORT(SumWords);
HWY_EXPORT(MultiplyAddLoop);
HWY_EXPORT(TargetName);

constexpr ByteOffset kMemory{int64_t{1} << 30};
constexpr ByteOffset kReadCell{int64_t{4} << 20};  // what a thread reads at a time
constexpr int kVariants = 4;
constexpr size_t kFactors = 128;  // two vectors of 256 bytes, the widest that Highway knows
// A try is some 20 ms for each thread, in cells that a thread that wakes late can leave to others.
constexpr int64_t kCellsPerThread = 10;
constexpr int64_t kMultiplyAddsPerCell = 10'000'000;  // vectors

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Roofs Best(const Roofs& a, const Roofs& b) {
  return {.read_bytes_per_s = std::max(a.read_bytes_per_s, b.read_bytes_per_s),
          .flops_per_s = std::max(a.flops_per_s, b.flops_per_s)};
}

RoofMeter::RoofMeter(Executor& executor) : executor_(executor), memory_("roof memory", kMemory) {
  // Memory that was never written is one shared page of zeros, and that page is in the cache.
  executor.Run(kMemory.raw() / kReadCell.raw(), [&](int64_t cell) {
    std::memset(memory_.data() + cell * kReadCell.raw(), 1, static_cast<size_t>(kReadCell.raw()));
  });
}

Roofs RoofMeter::Measure(int repeats) const {
  Roofs best;
  for (int i = 0; i < repeats; ++i) {
    const double read = static_cast<double>(kMemory.raw()) / ReadSeconds();
    best = Best(best, {.read_bytes_per_s = read});
    for (int variant = 0; variant < kVariants; ++variant) {
      best = Best(best, {.flops_per_s = FlopsPerSecond(variant)});
    }
  }
  return best;
}

double RoofMeter::ReadSeconds() const {
  std::atomic<uint64_t> sum{0};
  const auto start = std::chrono::steady_clock::now();
  executor_.Run(kMemory.raw() / kReadCell.raw(), [&](int64_t cell) {
    const std::byte* begin = memory_.data() + cell * kReadCell.raw();
    sum += HWY_DYNAMIC_DISPATCH(SumWords)(reinterpret_cast<const uint64_t*>(begin),
                                          static_cast<size_t>(kReadCell.raw()) / sizeof(uint64_t));
  });
  return SecondsSince(start);
}

double RoofMeter::FlopsPerSecond(int variant) const {
  const std::vector<float> factors(kFactors, 0.5f);
  std::atomic<double> flops{0};
  std::atomic<float> sums{0};
  const auto start = std::chrono::steady_clock::now();
  executor_.Run(executor_.num_threads() * kCellsPerThread, [&](int64_t) {
    float sum = 0;
    flops +=
        HWY_DYNAMIC_DISPATCH(MultiplyAddLoop)(variant, kMultiplyAddsPerCell, factors.data(), &sum);
    sums += sum;
  });
  return flops / SecondsSince(start);
}

const char* SimdTarget() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

std::vector<std::string> SimdTargets() {
  std::vector<std::string> names;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
