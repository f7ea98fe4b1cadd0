// What kind of CPU this is.
#ifndef QUIRE_DEVICE_CPU_MODEL_H_
#define QUIRE_DEVICE_CPU_MODEL_H_

#include <string>

namespace quire {

// "Neoverse-V1", or "unknown CPU".
std::string CpuModel();

}  // namespace quire

#endif  // QUIRE_DEVICE_CPU_MODEL_H_
