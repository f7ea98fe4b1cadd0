#include "testing/cuda/emulator/phase.h"

#include <bit>

#include "testing/cuda/emulator/machine.h"

namespace quire::emulator {
namespace {

constexpr uint64_t kPhaseBit = uint64_t{1} << 63;

struct Fields {
  int32_t bytes;           // announced, less those that have come
  uint32_t missing : 15;   // arrivals, of this phase
  uint32_t arrivals : 15;  // of each
  uint32_t is_initialised : 1;
  uint32_t phase : 1;  // kPhaseBit
};
static_assert(sizeof(Fields) == sizeof(uint64_t) && std::endian::native == std::endian::little);

Fields FieldsOf(const uint64_t& state) {
  const auto fields = std::bit_cast<Fields>(state);
  // Shared memory holds ones at first.
  if (fields.is_initialised == 0 || fields.arrivals == 0x7fff)
    Misuse("a barrier that is not initialised");
  return fields;
}

void Keep(uint64_t& state, Fields fields) {
  if (fields.missing == 0 && fields.bytes == 0) {
    fields.missing = fields.arrivals;
    fields.phase ^= 1;
  }
  state = std::bit_cast<uint64_t>(fields);
}

}  // namespace

void InitPhase(uint64_t& state, uint32_t arrivals) {
  if (arrivals == 0 || arrivals >= 0x7fff) Misuse("a barrier of that many arrivals");
  state = std::bit_cast<uint64_t>(Fields{.bytes = 0,
                                         .missing = arrivals & 0x7fff,
                                         .arrivals = arrivals & 0x7fff,
                                         .is_initialised = 1,
                                         .phase = 0});
}

void ArriveAtPhase(uint64_t& state, uint32_t count) {
  Fields fields = FieldsOf(state);
  if (fields.missing < count) Misuse("an arrival that the barrier's phase does not expect");
  fields.missing = (fields.missing - count) & 0x7fff;
  Keep(state, fields);
}

void ExpectBytes(uint64_t& state, uint32_t bytes) {
  Fields fields = FieldsOf(state);
  fields.bytes += static_cast<int32_t>(bytes);
  if (fields.missing == 0) Misuse("bytes announced to a phase that nobody else arrives at");
  state = std::bit_cast<uint64_t>(fields);
}

void BytesAreThere(uint64_t& state, uint32_t bytes) {
  Fields fields = FieldsOf(state);
  fields.bytes -= static_cast<int32_t>(bytes);
  Keep(state, fields);
}

bool PhaseHasEnded(const uint64_t& state, uint32_t parity) {
  return FieldsOf(state).phase != parity;
}

void WaitForPhase(const uint64_t& state, uint32_t parity) {
  FieldsOf(state);
  WaitWhile(&state, kPhaseBit, parity == 0 ? 0 : kPhaseBit, "a barrier in shared memory");
}

uint64_t& PhaseAt(uint32_t address) {
  if (address % sizeof(uint64_t) != 0) Misuse("a barrier's address that is no multiple of 8");
  return *reinterpret_cast<uint64_t*>(AtShared(address));
}

}  // namespace quire::emulator
