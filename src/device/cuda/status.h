// The sticky status word: 0, or the first thing that went wrong in a step.
//
// A kernel that finds an index out of bounds drops the access, reports it (device/cuda/status.cuh)
// and goes on. The host reads the word together with the step's results, without a wait of its own.
#ifndef QUIRE_DEVICE_CUDA_STATUS_H_
#define QUIRE_DEVICE_CUDA_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/host_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

enum class DeviceFault : uint8_t {
  kNone,
  kCapacity,  // a write past what the buffer was sized for
  kPage,      // a page that the pool does not have
  kSlot,      // a slot that the pool does not have
  kToken,     // a token id outside the vocabulary
  kExpert,    // an expert that the layer does not have
  kChoice,    // a chosen key that the sequence does not have
};

// Which kernel reports; a kernel that reports nothing has no name here. A status word carries the
// number, a message says LaunchName.
enum class Launch : uint32_t {
  kUnnamed,
  kPlan,
  kPageTable,
  kExport,
  kEmbed,
  kRope,
  kDispatch,
  kCombine,
  kGemm,
  kStoreWrite,
  kStoreGather,
  kStoreMove,
  kMlaAttention,
  kMlaMerge,
  kMhaPrefill,
  kSelectKeys,
  kPickRows,
  kSample,
  kTest,
  kCount,  // not a launch
};

// "a page that the pool does not have" and the like.
const char* DeviceFaultName(DeviceFault fault);
// "mla_attention" and the like; "an unnamed launch" for what is not of the enumeration.
const char* LaunchName(uint32_t launch);

// Where kernels report: a pointer into device memory. If it is null, nothing is reported.
struct StatusWord {
  unsigned long long* word = nullptr;
};

// What a status word says.
struct DeviceReport {
  DeviceFault fault = DeviceFault::kNone;
  uint32_t launch = 0;  // 24 bits
  uint32_t index = 0;   // of what was wrong: the kernel says of what
};

// From bit 56: the fault; from bit 32: the launch; then the index.
QUIRE_HD constexpr unsigned long long EncodeReport(DeviceFault fault, uint32_t launch,
                                                   uint32_t index) {
  return static_cast<unsigned long long>(fault) << 56 |
         static_cast<unsigned long long>(launch & 0xffffffu) << 32 | index;
}
constexpr DeviceReport DecodeReport(unsigned long long word) {
  return {.fault = static_cast<DeviceFault>(word >> 56),
          .launch = static_cast<uint32_t>(word >> 32) & 0xffffffu,
          .index = static_cast<uint32_t>(word)};
}
// One line for a log: the fault, the launch and the index.
std::string Describe(const DeviceReport& report);

// A status word and its copy on the host. Addresses stay for life, so graphs may record its calls.
class Status {
 public:
  Status();  // with the word 0; throws DeviceError, Error(kCapacityExceeded)

  StatusWord word() const;

  // Behind what `stream` was given: copies the word to the host. Call it where the step's results
  // are copied; once the stream is past that, report() tells.
  void Read(const Stream& stream);
  // Behind what `stream` was given: sets the word to 0. A fault stays until then.
  void Clear(const Stream& stream);

  // What the last Read that is done found.
  std::optional<DeviceReport> report() const;
  // Throws InternalError(Describe(*report())) if there is one: the host has checked what it gave to
  // the device, so what a kernel finds wrong is our fault.
  void ThrowIfReported() const;

 private:
  DeviceBuffer word_;
  PinnedBuffer copy_;
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_STATUS_H_
