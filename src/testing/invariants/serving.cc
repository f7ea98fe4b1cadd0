#include "testing/invariants/serving.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "attn/page_ranges.h"
#include "base/error.h"
#include "base/maths.h"

namespace quire::testing {
namespace {

constexpr const char* kSalt = "salt";

// What one sequence does in a batch.
enum class StepKind {
  kDecode,
  kChunk,       // of a prompt
  kChain,       // N causal queries behind the committed tokens
  kTree,        // N nodes behind them
  kDraftLevel,  // the newest level of a draft tree
  kNumKinds,
};

}  // namespace

int32_t Serving::TokenAt(int64_t id, int64_t position) const {
  const bool is_shared = shares() && position < config_.shared_tokens;
  const int64_t author = is_shared ? id % config_.num_families : 100 + id;
  return ToInt32((author * 7919 + position * 31 + position / 7) % 50'000);
}

std::vector<int32_t> Serving::Tokens(int64_t id, int64_t count) const {
  std::vector<int32_t> tokens(Index(count));
  for (int64_t p = 0; p < count; ++p) tokens[Index(p)] = TokenAt(id, p);
  return tokens;
}

int64_t Serving::DrawLength() {
  const int64_t page = config_.page_size.raw();
  const int64_t context = config_.context;
  int64_t length = random_.Between(1, context);
  if (random_.OneIn(3)) {
    length = random_.Pick({1, page - 1, page, page + 1, context - 1, context});
  } else if (random_.OneIn(4)) {
    length = context - random_.Between(0, config_.verify_nodes + config_.draft.steps);
  }
  return std::clamp<int64_t>(length, 1, context);
}

bool Serving::Reserve(PageList& list, int64_t tokens) {
  const ExtendRequest request{.list = &list, .new_length = TokenCount(tokens)};
  if (ExtendLists(pool_, {&request, 1})) return true;
  const PageCount wanted = NewPagesFor({&request, 1}) - pool_.num_free();
  if (tree_.Evict(wanted) > PageCount(0)) facts_.set(kEviction);
  if (ExtendLists(pool_, {&request, 1})) return true;
  facts_.set(kPreemption);
  return false;
}

void Serving::Publish(const Sequence& seq) {
  if (!shares() || random_.OneIn(4)) return;
  tree_.Publish(kSalt, Tokens(seq.id, seq.committed), seq.list);
}

void Serving::EndOrGrow() {
  std::vector<Sequence> running;
  for (Sequence& seq : seqs_) {
    if (random_.OneIn(4)) {
      seq.list.Truncate(TokenCount(seq.committed));
      seq.list.CheckInvariants();
      if (shares()) {
        tree_.PublishFinished(kSalt, Tokens(seq.id, seq.committed), std::move(seq.list));
      }
      continue;
    }
    // Accepted drafts; the slots behind them are given back and reserved anew.
    const int64_t accepted = random_.Between(0, config_.verify_nodes);
    seq.committed = std::min(seq.committed + accepted, config_.context);
    seq.list.Truncate(TokenCount(seq.committed));
    seq.list.CheckInvariants();
    running.push_back(std::move(seq));
  }
  seqs_.clear();
  for (Sequence& seq : running) {
    if (!Reserve(seq.list, config_.ReservedTokens(seq.committed))) continue;
    Publish(seq);
    seqs_.push_back(std::move(seq));
  }
}

bool Serving::Admit() {
  Sequence seq{.id = next_id_++, .committed = DrawLength(), .list = PageList(config_.page_size)};
  std::optional<PartialPage> partial;
  int64_t num_full = 0;
  if (shares()) {
    PrefixMatch match = tree_.Match(kSalt, Tokens(seq.id, seq.committed),
                                    random_.OneIn(2) ? DraftLayer::kAbsent : DraftLayer::kPresent);
    QUIRE_CHECK(match.length < TokenCount(seq.committed), "matched {} of {} tokens", match.length,
                seq.committed);
    partial = std::move(match.partial);
    num_full = std::ssize(match.pages);
    seq.list = PageList(config_.page_size, std::move(match.pages));
  }
  if (!Reserve(seq.list, config_.ReservedTokens(seq.committed))) return false;
  if (partial) {
    facts_.set(kPartialPageMatch);
    const PageCopy copy = partial->CopyTo(seq.list.PageIds()[Index(num_full)]);
    QUIRE_CHECK(copy.from != copy.to && pool_.refcount(copy.to) == 1,
                "copy from page {} to page {}, which {} hold", copy.from, copy.to,
                pool_.refcount(copy.to));
  }
  partial.reset();
  Publish(seq);
  seqs_.push_back(std::move(seq));
  return true;
}

// Any node may hang on any earlier one.
std::vector<int32_t> Serving::DrawTree() {
  std::vector<int32_t> parents;
  for (int64_t i = 0; i < config_.verify_nodes; ++i) {
    const bool is_chain = random_.OneIn(2);
    parents.push_back(ToInt32(is_chain ? i - 1 : random_.Between(kTreeRoot, i - 1)));
  }
  return parents;
}

// Up to S levels of K nodes. A node hangs on any of the level above, as the K best of a level may.
std::vector<int32_t> Serving::DrawDraftTree() {
  const int64_t branches = config_.draft.branches;
  std::vector<int32_t> parents(Index(branches), kTreeRoot);
  const int64_t levels = random_.Between(1, config_.draft.steps);
  for (int64_t node = branches; node < levels * branches; ++node) {
    const int64_t level_above = (node / branches - 1) * branches;
    parents.push_back(ToInt32(level_above + random_.Between(0, branches - 1)));
  }
  return parents;
}

SequenceStep Serving::DrawStep(const Sequence& seq, std::vector<int32_t>& parents) {
  const int64_t nodes = config_.verify_nodes;
  int64_t q_len = 1, behind = 0;
  switch (static_cast<StepKind>(random_.Between(0, static_cast<int>(StepKind::kNumKinds) - 1))) {
    case StepKind::kDecode:
    case StepKind::kNumKinds:
      break;
    case StepKind::kChunk:
      // Now and then more queries than keys: the first ones see nothing.
      q_len = random_.Between(1, std::min<int64_t>(seq.committed + 2, 40));
      break;
    case StepKind::kChain:
      q_len = behind = nodes;
      break;
    case StepKind::kTree:
      parents = DrawTree();
      behind = nodes;
      q_len = random_.OneIn(4) ? random_.Between(0, nodes) : nodes;
      if (nodes > 64) facts_.set(kWideTree);
      break;
    case StepKind::kDraftLevel:
      parents = DrawDraftTree();
      behind = std::ssize(parents);
      q_len = config_.draft.branches;
      break;
  }
  if (seq.committed + behind > config_.context && behind == nodes) {
    facts_.set(kVerifyPastContext);
  }
  return {.q_len = TokenCount(q_len),
          .kv_len = TokenCount(seq.committed + behind),
          .pages = seq.list.PageIds(),
          .tree_parents = {}};
}

void Serving::NoteLength(int64_t committed) {
  const int64_t page = config_.page_size.raw();
  const int64_t context = config_.context;
  const int64_t near = config_.verify_nodes + config_.draft.steps;
  if (committed == 1) facts_.set(kLengthOne);
  if (committed == page - 1) facts_.set(kLengthPageMinusOne);
  if (committed == page) facts_.set(kLengthPage);
  if (committed == page + 1) facts_.set(kLengthPagePlusOne);
  if (committed == context - 1) facts_.set(kLengthContextMinusOne);
  if (committed == context) facts_.set(kLengthContext);
  if (committed + near >= context && context > near) facts_.set(kNearContextLimit);
  if (committed + config_.draft.steps > context) facts_.set(kDraftsPastContext);
  if (committed >= 32'768) facts_.set(kLongContext);
  if (CeilDiv(committed, page) > kMaxPagesPerRange.raw()) facts_.set(kManyPages);
}

void Serving::AddPaddedRows(Batch& batch) {
  const int64_t room = config_.bucket_seqs - batch.num_real;
  if (room > 0) facts_.set(kPaddedBucket);
  // Some of the bucket's rows are left out altogether.
  const int64_t rows = random_.Between(0, room);
  if (rows > 0) facts_.set(kPaddedRow);
  for (int64_t i = 0; i < rows; ++i) {
    batch.seqs.push_back({.q_len = TokenCount(random_.Between(0, 2)),
                          .kv_len = TokenCount(0),
                          .pages = {},
                          .tree_parents = {}});
    batch.parents.emplace_back();
    batch.committed.push_back(0);
    batch.slots.emplace_back();
  }
}

Batch Serving::Next() {
  EndOrGrow();
  const int64_t wanted = config_.scale == ConfigScale::kSmall ? random_.Between(1, config_.num_seqs)
                                                              : config_.num_seqs;
  while (std::ssize(seqs_) < wanted && Admit()) {
  }
  Batch batch;
  batch.num_real = std::ssize(seqs_);
  const int64_t page = config_.page_size.raw();
  for (const Sequence& seq : seqs_) {
    batch.parents.emplace_back();
    batch.seqs.push_back(DrawStep(seq, batch.parents.back()));
    batch.committed.push_back(seq.committed);
    NoteLength(seq.committed);
    std::vector<int32_t>& slots = batch.slots.emplace_back();
    for (int64_t p = 0; p < seq.list.length().raw(); ++p) {
      slots.push_back(ToInt32(seq.list.PageIds()[Index(p / page)].raw() * page + p % page));
    }
  }
  AddPaddedRows(batch);
  for (size_t b = 0; b < batch.seqs.size(); ++b) batch.seqs[b].tree_parents = batch.parents[b];
  return batch;
}

// Two sequences hold page `index` of their rows: it holds the same tokens for both, all committed.
void Serving::CheckSharedPage(const Sequence& a, const Sequence& b, int64_t index) const {
  const int64_t begin = index * config_.page_size.raw();
  const int64_t end = begin + config_.page_size.raw();
  QUIRE_CHECK(end <= std::min(a.committed, b.committed),
              "page {} of sequences of {} and {} tokens is shared and not full", index, a.committed,
              b.committed);
  for (int64_t p = begin; p < end; ++p) {
    QUIRE_CHECK(TokenAt(a.id, p) == TokenAt(b.id, p), "other tokens at position {}", p);
  }
}

std::vector<int32_t> Serving::CountHolders() {
  struct Place {
    size_t seq;
    int64_t index;
  };
  std::vector<int32_t> holders(Index(config_.pool_pages) + 1, 0);
  std::map<int32_t, Place> first_places;
  for (size_t b = 0; b < seqs_.size(); ++b) {
    const std::span<const PageId> pages = seqs_[b].list.PageIds();
    for (int64_t j = 0; j < std::ssize(pages); ++j) {
      const int32_t page = pages[Index(j)].raw();
      QUIRE_CHECK(page > 0 && page <= config_.pool_pages, "sequence {} holds page {}", b, page);
      if (holders[Index(page)]++ == 0) {
        first_places[page] = {.seq = b, .index = j};
        continue;
      }
      const Place& first = first_places[page];
      QUIRE_CHECK(first.index == j, "page {} at places {} and {} of rows", page, first.index, j);
      CheckSharedPage(seqs_[first.seq], seqs_[b], j);
      facts_.set(kSharedPages);
      if (seqs_.size() >= 16) facts_.set(kCrowdedAndShared);
    }
  }
  return holders;
}

void Serving::CheckSlots(const Sequence& seq) const {
  const int64_t page = config_.page_size.raw();
  std::vector<Slot> slots;
  seq.list.AppendSlots(TokenCount(0), slots);
  QUIRE_CHECK(TokenCount(slots.size()) == seq.list.length(), "{} slots", slots.size());
  for (int64_t p = 0; p < std::ssize(slots); ++p) {
    const int64_t expected = seq.list.PageIds()[Index(p / page)].raw() * page + p % page;
    QUIRE_CHECK(slots[Index(p)].raw() == expected, "position {} in slot {}, expected {}", p,
                slots[Index(p)], expected);
  }
}

// Somebody else holds the partly filled last page: the list may not grow into it.
void Serving::CheckGrowthIsRefused(Sequence& seq) {
  const TokenCount length = seq.list.length();
  if (config_.page_size.OffsetOf(length) == 0) return;
  const PageLease other = seq.list.SharePage(config_.page_size.FullPages(length));
  const ExtendRequest request{.list = &seq.list, .new_length = length + TokenCount(1)};
  bool is_refused = false;
  try {
    ExtendLists(pool_, {&request, 1});
  } catch (const InternalError&) {
    is_refused = true;
  }
  QUIRE_CHECK(is_refused && seq.list.length() == length, "grew into shared page {}", other.page());
}

void Serving::CheckPages() {
  for (Sequence& seq : seqs_) {
    CheckGrowthIsRefused(seq);
    seq.list.CheckInvariants();
    CheckSlots(seq);
  }
  pool_.CheckInvariants();
  tree_.CheckInvariants();
  const std::vector<int32_t> holders = CountHolders();
  int64_t tree_pages = 0, used = 0;
  for (int32_t page = 1; page <= config_.pool_pages; ++page) {
    const int32_t leases = pool_.refcount(PageId(page));
    const int32_t by_tree = leases - holders[Index(page)];
    QUIRE_CHECK(by_tree == 0 || by_tree == 1, "page {}: {} leases, {} sequences", page, leases,
                holders[Index(page)]);
    tree_pages += by_tree;
    used += leases > 0 ? 1 : 0;
  }
  QUIRE_CHECK(tree_pages == tree_.num_pages().raw(), "the tree has {} pages, {} are leased to it",
              tree_.num_pages(), tree_pages);
  QUIRE_CHECK(used == pool_.num_used().raw() &&
                  pool_.num_free() + pool_.num_used() == PageCount(config_.pool_pages),
              "{} pages: {} leased, {} used, {} free", config_.pool_pages, used, pool_.num_used(),
              pool_.num_free());
}

void Serving::End() {
  seqs_.clear();
  const PageCount evictable = tree_.CountEvictable(tree_.num_pages());
  QUIRE_CHECK(evictable == tree_.num_pages() && tree_.Evict(evictable) == evictable,
              "the tree kept some of its {} pages", evictable);
  QUIRE_CHECK(pool_.num_free() == PageCount(config_.pool_pages), "{} of {} pages are free",
              pool_.num_free(), config_.pool_pages);
  pool_.CheckInvariants();
}

}  // namespace quire::testing
