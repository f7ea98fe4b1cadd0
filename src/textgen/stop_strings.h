// Finds the first of several texts in a text that comes piece by piece.
#ifndef QUIRE_TEXTGEN_STOP_STRINGS_H_
#define QUIRE_TEXTGEN_STOP_STRINGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// The beginnings of all stop strings as a tree, with a link from each to the longest other that it ends
// with (Aho and Corasick): a byte is looked at once, however the stop strings begin alike. Immutable,
// so that all answers of a request share one.
class StopAutomaton {
 public:
  // Throws Error(kInvalidArgument) if one is empty.
  explicit StopAutomaton(std::vector<std::string> stops);

  // A node is the longest beginning that the text so far ends with.
  static constexpr int32_t kRoot = 0;
  // The node after one more byte. `num_visited` grows by the nodes that were looked at: over a whole
  // text by at most two a byte.
  int32_t Next(int32_t node, char byte, int64_t& num_visited) const;
  // Bytes of it.
  int32_t depth(int32_t node) const { return nodes_[static_cast<size_t>(node)].depth; }
  // The longest stop string that the node ends with, as its number; -1: none.
  int32_t stop(int32_t node) const { return nodes_[static_cast<size_t>(node)].stop; }

  const std::vector<std::string>& stops() const { return stops_; }

 private:
  struct Node {
    int32_t depth = 0;
    int32_t stop = -1;
    int32_t link = kRoot;  // the longest other node that this one ends with
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    char byte = '\0';  // the last of its beginning
  };

  int32_t Child(int32_t node, char byte) const;
  void Insert(int32_t number);
  void Link();

  std::vector<std::string> stops_;
  std::vector<Node> nodes_;
};

// What comes out, joined, is the text before the first stop string: the one that begins first and, of
// those that begin at one place, the shortest. It does not depend on how the text is
// cut. A piece that may be the beginning of a stop string is kept back until it is clear.
class StopStrings {
 public:
  // Null: there are none.
  explicit StopStrings(std::shared_ptr<const StopAutomaton> automaton);

  // The text that is clear now; empty for ever once one is found.
  std::string Put(std::string_view piece);
  // The text that was kept back: its stop string never came.
  std::string Flush();

  // Which one was found.
  const std::optional<std::string>& found() const { return found_; }
  // As StopAutomaton::Next counts.
  int64_t num_visited() const { return num_visited_; }

 private:
  // A stop string that is whole, and where it begins in all of the text.
  struct Match {
    int64_t begin = 0;
    int32_t stop = 0;
  };
  void Take(char byte);
  void End();
  // Gives out what lies before a place of the text.
  std::string TakeHeld(int64_t end);

  std::shared_ptr<const StopAutomaton> automaton_;
  int32_t node_ = StopAutomaton::kRoot;
  int64_t size_ = 0;  // of all of the text so far
  std::optional<Match> first_ =
      {};             // the first so far: one that has begun before it may still come
  std::string held_;  // the end of the text
  std::optional<std::string> found_;
  int64_t num_visited_ = 0;
};

}  // namespace quire

#endif  // QUIRE_TEXTGEN_STOP_STRINGS_H_
