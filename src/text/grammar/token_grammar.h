// A TokenGrammar says which tokens of a vocabulary may follow a text that a grammar has read so far.
//
// Threads of the automaton are looked at one by one. What a thread's own rule allows is found once per
// state, by a walk through the vocabulary's trie: the tokens that it can read, and the places of the trie
// where the rule ends inside a token ("exits"). From these the walk goes on in the state that the rule
// returns to, and that is kept too, by both. So a text that stands deep in arrays and objects finds
// what is inside a string where another has left it, and only what depends on the nesting is new.
//
// The states of a counted repetition ("maxLength": 40) differ in how often they may go on alone. What
// reading once, twice, ... gives is found once for all of them (Repetition), and each takes its part.
#ifndef QUIRE_TEXT_GRAMMAR_TOKEN_GRAMMAR_H_
#define QUIRE_TEXT_GRAMMAR_TOKEN_GRAMMAR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/vocabulary_trie.h"

namespace quire {

// Words of a mask: bit i % 32 of word i / 32 is token i's.
constexpr int64_t TokenMaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

// Any number of threads may use it.
class TokenGrammar {
 public:
  // Nodes of the trie, threads, and edges of their states that AddTokens may look at: all answers
  // wait for it, and a grammar of a thousand loops that are read at once would take minutes and
  // gigabytes. The largest schemas and choices need less than a tenth.
  static constexpr int64_t kMaxWork = int64_t{1} << 24;

  TokenGrammar(GrammarAutomaton automaton, std::shared_ptr<const VocabularyTrie> trie,
               int64_t max_work = kMaxWork);
  ~TokenGrammar();

  const GrammarAutomaton& automaton() const { return automaton_; }
  const VocabularyTrie& trie() const { return *trie_; }

  // Sets the bits of the tokens that one of the threads can read. Returns whether there is any.
  // Throws Error(kCapacityExceeded) as GrammarClosure, and for more than max_work.
  bool AddTokens(std::span<const GrammarThread> threads, const StackPool& pool,
                 std::span<uint32_t> mask) const;

  // What is kept of walks, in bytes; beyond kMaxCacheBytes all is forgotten. Waits for nobody.
  int64_t cache_bytes() const { return cache_bytes_.load(std::memory_order_relaxed); }
  // The same with the automaton.
  int64_t bytes() const { return automaton_.bytes() + cache_bytes(); }
  static constexpr int64_t kMaxCacheBytes = int64_t{64} << 20;

 private:
  struct Config;
  struct Walk;
  struct Repetition;

  void Spend(int64_t work) const;
  void Close(std::span<const GrammarThread> threads) const;
  int32_t Intern(std::vector<GrammarThread> threads) const;
  int32_t Next(int32_t config, uint8_t byte) const;
  const Walk& WalkFrom(int32_t state) const;
  const Walk& GoOn(const Walk& walk, int32_t return_state) const;
  const Walk* MakeWalk(int32_t state, const Walk* before) const;
  Walk Read(int32_t state, std::span<const int32_t> from) const;
  const Walk* CountedWalk(const GrammarAutomaton::Count& count, const Walk* before) const;
  Repetition& RepetitionOf(int32_t start, const Walk* before) const;
  const Walk* Keep(Walk walk) const;
  void Forget() const;

  const GrammarAutomaton automaton_;
  const std::shared_ptr<const VocabularyTrie> trie_;
  const int64_t max_work_;

  mutable std::mutex mutex_;  // over all below
  mutable StackPool pool_;    // of stacks above the walk's own rule
  mutable GrammarClosure closure_;
  mutable std::vector<std::unique_ptr<Config>> configs_;
  mutable std::map<std::vector<GrammarThread>, int32_t> numbers_;  // of configs
  mutable std::vector<std::unique_ptr<const Walk>> kept_;
  mutable std::unordered_map<int32_t, const Walk*> walks_;
  mutable std::map<std::pair<const Walk*, int32_t>, const Walk*> continued_;
  mutable std::map<std::pair<const Walk*, int32_t>, std::unique_ptr<Repetition>> repetitions_;
  mutable std::vector<int32_t> path_;             // configs by depth
  mutable std::atomic<int64_t> cache_bytes_ = 0;  // written under the lock, read without
  mutable int64_t work_left_ = 0;                 // of the call at hand
};

// Where one answer stands in a grammar. For one thread at a time.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const TokenGrammar> grammar);

  // Sets the bits of all tokens that may follow, and no other. Returns whether there is any.
  bool Fill(std::span<uint32_t> mask) const;
  // False, and nothing has changed, if the token may not follow.
  bool Accept(int32_t token);
  // Forgets the last tokens that were accepted.
  void Rollback(int64_t num_tokens);

  int64_t num_accepted() const { return std::ssize(history_) - 1; }
  bool is_complete() const { return history_.back().is_complete; }    // the text may end here
  bool can_continue() const { return history_.back().can_continue; }  // and may it go on?

 private:
  struct Place {
    std::vector<GrammarThread> threads;
    bool is_complete = false;
    bool can_continue = false;
  };
  Place Settle(std::vector<GrammarThread> threads);

  std::shared_ptr<const TokenGrammar> grammar_;
  StackPool pool_;
  GrammarClosure closure_;
  std::vector<Place> history_;  // before the first token, and behind every one
};

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_TOKEN_GRAMMAR_H_
