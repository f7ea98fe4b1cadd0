#include "text/grammar/automaton.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

size_t StateIndex(int64_t n) { return static_cast<size_t>(n); }

// States with edges of their own, while they grow.
struct Draft {
  struct State {
    std::vector<GrammarAutomaton::ByteEdge> bytes;
    std::vector<std::pair<size_t, int32_t>> calls;  // rule, target
    std::vector<int32_t> free;
    bool ends_rule = false;
    int32_t count = -1;
  };
  std::vector<State> states;
  std::vector<int32_t> starts;  // of rules: the grammar's, then those of counted parts
  std::vector<GrammarAutomaton::Count> counts;

  int32_t Add() {
    Require(std::ssize(states) < kMaxGrammarStates, "grammar: expected at most {} states, got more",
            kMaxGrammarStates);
    states.emplace_back();
    return static_cast<int32_t>(states.size() - 1);
  }
  State& At(int32_t state) { return states[StateIndex(state)]; }
};

// Writes expressions as states between two that are there.
class Drafter {
 public:
  explicit Drafter(const Grammar& grammar) : grammar_(grammar) {}

  Draft Write() {
    for (size_t i = 0; i < grammar_.rules().size(); ++i) draft_.starts.push_back(draft_.Add());
    for (size_t i = 0; i < grammar_.rules().size(); ++i) {
      const Grammar::RuleText& rule = grammar_.rules()[i];
      Require(rule.expr.has_value(), "grammar: rule {}: not defined", rule.name);
      const int32_t end = draft_.Add();
      draft_.At(end).ends_rule = true;
      Write(*rule.expr, draft_.starts[i], end, 0);
    }
    return std::move(draft_);
  }

 private:
  void Write(Grammar::Expr expr, int32_t from, int32_t to, int depth) {
    Require(depth <= kMaxGrammarDepth * 4, "grammar: expected expressions at most {} deep",
            kMaxGrammarDepth);
    const Grammar::Node& node = grammar_.node(expr);
    switch (node.kind) {
      case Grammar::Kind::kEmpty:
        draft_.At(from).free.push_back(to);
        return;
      case Grammar::Kind::kLiteral:
        return WriteLiteral(node.literal, from, to);
      case Grammar::Kind::kCharacters:
        return WriteCharacters(node.set, from, to);
      case Grammar::Kind::kSequence: {
        int32_t at = from;
        for (size_t i = 0; i < node.parts.size(); ++i) {
          const int32_t next = i + 1 == node.parts.size() ? to : draft_.Add();
          Write(node.parts[i], at, next, depth + 1);
          at = next;
        }
        if (node.parts.empty()) draft_.At(from).free.push_back(to);
        return;
      }
      case Grammar::Kind::kChoice:
        for (const Grammar::Expr part : node.parts) Write(part, from, to, depth + 1);
        return;
      case Grammar::Kind::kRepeat:
        return WriteRepeat(node, from, to, depth);
      case Grammar::Kind::kCall:
        draft_.At(from).calls.emplace_back(static_cast<size_t>(node.rule), to);
        return;
    }
  }

  void WriteLiteral(std::string_view literal, int32_t from, int32_t to) {
    for (size_t i = 0; i < literal.size(); ++i) {
      const int32_t next = i + 1 == literal.size() ? to : draft_.Add();
      const auto byte = static_cast<uint8_t>(literal[i]);
      draft_.At(from).bytes.push_back({.first = byte, .last = byte, .target = next});
      from = next;
    }
  }

  // Where any continuation bytes may follow, all ranges share the states that read them.
  void WriteCharacters(const CodePoints& set, int32_t from, int32_t to) {
    std::map<int, int32_t> any = {{0, to}};  // state that wants so many continuation bytes
    const auto wants = [&](int count) {
      for (int i = 1; i <= count; ++i) {
        if (any.contains(i)) continue;
        any[i] = draft_.Add();
        draft_.At(any[i]).bytes.push_back({.first = 0x80, .last = 0xBF, .target = any[i - 1]});
      }
      return any[count];
    };
    for (const Utf8Range& range : Utf8Ranges(set)) {
      int free_tail = 0;
      while (free_tail < range.length - 1) {
        const Utf8Range::Bytes& bytes = range.bytes[range.length - 1 - free_tail];
        if (bytes.first != 0x80 || bytes.last != 0xBF) break;
        ++free_tail;
      }
      int32_t at = from;
      for (int i = 0; i < range.length - free_tail; ++i) {
        const bool is_last = i + 1 == range.length - free_tail;
        const int32_t next = is_last ? wants(free_tail) : draft_.Add();
        draft_.At(at).bytes.push_back(
            {.first = range.bytes[i].first, .last = range.bytes[i].last, .target = next});
        at = next;
      }
    }
  }

