#include "testing/export_kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <stdexcept>

#include "base/format.h"

namespace quire::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class T>
T& At(const char* array, std::span<T> entries, int64_t index) {
  if (index < 0 || index >= static_cast<int64_t>(entries.size())) {
    throw std::out_of_range(fmt::format("{}[{}] of {} entries", array, index, entries.size()));
  }
  return entries[static_cast<size_t>(index)];
}

template <class T>
std::span<T> Row(const char* array, std::span<T> entries, int64_t row, int64_t width) {
  if (width == 0) return {};
  At(array, entries, row * width);
  At(array, entries, row * width + width - 1);
  return entries.subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

std::span<const int32_t> Const(std::span<int32_t> entries) { return entries; }

// The softmax of one query head over `slots`: writes its output and returns its lse.
double AttendSlots(const AttentionInputs& inputs, int64_t token, int head,
                   std::span<const int64_t> slots, std::span<double> out) {
  std::fill(out.begin(), out.end(), 0.0);
  const auto query =
      Row("queries", inputs.queries, token * inputs.num_heads + head, inputs.values_per_row);
  std::vector<double> scores;
  for (int64_t slot : slots) {
    const auto key = Row("rows", inputs.rows, slot, inputs.values_per_row);
    double dot = 0.0;
    for (size_t d = 0; d < key.size(); ++d) dot += double{query[d]} * double{key[d]};
    scores.push_back(dot * inputs.scale);
  }
  if (scores.empty()) return -kInfinity;
  const double peak = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (double score : scores) sum += std::exp(score - peak);
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto key = Row("rows", inputs.rows, slots[i], inputs.values_per_row);
    const double weight = std::exp(scores[i] - peak) / sum;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weight * double{key[d]};
  }
  return peak + std::log(sum);
}

AttentionOutput EmptyOutput(const AttentionInputs& inputs, int64_t num_tokens, double fill) {
  const auto heads = static_cast<size_t>(num_tokens * inputs.num_heads);
  return {.out = std::vector<double>(heads * static_cast<size_t>(inputs.latent_dim), fill),
          .lse = std::vector<double>(heads, fill)};
}

// Row `row`, head `head` of an output.
struct OutputRow {
  std::span<double> out;
  double& lse;
};
OutputRow RowOf(AttentionOutput& output, const AttentionInputs& inputs, int64_t row, int head) {
  const int64_t index = row * inputs.num_heads + head;
  return {Row("out", std::span(output.out), index, inputs.latent_dim),
          At("lse", std::span(output.lse), index)};
}

int64_t VisibleKeys(int64_t q_len, int64_t kv_len, int64_t j, KeyMask mask) {
  if (mask == KeyMask::kFull) return kv_len;
  return std::clamp<int64_t>(kv_len - q_len + j + 1, 0, kv_len);
}

// All sequences, whose keys slot_of(b, position) finds.
AttentionOutput AttendSequences(const AttentionInputs& inputs, std::span<const int32_t> qo_indptr,
                                KeyMask mask, const std::function<int64_t(int64_t)>& kv_len_of,
                                const std::function<int64_t(int64_t, int64_t)>& slot_of) {
  AttentionOutput output = EmptyOutput(inputs, inputs.num_tokens(), 0.0);
  for (int64_t b = 0; b + 1 < static_cast<int64_t>(qo_indptr.size()); ++b) {
    const int64_t q_begin = At("qo_indptr", qo_indptr, b);
    const int64_t q_len = At("qo_indptr", qo_indptr, b + 1) - q_begin;
    for (int64_t j = 0; j < q_len; ++j) {
      std::vector<int64_t> slots;
      const int64_t visible = VisibleKeys(q_len, kv_len_of(b), j, mask);
      for (int64_t position = 0; position < visible; ++position) {
        slots.push_back(slot_of(b, position));
      }
      for (int head = 0; head < inputs.num_heads; ++head) {
        const OutputRow row = RowOf(output, inputs, q_begin + j, head);
        row.lse = AttendSlots(inputs, q_begin + j, head, slots, row.out);
      }
    }
  }
  return output;
}

