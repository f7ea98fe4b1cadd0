#include "device/mpi_ranks.h"

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/executor.h"
#include "device/await.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// How long a note of a failure may take to be seen.
constexpr std::chrono::milliseconds kLook{20};
// The first part of a message goes with its size, so that most steps take one call. Open MPI sends up to 4 KiB
// within a machine without waiting for the receiver.
constexpr size_t kFirstPart = 2048;

// What ranks tell each other beside steps.
struct Note {
  enum class Kind : int32_t {
    kFailure,  // rank `rank`, because of `text`
    kWaits,    // the sender, in its call `call`
  };
  Kind kind = Kind::kFailure;
  int32_t rank = 0;
  int32_t from = 0;
  int32_t is_silent = 0;
  int64_t call = 0;
  char text[1000] = "";
};

// Where a rank runs.
struct Seat {
  uint64_t machine = 0;
  uint64_t cpus = 0;
  int64_t pid = 0;
};

std::string FirstLine(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

Seat OwnSeat() {
  std::error_code ignored;
  // Numbers of processes mean the same where the kernel is one, and the namespace.
  const std::string machine = FirstLine("/proc/sys/kernel/random/boot_id") +
                              fs::read_symlink("/proc/self/ns/pid", ignored).string();
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  const std::string cpus(reinterpret_cast<const char*>(&set), sizeof(set));
  return {.machine = std::hash<std::string>()(machine),
          .cpus = std::hash<std::string>()(cpus),
          .pid = getpid()};
}

class PidFd {
 public:
  explicit PidFd(int64_t pid)
      : fd_(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0))) {}
  ~PidFd() {
    if (fd_ >= 0) close(fd_);
  }
  PidFd(PidFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  PidFd& operator=(PidFd&&) = delete;

  int fd() const { return fd_; }  // -1 where the kernel has none

 private:
  int fd_;
};

}  // namespace

MpiModule OpenMpiModule(const std::vector<fs::path>& places) {
  std::error_code ignored;
  const auto place =
      std::ranges::find_if(places, [&](const fs::path& path) { return fs::exists(path, ignored); });
  if (place == places.end()) {
    return {.problem =
                "this Quire was built without MPI; where libopenmpi-dev is installed, it is "
                "built with it"};
  }
  // Open MPI's own modules look for its symbols among those of the process.
  void* module = dlopen(place->c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    return {.problem = fmt::format("{}; openmpi-bin brings MPI's library", dlerror())};
  }
  const auto get = reinterpret_cast<GetMpiCalls>(dlsym(module, kMpiCallsSymbol));
  if (get == nullptr || get()->version != kMpiCallsVersion) {
    return {.problem = fmt::format("{} is of another Quire", place->string())};
  }
  char library[256] = "";
  get()->library(library, sizeof(library));
  std::string name = library;
  return {.calls = get(), .library = name.substr(0, name.find_first_of(",\n"))};
}

class MpiRank::Impl {
 public:
  Impl(const MpiCalls& calls, std::chrono::milliseconds patience)
      : calls_(calls), patience_(patience) {
    const int error = calls_.start(&rank, &size);
    Require(error == 0, "MPI: expected it to start, got {}", Words(error));
    told_.resize(static_cast<size_t>(size));
    LookAround();
    watch_ = std::thread([this] { Watch(); });
  }
  ~Impl() {
    is_stopping_ = true;
    watch_.join();
    // With a rank that is gone, MPI would wait for ever.
    if (!failure_ && !is_underway_) calls_.finish();
  }

  // begin() of MPI, carried on until it is done.
  void Call(const char* what, FunctionRef<int()> begin, bool is_patient = false) {
    {
      const std::lock_guard lock(mutex_);
      ThrowIfFailedLocked();
      ++num_calls_;
      is_underway_ = true;
      CheckLocked(begin(), what);
    }
    Awaiting awaiting;
    bool has_told = false;
    while (!IsDone(what)) {
      const Clock::duration waited = awaiting.Wait(is_patient ? std::chrono::microseconds(1000)
                                                              : std::chrono::microseconds(100));
      if (!has_told && waited > patience_ / 2) has_told = TellWhere();
      if (!is_patient && waited > patience_) FailMissing(what);
    }
  }

