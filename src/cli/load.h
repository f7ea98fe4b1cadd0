// Loading a model, with what is said on stderr meanwhile; and the pages of a runner without an engine.
#ifndef QUIRE_CLI_LOAD_H_
#define QUIRE_CLI_LOAD_H_

#include <functional>
#include <string>
#include <vector>

#include "base/units.h"
#include "cache/page_list.h"
#include "cache/page_pool.h"
#include "local/local_model.h"
#include "local/model_folder.h"
#include "step/step.h"

namespace quire::cli {

// Takes lines, without their last end.
using SayLine = std::function<void(const std::string& text)>;
void SayOnStderr(const std::string& text);

// Whether loading says the memory plan and its progress. Warnings are always said. Progress is a bar on
// stderr if that is a terminal, and nothing otherwise.
enum class LoadMessages { kShown, kHidden };
LoadEvents PrintLoading(LoadMessages messages = LoadMessages::kShown,
                        const SayLine& say = SayOnStderr);

// The pages of the runner's KV cache.
PagePool MakePagePool(const RunnerLimits& limits);

// `count` sequences of `length` tokens each. Throws Error(kCapacityExceeded) if the pool is too
// small.
std::vector<PageList> TakeSequences(PagePool& pool, int64_t count, TokenCount length);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOAD_H_
