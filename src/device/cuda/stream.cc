#include "device/cuda/stream.h"

#include "device/cuda/check.h"

namespace quire::cuda {

Stream::Stream() {
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  stream_.reset(stream);
}

void Stream::Synchronize() const {
  Check(cudaStreamSynchronize(stream_.get()), "waiting for a stream");
}

Event::Event(bool timing) {
  cudaEvent_t event = nullptr;
  const unsigned flags = timing ? cudaEventDefault : cudaEventDisableTiming;
  Check(cudaEventCreateWithFlags(&event, flags), "making an event");
  event_.reset(event);
}

void Event::Record(const Stream& stream) {
  Check(cudaEventRecord(event_.get(), stream.get()), "recording an event");
}

void Event::RecordInGraph(const Stream& stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  Check(cudaStreamIsCapturing(stream.get(), &capture), "asking whether a graph is recorded");
  if (capture != cudaStreamCaptureStatusActive) return Record(stream);
  Check(cudaEventRecordWithFlags(event_.get(), stream.get(), cudaEventRecordExternal),
        "recording an event in a graph");
}

bool Event::IsReached() const {
  const cudaError_t status = cudaEventQuery(event_.get());
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // an answer, but CUDA notes it as an error
    return false;
  }
  Check(status, "asking for an event");
  return true;
}

void Event::Synchronize() const {
  Check(cudaEventSynchronize(event_.get()), "waiting for an event");
}

double Event::SecondsSince(const Event& begin) const {
  Synchronize();
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, begin.event_.get(), event_.get()),
        "the time between two events");
  return double{milliseconds} * 1e-3;
}

void Event::MakeWait(const Stream& stream) const {
  Check(cudaStreamWaitEvent(stream.get(), event_.get(), 0), "making a stream wait for an event");
}

void Branch::Fork(const Stream& main) {
  forked_.Record(main);
  forked_.MakeWait(stream_);
}

void Branch::Join(const Stream& main) {
  joined_.Record(stream_);
  joined_.MakeWait(main);
}

}  // namespace quire::cuda