  void WriteRepeat(const Grammar::Node& node, int32_t from, int32_t to, int depth) {
    // A part that is repeated often becomes a rule: then its states are there once, and the repetition
    // itself can be counted (Count).
    const int64_t times = node.max.value_or(node.min);
    std::optional<size_t> rule;
    if (times >= kCountedTimes) rule = RuleOf(node.parts[0], depth);
    const auto write_part = [&](int32_t at, int32_t next) {
      if (rule) {
        draft_.At(at).calls.emplace_back(*rule, next);
      } else {
        Write(node.parts[0], at, next, depth + 1);
      }
    };
    const auto count = [&](int32_t at, int64_t done) {
      if (!rule) return;
      draft_.At(at).count = static_cast<int32_t>(draft_.counts.size());
      draft_.counts.push_back({.start = draft_.starts[*rule],
                               .after = to,
                               .min = std::max<int64_t>(0, node.min - done),
                               .max = node.max ? *node.max - done : kAnyTimes});
    };
    int32_t at = from;
    if (rule) {  // a state of its own: `from` may have other ways
      at = draft_.Add();
      draft_.At(from).free.push_back(at);
    }
    for (int64_t i = 0; i < node.min; ++i) {
      const int32_t next = draft_.Add();
      write_part(at, next);
      count(at, i);
      at = next;
    }
    if (!node.max) {
      const int32_t loop = draft_.Add();
      draft_.At(at).free.push_back(loop);
      write_part(loop, loop);
      at = loop;
    }
    for (int64_t i = node.min; node.max && i < *node.max; ++i) {
      const int32_t next = draft_.Add();
      draft_.At(at).free.push_back(to);
      write_part(at, next);
      count(at, i);
      at = next;
    }
    draft_.At(at).free.push_back(to);
  }

  size_t RuleOf(Grammar::Expr part, int depth) {
    const Grammar::Node& node = grammar_.node(part);
    if (node.kind == Grammar::Kind::kCall) return static_cast<size_t>(node.rule);
    const size_t rule = draft_.starts.size();
    const int32_t start = draft_.Add();
    draft_.starts.push_back(start);
    const int32_t end = draft_.Add();
    draft_.At(end).ends_rule = true;
    Write(part, start, end, depth + 1);
    return rule;
  }

  static constexpr int64_t kCountedTimes = 8;
  static constexpr int64_t kAnyTimes = std::numeric_limits<int64_t>::max();

  const Grammar& grammar_;
  Draft draft_;
};

// For every state whether the end of its rule can be reached from it, without a byte or at all.
// Every edge is looked at once for each of its ends: a state may have a hundred thousand.
std::vector<bool> CanEnd(const Draft& draft, bool with_bytes) {
  // What turns out well with a state: those before it; with a call's target, or with the start of
  // the rule that is called, those that call, if the other is well too.
  struct Call {
    int32_t caller;
    int32_t other;
  };
  std::vector<std::vector<int32_t>> before(draft.states.size());
  std::vector<std::vector<Call>> calls(draft.states.size());
  std::vector<bool> can_end(draft.states.size());
  std::vector<int32_t> work;
  const auto mark = [&](int32_t state) {
    if (can_end[StateIndex(state)]) return;
    can_end[StateIndex(state)] = true;
    work.push_back(state);
  };
  for (size_t s = 0; s < draft.states.size(); ++s) {
    const auto state = static_cast<int32_t>(s);
    for (const int32_t next : draft.states[s].free) before[StateIndex(next)].push_back(state);
    for (const auto& [rule, target] : draft.states[s].calls) {
      const int32_t start = draft.starts[rule];
      calls[StateIndex(target)].push_back({.caller = state, .other = start});
      calls[StateIndex(start)].push_back({.caller = state, .other = target});
    }
    for (const auto& edge : draft.states[s].bytes) {
      if (with_bytes) before[StateIndex(edge.target)].push_back(state);
    }
    if (draft.states[s].ends_rule) mark(state);
  }
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (const int32_t other : before[StateIndex(state)]) mark(other);
    for (const Call& call : calls[StateIndex(state)]) {
      if (can_end[StateIndex(call.other)]) mark(call.caller);
    }
  }
  return can_end;
}

