// Ranks with a GPU each, joined by NCCL.
//
// Its library, libnccl.so.2, is opened at run time, and the few of its functions that are called are declared
// in nccl_ranks.cc: no header of it is needed to build, and nothing of it to run one GPU. Calls are recorded in
// graphs like any other work of a stream. What NCCL does not say is why a rank does not come: that the host's
// group does, which is asked while a step is waited for.
#ifndef QUIRE_DEVICE_CUDA_NCCL_RANKS_H_
#define QUIRE_DEVICE_CUDA_NCCL_RANKS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_view.h"
#include "device/collective.h"
#include "device/cuda/device_ranks.h"
#include "device/cuda/gather_columns.h"
#include "device/cuda/stream.h"

namespace quire::cuda {

// Why NCCL cannot be used; empty if it can.
std::string NcclProblem();

class NcclRank final : public DeviceRank {
 public:
  // `host` is the same rank's; ranks may be threads or processes. Meets nobody yet: the first call does, on the
  // device that is current then. Throws Error(kInvalidArgument) with NcclProblem().
  explicit NcclRank(std::shared_ptr<Collective> host,
                    std::chrono::milliseconds patience = kRankPatience);
  ~NcclRank() override;

  int32_t rank() const override { return host_->rank(); }
  int32_t size() const override { return host_->size(); }
  int32_t ranks_of_device() const override { return 1; }
  void TakeStaging(std::span<std::byte> memory) override { staging_ = memory; }
  void AllGather(TensorView whole, std::span<const Share> shares, const Stream& stream) override;
  void AllReduceOr(std::span<uint32_t> words, const Stream& stream) override;
  void Wait(const Event& done) override;
  void Abort() noexcept override;

 private:
  struct Calls;
  void* Comm();  // joins the others at its first call
  void Check(int result, const char* what) const;

  const std::shared_ptr<Collective> host_;
  const std::chrono::milliseconds patience_;
  const Calls& calls_;
  std::span<std::byte> staging_;
  std::vector<ColumnCopy> unpack_;  // what a gather leaves packed
  void* comm_ = nullptr;

  friend std::string NcclProblem();
};

}  // namespace quire::cuda

#endif  // QUIRE_DEVICE_CUDA_NCCL_RANKS_H_
