#include "attn/step_pack.h"

#include <algorithm>
#include <type_traits>

#include "attn/checks.h"
#include "base/error.h"

namespace quire {
namespace {

static_assert(std::is_trivially_copyable_v<PackedHeader> && sizeof(PackedHeader) == 16);
static_assert(std::is_trivially_copyable_v<PackedSequence> && sizeof(PackedSequence) == 32);
static_assert(sizeof(NewPage) == kNewPageWords * sizeof(int32_t));

int32_t Narrow(PageCount pages) { return static_cast<int32_t>(pages.raw()); }
int32_t Narrow(TokenCount tokens) { return static_cast<int32_t>(tokens.raw()); }

ByteOffset BlockBytes(const StepCapacity& capacity, int64_t num_words) {
  return ByteOffset(sizeof(PackedHeader)) + ByteOffset(sizeof(PackedSequence)) * capacity.num_seqs +
         ByteOffset(sizeof(int32_t)) * num_words;
}

}  // namespace

int64_t PackedWords(const StepCapacity& capacity, PageCount new_pages) {
  return (capacity.tree_nodes * capacity.num_seqs).raw() + (new_pages * kNewPageWords).raw();
}

ByteOffset PackedStepBytes(const StepCapacity& capacity, PageCount new_pages) {
  return BlockBytes(capacity, PackedWords(capacity, new_pages));
}

PackedStep PackedAt(std::byte* block, const StepCapacity& capacity) {
  if (block == nullptr) return {};
  std::byte* seqs = block + sizeof(PackedHeader);
  std::byte* words = seqs + sizeof(PackedSequence) * Index(capacity.num_seqs);
  return {.header = reinterpret_cast<PackedHeader*>(block),
          .seqs = reinterpret_cast<PackedSequence*>(seqs),
          .words = reinterpret_cast<int32_t*>(words)};
}

StepPacker::StepPacker(const StepCapacity& capacity, PageCount new_pages, const PageRows& rows,
                       std::span<std::byte> block)
    : capacity_(capacity),
      new_pages_(new_pages),
      num_rows_(rows.num_rows),
      row_width_(rows.width),
      packed_(PackedAt(block.data(), capacity)) {
  Validate(capacity);
  Require(new_pages >= PageCount(0), "plan.new_pages: expected >= 0, got {}", new_pages);
  Require(rows.num_rows >= 0, "page rows: expected num_rows >= 0, got {}", rows.num_rows);
  Require(rows.width >= PageTableWidth(capacity),
          "page rows: expected a width of at least {} (context + tree_nodes {}, page_size {}), got "
          "{}",
          PageTableWidth(capacity), capacity.KvTokens(), capacity.page_size, rows.width);
  RequireEntries("page rows", rows.pages.size(), PageRows::Entries(rows.num_rows, rows.width));
  RequireInt32("plan", "pages of the pool", capacity.pool_pages.raw());
  Require(capacity.KvTokens() <= kMaxRowTokens,
          "capacity: expected context + tree_nodes of at most {}, got {}", kMaxRowTokens,
          capacity.KvTokens());
  RequireInt32("plan", "query_tokens", capacity.query_tokens.raw());
  RequireInt32("plan", "width of the page rows", rows.width.raw());
  RequireInt32("plan", "parents and new pages of a step", PackedWords(capacity, new_pages));
  RequireEntries("plan: packed step", block.size(), PackedStepBytes(capacity, new_pages).raw());
  named_in_.resize(Index(rows.num_rows), 0);
}

ByteOffset StepPacker::Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) {
  Check(seqs, uses);
  CheckNewPages(seqs, uses);
  PackedHeader& header = *packed_.header;
  header = {.num_seqs = static_cast<int32_t>(seqs.size())};
  for (size_t b = 0; b < Index(capacity_.num_seqs); ++b) {
    packed_.seqs[b] = b < seqs.size() ? PackOne(seqs[b], uses[b]) : PackedSequence{};
  }
  header.new_begin = header.num_words;
  for (size_t b = 0; b < seqs.size(); ++b) PackNewPages(b, seqs[b], uses[b]);
  return BlockBytes(capacity_, header.num_words);
}

