#include "device/cuda/graph.h"

#include <utility>

#include "device/cuda/check.h"

namespace quire::cuda {
namespace {

struct DestroyRecorded {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using Recorded = std::unique_ptr<CUgraph_st, DestroyRecorded>;

// A stream that records. A stream left recording would refuse all that is not recorded, so the
// destructor ends it, and drops what was recorded, unless Finish has.
class Recording {
 public:
  explicit Recording(const Stream& stream) : stream_(stream) {
    // Thread-local: another thread may take memory meanwhile.
    Check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
          "beginning to record a graph");
  }
  ~Recording() {
    if (ended_) return;
    End();
    cudaGetLastError();  // what spoiled the recording is no fault of what follows
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  Recorded Finish() {
    const cudaError_t status = End();
    Check(status, "recording a graph");
    return std::move(recorded_);
  }

 private:
  cudaError_t End() {
    ended_ = true;
    cudaGraph_t graph = nullptr;  // stays null where the recording was spoilt
    const cudaError_t status = cudaStreamEndCapture(stream_.get(), &graph);
    recorded_.reset(graph);
    return status;
  }

  const Stream& stream_;
  bool ended_ = false;
  Recorded recorded_;
};

}  // namespace

Graph Graph::Capture(const Stream& stream, FunctionRef<void()> work) {
  Recording recording(stream);
  work();
  const Recorded recorded = recording.Finish();
  cudaGraphExec_t graph = nullptr;
  Check(cudaGraphInstantiate(&graph, recorded.get(), 0), "making a graph of what was recorded");
  return Graph(graph);
}

void Graph::Upload(const Stream& stream) const {
  Check(cudaGraphUpload(graph_.get(), stream.get()), "uploading a graph");
}

void Graph::Launch(const Stream& stream) const {
  Check(cudaGraphLaunch(graph_.get(), stream.get()), "launching a graph");
}

}  // namespace quire::cuda