// Drops what leads nowhere.
void Trim(Draft& draft) {
  const std::vector<bool> can_end = CanEnd(draft, true);
  const auto leads_nowhere = [&](int32_t state) { return !can_end[StateIndex(state)]; };
  for (Draft::State& state : draft.states) {
    std::erase_if(state.bytes, [&](const auto& edge) { return leads_nowhere(edge.target); });
    std::erase_if(state.free, leads_nowhere);
    std::erase_if(state.calls, [&](const auto& call) {
      return leads_nowhere(call.second) || leads_nowhere(draft.starts[call.first]);
    });
    if (state.count < 0) continue;
    const GrammarAutomaton::Count& count = draft.counts[StateIndex(state.count)];
    if (leads_nowhere(count.start) || leads_nowhere(count.after)) state.count = -1;
  }
}

// Rules that a rule can call before a byte is read; a circle of them would push for ever.
void RefuseLeftRecursion(const Draft& draft, const Grammar& grammar) {
  const std::vector<bool> can_end = CanEnd(draft, false);
  const auto first_calls = [&](size_t rule) {
    std::vector<size_t> called;
    std::vector<int32_t> work = {draft.starts[rule]};
    std::unordered_set<int32_t> seen = {draft.starts[rule]};
    const auto visit = [&](int32_t state) {
      if (seen.insert(state).second) work.push_back(state);
    };
    while (!work.empty()) {
      const Draft::State& state = draft.states[StateIndex(work.back())];
      work.pop_back();
      for (const int32_t next : state.free) visit(next);
      for (const auto& [callee, target] : state.calls) {
        called.push_back(callee);
        if (can_end[StateIndex(draft.starts[callee])]) visit(target);
      }
    }
    return called;
  };
  enum class Mark : uint8_t { kUnseen, kOnPath, kLeft };
  std::vector<Mark> marks(draft.starts.size(), Mark::kUnseen);
  // Depth first, without recursion: a grammar may be a chain of a hundred thousand rules.
  struct Visit {
    size_t rule;
    std::vector<size_t> calls;
    size_t next = 0;
  };
  for (size_t root = 0; root < draft.starts.size(); ++root) {
    if (marks[root] != Mark::kUnseen) continue;
    std::vector<Visit> path;
    path.push_back({.rule = root, .calls = first_calls(root)});
    marks[root] = Mark::kOnPath;
    while (!path.empty()) {
      Visit& visit = path.back();
      if (visit.next == visit.calls.size()) {
        marks[visit.rule] = Mark::kLeft;
        path.pop_back();
        continue;
      }
      const size_t callee = visit.calls[visit.next++];
      Require(
          marks[callee] != Mark::kOnPath,
          "grammar: rule {}: expected to read something before it calls itself (left recursion)",
          grammar.rules()[callee].name);
      if (marks[callee] == Mark::kLeft) continue;
      marks[callee] = Mark::kOnPath;
      path.push_back({.rule = callee, .calls = first_calls(callee)});
    }
  }
}

// Whether nothing but the end of the rule can be reached.
bool OnlyEnds(const Draft& draft, int32_t from) {
  constexpr size_t kEnough = 8;  // a longer way is not worth looking for
  std::vector<int32_t> seen = {from};
  bool ends = false;
  for (size_t i = 0; i < seen.size(); ++i) {
    const Draft::State& state = draft.states[StateIndex(seen[i])];
    if (!state.bytes.empty() || !state.calls.empty() || i >= kEnough) return false;
    ends = ends || state.ends_rule;
    for (const int32_t next : state.free) {
      if (std::ranges::find(seen, next) == seen.end()) seen.push_back(next);
    }
  }
  return ends;
}

GrammarAutomaton Flatten(const Draft& draft, int32_t start) {
  GrammarAutomaton out;
  out.start = start;
  struct Begin {
    size_t byte, call, free;
  };
  std::vector<Begin> begins;
  for (const Draft::State& state : draft.states) {
    begins.push_back({out.byte_edges.size(), out.call_edges.size(), out.free_edges.size()});
    out.byte_edges.insert(out.byte_edges.end(), state.bytes.begin(), state.bytes.end());
    for (const auto& [rule, target] : state.calls) {
      out.call_edges.push_back({.start = draft.starts[rule], .target = target});
    }
    out.free_edges.insert(out.free_edges.end(), state.free.begin(), state.free.end());
  }
  for (size_t s = 0; s < draft.states.size(); ++s) {
    const Draft::State& state = draft.states[s];
    out.states.push_back(
        {.bytes = std::span(out.byte_edges).subspan(begins[s].byte, state.bytes.size()),
         .calls = std::span(out.call_edges).subspan(begins[s].call, state.calls.size()),
         .free = std::span(out.free_edges).subspan(begins[s].free, state.free.size()),
         .ends_rule = state.ends_rule,
         .only_ends_rule = OnlyEnds(draft, static_cast<int32_t>(s)),
         .count = state.count});
  }
  out.counts = draft.counts;
  return out;
}