  void Send(int32_t to, std::span<const std::byte> message) {
    QUIRE_CHECK(!message.empty() && message.size() <= std::numeric_limits<int32_t>::max(),
                "a message of {} bytes", message.size());
    const std::lock_guard lock(mutex_);
    ThrowIfFailedLocked();
    CheckLocked(calls_.post(to, message.data(), static_cast<int32_t>(message.size())), "a message");
  }

  void Receive(int32_t from, std::vector<std::byte>& message, bool is_patient) {
    std::optional<Awaiting> awaiting(std::in_place);
    int64_t num_calls = 0;
    while (!Take(from, message)) {
      const Clock::duration waited = awaiting->Wait(is_patient ? std::chrono::microseconds(1000)
                                                               : std::chrono::microseconds(100));
      if (is_patient || waited <= patience_) continue;
      awaiting.emplace();
      const std::lock_guard lock(mutex_);
      if (std::exchange(num_calls, num_calls_) != num_calls_) continue;
      FailLocked(from, fmt::format("did not answer within {} ms", patience_.count()), true);
    }
  }

  void Fail(int32_t failed, const std::string& reason, bool was_silent) {
    const std::lock_guard lock(mutex_);
    FailLocked(failed, reason, was_silent);
  }
  void ThrowIfFailed() const {
    const std::lock_guard lock(mutex_);
    ThrowIfFailedLocked();
  }
  std::optional<Failure> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  void AwaitEndOf(int32_t other, std::chrono::milliseconds limit) const {
    const int fd = pidfds_[static_cast<size_t>(other)].fd();
    pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
    poll(&wait, 1, static_cast<int>(limit.count()));
  }

  int32_t rank = 0;
  int32_t size = 0;
  int32_t ranks_of_machine = 0;
  int32_t ranks_of_cpus = 0;
  int32_t number_on_machine = 0;
  // All that MPI is given, so that nothing else has to outlive a call that never ends. They grow to the
  // largest and stay.
  std::vector<std::byte> own_part, parts;
  std::vector<int32_t> part_bytes, part_offsets, given_bytes, given_offsets, places;

  // Every rank's bytes, of which this one's are own_part, to `parts`.
  void GatherParts(const char* what) {
    const auto begin = [&] {
      return calls_.gather(own_part.data(), static_cast<int32_t>(own_part.size()), parts.data(),
                           part_bytes.data(), part_offsets.data());
    };
    Call(what, begin);
  }
  // part_bytes are set; makes room for them.
  void LayOutParts() {
    part_offsets.resize(part_bytes.size());
    int64_t end = 0;
    for (size_t i = 0; i < part_bytes.size(); ++i) {
      part_offsets[i] = static_cast<int32_t>(end);
      end += part_bytes[i];
    }
    QUIRE_CHECK(end <= std::numeric_limits<int32_t>::max(), "a gather of {} bytes", end);
    parts.resize(static_cast<size_t>(end));
    own_part.resize(static_cast<size_t>(part_bytes[static_cast<size_t>(rank)]));
  }
  const MpiCalls& calls() const { return calls_; }

 private:
  std::string Words(int error) const {
    char text[512] = "";
    calls_.describe(error, text, sizeof(text));
    return text;
  }

  // Who is where. Before there is a watch.
  void LookAround() {
    const Seat own = OwnSeat();
    std::vector<Seat> seats(static_cast<size_t>(size));
    part_bytes.assign(seats.size(), sizeof(Seat));
    LayOutParts();
    std::memcpy(own_part.data(), &own, sizeof(own));
    GatherParts("the beginning");
    std::memcpy(seats.data(), parts.data(), parts.size());
    for (const Seat& seat : seats) {
      const bool is_here = seat.machine == own.machine;
      if (std::ssize(pidfds_) == rank) number_on_machine = ranks_of_machine;
      ranks_of_machine += is_here;
      ranks_of_cpus += is_here && seat.cpus == own.cpus;
      pidfds_.emplace_back(is_here ? seat.pid : -1);
    }
  }

