// Byte pair encoding: a word begins as its bytes or characters, and of all the neighbours that merge
// into a token, the most urgent do (of equal ones the leftmost), until none does.
#ifndef QUIRE_TEXT_BPE_H_
#define QUIRE_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "text/merge_table.h"
#include "text/string_ids.h"

namespace quire {

struct BpeToken {
  std::string text = {};  // in the units below: any bytes, or UTF-8
  int32_t id = 0;
};

struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  Merge merge = {};
};

struct BpeSpec {
  enum class Unit { kByte, kCharacter };  // what a word begins as

  Unit unit = Unit::kByte;
  std::vector<BpeToken> tokens = {};
  std::vector<BpeMerge> merges = {};
  // A word that is a token becomes it, even if merging would not get there (ignore_merges).
  bool whole_words_first = false;

  // What becomes of a unit that is no token: its bytes as tokens ("<0xE4>"), if there is one for each;
  // else `unknown`, one for a run of them if `fuse_unknown`; else nothing.
  std::array<std::optional<int32_t>, 256> byte_tokens = {};
  std::optional<int32_t> unknown = {};
  bool fuse_unknown = false;
};

// A set of pairs of units that may say yes to a pair that is not in it, never no to one that is.
class UnitPairs {
 public:
  void Insert(std::string_view left, std::string_view right) { bits_[BitOf(left, right)] = true; }
  bool MayHave(std::string_view left, std::string_view right) const {
    return bits_[BitOf(left, right)];
  }

 private:
  static size_t BitOf(std::string_view left, std::string_view right);

  std::vector<bool> bits_ = std::vector<bool>(1 << 20);  // some 100,000 are in use
};

// Throws Error(kCapacityExceeded) if whoever waited for the tokens has asked to stop.
void CheckNotStopped(const std::stop_token& stop);

class Bpe {
 public:
  explicit Bpe(const BpeSpec& spec);

  // What Encode works in; make it once and use it for many words.
  struct Symbol {
    int32_t id = -1;
    int32_t previous = -1;
    int32_t next = -1;
    Merge merge = {};  // with the next one
  };
  struct Scratch {
    std::vector<Symbol> symbols = {};
    std::vector<uint64_t> heap = {};  // of rank << 32 | symbol, the lowest on top
    std::stop_token stop = {};        // asked now and then while a long word is merged
  };

  // Appends the tokens of a word, which is UTF-8. Time n log n in its length. Throws as CheckNotStopped.
  void Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void InsertTokens(const std::vector<BpeToken>& tokens);
  void InsertMerges(const std::vector<BpeMerge>& merges);
  void FindTokensThatMergeToThemselves(const std::vector<BpeToken>& tokens);
  void InsertPairs(std::string_view token);
  void EncodePart(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const;
  size_t FindCut(std::string_view word, size_t begin) const;
  void EncodeByMerging(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  void ReadSymbols(std::string_view word, std::vector<Symbol>& symbols) const;
  std::string_view FirstUnit(std::string_view word) const;
  int32_t UnitId(std::string_view unit) const;  // -1: no token
  bool AppendByteTokens(std::string_view unit, std::vector<Symbol>& symbols) const;
  Merge MergeOf(int32_t left, int32_t right) const;
  void MergeFew(std::vector<Symbol>& symbols) const;
  void MergeMany(Scratch& scratch) const;

  BpeSpec::Unit unit_;
  bool whole_words_first_;
  std::array<std::optional<int32_t>, 256> byte_tokens_;
  std::optional<int32_t> unknown_;
  bool fuse_unknown_;

  StringIds ids_ = {};
  MergeTable merges_;
  UnitPairs pairs_ = {};  // that stand side by side in a token
  // Two units that do not stand side by side in a token are never merged. That does not hold for what
  // stands in for a unit, so if such tokens merge (in no model we know), no word is cut.
  bool can_cut_ = true;
  std::array<int32_t, 256> byte_ids_ = {};   // of units of one byte; -1: no token
  std::vector<bool> merges_to_itself_ = {};  // by id: merging the token's text gives the token
};

}  // namespace quire

#endif  // QUIRE_TEXT_BPE_H_