uint64_t PairKey(int32_t a, int32_t b) {
  return static_cast<uint64_t>(static_cast<uint32_t>(a)) << 32 | static_cast<uint32_t>(b);
}

}  // namespace

GrammarAutomaton CompileGrammar(const Grammar& grammar) {
  Draft draft = Drafter(grammar).Write();
  const auto root = static_cast<size_t>(grammar.root());
  QUIRE_CHECK(root < draft.starts.size(), "the grammar has no root");
  Require(CanEnd(draft, true)[StateIndex(draft.starts[root])],
          "grammar: rule {}: expected a rule that some text matches, got one that no text does",
          grammar.rules()[root].name);
  Trim(draft);
  RefuseLeftRecursion(draft, grammar);
  return Flatten(draft, draft.starts[root]);
}

int32_t StackPool::Push(int32_t return_state, int32_t below) {
  const auto [place, is_new] =
      numbers_.try_emplace(PairKey(return_state, below), static_cast<int32_t>(frames_.size() + 1));
  if (is_new) frames_.push_back({.return_state = return_state, .below = below});
  return place->second;
}

bool GrammarClosure::Insert(GrammarThread thread) {
  if (threads_.size() * 2 >= table_.size()) Rehash(std::max<size_t>(64, table_.size() * 2));
  const size_t mask = table_.size() - 1;
  size_t place = (PairKey(thread.state, thread.stack) * 0x9e3779b97f4a7c15u >> 32) & mask;
  while (table_[place] != 0) {
    if (threads_[StateIndex(table_[place] - 1)] == thread) return false;
    place = (place + 1) & mask;
  }
  if (std::ssize(threads_) >= kMaxGrammarThreads) {
    throw Error(ErrorCode::kCapacityExceeded,
                "grammar: expected at most {} ways to read a text, got more: it is too ambiguous",
                kMaxGrammarThreads);
  }
  threads_.push_back(thread);
  table_[place] = static_cast<int32_t>(threads_.size());
  return true;
}

void GrammarClosure::Rehash(size_t size) {
  table_.assign(size, 0);
  std::vector<GrammarThread> threads = std::exchange(threads_, {});
  threads_.reserve(threads.size());
  for (const GrammarThread thread : threads) Insert(thread);
}

void GrammarClosure::Compute(const GrammarAutomaton& automaton, std::span<const GrammarThread> from,
                             StackPool& pool) {
  constexpr size_t kSmallTable = 1024;  // a larger one costs more to clear than to grow again
  threads_.clear();
  table_.assign(table_.size() > kSmallTable ? 0 : table_.size(), 0);
  ends_ = false;
  can_go_on_ = false;
  for (const GrammarThread thread : from) Insert(thread);
  for (size_t i = 0; i < threads_.size(); ++i) {
    const GrammarThread thread = threads_[i];
    const GrammarAutomaton::State& state = automaton.states[StateIndex(thread.state)];
    can_go_on_ = can_go_on_ || !state.bytes.empty();
    for (const int32_t next : state.free) Insert({.state = next, .stack = thread.stack});
    for (const GrammarAutomaton::CallEdge& call : state.calls) {
      const bool needs_frame = !automaton.states[StateIndex(call.target)].only_ends_rule;
      Insert({.state = call.start,
              .stack = needs_frame ? pool.Push(call.target, thread.stack) : thread.stack});
    }
    if (!state.ends_rule) continue;
    if (thread.stack == StackPool::kBottom) {
      ends_ = true;
    } else {
      Insert({.state = pool.return_state(thread.stack), .stack = pool.below(thread.stack)});
    }
  }
}

void GrammarClosure::Read(const GrammarAutomaton& automaton, uint8_t byte,
                          std::vector<GrammarThread>& to) const {
  to.clear();
  for (const GrammarThread thread : threads_) {
    for (const GrammarAutomaton::ByteEdge& edge :
         automaton.states[StateIndex(thread.state)].bytes) {
      if (byte < edge.first || byte > edge.last) continue;
      to.push_back({.state = edge.target, .stack = thread.stack});
    }
  }
  std::ranges::sort(to);
  to.erase(std::unique(to.begin(), to.end()), to.end());
}

}  // namespace quire