  bool IsDone(const char* what) {
    const std::lock_guard lock(mutex_);
    ThrowIfFailedLocked();
    int32_t is_done = 0;
    CheckLocked(calls_.test(&is_done), what);
    is_underway_ = is_done == 0;
    return is_done != 0;
  }

  bool Take(int32_t from, std::vector<std::byte>& message) {
    const std::lock_guard lock(mutex_);
    ThrowIfFailedLocked();
    const void* bytes = nullptr;
    int32_t count = 0;
    CheckLocked(calls_.take(from, &bytes, &count), "a message");
    if (count == 0) return false;
    const auto* begin = static_cast<const std::byte*>(bytes);
    message.assign(begin, begin + count);
    return true;
  }

  bool TellWhere() {
    const std::lock_guard lock(mutex_);
    TellLocked({.kind = Note::Kind::kWaits, .from = rank, .call = num_calls_});
    return true;
  }

  // Of those that have said where they wait, all have been told by now; the one that is behind them is to
  // blame.
  void FailMissing(const char* what) {
    const std::lock_guard lock(mutex_);
    told_[static_cast<size_t>(rank)] = num_calls_;
    const auto missing = std::ranges::min_element(told_) - told_.begin();
    FailLocked(static_cast<int32_t>(missing),
               fmt::format("did not come to {} within {} ms", what, patience_.count()), true);
  }

  void CheckLocked(int error, const char* what) {
    if (error == 0) return;
    FailLocked(rank, fmt::format("{}: MPI says {}", what, Words(error)), false);
    ThrowIfFailedLocked();
  }
  void ThrowIfFailedLocked() const {
    if (failure_) throw DeviceError(DeviceError::Lasts::kForever, reason_);
  }

  void FailLocked(int32_t failed, const std::string& reason, bool was_silent) {
    if (failure_) return;
    Note note{.kind = Note::Kind::kFailure, .rank = failed, .from = rank, .is_silent = was_silent};
    std::strncpy(note.text, reason.c_str(), sizeof(note.text) - 1);
    HearLocked(note);
    TellLocked(note);
    Note heard;  // what was sent moves on while MPI is asked for something
    for (int32_t i = 0, bytes = 0; i < 10; ++i) calls_.receive(&heard, sizeof(heard), &bytes);
  }
  void TellLocked(const Note& note) {
    for (int32_t to = 0; to < size; ++to) {
      if (to != rank) calls_.send(to, &note, sizeof(note));
    }
  }
  void HearLocked(const Note& note) {
    if (note.kind == Note::Kind::kWaits) {
      told_[static_cast<size_t>(note.from)] = note.call;
    } else if (!failure_) {
      failure_ = {.rank = note.rank, .was_silent = note.is_silent != 0};
      reason_ = fmt::format("rank {} of {}: {}", note.rank, size, note.text);
    }
  }

  void Watch() {
    std::vector<pollfd> fds;
    for (const PidFd& pidfd : pidfds_) {
      fds.push_back({.fd = pidfd.fd(), .events = POLLIN, .revents = 0});
    }
    fds[static_cast<size_t>(rank)].fd = -1;
    while (!is_stopping_) {
      poll(fds.data(), fds.size(), static_cast<int>(kLook.count()));
      const std::lock_guard lock(mutex_);
      Note note;
      int32_t bytes = 0;
      while (calls_.receive(&note, sizeof(note), &bytes) == 0 && bytes == sizeof(note)) {
        HearLocked(note);
      }
      const auto gone = std::ranges::find_if(fds, [](const pollfd& fd) { return fd.revents != 0; });
      if (gone != fds.end()) {
        FailLocked(static_cast<int32_t>(gone - fds.begin()), "its process has ended", true);
      }
    }
  }

  const MpiCalls& calls_;
  const std::chrono::milliseconds patience_;
  // Of MPI's calls, and of what follows.
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::string reason_;  // "rank 2 of 4: ...", once there is a failure; neither changes then
  int64_t num_calls_ = 0;
  std::vector<int64_t> told_;  // the call that each rank was last known to wait in
  bool is_underway_ = false;
  std::vector<PidFd> pidfds_;  // of every rank
  std::atomic<bool> is_stopping_ = false;
  std::thread watch_;
};

