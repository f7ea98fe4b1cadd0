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

// That may still be on its way.
struct Carried {
  std::vector<std::byte> bytes;
  MPI_Request request = MPI_REQUEST_NULL;
};

// MPI is one for the process, and so is this.
struct World {
  MPI_Comm steps = MPI_COMM_NULL;  // what all ranks take part in
  MPI_Comm notes = MPI_COMM_NULL;
  MPI_Comm messages = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;  // of steps
  std::list<Carried> sent;                 // notes and messages
  std::vector<Carried> taken;  // the message of each rank that is on its way, or was taken last
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
  for (MPI_Comm* comm : {&world.steps, &world.notes, &world.messages}) {
    if (const int error = MPI_Comm_dup(MPI_COMM_WORLD, comm)) return error;
    if (const int error = MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN)) return error;
  }
  if (const int error = MPI_Comm_rank(world.steps, rank)) return error;
  if (const int error = MPI_Comm_size(world.steps, size)) return error;
  world.taken.resize(static_cast<size_t>(*size));
  return MPI_SUCCESS;
}

int Finish() { return MPI_Finalize(); }

int Gather(const void* own, int32_t own_bytes, void* all, const int32_t* bytes,
           const int32_t* offsets) {
  return MPI_Iallgatherv(own, own_bytes, MPI_BYTE, all, bytes, offsets, MPI_BYTE, world.steps,
                         &world.request);
}

int Exchange(const void* given, const int32_t* given_bytes, const int32_t* given_offsets,
             void* taken, const int32_t* taken_bytes, const int32_t* taken_offsets) {
  return MPI_Ialltoallv(given, given_bytes, given_offsets, MPI_BYTE, taken, taken_bytes,
                        taken_offsets, MPI_BYTE, world.steps, &world.request);
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

int SendCopy(int32_t to, const void* what, int32_t bytes, MPI_Comm comm) {
  Carried& sent = world.sent.emplace_back();
  const auto* begin = static_cast<const std::byte*>(what);
  sent.bytes.assign(begin, begin + bytes);
  return MPI_Isend(sent.bytes.data(), bytes, MPI_BYTE, to, 0, comm, &sent.request);
}

void ForgetWhatArrived() {
  world.sent.remove_if([](Carried& sent) {
    int done = 0;
    return MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  });
}

int Send(int32_t to, const void* note, int32_t bytes) {
  return SendCopy(to, note, bytes, world.notes);
}

int Receive(void* note, int32_t capacity, int32_t* bytes) {
  *bytes = 0;
  ForgetWhatArrived();
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

int Post(int32_t to, const void* message, int32_t bytes) {
  ForgetWhatArrived();
  return SendCopy(to, message, bytes, world.messages);
}

// Its memory is there before it comes, so that no call waits for a rank that may be gone.
int Take(int32_t from, const void** message, int32_t* bytes) {
  *bytes = 0;
  Carried& taken = world.taken[static_cast<size_t>(from)];
  if (taken.request == MPI_REQUEST_NULL) {
    int is_there = 0, count = 0;
    MPI_Message handle;
    MPI_Status status;
    if (const int error = MPI_Improbe(from, 0, world.messages, &is_there, &handle, &status)) {
      return error;
    }
    if (is_there == 0) return MPI_SUCCESS;
    if (const int error = MPI_Get_count(&status, MPI_BYTE, &count)) return error;
    taken.bytes.resize(static_cast<size_t>(count));
    if (const int error =
            MPI_Imrecv(taken.bytes.data(), count, MPI_BYTE, &handle, &taken.request)) {
      return error;
    }
  }
  int done = 0;
  if (const int error = MPI_Test(&taken.request, &done, MPI_STATUS_IGNORE)) return error;
  if (done == 0) return MPI_SUCCESS;
  *message = taken.bytes.data();
  *bytes = static_cast<int32_t>(taken.bytes.size());
  return MPI_SUCCESS;
}

constexpr MpiCalls kCalls{.version = kMpiCallsVersion,
                          .library = Library,
                          .describe = Describe,
                          .start = Start,
                          .finish = Finish,
                          .gather = Gather,
                          .exchange = Exchange,
                          .reduce_or = ReduceOr,
                          .broadcast = Broadcast,
                          .test = Test,
                          .send = Send,
                          .receive = Receive,
                          .post = Post,
                          .take = Take};

}  // namespace
}  // namespace quire

extern "C" __attribute__((visibility("default"))) const quire::MpiCalls* QuireMpiCalls() {
  return &quire::kCalls;
}
