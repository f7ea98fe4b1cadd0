#include "device/cuda/status.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "base/error.h"
#include "device/cuda/check.h"

namespace quire::cuda {
namespace {

constexpr ByteOffset kWordBytes{sizeof(unsigned long long)};

}  // namespace

const char* DeviceFaultName(DeviceFault fault) {
  switch (fault) {
    case DeviceFault::kNone:
      return "nothing";
    case DeviceFault::kCapacity:
      return "a write past what the buffer was sized for";
    case DeviceFault::kPage:
      return "a page that the pool does not have";
    case DeviceFault::kSlot:
      return "a slot that the pool does not have";
    case DeviceFault::kToken:
      return "a token outside the vocabulary";
    case DeviceFault::kExpert:
      return "an expert that the layer does not have";
    case DeviceFault::kChoice:
      return "a chosen key that the sequence does not have";
  }
  return "an unknown fault";
}

const char* LaunchName(uint32_t launch) {
  switch (static_cast<Launch>(launch)) {
    case Launch::kPlan:
      return "plan";
    case Launch::kPageTable:
      return "page_table";
    case Launch::kExport:
      return "export";
    case Launch::kEmbed:
      return "embed";
    case Launch::kRope:
      return "rope";
    case Launch::kDispatch:
      return "dispatch";
    case Launch::kCombine:
      return "combine";
    case Launch::kGemm:
      return "gemm";
    case Launch::kStoreWrite:
      return "store_write";
    case Launch::kStoreGather:
      return "store_gather";
    case Launch::kStoreMove:
      return "store_move";
    case Launch::kMlaAttention:
      return "mla_attention";
    case Launch::kMlaMerge:
      return "mla_merge";
    case Launch::kMhaPrefill:
      return "mha_prefill";
    case Launch::kSelectKeys:
      return "select_keys";
    case Launch::kPickRows:
      return "pick_rows";
    case Launch::kSample:
      return "sample";
    case Launch::kTest:
      return "test";
    case Launch::kUnnamed:
    case Launch::kCount:
      break;
  }
  return "an unnamed launch";
}

std::string Describe(const DeviceReport& report) {
  return fmt::format("device fault {}: {}, found by {} (launch {}) at index {}",
                     static_cast<int>(report.fault), DeviceFaultName(report.fault),
                     LaunchName(report.launch), report.launch, report.index);
}

Status::Status() : word_("status word", kWordBytes), copy_("status word's copy", kWordBytes) {
  std::memset(copy_.data(), 0, copy_.bytes().size());
  FillAndWait(word_.bytes(), 0, "setting the status word to 0");
}

StatusWord Status::word() const {
  return {.word = reinterpret_cast<unsigned long long*>(word_.data())};
}

void Status::Read(const Stream& stream) {
  Check(cudaMemcpyAsync(copy_.data(), word_.data(), word_.bytes().size(), cudaMemcpyDeviceToHost,
                        stream.get()),
        "reading the status word");
}

void Status::Clear(const Stream& stream) {
  Check(cudaMemsetAsync(word_.data(), 0, word_.bytes().size(), stream.get()),
        "setting the status word to 0");
}

std::optional<DeviceReport> Status::report() const {
  unsigned long long word = 0;
  std::memcpy(&word, copy_.data(), sizeof word);
  if (word == 0) return std::nullopt;
  return DecodeReport(word);
}

void Status::ThrowIfReported() const {
  if (const std::optional<DeviceReport> found = report()) throw InternalError(Describe(*found));
}

}  // namespace quire::cuda