MpiRank::MpiRank(const MpiCalls& calls, std::chrono::milliseconds patience)
    : impl_(std::make_unique<Impl>(calls, patience)) {}
MpiRank::~MpiRank() = default;

int32_t MpiRank::rank() const { return impl_->rank; }
int32_t MpiRank::size() const { return impl_->size; }
int32_t MpiRank::ranks_of_machine() const { return impl_->ranks_of_machine; }
int32_t MpiRank::ranks_of_cpus() const { return impl_->ranks_of_cpus; }
int32_t MpiRank::number_on_machine() const { return impl_->number_on_machine; }

void MpiRank::AllGather(TensorView whole, std::span<const Share> shares) {
  QUIRE_CHECK(std::ssize(shares) == size(), "{} shares for {} ranks", shares.size(), size());
  const int64_t bytes = DTypeBytes(whole.dtype());
  const int64_t rows = whole.dim(0);
  Impl& impl = *impl_;
  impl.part_bytes.clear();
  for (const Share& share : shares) {
    impl.part_bytes.push_back(static_cast<int32_t>(rows * share.count * bytes));
  }
  impl.LayOutParts();
  // Of each rank, rows of its columns, one behind the other.
  const auto copy_rows = [&](const Share& share, std::byte* part, auto copy) {
    const auto row_bytes = static_cast<size_t>(share.count * bytes);
    for (int64_t row = 0; row < rows && row_bytes > 0; ++row, part += row_bytes) {
      copy(whole.data() + (row * whole.stride(0) + share.first) * bytes, part, row_bytes);
    }
  };
  copy_rows(shares[static_cast<size_t>(rank())], impl.own_part.data(),
            [](const std::byte* own, std::byte* part, size_t n) { std::memcpy(part, own, n); });
  impl.GatherParts("a gather");
  for (int32_t from = 0; from < size(); ++from) {
    if (from == rank()) continue;
    copy_rows(shares[static_cast<size_t>(from)],
              impl.parts.data() + impl.part_offsets[static_cast<size_t>(from)],
              [](std::byte* own, const std::byte* part, size_t n) { std::memcpy(own, part, n); });
  }
}

void MpiRank::AllReduceOr(std::span<uint32_t> words) {
  std::vector<std::byte>& own = impl_->own_part;
  own.resize(words.size_bytes());
  if (words.empty()) return;
  std::memcpy(own.data(), words.data(), own.size());
  impl_->Call("a reduction", [&] {
    return impl_->calls().reduce_or(reinterpret_cast<uint32_t*>(own.data()),
                                    static_cast<int32_t>(words.size()));
  });
  std::memcpy(words.data(), own.data(), own.size());
}

