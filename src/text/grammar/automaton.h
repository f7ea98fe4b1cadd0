// A GrammarAutomaton is a grammar as a pushdown automaton over bytes: states, and for every place where
// a rule is called a state to go on in when it has ended. What is to be done after a call is the stack.
//
// The automaton is not deterministic: a text that was read leaves a set of threads, each a state and a
// stack. Threads are kept as they stand directly behind a byte (or at the beginning); what they reach
// without a byte - by calls, by ends of rules - is found when the next byte is asked for.
#ifndef QUIRE_TEXT_GRAMMAR_AUTOMATON_H_
#define QUIRE_TEXT_GRAMMAR_AUTOMATON_H_

#include <compare>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/grammar/grammar.h"

namespace quire {

// Immutable once made. Every state can reach the end of its rule.
struct GrammarAutomaton {
  GrammarAutomaton() = default;
  GrammarAutomaton(GrammarAutomaton&&) =
      default;  // no copies: the states' spans would be another's
  GrammarAutomaton& operator=(GrammarAutomaton&&) = default;

  struct ByteEdge {
    uint8_t first = 0;
    uint8_t last = 0;
    int32_t target = 0;
  };
  struct CallEdge {
    int32_t start = 0;   // the first state of the rule
    int32_t target = 0;  // where to go on
  };
  struct State {
    std::span<const ByteEdge> bytes = {};
    std::span<const CallEdge> calls = {};
    std::span<const int32_t> free = {};  // states that are reached without a byte
    bool ends_rule = false;
    bool only_ends_rule = false;  // nothing else can be done here: a call to it needs no frame
    int32_t count = -1;           // place in `counts`, if the state is one of a counted repetition
  };
  // What can be done in a state of a repetition with a bound, said without the states that follow it: the
  // rule from `start` on is read at least `min` times more and at most `max`, and then `after` is next.
  struct Count {
    int32_t start = 0;
    int32_t after = 0;
    int64_t min = 0;
    int64_t max = 0;
  };

  std::vector<State> states;
  std::vector<Count> counts;
  int32_t start = 0;

  std::vector<ByteEdge> byte_edges;  // what the states' spans are of
  std::vector<CallEdge> call_edges;
  std::vector<int32_t> free_edges;

  int64_t bytes() const {
    return static_cast<int64_t>(states.size() * sizeof(State) + counts.size() * sizeof(Count) +
                                byte_edges.size() * sizeof(ByteEdge) +
                                call_edges.size() * sizeof(CallEdge) +
                                free_edges.size() * sizeof(int32_t));
  }
};

// Throws Error(kInvalidArgument), naming the rule, if one is not defined, calls itself before it has
// read anything, or the root matches no text; and if there are too many states.
GrammarAutomaton CompileGrammar(const Grammar& grammar);

// Stacks, each once: a number stands for a stack, and 0 for the empty one.
class StackPool {
 public:
  static constexpr int32_t kBottom = 0;

  int32_t Push(int32_t return_state, int32_t below);
  int32_t return_state(int32_t stack) const { return frames_[Index(stack)].return_state; }
  int32_t below(int32_t stack) const { return frames_[Index(stack)].below; }
  int64_t size() const { return std::ssize(frames_); }

 private:
  struct Frame {
    int32_t return_state = 0;
    int32_t below = 0;
  };
  static size_t Index(int32_t stack) { return static_cast<size_t>(stack - 1); }

  std::vector<Frame> frames_;
  std::unordered_map<uint64_t, int32_t> numbers_;  // of stacks, by frame
};

struct GrammarThread {
  int32_t state = 0;
  int32_t stack = StackPool::kBottom;
  auto operator<=>(const GrammarThread&) const = default;
};

// More threads at once are refused: the grammar is ambiguous beyond use.
inline constexpr int64_t kMaxGrammarThreads = 1 << 15;

// What threads reach without a byte.
class GrammarClosure {
 public:
  // Computes it, themselves included. Throws Error(kCapacityExceeded) for too many.
  void Compute(const GrammarAutomaton& automaton, std::span<const GrammarThread> from,
               StackPool& pool);

  std::span<const GrammarThread> threads() const { return threads_; }
  bool ends() const { return ends_; }            // one has read a whole text of the bottom's rule
  bool can_go_on() const { return can_go_on_; }  // one can read a byte

  // The threads behind one more byte, sorted, each once.
  void Read(const GrammarAutomaton& automaton, uint8_t byte, std::vector<GrammarThread>& to) const;

 private:
  bool Insert(GrammarThread thread);
  void Rehash(size_t size);

  std::vector<GrammarThread> threads_;
  std::vector<int32_t> table_;  // open addressing: 1 + place in threads_, or 0
  bool ends_ = false;
  bool can_go_on_ = false;
};

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_AUTOMATON_H_
