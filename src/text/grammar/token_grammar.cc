#include "text/grammar/token_grammar.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace quire {
namespace {

// What else takes time, in steps of TokenGrammar::kMaxWork. That bounds the memory of a call, too.
constexpr size_t kEdgesPerStep = 16;
constexpr int64_t kStepsPerConfig = 64;

constexpr int32_t kUnknown = -2;
constexpr int32_t kDead = -1;

size_t MaskIndex(int64_t n) { return static_cast<size_t>(n); }

}  // namespace

// A set of threads above the bottom of a walk, with what follows each byte as far as it is known.
struct TokenGrammar::Config {
  std::vector<GrammarThread> threads;
  bool ends = false;  // the walk's rule
  std::array<int32_t, 256> next;
};

// What a state, or a return to one from some exits, allows.
struct TokenGrammar::Walk {
  std::vector<int32_t> tokens;  // few, or
  std::vector<uint32_t> mask;   // many
  std::vector<int32_t> exits;   // nodes of the trie, ascending

  bool any() const { return !tokens.empty() || !mask.empty(); }

  void AddTokens(std::span<uint32_t> to) const {
    for (const int32_t token : tokens) to[MaskIndex(token / 32)] |= 1u << (token % 32);
    for (size_t i = 0; i < mask.size(); ++i) to[i] |= mask[i];
  }
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(Walk) + 64 +
                                4 * (tokens.size() + mask.size() + exits.size()));
  }
};

// A rule, read again and again from some nodes on. Once there is nothing new in another time, the last
// elements of both lists stand for all that follow.
struct TokenGrammar::Repetition {
  struct Times {
    std::vector<int32_t> nodes;  // where the rule has been read so many times
    std::vector<uint32_t> mask;  // tokens that end before, or there
  };
  std::vector<Times> times;                              // none, once, twice, ...
  std::unordered_map<int32_t, std::vector<Walk>> after;  // by state: what follows so many times
  // By state, least and most times.
  std::map<std::array<int64_t, 3>, const Walk*> windows;
};

TokenGrammar::TokenGrammar(GrammarAutomaton automaton, std::shared_ptr<const VocabularyTrie> trie,
                           int64_t max_work)
    : automaton_(std::move(automaton)),
      trie_(std::move(trie)),
      max_work_(max_work),
      path_(MaskIndex(trie_->max_depth()) + 1) {}

TokenGrammar::~TokenGrammar() = default;

void TokenGrammar::Forget() const {
  pool_ = {};
  configs_.clear();
  numbers_.clear();
  walks_.clear();
  continued_.clear();
  repetitions_.clear();
  kept_.clear();
  cache_bytes_ = 0;
}

void TokenGrammar::Spend(int64_t work) const {
  work_left_ -= work;
  if (work_left_ >= 0) return;
  throw Error(ErrorCode::kCapacityExceeded,
              "grammar: expected at most {} steps to find which tokens may follow, got more: it is "
              "too ambiguous",
              max_work_);
}

// closure_, of these threads.
void TokenGrammar::Close(std::span<const GrammarThread> threads) const {
  closure_.Compute(automaton_, threads, pool_);
  for (const GrammarThread& thread : closure_.threads()) {
    const GrammarAutomaton::State& state = automaton_.states[MaskIndex(thread.state)];
    Spend(static_cast<int64_t>(1 + state.bytes.size() / kEdgesPerStep));
  }
}

int32_t TokenGrammar::Intern(std::vector<GrammarThread> threads) const {
  const auto [place, is_new] = numbers_.try_emplace(threads, static_cast<int32_t>(configs_.size()));
  if (!is_new) return place->second;
  Close(threads);
  Spend(kStepsPerConfig);
  auto config = std::make_unique<Config>();
  config->ends = closure_.ends();
  config->next.fill(kUnknown);
  cache_bytes_ += static_cast<int64_t>(sizeof(Config) + 2 * threads.size() * sizeof(GrammarThread));
  config->threads = std::move(threads);
  configs_.push_back(std::move(config));
  return place->second;
}

int32_t TokenGrammar::Next(int32_t config, uint8_t byte) const {
  const int32_t known = configs_[MaskIndex(config)]->next[byte];
  if (known != kUnknown) return known;
  Close(configs_[MaskIndex(config)]->threads);
  std::vector<GrammarThread> threads;
  closure_.Read(automaton_, byte, threads);
  const int32_t next = threads.empty() ? kDead : Intern(std::move(threads));
  configs_[MaskIndex(config)]->next[byte] = next;
  return next;
}

