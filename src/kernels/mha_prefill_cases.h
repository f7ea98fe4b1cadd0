// The cases of multi-head prefill, for every backend's test.
#ifndef QUIRE_KERNELS_MHA_PREFILL_CASES_H_
#define QUIRE_KERNELS_MHA_PREFILL_CASES_H_

#include <vector>

#include "attn/kv_layout.h"
#include "kernels/mha_prefill.h"
#include "testing/paged_batch.h"

namespace quire::testing {

inline const MhaShape kSmall{.num_heads = 3, .nope_dim = 32, .value_dim = 48, .dims = {64, 16}};

struct PrefillCase {
  const char* name;
  std::vector<SequenceCase> seqs;
  MhaShape shape;
  KvFormat format = KvFormat::kLatentBf16;
};

inline const PrefillCase kPrefillCases[] = {
    {"prompt", {{70, 70, {}, 3}}, kSmall},
    {"chunk over a prefix", {{33, 300, {}, 3}, {17, 17, {}, 4}}, kSmall},
    {"decode", {{1, 200, {}, 3}, {1, 1, {}, 4}}, kSmall},
    {"padding and nothing visible", {{4, 0, {}, 3}, {6, 4, {}, 4}, {0, 9, {}, 5}}, kSmall},
    {"odd dims", {{20, 90, {}, 3}}, {2, 10, 7, {21, 5}}},
    {"no rope part", {{20, 90, {}, 3}}, {2, 16, 16, {32, 0}}},
    {"fp8 store", {{20, 90, {}, 3}}, kSmall, KvFormat::kLatentFp8},
    {"DeepSeek", {{18, 80, {}, 3}}, {2, 128, 128, {512, 64}}},
    {"DeepSeek, several sequences",
     {{150, 400, {}, 3}, {4, 0, {}, 4}, {6, 4, {}, 5}, {0, 9, {}, 6}, {130, 130, {}, 7}},
     {2, 128, 128, {512, 64}}},
    {"DeepSeek, fp8 store", {{20, 150, {}, 3}}, {2, 128, 128, {512, 64}}, KvFormat::kLatentFp8},
    {"GLM", {{3, 70, {}, 3}, {140, 200, {}, 4}}, {2, 192, 256, {512, 64}}},
    {"MiniCPM3", {{20, 70, {}, 3}, {200, 300, {}, 4}}, {3, 64, 64, {256, 32}}},
};

}  // namespace quire::testing

#endif  // QUIRE_KERNELS_MHA_PREFILL_CASES_H_
