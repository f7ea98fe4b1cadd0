// Ranks that are processes, of one machine or of several, joined by MPI.
//
// mpirun or Slurm starts them; MPI carries everything between them. What it does not say is that a rank has
// died: those of the same machine are watched by the kernel's own means (a pidfd each), which tells at once,
// and for the others there are the launcher, which ends all of them, and the group's patience.
#ifndef QUIRE_DEVICE_MPI_RANKS_H_
#define QUIRE_DEVICE_MPI_RANKS_H_

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/collective.h"
#include "device/mpi/mpi_calls.h"

namespace quire {

// The module that is linked to MPI, or why there is none.
struct MpiModule {
  const MpiCalls* calls = nullptr;  // stays for good: MPI cannot be unloaded
  std::string problem = {};         // where calls are null
  std::string library = {};         // "Open MPI v4.1.4"
};
// The first of `places` that is there, opened.
MpiModule OpenMpiModule(const std::vector<std::filesystem::path>& places);

// This process's end of all that were started together. One at a time, and once in a process.
class MpiRank final : public Collective {
 public:
  // Starts MPI. Throws Error(kInvalidArgument) if that fails.
  explicit MpiRank(const MpiCalls& calls, std::chrono::milliseconds patience = kRankPatience);
  // Where no rank has failed, ends MPI, which waits for the others to do the same.
  ~MpiRank() override;

  int32_t rank() const override;
  int32_t size() const override;
  // Ranks of this machine, this one included, and those of them that may run on just the same CPUs.
  int32_t ranks_of_machine() const;
  int32_t ranks_of_cpus() const;
  // Of the ranks of this machine, how many come before this one.
  int32_t number_on_machine() const;

  void AllGather(TensorView whole, std::span<const Share> shares) override;
  void AllReduceOr(std::span<uint32_t> words) override;
  void FetchRows(ConstTensorView rows, std::span<const GivenRows> given,
                 std::span<const RowPart> parts, TensorView taken) override;
  void Broadcast(std::vector<std::byte>& message) override;
  void Send(int32_t to, std::span<const std::byte> message) override;
  void Receive(int32_t from, std::vector<std::byte>& message, Waits waits) override;
  void WaitForAll() override;
  void Fail(const std::string& reason) noexcept override;
  void ThrowIfFailed() const override;

  // Who has failed, and whether without a word: because it died, or did not come.
  struct Failure {
    int32_t rank = 0;
    bool was_silent = false;
  };
  std::optional<Failure> failure() const;
  // Returns when rank 0's process has ended, or after `limit`.
  void AwaitEndOfRankZero(std::chrono::milliseconds limit) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_DEVICE_MPI_RANKS_H_
