// Experts on the device as the tests want them, beside the products of one expert after the other.
#ifndef QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMM_TESTING_H_
#define QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMM_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/cuda/gemm/gemm_testing.h"
#include "kernels/cuda/moe/expert_gemm.h"

namespace quire::cuda {

enum class Op { kPlain, kGated };

// Rows from the last offset on are padding: what the index says of them is not read.
inline constexpr int32_t kNoRow = 2'000'000'000;

inline std::vector<int64_t> Repeated(int64_t experts, int64_t count) {
  return std::vector<int64_t>(static_cast<size_t>(experts), count);
}

inline std::vector<int64_t> OnlyOne(int64_t experts, int64_t chosen, int64_t count) {
  std::vector<int64_t> counts = Repeated(experts, 0);
  counts[static_cast<size_t>(chosen)] = count;
  return counts;
}

inline std::vector<int32_t> Offsets(const std::vector<int64_t>& counts) {
  std::vector<int32_t> offsets{0};
  for (int64_t count : counts) offsets.push_back(offsets.back() + static_cast<int32_t>(count));
  return offsets;
}

// The rows of x that `index` names; row 0 for one that is not there, as the device reads it.
inline std::vector<float> Gathered(const std::vector<float>& x, int64_t width,
                                   const std::vector<int32_t>& index) {
  std::vector<float> rows;
  for (int32_t row : index) {
    const bool there = row >= 0 && row < std::ssize(x) / width;
    const auto from = x.begin() + (there ? row : 0) * width;
    rows.insert(rows.end(), from, from + width);
  }
  return rows;
}

// One layer's experts: three different matrices in turn, so that a wrong one shows.
class Experts {
 public:
  Experts(MatrixShape shape, int64_t count, Form form, Op op, Spread spread)
      : shape_(shape), form_(form), op_(op), spread_(spread) {
    const WeightFormat format = form == Form::kBf16 ? WeightFormat::kBf16 : WeightFormat::kFp8Block;
    for (int64_t i = 0; i < 4; ++i) {
      // As slices of a larger matrix they differ; whole blocks further, so that scales stay theirs.
      made_.push_back(std::make_unique<MadeUpMatrix>(
          SourceShape{.format = format, .shape = shape, .first_output = 128 * i}));
    }
    std::vector<const MadeUpMatrix*> gate, up;
    for (int64_t e = 0; e < count; ++e) {
      gate.push_back(Gate(e));
      up.push_back(Up(e));
    }
    gate_.emplace(gate, spread);
    up_.emplace(up, spread);
  }

  const MadeUpMatrix* Gate(int64_t e) const { return made_[static_cast<size_t>(e % 3)].get(); }
  const MadeUpMatrix* Up(int64_t e) const { return made_[static_cast<size_t>(e % 3 + 1)].get(); }
  const DeviceWeights& gate() const { return *gate_; }
  const DeviceWeights& up() const { return *up_; }

  // y of all rows by the device, in this tile or, without one, as products that need not be exact; rows from the
  // last offset on must stay untouched.
  std::vector<float> Run(const std::vector<float>& x, const std::vector<int32_t>& offsets,
                         DType dtype, std::optional<TileSize> tile, StatusWord status = {}) const {
    return RunIndexed(x, {}, offsets, dtype, tile, status);
  }

  // The same, with row index[r] of x for row r; an empty index is none.
  std::vector<float> RunIndexed(const std::vector<float>& x, const std::vector<int32_t>& index,
                                const std::vector<int32_t>& offsets, DType dtype,
                                std::optional<TileSize> tile, StatusWord status = {},
                                RoutingAge routing = RoutingAge::kNew) const {
    const int64_t rows = index.empty() ? std::ssize(x) / shape_.inputs : std::ssize(index);
    const DeviceRows on_device(x, shape_.inputs, spread_);
    const DeviceOutput y(rows, shape_.outputs, dtype, spread_);
    const DeviceVector<int32_t> device_offsets(offsets);
    ExpertGemmArgs args{.w = gate_->view(),
                        .offsets = device_offsets.span().data(),
                        .y = y.view(),
                        .status = status,
                        .exact = tile.has_value(),
                        .routing = routing};
    if (op_ == Op::kGated) args.up = up_->view();
    std::optional<DeviceVector<int32_t>> device_index;
    if (!index.empty()) args.rows = device_index.emplace(index).span();
    std::optional<DeviceCodes> codes;
    if (form_ == Form::kFp8) {
      codes.emplace(on_device.view(), stream_);
      args.x_codes = codes->rows();
    } else {
      args.x = on_device.view();
    }
    if (!tile) {
      EXPECT_EQ(ChooseExpertKernel(args), ExpertKernel::kGemv);
    }
    ExpertGemm(args, stream_, tile);
    return y.Values(stream_, std::clamp<int64_t>(offsets.back(), 0, rows));
  }

  // The same by exact arithmetic, of the rows that have an expert.
  GemmReference Reference(const std::vector<float>& x, const std::vector<int32_t>& offsets,
                          DType dtype) const {
    std::vector<double> values(x.begin(), x.end());
    if (form_ == Form::kFp8) {
      const DeviceRows on_device(x, shape_.inputs, spread_);
      values = DeviceCodes(on_device.view(), stream_).Values(stream_);
    }
    GemmReference all;
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const std::vector<double> rows(values.begin() + offsets[e] * shape_.inputs,
                                     values.begin() + offsets[e + 1] * shape_.inputs);
      if (rows.empty()) continue;
      const auto expert = static_cast<int64_t>(e);
      const DType sums = op_ == Op::kGated ? DType::kF32 : dtype;
      GemmReference part = ReferenceGemm(*Gate(expert), shape_, rows, {}, sums, form_);
      if (op_ == Op::kGated) {
        part =
            GatedReference(part, ReferenceGemm(*Up(expert), shape_, rows, {}, sums, form_), dtype);
      }
      all.y.insert(all.y.end(), part.y.begin(), part.y.end());
      all.bounds.insert(all.bounds.end(), part.bounds.begin(), part.bounds.end());
    }
    return all;
  }

 private:
  MatrixShape shape_;
  Form form_;
  Op op_;
  Spread spread_;
  Stream stream_;
  std::vector<std::unique_ptr<MadeUpMatrix>> made_;
  std::optional<DeviceWeights> gate_, up_;
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_MOE_EXPERT_GEMM_TESTING_H_
