#include "device/cpu_model.h"

#include <algorithm>
#include <cstdio>
#include <string_view>

namespace quire {

// As lscpu knows it: /proc/cpuinfo of an Arm machine has part numbers only.
std::string CpuModel() {
  std::string model = "unknown CPU";
  FILE* lscpu = popen("LC_ALL=C lscpu 2>/dev/null", "r");
  if (lscpu == nullptr) return model;
  constexpr std::string_view kKey = "Model name:";
  for (char line[256]; std::fgets(line, sizeof(line), lscpu) != nullptr;) {
    std::string_view text(line);
    if (!text.starts_with(kKey)) continue;
    text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ', kKey.size())));
    model = text.substr(0, text.find('\n'));
  }
  pclose(lscpu);
  return model;
}

}  // namespace quire
