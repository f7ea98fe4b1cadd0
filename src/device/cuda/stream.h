// The order in which a device works: streams, points in them, and branches off them.
#ifndef QUIRE_DEVICE_CUDA_STREAM_H_
#define QUIRE_DEVICE_CUDA_STREAM_H_

#include <cuda_runtime_api.h>

#include <memory>

namespace quire::cuda {

// Work that runs one after the other, beside that of other streams. It does not wait for CUDA's
// default stream. A moved-from stream can only be destroyed or assigned to.
class Stream {
 public:
  Stream();  // throws DeviceError

  cudaStream_t get() const { return stream_.get(); }
  // Blocks until all that was given to the stream is done; throws DeviceError if some of it failed.
  void Synchronize() const;

  // Whether kernels that can begin while those before them end, do (device/cuda/launch.h); at first
  // they do not.
  bool overlaps() const { return overlaps_; }
  void set_overlaps(bool overlaps) { overlaps_ = overlaps; }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<CUstream_st, Destroy> stream_;
  bool overlaps_ = false;
};

// A point in a stream's work. Until it is recorded, waiting for it does not wait.
class Event {
 public:
  explicit Event(bool timing = false);  // `timing`: SecondsSince may be asked

  // The point is behind all that `stream` was given so far.
  void Record(const Stream& stream);
  // The same, and where `stream` records a graph, at every launch of it.
  void RecordInGraph(const Stream& stream);
  // Whether the point is reached; never blocks.
  bool IsReached() const;
  // Blocks until the point is reached.
  void Synchronize() const;
  // From `begin` to this. Both were made for timing and recorded; waits for this.
  double SecondsSince(const Event& begin) const;
  // What `stream` is given from now on waits for the point; the host does not.
  void MakeWait(const Stream& stream) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<CUevent_st, Destroy> event_;
};

// A second stream for work beside that of a main one, from Fork to Join. What the two are given
// between those calls runs in any order or at once, so neither writes what the other touches. Where
// the main stream records a graph, so does this one in between, and the graph has two branches.
// Forked and joined any number of times, one after the other, always with the same main stream.
class Branch {
 public:
  Branch() = default;  // throws DeviceError

  const Stream& stream() const { return stream_; }
  void set_overlaps(bool overlaps) { stream_.set_overlaps(overlaps); }
  // What the branch is given from now on waits for all that `main` was given so far.
  void Fork(const Stream& main);
  // What `main` is given from now on waits for all that the branch was given so far.
  void Join(const Stream& main);

 private:
  Stream stream_;
  Event forked_;
  Event joined_;
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_STREAM_H_
