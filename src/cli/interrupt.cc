#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "base/error.h"

namespace quire::cli {
namespace {

// All that the signal handler can reach; -1 while there is no Interrupt.
std::atomic<int> write_end = -1;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

// A full pipe takes no more, and needs no more.
void Note(int) {
  const int saved = errno;
  [[maybe_unused]] const ssize_t written = write(write_end, "", 1);
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(Times times) {
  QUIRE_CHECK(write_end == -1, "there is an Interrupt already");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw std::system_error(errno, std::generic_category(), "pipe");
  }
  fd_ = ends[0];
  write_end = ends[1];
  struct sigaction action = {};
  action.sa_handler = Note;
  // Whoever waits for an interrupt polls fd(); nobody else is to be disturbed.
  action.sa_flags = SA_RESTART | (times == Times::kOnce ? static_cast<int>(SA_RESETHAND) : 0);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &before_);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &before_, nullptr);
  close(write_end.exchange(-1));
  close(fd_);
}

bool Interrupt::raised() const {
  pollfd wanted{.fd = fd_, .events = POLLIN, .revents = 0};
  return poll(&wanted, 1, 0) == 1;
}

void Interrupt::Clear() {
  char bytes[64];
  while (read(fd_, bytes, sizeof(bytes)) > 0) continue;
}

}  // namespace quire::cli
