// What Quire needs of MPI, as a table of plain functions.
//
// quire_mpi.cc fills it in and is linked to MPI's library, alone: it is a module that is opened at run time
// (device/mpi_ranks.h), so that a machine without MPI can start the same program, and types and constants of
// one MPI, which differ from those of another, stay in one file.
#ifndef QUIRE_DEVICE_MPI_MPI_CALLS_H_
#define QUIRE_DEVICE_MPI_MPI_CALLS_H_

#include <cstdint>

namespace quire {

// Of the table's shape: a module of another version is not used.
inline constexpr int32_t kMpiCallsVersion = 2;
inline constexpr const char* kMpiCallsSymbol = "QuireMpiCalls";

// For one thread at a time. Calls return 0, or MPI's error code.
struct MpiCalls {
  int32_t version;
  // MPI's own name and version; before start too.
  void (*library)(char* text, int32_t size);
  void (*describe)(int error, char* text, int32_t size);

  // Once each: MPI can be started once in a process.
  int (*start)(int32_t* rank, int32_t* size);
  int (*finish)();

  // Begin what all ranks take part in, one at a time: `test` says when it is done, and carries it on. What
  // they are given stays until then. Counts and offsets are in bytes, but for words.
  int (*gather)(const void* own, int32_t own_bytes, void* all, const int32_t* bytes,
                const int32_t* offsets);
  // [i] is for, or of, rank i.
  int (*exchange)(const void* given, const int32_t* given_bytes, const int32_t* given_offsets,
                  void* taken, const int32_t* taken_bytes, const int32_t* taken_offsets);
  int (*reduce_or)(uint32_t* words, int32_t count);
  int (*broadcast)(void* message, int32_t bytes);  // rank 0's
  int (*test)(int32_t* is_done);

  // Notes beside that, from one rank to another, of up to so many bytes. `send` keeps a copy; `receive` gives
  // 0 bytes if there is none.
  int (*send)(int32_t to, const void* note, int32_t bytes);
  int (*receive)(void* note, int32_t capacity, int32_t* bytes);

  // Messages beside both, of any length but 0. `post` keeps a copy; `take` gives the next one of a rank, which
  // stays until the next call for the same one, or 0 bytes if it is not there yet.
  int (*post)(int32_t to, const void* message, int32_t bytes);
  int (*take)(int32_t from, const void** message, int32_t* bytes);
};

// What the module is asked for, by its name.
using GetMpiCalls = const MpiCalls* (*)();

}  // namespace quire

#endif  // QUIRE_DEVICE_MPI_MPI_CALLS_H_
