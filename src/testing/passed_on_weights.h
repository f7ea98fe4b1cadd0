// The weights of another source, as they are: for tests that change, or note, some of what is read.
#ifndef QUIRE_TESTING_PASSED_ON_WEIGHTS_H_
#define QUIRE_TESTING_PASSED_ON_WEIGHTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>

#include "model/weight_source.h"

namespace quire::testing {

class PassedOnWeights : public WeightSource {
 public:
  // `source` outlives this.
  explicit PassedOnWeights(WeightSource& source) : source_(source) {}

  WeightFormat Format(const std::string& name, MatrixShape shape) const override {
    return source_.Format(name, shape);
  }
  MatrixSource Matrix(const std::string& name, MatrixShape shape, Share outputs,
                      Executor& executor) override {
    return source_.Matrix(name, shape, outputs, executor);
  }
  void CheckVector(const std::string& name, int64_t size) const override {
    source_.CheckVector(name, size);
  }
  void ReadVector(const std::string& name, std::span<float> values) override {
    source_.ReadVector(name, values);
  }
  bool Has(const std::string& name) const override { return source_.Has(name); }
  void ReadIntegers(const std::string& name, std::span<int64_t> values) override {
    source_.ReadIntegers(name, values);
  }
  void RequireNoOthers(const std::unordered_set<std::string>& names,
                       int32_t num_layers) const override {
    source_.RequireNoOthers(names, num_layers);
  }

 private:
  WeightSource& source_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_PASSED_ON_WEIGHTS_H_
