#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <unordered_set>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

// Up to so many symbols a scan over all of them finds the next merge faster than a heap does.
constexpr size_t kFewSymbols = 48;

// How often a long word asks whether it is still wanted.
constexpr uint64_t kTakesPerLook = 4096;

constexpr Merge kNoMerge = {.rank = std::numeric_limits<int32_t>::max(), .result = -1};

uint32_t UnitCode(std::string_view unit) {
  uint32_t code = 0;
  for (const char byte : unit) code = code << 8 | static_cast<uint8_t>(byte);
  return code;
}

}  // namespace

size_t UnitPairs::BitOf(std::string_view left, std::string_view right) {
  const uint64_t pair = static_cast<uint64_t>(UnitCode(left)) << 32 | UnitCode(right);
  return (pair * 0x9e3779b97f4a7c15u) >> 44;  // 20 bits
}

void CheckNotStopped(const std::stop_token& stop) {
  if (!stop.stop_requested()) return;
  throw Error(ErrorCode::kCapacityExceeded, "nobody waits for the tokens of this text any more");
}

Bpe::Bpe(const BpeSpec& spec)
    : unit_(spec.unit),
      whole_words_first_(spec.whole_words_first),
      byte_tokens_(spec.byte_tokens),
      unknown_(spec.unknown),
      fuse_unknown_(spec.fuse_unknown),
      merges_(spec.merges.size()) {
  InsertTokens(spec.tokens);
  InsertMerges(spec.merges);
  FindTokensThatMergeToThemselves(spec.tokens);
}

void Bpe::InsertTokens(const std::vector<BpeToken>& tokens) {
  byte_ids_.fill(-1);
  for (const BpeToken& token : tokens) {
    QUIRE_CHECK(ids_.Insert(token.text, token.id), "token {} comes twice", token.id);
    if (token.text.size() == 1) byte_ids_[static_cast<uint8_t>(token.text[0])] = token.id;
    InsertPairs(token.text);
  }
}

void Bpe::InsertMerges(const std::vector<BpeMerge>& merges) {
  std::unordered_set<int32_t> stand_ins;
  if (unknown_) stand_ins.insert(*unknown_);
  for (const std::optional<int32_t>& id : byte_tokens_) {
    if (id) stand_ins.insert(*id);
  }
  for (const BpeMerge& merge : merges) {
    merges_.Insert(merge.left, merge.right, merge.merge);
    if (stand_ins.contains(merge.left) || stand_ins.contains(merge.right)) can_cut_ = false;
  }
}

void Bpe::FindTokensThatMergeToThemselves(const std::vector<BpeToken>& tokens) {
  int32_t max_id = -1;
  for (const BpeToken& token : tokens) max_id = std::max(max_id, token.id);
  merges_to_itself_.resize(max_id + 1);
  Scratch scratch;
  std::vector<int32_t> ids;
  for (const BpeToken& token : tokens) {
    ids.clear();
    EncodeByMerging(token.text, scratch, ids);
    merges_to_itself_[token.id] = ids.size() == 1 && ids[0] == token.id;
  }
}

void Bpe::InsertPairs(std::string_view token) {
  for (std::string_view rest = token; !rest.empty();) {
    const std::string_view unit = FirstUnit(rest);
    rest.remove_prefix(unit.size());
    if (!rest.empty()) pairs_.Insert(unit, FirstUnit(rest));
  }
}

void Bpe::Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (whole_words_first_) {
    if (const std::optional<int32_t> id = ids_.Find(word)) return ids.push_back(*id);
  }
  // A text without words, or a run of one character, is a long word: part by part it is faster.
  for (size_t begin = 0; begin < word.size();) {
    const bool is_short = word.size() <= kFewSymbols;
    const size_t end = is_short || !can_cut_ ? word.size() : FindCut(word, begin);
    EncodePart(word.substr(begin, end - begin), scratch, ids);
    begin = end;
  }
}

// Where, behind `begin`, the word can be cut: between units that stand side by side in no token. The
// second must be a token, because a run of unknown ones may be one token.
size_t Bpe::FindCut(std::string_view word, size_t begin) const {
  std::string_view unit = FirstUnit(word.substr(begin));
  for (size_t at = begin + unit.size(); at < word.size();) {
    const std::string_view next = FirstUnit(word.substr(at));
    if (!pairs_.MayHave(unit, next) && UnitId(next) >= 0) return at;
    unit = next;
    at += unit.size();
  }
  return word.size();
}

void Bpe::EncodePart(std::string_view part, Scratch& scratch, std::vector<int32_t>& ids) const {
  const std::optional<int32_t> id = ids_.Find(part);
  if (id && merges_to_itself_[*id]) {
    ids.push_back(*id);
  } else {
    EncodeByMerging(part, scratch, ids);
  }
}