// out = the softmax-weighted mean of partial results, each over its own keys.
void MergeRows(std::span<const OutputRow> partials, OutputRow merged) {
  std::fill(merged.out.begin(), merged.out.end(), 0.0);
  double peak = -kInfinity;
  for (const OutputRow& partial : partials) peak = std::max(peak, partial.lse);
  merged.lse = peak;
  if (peak == -kInfinity) return;
  double sum = 0.0;
  for (const OutputRow& partial : partials) sum += std::exp(partial.lse - peak);
  merged.lse = peak + std::log(sum);
  for (const OutputRow& partial : partials) {
    const double weight = std::exp(partial.lse - merged.lse);
    if (weight == 0.0) continue;
    for (size_t d = 0; d < merged.out.size(); ++d) merged.out[d] += weight * partial.out[d];
  }
}

// What the prefill kernel reads, with blocks turned into (position, slot) by the caller.
struct PrefillReader {
  const PrefillShape& shape;
  const PrefillArrays& arrays;
  int64_t block_tokens;
  std::function<int64_t(int64_t block, int64_t offset)> slot_of;
};

struct Work {
  explicit Work(std::span<const int32_t> record)
      : seq(record[kWorkSeq]),
        partial_row(record[kWorkPartialRow]),
        q_begin(record[kWorkQueryBegin]),
        q_end(record[kWorkQueryEnd]),
        kv_begin(record[kWorkKvBegin]),
        kv_end(record[kWorkKvEnd]),
        head_begin(record[kWorkHeads] & 0xffff),
        head_end(record[kWorkHeads] >> 16) {}
  int64_t seq, partial_row, q_begin, q_end, kv_begin, kv_end;
  int head_begin, head_end;
};

// The slots of the piece's keys that query token `token` sees.
std::vector<int64_t> PieceSlots(const PrefillReader& reader, const Work& work, int64_t token) {
  const auto qo_indptr = Const(reader.arrays.qo_indptr);
  const auto kv_indptr = Const(reader.arrays.kv_indptr);
  const int64_t kv_len = At("kv_lens", Const(reader.arrays.kv_lens), work.seq);
  const int64_t q_first = At("qo_indptr", qo_indptr, work.seq);
  const int64_t q_len = At("qo_indptr", qo_indptr, work.seq + 1) - q_first;
  const int64_t kv_first = At("kv_indptr", kv_indptr, work.seq);
  const KeyMask mask = reader.shape.mask == PrefillMask::kFull ? KeyMask::kFull : KeyMask::kCausal;
  const int64_t visible = VisibleKeys(q_len, kv_len, token - q_first, mask);
  std::vector<int64_t> slots;
  for (int64_t block = work.kv_begin; block < work.kv_end; ++block) {
    for (int64_t offset = 0; offset < reader.block_tokens; ++offset) {
      const int64_t position = (block - kv_first) * reader.block_tokens + offset;
      if (position < visible) slots.push_back(reader.slot_of(block, offset));
    }
  }
  return slots;
}

void RequireUnwritten(double lse, int64_t token, int head) {
  if (!std::isnan(lse)) {
    throw std::logic_error(fmt::format("token {} head {} is written twice", token, head));
  }
}

void RunWork(const AttentionInputs& inputs, const PrefillReader& reader, const Work& work,
             AttentionOutput& output, AttentionOutput& partials) {
  for (int64_t token = work.q_begin; token < work.q_end; ++token) {
    const std::vector<int64_t> slots = PieceSlots(reader, work, token);
    for (int head = work.head_begin; head < work.head_end; ++head) {
      const OutputRow row =
          work.partial_row < 0
              ? RowOf(output, inputs, token, head)
              : RowOf(partials, inputs, work.partial_row + token - work.q_begin, head);
      RequireUnwritten(row.lse, token, head);
      row.lse = AttendSlots(inputs, token, head, slots, row.out);
    }
  }
}

