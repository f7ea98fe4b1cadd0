// Where weights come from: the files of a model folder, or nowhere (deterministic random ones).
#ifndef QUIRE_MODEL_WEIGHT_SOURCE_H_
#define QUIRE_MODEL_WEIGHT_SOURCE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>

#include "base/executor.h"
#include "device/collective.h"
#include "kernels/gemm.h"
#include "model/config.h"

namespace quire {

// Tensors by the names that published checkpoints use. Every function throws
// Error(kInvalidArgument) with file, tensor, expected and actual if the tensor is missing, has
// another shape, or a type that Quire does not compute with; those that read data, if a number of it is
// infinite or not one.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // How the matrix is stored. Reads no data.
  virtual WeightFormat Format(const std::string& name, MatrixShape shape) const = 0;
  // Of the matrix, whose shape is `shape`, these outputs; valid until the next call. Others are not read.
  virtual MatrixSource Matrix(const std::string& name, MatrixShape shape, Share outputs,
                              Executor& executor) = 0;
  // That there is a vector of this length. Reads no data.
  virtual void CheckVector(const std::string& name, int64_t size) const = 0;
  virtual void ReadVector(const std::string& name, std::span<float> values) = 0;
  // Whether there is a tensor of this name.
  virtual bool Has(const std::string& name) const = 0;
  // A vector of 64-bit integers.
  virtual void ReadIntegers(const std::string& name, std::span<int64_t> values) = 0;
  // That there are no tensors but these, `names`, which are all that a model is computed from: others
  // would belong to a part that is left out. Allowed besides are the scales of these, layers of
  // multi-token prediction from number `num_layers` on, what a vision-language model has beside its
  // language model, a table of rotary frequencies, and a head that is the tied embedding once more.
  // Throws with the first by name and how many there are. Reads no data but that of such a head.
  virtual void RequireNoOthers(const std::unordered_set<std::string>& names,
                               int32_t num_layers) const = 0;
};

// The safetensors files of the folder, mapped: opening reads their headers only.
std::unique_ptr<WeightSource> OpenWeightFiles(const std::filesystem::path& model_dir,
                                              const ModelConfig& config);

// Weights of the config's own types, from their names and places alone: the same on every machine.
std::unique_ptr<WeightSource> MakeDummyWeights(const ModelConfig& config);

}  // namespace quire

#endif  // QUIRE_MODEL_WEIGHT_SOURCE_H_
