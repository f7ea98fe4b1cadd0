#include "attn/cuda/step_pack.h"

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "attn/checks.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

static_assert(std::is_trivially_copyable_v<PackedHeader> && sizeof(PackedHeader) == 16);
static_assert(std::is_trivially_copyable_v<PackedSequence> && sizeof(PackedSequence) == 48);
static_assert(sizeof(PageId) == sizeof(int32_t) && std::is_standard_layout_v<PageId>);

int32_t ToInt32(PageCount pages) { return static_cast<int32_t>(pages.raw()); }
int32_t ToInt32(TokenCount tokens) { return static_cast<int32_t>(tokens.raw()); }

ByteOffset BlockBytes(const StepCapacity& capacity, int64_t num_words) {
  return ByteOffset(sizeof(PackedHeader)) + ByteOffset(sizeof(PackedSequence)) * capacity.num_seqs +
         ByteOffset(sizeof(int32_t)) * num_words;
}

}  // namespace

int64_t PackedWords(const StepCapacity& capacity, PageCount new_pages) {
  return (capacity.tree_nodes * capacity.num_seqs).raw() + new_pages.raw();
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

PageRows::PageRows(int32_t num_rows, PageCount width, std::span<PageId> pages)
    : width_(width), pages_(pages) {
  Require(num_rows >= 0, "page rows: expected num_rows >= 0, got {}", num_rows);
  Require(width >= PageCount(0), "page rows: expected width >= 0, got {}", width);
  RequireEntries("page rows", pages.size(), Entries(num_rows, width));
  rows_.resize(Index(num_rows));
}

void PageRows::Set(int32_t row, PageCount unchanged, PageCount count) {
  Row& at = rows_[Index(row)];
  QUIRE_CHECK(unchanged <= at.held && unchanged <= count && count <= width_,
              "row {}: {} of {} pages unchanged, {} now, width {}", row, unchanged, at.held, count,
              width_);
  if (unchanged < at.held) ++at.rewrites;
  at.held = count;
}

StepPacker::StepPacker(const StepCapacity& capacity, PageCount new_pages, PageRows& rows,
                       std::span<std::byte> block)
    : capacity_(capacity),
      new_pages_(new_pages),
      rows_(rows),
      packed_(PackedAt(block.data(), capacity)) {
  Validate(capacity);
  Require(new_pages >= PageCount(0), "plan.new_pages: expected >= 0, got {}", new_pages);
  Require(rows.width() >= PageTableWidth(capacity),
          "page rows: expected a width of at least {} (context + tree_nodes {}, page_size {}), got "
          "{}",
          PageTableWidth(capacity), capacity.KvTokens(), capacity.page_size, rows.width());
  RequireInt32("plan", "pages of the pool", capacity.pool_pages.raw());
  Require(capacity.KvTokens() <= kMaxRowTokens,
          "capacity: expected context + tree_nodes of at most {}, got {}", kMaxRowTokens,
          capacity.KvTokens());
  RequireInt32("plan", "query_tokens", capacity.query_tokens.raw());
  RequireInt32("plan", "width of the page rows", rows.width().raw());
  RequireInt32("plan", "parents and new pages of a step", PackedWords(capacity, new_pages));
  RequireEntries("plan: packed step", block.size(), PackedStepBytes(capacity, new_pages).raw());
  // What the memory of the table holds at first is anybody's: all of it is to be written.
  table_.resize(Index(capacity.num_seqs), TableRow{.filled = PageTableWidth(capacity)});
  named_in_.resize(Index(rows.num_rows()), 0);
}

ByteOffset StepPacker::Pack(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) {
  Check(seqs, uses);
  *packed_.header = {.num_seqs = static_cast<int32_t>(seqs.size()), .num_words = 0};
  for (size_t b = 0; b < table_.size(); ++b) {
    packed_.seqs[b] = b < seqs.size() ? PackOne(seqs[b], uses[b], table_[b])
                                      : PackOne(SequenceStep{}, RowUse{}, table_[b]);
  }
  return BlockBytes(capacity_, packed_.header->num_words);
}

void StepPacker::Check(std::span<const SequenceStep> seqs, std::span<const RowUse> uses) {
  CheckPlanLengths(seqs, capacity_);
  Require(uses.size() == seqs.size(), "plan: expected the rows of {} sequences, got {}",
          seqs.size(), uses.size());
  ++num_packs_;
  PageCount new_pages{0};
  for (size_t b = 0; b < seqs.size(); ++b) {
    CheckUse(b, seqs[b], uses[b]);
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
  Require(use.row >= 0 && use.row < rows_.num_rows(),
          "plan: sequence {}: row: expected 0..{}, got {}", b, rows_.num_rows() - 1, use.row);
  int64_t& named_in = named_in_[Index(use.row)];
  Require(named_in != num_packs_, "plan: sequence {}: row {} is another sequence's of this step", b,
          use.row);
  named_in = num_packs_;
  const PageCount listed(seq.pages.size());
  const PageCount needed = capacity_.page_size.PagesFor(seq.kv_len);
  Require(listed >= needed,
          "plan: sequence {}: pages: expected {} (kv_len {}, page_size {}), got {}", b, needed,
          seq.kv_len, capacity_.page_size, listed);
  Require(listed <= rows_.width(), "plan: sequence {}: pages: expected at most {} (a row), got {}",
          b, rows_.width(), listed);
  const PageCount most = Min(listed, rows_.held(use.row));
  Require(use.unchanged >= PageCount(0) && use.unchanged <= most,
          "plan: sequence {}: unchanged: expected 0..{} (row {} holds {}, {} listed), got {}", b,
          most, use.row, rows_.held(use.row), listed, use.unchanged);
  CheckPageIds("plan", static_cast<int64_t>(b), seq.pages.subspan(Index(use.unchanged.raw())),
               capacity_.pool_pages);
}

int32_t StepPacker::AddWords(std::span<const int32_t> words) {
  const int32_t begin = packed_.header->num_words;
  std::copy(words.begin(), words.end(), packed_.words + begin);
  packed_.header->num_words += static_cast<int32_t>(words.size());
  return begin;
}

PackedSequence StepPacker::PackOne(const SequenceStep& seq, const RowUse& use, TableRow& table) {
  PackedSequence packed{.row = use.row,
                        .q_len = ToInt32(seq.q_len),
                        .kv_len = ToInt32(seq.kv_len),
                        .num_nodes = ToInt32(seq.num_nodes()),
                        .parents_begin = AddWords(seq.tree_parents)};
  const PageCount pages = capacity_.page_size.PagesFor(seq.kv_len);
  PageCount kept{0};  // leading entries of the table that are right already
  if (use.row != kNoRow) {
    const std::span<const PageId> added = seq.pages.subspan(Index(use.unchanged.raw()));
    packed.first_new = ToInt32(use.unchanged);
    packed.num_new = static_cast<int32_t>(added.size());
    packed.new_begin = packed_.header->num_words;
    std::transform(added.begin(), added.end(), packed_.words + packed.new_begin,
                   [](PageId page) { return page.raw(); });
    packed_.header->num_words += packed.num_new;
    if (table.row == use.row && table.rewrites == rows_.rewrites(use.row)) {
      kept = Min(Min(table.filled, use.unchanged), pages);
    }
    rows_.Set(use.row, use.unchanged, PageCount(seq.pages.size()));
  }
  packed.fill_begin = ToInt32(kept);
  packed.fill_end = ToInt32(Max(pages, table.filled));
  table = {
      .row = use.row, .rewrites = use.row == kNoRow ? 0 : rows_.rewrites(use.row), .filled = pages};
  return packed;
}

}  // namespace quire::cuda
