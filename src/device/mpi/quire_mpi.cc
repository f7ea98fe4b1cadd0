// The module that is linked to MPI's library: mpi_calls.h, in MPI's own terms.
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <vector>

#include "device/mpi/mpi_calls.h"

namespace quire {
namespace {

struct Sent {
  std::vector<std::byte> note;
  MPI_Request request = MPI_REQUEST_NULL;
};

// MPI is one for the process, and so is this.
struct World {
  MPI_Comm steps = MPI_COMM_NULL;  // what all ranks take part in
  MPI_Comm notes = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;  // of steps
  std::list<Sent> sent;                    // notes that may still be on their way
};
World world;

void CopyText(const char* from, char* text, int32_t size) {
  if (size < 1) return;
  std::strncpy(text, from, static_cast<size_t>(size - 1));
  text[size - 1] = '\0';
}

void Library(char* text, int32_t size) {
  char name[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(name, &length);
  CopyText(name, text, size);
}

void Describe(int error, char* text, int32_t size) {
  char words[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(error, words, &length);
  CopyText(words, text, size);
}

int Start(int32_t* rank, int32_t* size) {
  int provided = 0;
  if (const int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided)) {
    return error;
  }
  if (provided < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
  for (MPI_Comm* comm : {&world.steps, &world.notes}) {
    if (const int error = MPI_Comm_dup(MPI_COMM_WORLD, comm)) return error;
    if (const int error = MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN)) return error;
  }
  if (const int error = MPI_Comm_rank(world.steps, rank)) return error;
  return MPI_Comm_size(world.steps, size);
}

int Finish() { return MPI_Finalize(); }

int Gather(const void* own, int32_t own_bytes, void* all, const int32_t* bytes,
           const int32_t* offsets) {
  return MPI_Iallgatherv(own, own_bytes, MPI_BYTE, all, bytes, offsets, MPI_BYTE, world.steps,
                         &world.request);
}

int ReduceOr(uint32_t* words, int32_t count) {
  return MPI_Iallreduce(MPI_IN_PLACE, words, count, MPI_UINT32_T, MPI_BOR, world.steps,
                        &world.request);
}

int Broadcast(void* message, int32_t bytes) {
  return MPI_Ibcast(message, bytes, MPI_BYTE, 0, world.steps, &world.request);
}

int Test(int32_t* is_done) {
  int done = 0;
  const int error = MPI_Test(&world.request, &done, MPI_STATUS_IGNORE);
  *is_done = done;
  return error;
}

int Send(int32_t to, const void* note, int32_t bytes) {
  Sent& sent = world.sent.emplace_back();
  const auto* begin = static_cast<const std::byte*>(note);
  sent.note.assign(begin, begin + bytes);
  return MPI_Isend(sent.note.data(), bytes, MPI_BYTE, to, 0, world.notes, &sent.request);
}

int Receive(void* note, int32_t capacity, int32_t* bytes) {
  *bytes = 0;
  world.sent.remove_if([](Sent& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  });
  int is_there = 0;
  MPI_Status status;
  if (const int error = MPI_Iprobe(MPI_ANY_SOURCE, 0, world.notes, &is_there, &status)) {
    return error;
  }
  if (is_there == 0) return MPI_SUCCESS;
  if (const int error =
          MPI_Recv(note, capacity, MPI_BYTE, status.MPI_SOURCE, 0, world.notes, &status)) {
    return error;
  }
  return MPI_Get_count(&status, MPI_BYTE, bytes);
}

constexpr MpiCalls kCalls{.version = kMpiCallsVersion,
                          .library = Library,
                          .describe = Describe,
                          .start = Start,
                          .finish = Finish,
                          .gather = Gather,
                          .reduce_or = ReduceOr,
                          .broadcast = Broadcast,
                          .test = Test,
                          .send = Send,
                          .receive = Receive};

}  // namespace
}  // namespace quire

extern "C" __attribute__((visibility("default"))) const quire::MpiCalls* QuireMpiCalls() {
  return &quire::kCalls;
}
