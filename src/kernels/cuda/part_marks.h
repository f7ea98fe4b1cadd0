// Where on the device the time of a forward pass goes: events between its parts, also in a graph.
#ifndef QUIRE_KERNELS_CUDA_PART_MARKS_H_
#define QUIRE_KERNELS_CUDA_PART_MARKS_H_

#include <vector>

#include "device/cuda/cuda.h"
#include "kernels/ops.h"

namespace quire::cuda {

// The marks of one pass. It is launched, or recorded, once with them; a graph sets them anew at
// every launch.
class PartMarks {
 public:
  void Begin(const Stream& stream) { Mark(ForwardPart::kEmbedding, stream); }
  // What `stream` was given since the last mark is of this part.
  void End(ForwardPart part, const Stream& stream) { Mark(part, stream); }

  // Calls fn(part, seconds) for all of them; waits for the last.
  template <class Fn>
  void ForEach(Fn fn) const {
    for (size_t i = 1; i < marks_.size(); ++i) {
      fn(marks_[i].part, marks_[i].event.SecondsSince(marks_[i - 1].event));
    }
  }

 private:
  struct PartEnd {
    ForwardPart part;
    Event event;
  };

  void Mark(ForwardPart part, const Stream& stream) {
    marks_.push_back({part, Event(/*timing=*/true)});
    marks_.back().event.RecordInGraph(stream);
  }

  std::vector<PartEnd> marks_;
};

}  // namespace quire::cuda

#endif  // QUIRE_KERNELS_CUDA_PART_MARKS_H_
