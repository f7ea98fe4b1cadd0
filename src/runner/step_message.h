// A step as rank 0 tells it to the other ranks: as little of it as they need to compute their share.
#ifndef QUIRE_RUNNER_STEP_MESSAGE_H_
#define QUIRE_RUNNER_STEP_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "runner/step_device.h"
#include "runner/step_memory.h"

namespace quire {

// What a message asks for.
enum class StepOrder : int32_t {
  kPrepare,    // StepDevice::Prepare
  kReady,      // StepDevice::Ready
  kPages,      // pages for the rows of sequences, and nothing else
  kRun,        // rows to move, inputs, pages, and the forward pass
  kRunTimed,   // the same, with its time taken
  kLogits,     // of rows of that pass; rank 0 alone draws tokens of them
  kDraft,      // a pass of the draft layer
  kCopyState,  // of a drafter
  kEnd,        // rank 0's runner has ended
};

// Appends plain values to a message; they are read back in the same order.
class MessageWriter {
 public:
  explicit MessageWriter(std::vector<std::byte>& message) : message_(message) { message.clear(); }

  template <class T>
  void Put(const T& value) {
    PutBytes(std::as_bytes(std::span(&value, 1)));
    static_assert(std::is_trivially_copyable_v<T>);
  }
  // As many as both sides know of.
  template <class T>
  void PutAll(std::span<T> values) {
    PutBytes(std::as_bytes(values));
    static_assert(std::is_trivially_copyable_v<T>);
  }
  template <class T>
  void PutList(std::span<T> values) {
    Put(values.size());
    PutAll(values);
  }

 private:
  void PutBytes(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    const size_t at = message_.size();
    message_.resize(at + bytes.size());
    std::memcpy(message_.data() + at, bytes.data(), bytes.size());
  }

  std::vector<std::byte>& message_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> message) : left_(message) {}

  template <class T>
  T Take() {
    T value;
    TakeAll(std::span(&value, 1));
    return value;
  }
  template <class T>
  void TakeAll(std::span<T> values) {
    QUIRE_CHECK(values.size_bytes() <= left_.size(), "a message of {} bytes too few",
                values.size_bytes() - left_.size());
    if (!values.empty()) std::memcpy(values.data(), left_.data(), values.size_bytes());
    left_ = left_.subspan(values.size_bytes());
  }
  template <class T>
  void TakeList(std::vector<T>& values) {
    values.resize(Take<size_t>());
    TakeAll(std::span(values));
  }

 private:
  std::span<const std::byte> left_;
};

// For a StepReader. The step's inputs are in the bucket's memory.
void WriteStep(const StepWork& work, const StepMemory& memory, MessageWriter& message);

// Reads steps into a follower's memory. Pages and trees of the last one lie here, in memory that grows to
// the largest and stays.
class StepReader {
 public:
  StepWork Read(MessageReader& message, StepMemory& memory);

 private:
  // A SequenceStep without what its spans refer to.
  struct SequenceHeader {
    TokenCount q_len = {};
    TokenCount kv_len = {};
    size_t num_pages = 0;
    size_t num_parents = 0;
  };
  friend void WriteStep(const StepWork&, const StepMemory&, MessageWriter&);

  std::vector<SequenceHeader> headers_;
  std::vector<PageId> pages_;
  std::vector<int32_t> parents_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_STEP_MESSAGE_H_