void ReduceGroup(const AttentionInputs& inputs, const PrefillReader& reader, int64_t group,
                 AttentionOutput& output, AttentionOutput& partials) {
  const auto indptr = Const(reader.arrays.reduce_indptr);
  const auto tokens = Row("reduce_final_map", Const(reader.arrays.reduce_final_map), group, 2);
  for (int64_t token = tokens[0]; token < tokens[1]; ++token) {
    for (int head = 0; head < inputs.num_heads; ++head) {
      std::vector<OutputRow> rows;
      for (int64_t p = At("reduce_indptr", indptr, group); p < indptr[group + 1]; ++p) {
        const int64_t row = At("reduce_partial_map", Const(reader.arrays.reduce_partial_map), p) +
                            token - tokens[0];
        rows.push_back(RowOf(partials, inputs, row, head));
      }
      const OutputRow merged = RowOf(output, inputs, token, head);
      RequireUnwritten(merged.lse, token, head);
      MergeRows(rows, merged);
    }
  }
}

AttentionOutput RunPrefill(const AttentionInputs& inputs, const PrefillReader& reader) {
  const double unwritten = std::numeric_limits<double>::quiet_NaN();
  const auto work_indptr = Const(reader.arrays.work_indptr);
  const auto reduce_indptr = Const(reader.arrays.reduce_indptr);
  const int64_t partial_rows = static_cast<int64_t>(reader.arrays.reduce_partial_map.size()) *
                               reader.shape.query_granularity.raw();
  AttentionOutput output = EmptyOutput(inputs, inputs.num_tokens(), unwritten);
  AttentionOutput partials = EmptyOutput(inputs, partial_rows, unwritten);
  for (int64_t worker = 0; worker < reader.shape.num_workers; ++worker) {
    for (int64_t w = At("work_indptr", work_indptr, worker);
         w < At("work_indptr", work_indptr, worker + 1); ++w) {
      const Work work(Row("work_info", Const(reader.arrays.work_info), w, kNumWorkFields));
      RunWork(inputs, reader, work, output, partials);
    }
  }
  for (int64_t group = 0; group + 1 < static_cast<int64_t>(reduce_indptr.size()); ++group) {
    ReduceGroup(inputs, reader, group, output, partials);
  }
  for (size_t i = 0; i < output.lse.size(); ++i) {
    if (std::isnan(output.lse[i])) {
      throw std::logic_error(fmt::format("token {} head {} is never written",
                                         i / static_cast<size_t>(inputs.num_heads),
                                         i % static_cast<size_t>(inputs.num_heads)));
    }
  }
  return output;
}

constexpr int kValuesPerRow = 5;
constexpr int kLatentDim = 3;

// In [-1, 1), the same for the same three numbers.
float NamedValue(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t hash = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu;
  hash = (hash ^ (hash >> 31)) * 0x9e3779b97f4a7c15u;
  return static_cast<float>(hash >> 40) * 0x1p-23f - 1.0f;
}

void AppendKey(const KeyName& key, std::vector<float>& rows) {
  for (uint64_t d = 0; d < kValuesPerRow; ++d) {
    rows.push_back(NamedValue(key.seq + 1, static_cast<uint64_t>(key.position) + 1, d));
  }
}

double Difference(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) return kInfinity;
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::abs(a[i] - b[i]) / std::max(1.0, std::abs(a[i]));
    if (!(difference <= worst)) worst = std::isfinite(difference) ? difference : kInfinity;
  }
  return worst;
}

}  // namespace

int64_t AttentionInputs::num_tokens() const {
  return static_cast<int64_t>(queries.size()) / (int64_t{num_heads} * values_per_row);
}