// The tokens below the nodes `from`, read on from a state of a rule.
TokenGrammar::Walk TokenGrammar::Read(int32_t state, std::span<const int32_t> from) const {
  Walk walk;
  const std::span<const VocabularyTrie::Node> nodes = trie_->nodes();
  const int32_t first = Intern({{.state = state, .stack = StackPool::kBottom}});
  const auto end_at = [&](int32_t config, int32_t node) {
    // Below a leaf there is nothing to go on with; at the root it says that the text may end.
    if (configs_[MaskIndex(config)]->ends && (node == 0 || nodes[MaskIndex(node)].end > node + 1)) {
      walk.exits.push_back(node);
    }
  };
  for (const int32_t start : from) {
    const VocabularyTrie::Node& root = nodes[MaskIndex(start)];
    path_[root.depth] = first;
    end_at(first, start);
    for (int32_t i = start + 1; i < root.end;) {
      Spend(1);
      const VocabularyTrie::Node& node = nodes[MaskIndex(i)];
      const int32_t config = Next(path_[node.depth - 1u], node.byte);
      if (config == kDead) {
        i = node.end;
        continue;
      }
      path_[node.depth] = config;
      const std::span<const int32_t> tokens = trie_->TokensAt(i);
      walk.tokens.insert(walk.tokens.end(), tokens.begin(), tokens.end());
      end_at(config, i);
      ++i;
    }
  }
  std::ranges::sort(walk.exits);  // a start may lie below another
  walk.exits.erase(std::unique(walk.exits.begin(), walk.exits.end()), walk.exits.end());
  // As a mask where that is smaller.
  const int64_t words = TokenMaskWords(trie_->vocab_size());
  if (std::ssize(walk.tokens) > words) {
    std::vector<uint32_t> mask(MaskIndex(words));
    walk.AddTokens(mask);
    walk.tokens = {};
    walk.mask = std::move(mask);
  }
  walk.tokens.shrink_to_fit();
  walk.exits.shrink_to_fit();
  return walk;
}

TokenGrammar::Repetition& TokenGrammar::RepetitionOf(int32_t start, const Walk* before) const {
  std::unique_ptr<Repetition>& known = repetitions_[{before, start}];
  if (known) return *known;
  known = std::make_unique<Repetition>();
  std::vector<Repetition::Times>& times = known->times;
  const size_t words = MaskIndex(TokenMaskWords(trie_->vocab_size()));
  times.push_back({.nodes = before ? before->exits : std::vector<int32_t>{0},
                   .mask = std::vector<uint32_t>(words)});
  // A rule that reads something gets deeper into the trie each time, and so comes to an end; one that
  // may be empty comes to stand still.
  for (bool is_new = true; is_new;) {
    Walk once = Read(start, times.back().nodes);
    is_new = !once.exits.empty() && once.exits != times.back().nodes;
    Repetition::Times next = {.nodes = std::move(once.exits), .mask = times.back().mask};
    once.AddTokens(next.mask);
    times.push_back(std::move(next));
    cache_bytes_ += static_cast<int64_t>(4 * (words + times.back().nodes.size()));
  }
  return *known;
}

const TokenGrammar::Walk* TokenGrammar::CountedWalk(const GrammarAutomaton::Count& count,
                                                    const Walk* before) const {
  Repetition& repetition = RepetitionOf(count.start, before);
  const auto last = std::ssize(repetition.times) - 1;
  const int64_t least = std::min(count.min, last);
  const int64_t most = std::min(count.max, last);
  const Walk*& known = repetition.windows[{count.after, least, most}];
  if (known) return known;
  std::vector<Walk>& after = repetition.after[count.after];
  while (std::ssize(after) <= most) {
    after.push_back(Read(count.after, repetition.times[after.size()].nodes));
    cache_bytes_ += after.back().bytes();
  }
  Walk walk;
  walk.mask = repetition.times[MaskIndex(most)].mask;
  for (int64_t n = least; n <= most; ++n) {
    const Walk& then = after[MaskIndex(n)];
    then.AddTokens(walk.mask);
    walk.exits.insert(walk.exits.end(), then.exits.begin(), then.exits.end());
  }
  std::ranges::sort(walk.exits);
  walk.exits.erase(std::unique(walk.exits.begin(), walk.exits.end()), walk.exits.end());
  if (std::ranges::none_of(walk.mask, [](uint32_t word) { return word != 0; })) walk.mask = {};
  return known = Keep(std::move(walk));
}

