#include <algorithm>

#include "base/error.h"
#include "base/maths.h"
#include "device/cuda/check.h"
#include "device/cuda/gather_columns.h"
#include "device/cuda/kernel.cuh"
#include "device/cuda/launch.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMostCtas = 1024;  // of a copy; the rest by a loop

struct ColumnCopies {
  ColumnCopy copies[kMaxColumnCopies];
};
struct OtherWords {
  const uint32_t* words[kMaxColumnCopies];
};

// What the host wrote before the launch need not wait for the kernels before it: a thread's first unit is on its
// way by then.
template <class T>
__global__ void __launch_bounds__(kThreads)
    CopyColumnsKernel(const __grid_constant__ ColumnCopies all, int64_t num_rows, WrittenBy by) {
  const ColumnCopy& copy = all.copies[blockIdx.y];
  const int64_t row_units = copy.width / static_cast<int64_t>(sizeof(T));
  const int64_t units = num_rows * row_units;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto read = [&](int64_t i) {
    const std::byte* const row = copy.from + i / row_units * copy.from_stride;
    return reinterpret_cast<const T*>(row)[i % row_units];
  };
  T value = {};
  if (by == WrittenBy::kHost && first < units) value = read(first);
  TakeTurn();
  for (int64_t i = first; i < units; i += step) {
    if (by == WrittenBy::kKernels || i != first) value = read(i);
    std::byte* const row = copy.to + i / row_units * copy.to_stride;
    reinterpret_cast<T*>(row)[i % row_units] = value;
  }
}

// Volatile: others may write the same words meanwhile.
__global__ void __launch_bounds__(kThreads)
    OrWordsKernel(volatile uint32_t* words, int64_t count,
                  const __grid_constant__ OtherWords others, int num_others) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) {
    uint32_t word = words[i];
    for (int other = 0; other < num_others; ++other) {
      word |= static_cast<const volatile uint32_t*>(others.words[other])[i];
    }
    words[i] = word;
  }
}

bool IsInUnits(const ColumnCopy& copy, int64_t bytes) {
  const auto at = [](const std::byte* address) { return reinterpret_cast<uintptr_t>(address); };
  const auto unit = static_cast<uintptr_t>(bytes);
  return at(copy.from) % unit == 0 && at(copy.to) % unit == 0 && copy.from_stride % bytes == 0 &&
         copy.to_stride % bytes == 0 && copy.width % bytes == 0;
}

unsigned CtasFor(int64_t units) {
  return static_cast<unsigned>(
      std::clamp<int64_t>(CeilDiv(units, int64_t{kThreads}), 1, int64_t{kMostCtas}));
}

template <class T>
void LaunchCopies(const ColumnCopies& all, size_t count, int64_t widest, int64_t num_rows,
                  WrittenBy by, const Stream& stream) {
  const dim3 grid(CtasFor(num_rows * widest / static_cast<int64_t>(sizeof(T))),
                  static_cast<unsigned>(count));
  LaunchAhead("copy_columns", CopyColumnsKernel<T>, {.grid = grid, .block = dim3(kThreads)}, stream,
              all, num_rows, by);
}

}  // namespace

void CopyColumns(std::span<const ColumnCopy> copies, int64_t num_rows, WrittenBy by,
                 const Stream& stream) {
  for (; !copies.empty() && num_rows > 0;
       copies = copies.subspan(std::min(copies.size(), kMaxColumnCopies))) {
    const std::span<const ColumnCopy> these =
        copies.first(std::min(copies.size(), kMaxColumnCopies));
    ColumnCopies all = {};
    std::copy(these.begin(), these.end(), all.copies);
    int64_t widest = 0;
    for (const ColumnCopy& copy : these) widest = std::max(widest, copy.width);
    if (widest == 0) continue;
    const auto are_in = [&](int64_t bytes) {
      return std::all_of(these.begin(), these.end(),
                         [&](const ColumnCopy& copy) { return IsInUnits(copy, bytes); });
    };
    if (are_in(16)) {
      LaunchCopies<uint4>(all, these.size(), widest, num_rows, by, stream);
    } else if (are_in(4)) {
      LaunchCopies<uint32_t>(all, these.size(), widest, num_rows, by, stream);
    } else {
      QUIRE_CHECK(are_in(2), "columns of an odd number of bytes");
      LaunchCopies<uint16_t>(all, these.size(), widest, num_rows, by, stream);
    }
  }
}

void OrWords(std::span<uint32_t> words, std::span<std::byte* const> others, const Stream& stream) {
  if (words.empty() || others.empty()) return;
  QUIRE_CHECK(others.size() <= kMaxColumnCopies, "{} others", others.size());
  OtherWords all = {};
  for (size_t i = 0; i < others.size(); ++i) {
    all.words[i] = reinterpret_cast<const uint32_t*>(others[i]);
  }
  const auto count = static_cast<int64_t>(words.size());
  LaunchInTurn("or_words", OrWordsKernel, {.grid = dim3(CtasFor(count)), .block = dim3(kThreads)},
               stream, words.data(), count, all, static_cast<int>(others.size()));
}

}  // namespace quire::cuda