AttentionOutput FlatIndexAttention(const AttentionInputs& inputs,
                                   std::span<const int32_t> qo_indptr,
                                   std::span<const int32_t> kv_indptr,
                                   std::span<const int32_t> kv_indices, KeyMask mask) {
  const auto kv_len_of = [&](int64_t b) {
    return int64_t{At("kv_indptr", kv_indptr, b + 1)} - At("kv_indptr", kv_indptr, b);
  };
  const auto slot_of = [&](int64_t b, int64_t position) -> int64_t {
    return At("kv_indices", kv_indices, At("kv_indptr", kv_indptr, b) + position);
  };
  return AttendSequences(inputs, qo_indptr, mask, kv_len_of, slot_of);
}

AttentionOutput BlockTableAttention(const AttentionInputs& inputs,
                                    std::span<const int32_t> qo_indptr, const TableView& table,
                                    KeyMask mask) {
  const auto kv_len_of = [&](int64_t b) -> int64_t { return At("kv_lens", table.kv_lens, b); };
  const auto slot_of = [&](int64_t b, int64_t position) {
    const TokenCount place(position);
    const auto row = Row("table", table.table, b, table.width);
    const PageId page(At("table row", row, table.page_size.FullPages(place).raw()));
    return table.page_size.SlotOf(page, table.page_size.OffsetOf(place)).raw();
  };
  return AttendSequences(inputs, qo_indptr, mask, kv_len_of, slot_of);
}

AttentionOutput MergeByLse(const AttentionOutput& a, const AttentionOutput& b) {
  AttentionOutput first = a, second = b, merged = a;
  const size_t latent_dim = a.lse.empty() ? 0 : a.out.size() / a.lse.size();
  for (size_t i = 0; i < a.lse.size(); ++i) {
    const auto row = [&](AttentionOutput& output) {
      return OutputRow{std::span(output.out).subspan(i * latent_dim, latent_dim), output.lse[i]};
    };
    const OutputRow partials[] = {row(first), row(second)};
    MergeRows(partials, row(merged));
  }
  return merged;
}

AttentionOutput PrefillAttention(const AttentionInputs& inputs,
                                 const PrefillPlan<TokenBlocks>& plan,
                                 std::span<const int32_t> kv_indices) {
  const auto slot_of = [&](int64_t block, int64_t) -> int64_t {
    return At("kv_indices", kv_indices, block);
  };
  return RunPrefill(
      inputs, {.shape = plan.shape, .arrays = plan.arrays, .block_tokens = 1, .slot_of = slot_of});
}

AttentionOutput PrefillAttention(const AttentionInputs& inputs, const PrefillPlan<PageBlocks>& plan,
                                 std::span<const int32_t> kv_pages, PageSize page_size) {
  const auto slot_of = [&](int64_t block, int64_t offset) {
    const PageId page(At("kv_pages", kv_pages, block));
    return page_size.SlotOf(page, static_cast<int32_t>(offset)).raw();
  };
  return RunPrefill(inputs, {.shape = plan.shape,
                             .arrays = plan.arrays,
                             .block_tokens = page_size.raw(),
                             .slot_of = slot_of});
}

ScatteredBatch::ScatteredBatch(PageSize page_size, std::span<const RowLengths> rows,
                               uint32_t seed) {
  int64_t num_pages = 8;  // to spare
  for (const RowLengths& row : rows) {
    num_pages += page_size.PagesFor(TokenCount(row.kv_len + row.room)).raw();
  }
  std::vector<PageId> free_pages;
  for (int64_t page = 1; page <= num_pages; ++page) free_pages.push_back(PageId(page));
  std::shuffle(free_pages.begin(), free_pages.end(), std::mt19937(seed));
  for (const RowLengths& row : rows) {
    const auto count = page_size.PagesFor(TokenCount(row.kv_len + row.room)).raw();
    pages.emplace_back(free_pages.end() - count, free_pages.end());
    free_pages.resize(free_pages.size() - static_cast<size_t>(count));
    seqs.push_back({.q_len = TokenCount(row.q_len),
                    .kv_len = TokenCount(row.kv_len),
                    .pages = pages.back(),
                    .tree_parents = {}});
  }
  capacity = CapacityOf(seqs, page_size, PageCount(num_pages + 1));
}