// What goes to a rank, or comes from it, lies together, in the order in which it takes it.
void MpiRank::FetchRows(ConstTensorView rows, std::span<const GivenRows> given,
                        std::span<const RowPart> parts, TensorView taken) {
  Impl& impl = *impl_;
  const int64_t row_bytes = taken.dim(1) * DTypeBytes(taken.dtype());
  const auto lay_out = [&](auto list, auto rank_of, std::vector<int32_t>& bytes,
                           std::vector<int32_t>& offsets) {
    bytes.assign(static_cast<size_t>(size()), 0);
    offsets.assign(bytes.size(), 0);
    int64_t end = 0;
    for (const auto& each : list) end += each.count * row_bytes;
    QUIRE_CHECK(end <= std::numeric_limits<int32_t>::max(), "an exchange of {} bytes", end);
    for (const auto& each : list) {
      bytes[static_cast<size_t>(rank_of(each))] += static_cast<int32_t>(each.count * row_bytes);
    }
    std::exclusive_scan(bytes.begin(), bytes.end(), offsets.begin(), 0);
    return static_cast<size_t>(end);
  };
  const auto taker = [](const GivenRows& each) { return each.to; };
  const auto giver = [](const RowPart& each) { return each.from; };
  impl.own_part.resize(lay_out(given, taker, impl.given_bytes, impl.given_offsets));
  impl.parts.resize(lay_out(parts, giver, impl.part_bytes, impl.part_offsets));
  // copy(bytes of the rows, in the part of the rank, how many) of each, from where the last one of its rank ended.
  const auto copy_all = [&](auto list, auto rank_of, std::vector<int32_t>& offsets, auto copy) {
    impl.places.assign(offsets.begin(), offsets.end());
    for (const auto& each : list) {
      const auto bytes = static_cast<int32_t>(each.count * row_bytes);
      int32_t& place = impl.places[static_cast<size_t>(rank_of(each))];
      if (bytes > 0) copy(each, place, static_cast<size_t>(bytes));
      place += bytes;
    }
  };
  copy_all(given, taker, impl.given_offsets, [&](const GivenRows& each, int32_t at, size_t bytes) {
    std::memcpy(impl.own_part.data() + at, rows.data() + each.first * row_bytes, bytes);
  });
  impl.Call("an exchange of rows", [&] {
    return impl.calls().exchange(impl.own_part.data(), impl.given_bytes.data(),
                                 impl.given_offsets.data(), impl.parts.data(),
                                 impl.part_bytes.data(), impl.part_offsets.data());
  });
  copy_all(parts, giver, impl.part_offsets, [&](const RowPart& each, int32_t at, size_t bytes) {
    QUIRE_CHECK(each.to + each.count <= taken.dim(0), "rows {}..{} of {}", each.to,
                each.to + each.count, taken.dim(0));
    std::memcpy(taken.data() + each.to * row_bytes, impl.parts.data() + at, bytes);
  });
}

void MpiRank::Send(int32_t to, std::span<const std::byte> message) { impl_->Send(to, message); }
void MpiRank::Receive(int32_t from, std::vector<std::byte>& message, Waits waits) {
  impl_->Receive(from, message, waits == Waits::kForever);
}

void MpiRank::Broadcast(std::vector<std::byte>& message) {
  Impl& impl = *impl_;
  const bool leads = rank() == 0;
  std::vector<std::byte>& first = impl.own_part;
  uint64_t size = message.size();
  first.resize(sizeof(size) + kFirstPart);
  if (leads) {
    std::memcpy(first.data(), &size, sizeof(size));
    if (size > 0) {
      std::memcpy(first.data() + sizeof(size), message.data(), std::min(size, kFirstPart));
    }
  }
  const auto send = [&](std::byte* bytes, size_t count, bool is_patient) {
    QUIRE_CHECK(count <= std::numeric_limits<int32_t>::max(), "a message of {} bytes", count);
    impl.Call(
        "a message", [&] { return impl.calls().broadcast(bytes, static_cast<int32_t>(count)); },
        is_patient);
  };
  send(first.data(), first.size(), !leads);
  if (!leads) {
    std::memcpy(&size, first.data(), sizeof(size));
    message.resize(size);
    if (size > 0) {
      std::memcpy(message.data(), first.data() + sizeof(size), std::min(size, kFirstPart));
    }
  }
  if (size <= kFirstPart) return;
  impl.parts.resize(size - kFirstPart);
  if (leads) std::memcpy(impl.parts.data(), message.data() + kFirstPart, impl.parts.size());
  send(impl.parts.data(), impl.parts.size(), false);
  if (!leads) std::memcpy(message.data() + kFirstPart, impl.parts.data(), impl.parts.size());
}

void MpiRank::WaitForAll() {
  std::vector<std::byte>& own = impl_->own_part;
  own.resize(sizeof(uint32_t));
  const auto begin = [&] {
    return impl_->calls().reduce_or(reinterpret_cast<uint32_t*>(own.data()), 1);
  };
  impl_->Call("a meeting", begin, /*is_patient=*/true);
}

void MpiRank::Fail(const std::string& reason) noexcept { impl_->Fail(rank(), reason, false); }
void MpiRank::ThrowIfFailed() const { impl_->ThrowIfFailed(); }
std::optional<MpiRank::Failure> MpiRank::failure() const { return impl_->failure(); }
void MpiRank::AwaitEndOfRankZero(std::chrono::milliseconds limit) const {
  impl_->AwaitEndOf(0, limit);
}

}  // namespace quire
