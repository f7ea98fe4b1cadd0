#include "textgen/stop_strings.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace quire {

// ---- The automaton ----

StopAutomaton::StopAutomaton(std::vector<std::string> stops) : stops_(std::move(stops)), nodes_(1) {
  for (int32_t i = 0; i < std::ssize(stops_); ++i) {
    Require(!stops_[static_cast<size_t>(i)].empty(), "stop: expected a text, got an empty one");
    Insert(i);
  }
  Link();
}

int32_t StopAutomaton::Child(int32_t node, char byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].first_child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

void StopAutomaton::Insert(int32_t number) {
  int32_t node = kRoot;
  for (const char byte : stops_[static_cast<size_t>(number)]) {
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      Node& parent = nodes_[static_cast<size_t>(node)];
      const Node made{.depth = parent.depth + 1, .next_sibling = parent.first_child, .byte = byte};
      parent.first_child = child;
      nodes_.push_back(made);
    }
    node = child;
  }
  nodes_[static_cast<size_t>(node)].stop = number;
}

// Short nodes first: a link goes to a shorter one, whose own is known by then.
void StopAutomaton::Link() {
  std::vector<int32_t> order = {kRoot};
  int64_t ignored = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t parent = order[i];
    for (int32_t child = nodes_[static_cast<size_t>(parent)].first_child; child >= 0;
         child = nodes_[static_cast<size_t>(child)].next_sibling) {
      order.push_back(child);
      Node& node = nodes_[static_cast<size_t>(child)];
      if (parent != kRoot) {
        node.link = Next(nodes_[static_cast<size_t>(parent)].link, node.byte, ignored);
      }
      if (node.stop < 0) node.stop = nodes_[static_cast<size_t>(node.link)].stop;
    }
  }
}

int32_t StopAutomaton::Next(int32_t node, char byte, int64_t& num_visited) const {
  for (;;) {
    ++num_visited;
    const int32_t child = Child(node, byte);
    if (child >= 0) return child;
    if (node == kRoot) return kRoot;
    node = nodes_[static_cast<size_t>(node)].link;
  }
}

// ---- The text ----

StopStrings::StopStrings(std::shared_ptr<const StopAutomaton> automaton)
    : automaton_(std::move(automaton)) {}

std::string StopStrings::Put(std::string_view piece) {
  if (found_) return {};
  if (automaton_ == nullptr) return std::string(piece);
  for (const char byte : piece) {
    Take(byte);
    // One that has begun further ahead may still become the first.
    if (!first_ || size_ - automaton_->depth(node_) < first_->begin) continue;
    std::string text = TakeHeld(first_->begin);
    End();
    return text;
  }
  const int64_t begun = size_ - automaton_->depth(node_);
  return TakeHeld(first_ ? std::min(begun, first_->begin) : begun);
}

void StopStrings::Take(char byte) {
  node_ = automaton_->Next(node_, byte, num_visited_);
  held_ += byte;
  ++size_;
  const int32_t stop = automaton_->stop(node_);
  if (stop < 0) return;
  // The longest that ends here begins first; one that began at the same place and ended before it is
  // shorter, and stays.
  const int64_t begin = size_ - std::ssize(automaton_->stops()[static_cast<size_t>(stop)]);
  if (!first_ || begin < first_->begin) first_ = Match{.begin = begin, .stop = stop};
}

std::string StopStrings::TakeHeld(int64_t end) {
  const auto count = static_cast<size_t>(end - (size_ - std::ssize(held_)));
  std::string text = held_.substr(0, count);
  held_.erase(0, count);
  return text;
}

void StopStrings::End() {
  found_ = automaton_->stops()[static_cast<size_t>(first_->stop)];
  held_.clear();
}

std::string StopStrings::Flush() {
  // With nothing more to come, what has begun will not become whole.
  if (!first_ || found_) return std::exchange(held_, {});
  std::string text = TakeHeld(first_->begin);
  End();
  return text;
}

}  // namespace quire
