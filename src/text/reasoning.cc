#include "text/reasoning.h"

#include <algorithm>
#include <utility>

#include "text/possible_tag.h"

namespace quire {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

ReasoningSplitter::ReasoningSplitter(ReasoningStart start)
    : state_(start == ReasoningStart::kReasoning ? State::kReasoning : State::kBeforeThink) {}

ReasoningPieces ReasoningSplitter::Put(std::string_view piece) {
  held_ += piece;
  ReasoningPieces out;
  Advance(&out);
  return out;
}

ReasoningPieces ReasoningSplitter::Flush() {
  ReasoningPieces out;
  (state_ == State::kReasoning ? out.reasoning : out.content) = std::exchange(held_, {});
  return out;
}

// Gives out what is clear, state by state.
void ReasoningSplitter::Advance(ReasoningPieces* out) {
  if (state_ == State::kBeforeThink && !AdvanceBeforeThink()) return;
  if (state_ == State::kReasoning && !AdvanceReasoning(out)) return;
  out->content += std::exchange(held_, {});
}

// False while it is open whether the text begins with <think>.
bool ReasoningSplitter::AdvanceBeforeThink() {
  const std::string_view held = held_;
  // White space that was there before is not looked at again: there may be much of it.
  num_space_ = std::min(held.find_first_not_of(kSpace, num_space_), held.size());
  const std::string_view text = held.substr(num_space_);
  if (text.size() < kOpen.size() && kOpen.starts_with(text)) return false;
  if (!text.starts_with(kOpen)) {
    state_ = State::kContent;
    return true;
  }
  held_ = std::string(text.substr(kOpen.size()));
  state_ = State::kReasoning;
  return true;
}

// False while </think> has not come.
bool ReasoningSplitter::AdvanceReasoning(ReasoningPieces* out) {
  const size_t close = held_.find(kClose);
  const size_t clear =
      close != std::string::npos ? close : held_.size() - PossibleTagBytes(held_, kClose);
  out->reasoning += held_.substr(0, clear);
  held_.erase(0, clear);
  if (close == std::string::npos) return false;
  held_.erase(0, kClose.size());
  state_ = State::kContent;
  return true;
}

}  // namespace quire
