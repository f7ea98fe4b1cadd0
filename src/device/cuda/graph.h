// Work of a stream that is recorded once and then launched as one.
#ifndef QUIRE_DEVICE_CUDA_GRAPH_H_
#define QUIRE_DEVICE_CUDA_GRAPH_H_

#include <cuda_runtime_api.h>

#include <memory>

#include "base/executor.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

class Graph {
 public:
  // Calls `work`, which gives `stream` its work and neither waits nor takes memory; none of it runs.
  // Every address and grid is that of the recording. Throws what `work` throws, and DeviceError if
  // some of it cannot be recorded; the stream is as usable then as before.
  static Graph Capture(const Stream& stream, FunctionRef<void()> work);

  // Brings the recorded work to the device, so that its first launch need not.
  void Upload(const Stream& stream) const;
  // Gives `stream` the recorded work, to run once.
  void Launch(const Stream& stream) const;

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  explicit Graph(cudaGraphExec_t graph) : graph_(graph) {}

  std::unique_ptr<CUgraphExec_st, Destroy> graph_;
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_GRAPH_H_