const TokenGrammar::Walk* TokenGrammar::Keep(Walk walk) const {
  kept_.push_back(std::make_unique<const Walk>(std::move(walk)));
  cache_bytes_ += kept_.back()->bytes();
  return kept_.back().get();
}

// What can be read from a state on, from the root of the trie or from where another walk has exits.
const TokenGrammar::Walk* TokenGrammar::MakeWalk(int32_t state, const Walk* before) const {
  const auto has_one_way = [&](const GrammarAutomaton::State& from) {
    return from.bytes.empty() && from.calls.empty() && !from.ends_rule && from.free.size() == 1;
  };
  while (has_one_way(automaton_.states[MaskIndex(state)])) {
    state = automaton_.states[MaskIndex(state)].free[0];
  }
  const int32_t count = automaton_.states[MaskIndex(state)].count;
  if (count >= 0) return CountedWalk(automaton_.counts[MaskIndex(count)], before);
  const int32_t root = 0;
  return Keep(Read(state, before ? std::span(before->exits) : std::span(&root, 1)));
}

const TokenGrammar::Walk& TokenGrammar::WalkFrom(int32_t state) const {
  const Walk*& walk = walks_[state];
  if (!walk) walk = MakeWalk(state, nullptr);
  return *walk;
}

const TokenGrammar::Walk& TokenGrammar::GoOn(const Walk& walk, int32_t return_state) const {
  const Walk*& next = continued_[{&walk, return_state}];
  if (!next) next = MakeWalk(return_state, &walk);
  return *next;
}

bool TokenGrammar::AddTokens(std::span<const GrammarThread> threads, const StackPool& pool,
                             std::span<uint32_t> mask) const {
  const std::lock_guard lock(mutex_);
  if (cache_bytes_ > kMaxCacheBytes) Forget();
  work_left_ = max_work_;
  bool any = false;
  const auto add = [&](const Walk& walk) {
    walk.AddTokens(mask);
    any = any || walk.any();
  };
  try {
    for (const GrammarThread& thread : threads) {
      const Walk* walk = &WalkFrom(thread.state);
      add(*walk);
      for (int32_t stack = thread.stack; stack != StackPool::kBottom && !walk->exits.empty();
           stack = pool.below(stack)) {
        walk = &GoOn(*walk, pool.return_state(stack));
        add(*walk);
      }
    }
  } catch (...) {
    Forget();  // a walk may be half done
    throw;
  }
  return any;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar)
    : grammar_(std::move(grammar)) {
  history_.push_back(Settle({{.state = grammar_->automaton().start}}));
}

GrammarMatcher::Place GrammarMatcher::Settle(std::vector<GrammarThread> threads) {
  closure_.Compute(grammar_->automaton(), threads, pool_);
  return {.threads = std::move(threads),
          .is_complete = closure_.ends(),
          .can_continue = closure_.can_go_on()};
}

bool GrammarMatcher::Fill(std::span<uint32_t> mask) const {
  const int64_t words = TokenMaskWords(grammar_->trie().vocab_size());
  QUIRE_CHECK(std::ssize(mask) >= words, "a mask of {} words for {}", mask.size(), words);
  std::ranges::fill(mask, 0);
  return grammar_->AddTokens(history_.back().threads, pool_, mask);
}

bool GrammarMatcher::Accept(int32_t token) {
  const std::string_view bytes = grammar_->trie().Bytes(token);
  if (bytes.empty()) return false;
  std::vector<GrammarThread> threads = history_.back().threads;
  for (const char byte : bytes) {
    closure_.Compute(grammar_->automaton(), threads, pool_);
    closure_.Read(grammar_->automaton(), static_cast<uint8_t>(byte), threads);
    if (threads.empty()) return false;
  }
  history_.push_back(Settle(std::move(threads)));
  return true;
}

void GrammarMatcher::Rollback(int64_t num_tokens) {
  QUIRE_CHECK(num_tokens >= 0 && num_tokens <= num_accepted(), "{} of {} tokens", num_tokens,
              num_accepted());
  history_.resize(history_.size() - MaskIndex(num_tokens));
}

}  // namespace quire
