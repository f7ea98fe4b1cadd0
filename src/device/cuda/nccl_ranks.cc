#include "device/cuda/nccl_ranks.h"

#include <dlfcn.h>

#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quire::cuda {
namespace {

// As nccl.h has had them since 2.0.
constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;
constexpr int kNcclUint8 = 1;
constexpr int kNcclUint32 = 3;
constexpr int kNcclSum = 0;

}  // namespace

// What Quire calls of NCCL. A comm is a pointer that only NCCL looks behind.
struct NcclRank::Calls {
  struct Id {
    char bytes[128];
  };

  int (*get_unique_id)(Id* id) = nullptr;
  int (*init_rank)(void** comm, int size, Id id, int rank) = nullptr;
  int (*destroy)(void* comm) = nullptr;
  int (*abort)(void* comm) = nullptr;
  int (*get_async_error)(void* comm, int* error) = nullptr;
  const char* (*describe)(int error) = nullptr;
  int (*begin_group)() = nullptr;
  int (*end_group)() = nullptr;
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, void* comm,
                   cudaStream_t stream) = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int op, void* comm,
                    cudaStream_t stream) = nullptr;
  std::string problem;

  // Opened once, and for good.
  static const Calls& Get() {
    static const Calls calls = Open();
    return calls;
  }

 private:
  static Calls Open() {
    Calls calls;
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      calls.problem = "no libnccl.so.2, which comes with NVIDIA's libnccl2";
      return calls;
    }
    const auto find = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) calls.problem = fmt::format("libnccl.so.2 has no {}", name);
    };
    find("ncclGetUniqueId", calls.get_unique_id);
    find("ncclCommInitRank", calls.init_rank);
    find("ncclCommDestroy", calls.destroy);
    find("ncclCommAbort", calls.abort);
    find("ncclCommGetAsyncError", calls.get_async_error);
    find("ncclGetErrorString", calls.describe);
    find("ncclGroupStart", calls.begin_group);
    find("ncclGroupEnd", calls.end_group);
    find("ncclBroadcast", calls.broadcast);
    find("ncclAllReduce", calls.all_reduce);
    return calls;
  }
};

std::string NcclProblem() { return NcclRank::Calls::Get().problem; }

NcclRank::NcclRank(std::shared_ptr<Collective> host, std::chrono::milliseconds patience)
    : host_(std::move(host)), patience_(patience), calls_(Calls::Get()) {
  Require(calls_.problem.empty(), "NCCL: {}", calls_.problem);
}

// Destroying waits for the others, which a failed group cannot be trusted with.
NcclRank::~NcclRank() {
  if (comm_ == nullptr) return;
  try {
    host_->ThrowIfFailed();
    calls_.destroy(comm_);
  } catch (const std::exception&) {
    calls_.abort(comm_);
  }
}

void NcclRank::Check(int result, const char* what) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  throw DeviceError(DeviceError::Lasts::kForever,
                    fmt::format("{}: NCCL says {}", what, calls_.describe(result)));
}

// Rank 0's id goes by way of the hosts. All have come when they have it, so joining waits for nobody who does
// not.
void* NcclRank::Comm() {
  if (comm_ != nullptr) return comm_;
  constexpr int64_t kWords = sizeof(Calls::Id) / sizeof(float);
  Calls::Id id{};
  if (rank() == 0) Check(calls_.get_unique_id(&id), "a new group");
  std::vector<Share> shares(static_cast<size_t>(size()), {.first = kWords, .count = 0});
  shares[0] = {.first = 0, .count = kWords};
  host_->AllGather(TensorView(reinterpret_cast<float*>(id.bytes), {1, kWords}), shares);
  Check(calls_.init_rank(&comm_, size(), id, rank()), "joining the other ranks");
  return comm_;
}

// Ranks' columns are packed one behind the other, sent, and unpacked. A row, or all that one rank has, lies so
// already.
void NcclRank::AllGather(TensorView whole, std::span<const Share> shares, const Stream& stream) {
  QUIRE_CHECK(std::ssize(shares) == size(), "{} shares for {} ranks", shares.size(), size());
  void* const comm = Comm();
  const int64_t bytes = DTypeBytes(whole.dtype());
  const int64_t rows = whole.dim(0);
  const int64_t stride = whole.stride(0) * bytes;
  const bool is_packed = rows == 1 || (size() == 1 && whole.stride(0) == whole.dim(1));
  const auto total = static_cast<size_t>(rows * whole.dim(1) * bytes);
  QUIRE_CHECK(is_packed || total <= staging_.size(), "{} bytes to gather, room for {}", total,
              staging_.size());
  std::byte* const packed = is_packed ? whole.data() : staging_.data();
  unpack_.clear();
  const auto place = [&](const Share& share) { return packed + rows * share.first * bytes; };
  for (int32_t from = 0; from < size(); ++from) {
    const Share& share = shares[static_cast<size_t>(from)];
    if (share.count == 0 || is_packed) continue;
    const ColumnCopy out{.from = place(share),
                         .from_stride = share.count * bytes,
                         .to = whole.data() + share.first * bytes,
                         .to_stride = stride,
                         .width = share.count * bytes};
    if (from != rank()) {
      unpack_.push_back(out);
      continue;
    }
    const ColumnCopy in{.from = out.to,
                        .from_stride = out.to_stride,
                        .to = place(share),
                        .to_stride = out.from_stride,
                        .width = out.width};
    CopyColumns({&in, 1}, rows, WrittenBy::kKernels, stream);
  }
  Check(calls_.begin_group(), "a gather");
  for (int32_t from = 0; from < size(); ++from) {
    const Share& share = shares[static_cast<size_t>(from)];
    if (share.count == 0) continue;
    Check(calls_.broadcast(place(share), place(share),
                           static_cast<size_t>(rows * share.count * bytes), kNcclUint8, from, comm,
                           stream.get()),
          "a gather");
  }
  Check(calls_.end_group(), "a gather");
  CopyColumns(unpack_, rows, WrittenBy::kKernels, stream);
}

// NCCL has no OR. One of the words that it sums is not 0, as integers, so the sum is that word.
void NcclRank::AllReduceOr(std::span<uint32_t> words, const Stream& stream) {
  if (words.empty()) return;
  Check(calls_.all_reduce(words.data(), words.data(), words.size(), kNcclUint32, kNcclSum, Comm(),
                          stream.get()),
        "a reduction");
}

// Looks all the time at first, since steps are short, and then now and again.
void NcclRank::Wait(const Event& done) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLooking{5};
  const Clock::time_point begin = Clock::now();
  while (!done.IsReached()) {
    const auto waited = Clock::now() - begin;
    if (waited < kLooking) continue;
    host_->ThrowIfFailed();
    int error = kNcclSuccess;
    if (comm_ != nullptr) Check(calls_.get_async_error(comm_, &error), "asking for errors");
    Check(error, "a step");
    if (waited > patience_) {
      throw DeviceError(
          DeviceError::Lasts::kForever,
          fmt::format("its GPU was not done with a step within {} ms", patience_.count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void NcclRank::Abort() noexcept {
  if (comm_ != nullptr) calls_.abort(std::exchange(comm_, nullptr));
}

}  // namespace quire::cuda
