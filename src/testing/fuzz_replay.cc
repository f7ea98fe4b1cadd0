// Runs a fuzz target over its committed inputs and a fixed number of mutations of them, without a
// fuzzer: what every build can do, sanitized ones too. `make fuzz` searches for new inputs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

constexpr int kMutations = 2000;
constexpr size_t kMaxBytes = 4096;

Input ReadInput(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A few bytes changed, dropped, repeated, or taken from another input.
Input Mutated(Input input, const Input& other, std::mt19937_64& random) {
  for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    const size_t count = std::min<size_t>(input.size() - at, 1 + random() % 16);
    const auto begin = input.begin() + static_cast<ptrdiff_t>(at);
    switch (random() % 4) {
      case 0:
        if (!input.empty()) input[at] = static_cast<uint8_t>(random());
        break;
      case 1:
        input.erase(begin, begin + static_cast<ptrdiff_t>(count));
        break;
      case 2: {
        const Input piece(begin, begin + static_cast<ptrdiff_t>(count));
        input.insert(begin, piece.begin(), piece.end());
        break;
      }
      default: {
        const size_t from = other.empty() ? 0 : random() % other.size();
        const size_t taken = std::min<size_t>(other.size() - from, 1 + random() % 64);
        const auto piece = other.begin() + static_cast<ptrdiff_t>(from);
        input.insert(begin, piece, piece + static_cast<ptrdiff_t>(taken));
      }
    }
  }
  input.resize(std::min(input.size(), kMaxBytes));
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Input> inputs = {Input()};
  for (int i = 1; i < argc; ++i) inputs.push_back(ReadInput(argv[i]));
  for (const Input& input : inputs) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937_64 random(1);
  for (int i = 0; i < kMutations; ++i) {
    const size_t one = random() % inputs.size();
    const size_t other = random() % inputs.size();
    const Input input = Mutated(inputs[one], inputs[other], random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs, %d mutations of them\n", inputs.size(), kMutations);
}