void Bpe::EncodeByMerging(std::string_view word, Scratch& scratch,
                          std::vector<int32_t>& ids) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  symbols.reserve(word.size());  // as many as it needs: a long word may be all of a large body
  ReadSymbols(word, symbols);
  if (symbols.size() <= kFewSymbols) {
    MergeFew(symbols);
  } else {
    MergeMany(scratch);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
}

void Bpe::ReadSymbols(std::string_view word, std::vector<Symbol>& symbols) const {
  bool unknown_waits = false;  // an unknown token is added when it is known what follows
  const auto add_unknown = [&] {
    if (unknown_waits) symbols.push_back({.id = *unknown_});
    unknown_waits = false;
  };
  while (!word.empty()) {
    const std::string_view unit = FirstUnit(word);
    word.remove_prefix(unit.size());
    const int32_t id = UnitId(unit);
    if (id >= 0) {
      add_unknown();
      symbols.push_back({.id = id});
    } else if (!AppendByteTokens(unit, symbols) && unknown_) {
      if (!fuse_unknown_) add_unknown();
      unknown_waits = true;
    }
  }
  add_unknown();
}

std::string_view Bpe::FirstUnit(std::string_view word) const {
  return word.substr(0, unit_ == BpeSpec::Unit::kByte ? 1 : ReadUtf8(word).length);
}

int32_t Bpe::UnitId(std::string_view unit) const {
  if (unit.size() == 1) return byte_ids_[static_cast<uint8_t>(unit[0])];
  return ids_.Find(unit).value_or(-1);
}

bool Bpe::AppendByteTokens(std::string_view unit, std::vector<Symbol>& symbols) const {
  for (const char byte : unit) {
    if (!byte_tokens_[static_cast<uint8_t>(byte)]) return false;
  }
  for (const char byte : unit) {
    symbols.push_back({.id = *byte_tokens_[static_cast<uint8_t>(byte)]});
  }
  return true;
}

Merge Bpe::MergeOf(int32_t left, int32_t right) const {
  const Merge* merge = merges_.Find(left, right);
  return merge != nullptr ? *merge : kNoMerge;
}

// The symbols stay side by side: what follows a merge moves up.
void Bpe::MergeFew(std::vector<Symbol>& symbols) const {
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    symbols[i].merge = MergeOf(symbols[i].id, symbols[i + 1].id);
  }
  if (!symbols.empty()) symbols.back().merge = kNoMerge;
  while (symbols.size() > 1) {
    const auto best = std::min_element(
        symbols.begin(), symbols.end(),
        [](const Symbol& a, const Symbol& b) { return a.merge.rank < b.merge.rank; });
    if (best->merge.result < 0) return;
    best->id = best->merge.result;
    symbols.erase(best + 1);
    const bool is_last = best + 1 == symbols.end();
    best->merge = is_last ? kNoMerge : MergeOf(best->id, (best + 1)->id);
    if (best != symbols.begin()) (best - 1)->merge = MergeOf((best - 1)->id, best->id);
  }
}

// The symbols stay where they are, linked to their neighbours: a merged one loses its id. A heap has
// every merge that was possible at some time; one that is not what its symbol holds now is stale.
void Bpe::MergeMany(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<uint64_t>& heap = scratch.heap;
  heap.clear();
  heap.reserve(symbols.size());
  const auto num_symbols = static_cast<int32_t>(symbols.size());
  const auto update = [&](int32_t at) {
    Symbol& symbol = symbols[at];
    symbol.merge = symbol.next < 0 ? kNoMerge : MergeOf(symbol.id, symbols[symbol.next].id);
    if (symbol.merge.result < 0) return;
    heap.push_back(static_cast<uint64_t>(symbol.merge.rank) << 32 | static_cast<uint32_t>(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < num_symbols; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < num_symbols ? i + 1 : -1;
    update(i);
  }
  for (uint64_t num_taken = 0; !heap.empty(); ++num_taken) {
    if (num_taken % kTakesPerLook == 0) CheckNotStopped(scratch.stop);
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto rank = static_cast<int32_t>(heap.back() >> 32);
    const auto at = static_cast<int32_t>(heap.back() & 0xffffffff);
    heap.pop_back();
    Symbol& symbol = symbols[at];
    if (symbol.id < 0 || symbol.merge.rank != rank) continue;

    Symbol& next = symbols[symbol.next];
    symbol.id = symbol.merge.result;
    symbol.next = next.next;
    if (next.next >= 0) symbols[next.next].previous = at;
    next.id = -1;
    update(at);
    if (symbol.previous >= 0) update(symbol.previous);
  }
}

}  // namespace quire