Slot ScatteredBatch::SlotAt(size_t seq, int64_t position) const {
  const PageSize page_size = capacity.page_size;
  const TokenCount place(position);
  const auto page = static_cast<size_t>(page_size.FullPages(place).raw());
  return page_size.SlotOf(pages.at(seq).at(page), page_size.OffsetOf(place));
}

NamedAttention::NamedAttention(const ScatteredBatch& batch, int64_t num_tokens, int num_heads)
    : num_heads_(num_heads) {
  const TokenCount slots = batch.capacity.page_size.TokensIn(batch.capacity.pool_pages);
  rows_.assign(static_cast<size_t>(slots.raw() * kValuesPerRow),
               std::numeric_limits<float>::quiet_NaN());
  for (int64_t i = 0; i < num_tokens * num_heads * kValuesPerRow; ++i) {
    queries_.push_back(3.0f * NamedValue(0, static_cast<uint64_t>(i), 7));
  }
}

void NamedAttention::Store(const KeyName& key, Slot slot) {
  std::vector<float> row;
  AppendKey(key, row);
  std::copy(row.begin(), row.end(), rows_.begin() + slot.raw() * kValuesPerRow);
}

void NamedAttention::StoreAll(const ScatteredBatch& batch) {
  for (size_t seq = 0; seq < batch.seqs.size(); ++seq) {
    for (int64_t position = 0; position < batch.seqs[seq].kv_len.raw(); ++position) {
      Store({.seq = seq, .position = position}, batch.SlotAt(seq, position));
    }
  }
}

AttentionInputs NamedAttention::inputs() const {
  return {.rows = rows_,
          .queries = queries_,
          .num_heads = num_heads_,
          .values_per_row = kValuesPerRow,
          .latent_dim = kLatentDim,
          .scale = 0.7};
}

AttentionOutput NamedAttention::Expected(std::span<const std::vector<KeyName>> keys) const {
  AttentionInputs dense = inputs();
  AttentionOutput output = EmptyOutput(dense, dense.num_tokens(), 0.0);
  for (size_t token = 0; token < keys.size(); ++token) {
    std::vector<float> rows;
    std::vector<int64_t> order;
    for (const KeyName& key : keys[token]) {
      order.push_back(static_cast<int64_t>(order.size()));
      AppendKey(key, rows);
    }
    dense.rows = rows;
    for (int head = 0; head < num_heads_; ++head) {
      const auto index = static_cast<int64_t>(token);
      const OutputRow row = RowOf(output, dense, index, head);
      row.lse = AttendSlots(dense, index, head, order, row.out);
    }
  }
  return output;
}

std::vector<std::vector<KeyName>> CausalKeys(std::span<const SequenceStep> seqs) {
  std::vector<std::vector<KeyName>> keys;
  for (size_t b = 0; b < seqs.size(); ++b) {
    const int64_t q_len = seqs[b].q_len.raw(), kv_len = seqs[b].kv_len.raw();
    for (int64_t j = 0; j < q_len; ++j) {
      keys.emplace_back();
      for (int64_t p = 0; p < VisibleKeys(q_len, kv_len, j, KeyMask::kCausal); ++p) {
        keys.back().push_back({.seq = b, .position = p});
      }
    }
  }
  return keys;
}

double Difference(const AttentionOutput& a, const AttentionOutput& b) {
  return std::max(Difference(std::span(a.out), b.out), Difference(std::span(a.lse), b.lse));
}

}  // namespace quire::testing