void StepPacker::Check(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) {
  CheckPlanLengths(seqs, capacity_);
  Require(uses.size() == seqs.size(), "plan: expected the rows of {} sequences, got {}",
          seqs.size(), uses.size());
  ++num_checks_;
  for (size_t b = 0; b < seqs.size(); ++b) CheckUse(b, seqs[b], uses[b]);
}

void StepPacker::CheckNewPages(std::span<const SequenceStep> seqs,
                               std::span<const RowUse> uses) const {
  PageCount new_pages{0};
  for (size_t b = 0; b < seqs.size(); ++b) {
    if (uses[b].row != kNoRow) new_pages += PageCount(seqs[b].pages.size()) - uses[b].unchanged;
  }
  if (new_pages > new_pages_) {
    ThrowCapacity("plan.new_pages", new_pages.raw(),
                  fmt::format("new pages of {} sequences", seqs.size()), new_pages_.raw(),
                  fmt::format("new_pages ({})", ToString(capacity_)));
  }
}

void StepPacker::CheckUse(size_t b, const SequenceStep& seq, const RowUse& use) {
  if (use.row == kNoRow) {
    Require(seq.kv_len == TokenCount(0),
            "plan: sequence {}: expected a row for kv_len {}, got none", b, seq.kv_len);
    return;
  }
  Require(use.row >= 0 && use.row < num_rows_, "plan: sequence {}: row: expected 0..{}, got {}", b,
          num_rows_ - 1, use.row);
  int64_t& named_in = named_in_[Index(use.row)];
  Require(named_in != num_checks_, "plan: sequence {}: row {} is another sequence's of this step",
          b, use.row);
  named_in = num_checks_;
  const PageCount listed(seq.pages.size());
  const PageCount needed = capacity_.page_size.PagesFor(seq.kv_len);
  Require(listed >= needed,
          "plan: sequence {}: pages: expected {} (kv_len {}, page_size {}), got {}", b, needed,
          seq.kv_len, capacity_.page_size, listed);
  Require(listed <= row_width_, "plan: sequence {}: pages: expected at most {} (a row), got {}", b,
          row_width_, listed);
  Require(use.unchanged >= PageCount(0) && use.unchanged <= listed,
          "plan: sequence {}: unchanged: expected 0..{} (pages listed), got {}", b, listed,
          use.unchanged);
  CheckPageIds("plan", static_cast<int64_t>(b), seq.pages.subspan(Index(use.unchanged.raw())),
               capacity_.pool_pages);
}

PackedSequence StepPacker::PackOne(const SequenceStep& seq, const RowUse& use) {
  const int32_t parents_begin = packed_.header->num_words;
  std::copy(seq.tree_parents.begin(), seq.tree_parents.end(), packed_.words + parents_begin);
  packed_.header->num_words += static_cast<int32_t>(seq.tree_parents.size());
  return {.row = use.row,
          .q_len = Narrow(seq.q_len),
          .kv_len = Narrow(seq.kv_len),
          .num_nodes = Narrow(seq.num_nodes()),
          .parents_begin = parents_begin,
          .num_pages = use.row == kNoRow ? 0 : static_cast<int32_t>(seq.pages.size()),
          .is_expanded = seq.expanded ? 1 : 0};
}

void StepPacker::PackNewPages(size_t b, const SequenceStep& seq, const RowUse& use) {
  if (use.row == kNoRow) return;
  PackedHeader& header = *packed_.header;
  for (int32_t i = Narrow(use.unchanged); Index(i) < seq.pages.size(); ++i) {
    int32_t* to = packed_.words + header.num_words;
    to[0] = static_cast<int32_t>(b);
    to[1] = i;
    to[2] = seq.pages[Index(i)].raw();
    header.num_words += kNewPageWords;
    ++header.num_new;
  }
}

}  // namespace quire
