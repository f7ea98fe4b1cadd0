#include "testing/scripted_drafter.h"

#include <algorithm>
#include <utility>

namespace quire::testing {

ScriptedDrafter::ScriptedDrafter(Script script, DraftStyle style, int64_t vocab_size, uint64_t seed)
    : script_(std::move(script)), style_(style), vocab_size_(vocab_size), random_(seed) {}

void ScriptedDrafter::AddNodes(const StepBatch& batch, std::span<Draft> drafts) {
  for (Draft& draft : drafts) Add(script_(batch.sequences[draft.sequence]), draft);
}

std::span<const int32_t> NextOf(std::span<const std::vector<int32_t>> texts,
                                const StepSequence& seq) {
  const size_t size = seq.prompt.size() + seq.output.size();
  for (const std::span<const int32_t> text : texts) {
    if (text.size() < size || !std::ranges::equal(text.first(seq.prompt.size()), seq.prompt) ||
        !std::ranges::equal(text.subspan(seq.prompt.size(), seq.output.size()), seq.output)) {
      continue;
    }
    return text.subspan(size);
  }
  return {};
}

void ScriptedDrafter::Add(std::span<const int32_t> next, Draft& draft) {
  const auto right = [&](size_t depth) { return depth < next.size() ? next[depth] : Any(); };
  const auto wrong = [&](size_t depth) {
    return static_cast<int32_t>((right(depth) + 1) % vocab_size_);
  };
  std::vector<size_t> depths = {0};  // of nodes: how many tokens follow the root before them
  for (size_t& i = draft.num_nodes; i < draft.tokens.size(); ++i) {
    size_t parent = i - 1;
    if (style_ == DraftStyle::kLastSibling) parent = (i - 1) / 3 * 3;
    if (style_ == DraftStyle::kRandom) parent = random_() % i;
    const size_t depth = depths[parent];
    const bool is_right = style_ == DraftStyle::kRight ||
                          (style_ == DraftStyle::kWrong && depth > 0) ||
                          (style_ == DraftStyle::kLastSibling && i % 3 == 0) ||
                          (style_ == DraftStyle::kRandom && random_() % 2 == 0);
    draft.parents[i] = static_cast<int32_t>(parent);
    draft.tokens[i] = is_right ? right(depth) : wrong(depth);
    depths.push_back(depth + 1);
  }
}

}  // namespace quire::testing
