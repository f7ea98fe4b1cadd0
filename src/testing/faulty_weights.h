// The weights of another source, but for one token whose embedding is NaN.
#ifndef QUIRE_TESTING_FAULTY_WEIGHTS_H_
#define QUIRE_TESTING_FAULTY_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/weight_source.h"
#include "testing/passed_on_weights.h"

namespace quire::testing {

class FaultyWeights final : public PassedOnWeights {
 public:
  // `source` outlives this. Its embeddings are f32 or bf16.
  FaultyWeights(WeightSource& source, int32_t token) : PassedOnWeights(source), token_(token) {}

  MatrixSource Matrix(const std::string& name, MatrixShape shape, Share outputs,
                      Executor& executor) override {
    MatrixSource matrix = PassedOnWeights::Matrix(name, shape, outputs, executor);
    const bool has_token = token_ >= outputs.first && token_ < outputs.end();
    if (name != "model.embed_tokens.weight" || !has_token) return matrix;
    const bool is_f32 = matrix.format == WeightFormat::kF32;
    QUIRE_CHECK(is_f32 || matrix.format == WeightFormat::kBf16);
    const size_t width = is_f32 ? 4 : 2;
    const auto stride = static_cast<size_t>(matrix.output_stride) * width;
    embeddings_.assign(matrix.data, matrix.data + stride * static_cast<size_t>(outputs.count));
    // All bits set are NaN in both types.
    std::memset(embeddings_.data() + stride * static_cast<size_t>(token_ - outputs.first), 0xff,
                static_cast<size_t>(shape.inputs) * width);
    matrix.data = embeddings_.data();
    return matrix;
  }

 private:
  int32_t token_;
  std::vector<std::byte> embeddings_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_FAULTY_WEIGHTS_H_
