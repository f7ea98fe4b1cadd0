#include "runner/test_backend.h"

#include "runner/cuda/needs_device.h"
#include "runner/cuda/test_runner.h"

namespace quire::testing {

std::unique_ptr<MeteredRunner> MakeBackendRunner(const ModelConfig& config, WeightSource& source,
                                                 RunnerOptions options) {
  options.deterministic = true;
  return cuda::MakeDeviceRunner(config, source, options);
}

}  // namespace quire::testing
