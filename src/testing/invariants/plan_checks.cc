#include "testing/invariants/plan_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <limits>
#include <mutex>
#include <span>
#include <vector>

#include "attn/capacity.h"
#include "attn/kv_layout.h"
#include "attn/page_ranges.h"
#include "attn/sequence_step.h"
#include "base/error.h"
#include "base/format.h"
#include "base/maths.h"
#include "base/units.h"
#include "kernels/cpu/mla_attention.h"
#include "testing/active_faults.h"
#include "testing/compare.h"
#include "testing/paged_batch.h"

namespace quire::testing {
namespace {

// The row positions that query j of a step sees behind its committed tokens, in order.
std::vector<int64_t> Path(const SequenceStep& seq, int64_t j) {
  std::vector<int64_t> path;
  const int64_t nodes = std::ssize(seq.tree_parents);
  for (int64_t node = nodes - seq.q_len.raw() + j; node >= 0;
       node = seq.tree_parents[Index(node)]) {
    path.insert(path.begin(), seq.kv_len.raw() - nodes + node);
  }
  return path;
}

int64_t VisibleTo(const SequenceStep& seq, int64_t j) {
  if (seq.tree_parents.empty()) {
    return std::max<int64_t>(0, seq.kv_len.raw() - seq.q_len.raw() + j + 1);
  }
  return seq.committed().raw() + std::ssize(Path(seq, j));
}

void CheckSight(const Plan& plan, const SequenceStep& seq, int32_t b) {
  for (int64_t j = 0; j < seq.q_len.raw(); ++j) {
    const TokenCount query = plan.q_offset[Index(b)] + TokenCount(j);
    const int64_t visible = VisibleTo(seq, j);
    ASSERT_EQ(plan.Visible(b, query), TokenCount(visible)) << "query " << j;
    const int64_t committed = seq.committed().raw();
    for (int64_t p : {int64_t{0}, committed / 2, committed - 1}) {
      if (p < 0 || p >= visible) continue;
      ASSERT_EQ(plan.KeyPosition(b, query, TokenCount(p)), TokenCount(p));
    }
    if (seq.tree_parents.empty()) continue;
    int64_t p = committed;
    for (int64_t position : Path(seq, j)) {
      ASSERT_EQ(plan.KeyPosition(b, query, TokenCount(p++)), TokenCount(position)) << "query " << j;
    }
  }
}

// Everything in the plan but its schedule, from the batch alone.
void CheckPlanRows(const Trial& trial, const Plan& plan, const StepCapacity& capacity) {
  ASSERT_EQ(plan.num_seqs, trial.num_rows());
  ASSERT_EQ(std::ssize(plan.page_rows), (plan.row_width * capacity.num_seqs).raw());
  for (int32_t b = 0; b < plan.num_seqs; ++b) {
    const int64_t pages = CeilDiv(trial.KvLen(b), trial.page());
    ASSERT_LE(pages, plan.row_width.raw());
    const std::vector<int32_t> expected = trial.PaddedRow(b, pages, 0);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), plan.Row(b),
                           [](int32_t raw, PageId page) { return page.raw() == raw; }))
        << "row " << b;
  }
  TokenCount queries{0};
  for (int32_t b = 0; b < plan.num_seqs; ++b) {
    SCOPED_TRACE(fmt::format("row {}", b));
    const SequenceStep& seq = trial.batch.seqs[Index(b)];
    ASSERT_EQ(plan.kv_len[Index(b)], seq.kv_len);
    ASSERT_EQ(plan.committed[Index(b)], seq.committed());
    ASSERT_EQ(plan.q_offset[Index(b)], queries);
    queries += seq.q_len;
    const int64_t stride = 1 + seq.kv_len.raw() / 200;  // a few hundred positions of a long row
    for (int64_t p = 0; p < seq.kv_len.raw(); p += stride) {
      ASSERT_EQ(plan.SlotAt(b, TokenCount(p)).raw(), trial.batch.slots[Index(b)][Index(p)]);
    }
    CheckSight(plan, seq, b);
    QUIRE_RETURN_IF_FAILED();
  }
  ASSERT_EQ(plan.num_query_tokens, queries);
}

void CheckTiles(const Trial& trial, const Plan& plan) {
  size_t next = 0;
  for (int64_t b = 0; b < trial.num_rows(); ++b) {
    const SequenceStep& seq = trial.batch.seqs[Index(b)];
    const int64_t tile_queries = plan.work.query_tile.raw();
    std::deque<int64_t> begins;  // of the tiles that are not dealt out yet
    for (int64_t begin = 0; begin < seq.q_len.raw(); begin += tile_queries) begins.push_back(begin);
    for (bool is_last = plan.work.from_both_ends; !begins.empty();
         is_last = plan.work.from_both_ends && !is_last) {
      const int64_t begin = is_last ? begins.back() : begins.front();
      is_last ? begins.pop_back() : begins.pop_front();
      const int64_t end = std::min(begin + tile_queries, seq.q_len.raw());
      int64_t seen = 0;
      for (int64_t j = begin; j < end; ++j) seen = std::max(seen, VisibleTo(seq, j));
      ASSERT_LT(next, plan.tiles.size());
      const QueryTile& tile = plan.tiles[next++];
      const QueryTile expected{.seq = ToInt32(b),
                               .q_count = ToInt32(end - begin),
                               .q_begin = plan.q_offset[Index(b)] + TokenCount(begin),
                               .kv_end = TokenCount(seen)};
      ASSERT_TRUE(tile == expected) << "row " << b << ", queries from " << begin << ": ends at "
                                    << tile.kv_end.raw() << ", its queries see " << seen;
    }
  }
  ASSERT_EQ(next, plan.tiles.size());
}

// I9 for our own plan, by walking the workers: every split of every tile runs once, and what a cut
// leaves behind is merged.
void CheckSchedule(const Trial& trial, const Plan& plan, const StepCapacity& capacity) {
  const int64_t split_keys = plan.work.split.raw();
  const auto splits_of = [&](int64_t tile) {
    return std::max<int64_t>(1, CeilDiv(plan.tiles[Index(tile)].kv_end.raw(), split_keys));
  };
  std::vector<std::vector<int64_t>> worker_of(plan.tiles.size());  // [tile][split]
  ASSERT_EQ(std::ssize(plan.workers), plan.work.num_workers + 1);
  int64_t tile = 0, split = 0;
  for (int64_t w = 0; w < plan.work.num_workers; ++w) {
    const WorkerStart& end = plan.workers[Index(w) + 1];
    ASSERT_EQ(plan.workers[Index(w)].tile, tile) << "worker " << w;
    ASSERT_EQ(plan.workers[Index(w)].split, split) << "worker " << w;
    while (tile != end.tile || split != end.split) {
      ASSERT_LT(tile, std::ssize(plan.tiles)) << "worker " << w << " runs past the last tile";
      worker_of[Index(tile)].push_back(w);
      if (++split == splits_of(tile)) ++tile, split = 0;
    }
  }
  std::vector<int64_t> partials_of(Index(plan.work.num_workers), 0);
  int64_t num_partials = 0;
  size_t merge = 0;
  for (int64_t i = 0; i < std::ssize(plan.tiles); ++i) {
    const std::vector<int64_t>& workers = worker_of[Index(i)];
    ASSERT_EQ(std::ssize(workers), splits_of(i)) << "splits run of tile " << i;
    ASSERT_LE(splits_of(i), MaxSplits(capacity, plan.work));
    const auto first_cut = std::find_if(workers.begin(), workers.end(),
                                        [&](int64_t w) { return w != workers.front(); });
    if (first_cut == workers.end()) continue;
    trial.facts.set(kCutTile);
    ++partials_of[Index(workers.front())];
    int64_t partials = 1;
    for (auto it = first_cut; it != workers.end(); ++it) {
      if (!plan.work.exact && *it == *(it - 1)) continue;  // one of each worker
      ++partials_of[Index(*it)];
      ++partials;
    }
    ASSERT_LT(merge, plan.merges.size());
    const Merge expected{.tile = ToInt32(i),
                         .first_partial = ToInt32(num_partials),
                         .num_partials = ToInt32(partials)};
    ASSERT_TRUE(plan.merges[merge++] == expected) << "merge of tile " << i;
    num_partials += partials;
  }
  ASSERT_EQ(merge, plan.merges.size());
  ASSERT_EQ(num_partials, plan.num_partials);
  ASSERT_LE(num_partials, MaxPartials(capacity, plan.work));
  ASSERT_LE(std::ssize(plan.tiles), MaxQueryTiles(capacity, plan.work));
  int64_t before = 0;
  for (size_t w = 0; w < partials_of.size(); ++w) {
    ASSERT_EQ(plan.workers[w].first_partial, before) << "worker " << w;
    before += partials_of[w];
  }
}

void CheckPlan(const Trial& trial, const Plan& plan, const StepCapacity& capacity) {
  CheckPlanRows(trial, plan, capacity);
  QUIRE_RETURN_IF_FAILED();
  CheckTiles(trial, plan);
  QUIRE_RETURN_IF_FAILED();
  CheckSchedule(trial, plan, capacity);
  plan.CheckInvariants();
}

}  // namespace

void CheckPlans(const Trial& trial, PlanStorage& bucket) {
  PlanStorage eager(trial.eager, trial.config.work);
  const Plan& a = eager.Make(trial.batch.seqs, trial.executor, ActiveFaults());
  const Plan& b = bucket.Make(trial.batch.seqs, trial.executor, ActiveFaults());
  {
    SCOPED_TRACE("eager");
    CheckPlan(trial, a, trial.eager);
  }
  QUIRE_RETURN_IF_FAILED();
  {
    SCOPED_TRACE("bucket");
    CheckPlan(trial, b, trial.bucket);
  }
  QUIRE_RETURN_IF_FAILED();
  // The same work, in the same cuts: the capacity is not part of the schedule.
  ASSERT_TRUE(std::equal(a.tiles.begin(), a.tiles.end(), b.tiles.begin(), b.tiles.end()));
  ASSERT_TRUE(std::equal(a.workers.begin(), a.workers.end(), b.workers.begin(), b.workers.end()));
  ASSERT_TRUE(std::equal(a.merges.begin(), a.merges.end(), b.merges.begin(), b.merges.end()));
  ASSERT_TRUE(std::equal(a.kv_len.begin(), a.kv_len.end(), b.kv_len.begin(), b.kv_len.end()));
  // Without the padded rows: theirs are the last tiles, and nobody else's tiles change.
  const auto real = std::span(trial.batch.seqs).first(Index(trial.batch.num_real));
  PlanStorage unpadded(CapacityOf(real, trial.config.page_size, trial.bucket.pool_pages),
                       trial.config.work);
  const Plan& c = unpadded.Make(real, trial.executor, ActiveFaults());
  ASSERT_LE(c.tiles.size(), b.tiles.size());
  ASSERT_TRUE(std::equal(c.tiles.begin(), c.tiles.end(), b.tiles.begin()));
  for (const QueryTile& tile : b.tiles.subspan(c.tiles.size())) {
    ASSERT_GE(tile.seq, trial.batch.num_real);
    ASSERT_EQ(tile.kv_end, TokenCount(0));
  }
}

// K branches, level by level, behind the longest row's committed tokens.
void CheckDraftLevels(const Trial& trial, PlanStorage& bucket) {
  const auto longest = std::max_element(trial.batch.committed.begin(), trial.batch.committed.end());
  const SequenceStep& row = trial.batch.seqs[Index(longest - trial.batch.committed.begin())];
  const int64_t branches = trial.config.draft.branches, committed = *longest;
  std::vector<int32_t> parents;
  for (int64_t i = 0; i < trial.config.draft.steps; ++i) {
    for (int64_t t = 0; t < branches; ++t) {
      parents.push_back(i == 0 ? kTreeRoot : ToInt32((i - 1) * branches + t));
    }
    const SequenceStep level{.q_len = TokenCount(branches),
                             .kv_len = TokenCount(committed + (i + 1) * branches),
                             .pages = row.pages,
                             .tree_parents = parents};
    const Plan& plan = bucket.Make({&level, 1}, trial.executor, ActiveFaults());
    plan.CheckInvariants();
    for (int64_t t = 0; t < branches; ++t) {
      ASSERT_EQ(plan.Visible(0, TokenCount(t)), TokenCount(committed + i + 1))
          << "step " << i << ", branch " << t;
      for (int64_t d = 0; d <= i; ++d) {
        ASSERT_EQ(plan.KeyPosition(0, TokenCount(t), TokenCount(committed + d)),
                  TokenCount(committed + d * branches + t))
            << "step " << i << ", branch " << t << ", draft " << d;
      }
    }
  }
}

void CheckPlanRefusals(const Trial& trial, PlanStorage& bucket) {
  const Plan& plan = bucket.Make(trial.batch.seqs, trial.executor, ActiveFaults());
  const SequenceStep& longest = LongestOf(trial).seq;
  const TokenCount too_long = trial.bucket.KvTokens() + TokenCount(1);
  const std::vector<PageId> pages(Index(trial.config.page_size.PagesFor(too_long).raw()),
                                  PageId(1));
  const auto refuse = [&](const char* what, std::span<const SequenceStep> seqs) {
    ExpectRefused(what, ErrorCode::kCapacityExceeded,
                  [&] { bucket.Make(seqs, trial.executor, ActiveFaults()); });
  };
  SequenceStep step{.q_len = TokenCount(1), .kv_len = too_long, .pages = pages, .tree_parents = {}};
  refuse("kv_len", {&step, 1});
  step.kv_len = longest.kv_len;
  step.q_len = trial.bucket.query_tokens + TokenCount(1);
  refuse("query tokens", {&step, 1});
  const std::vector<int32_t> parents(Index(trial.bucket.tree_nodes.raw() + 1), kTreeRoot);
  if (std::ssize(parents) <= trial.bucket.KvTokens().raw()) {
    step = {.q_len = TokenCount(1),
            .kv_len = TokenCount(parents.size()),
            .pages = pages,
            .tree_parents = parents};
    refuse("tree nodes", {&step, 1});
  }
  refuse("sequences", std::vector<SequenceStep>(Index(trial.bucket.num_seqs) + 1));
  CheckPlan(trial, plan, trial.bucket);
  trial.facts.set(kRefusedPlan);
}

void CheckPageRanges(const Trial& trial) {
  std::vector<int64_t> walked(Index(trial.num_rows()), 0);
  std::mutex mutex;
  int64_t longest = 0;
  ForEachPageRange(
      {.seqs = trial.batch.seqs, .page_size = trial.config.page_size, .faults = ActiveFaults()},
      trial.executor, [&](int32_t row, PageCount begin, PageCount end) {
        const std::lock_guard lock(mutex);
        walked[Index(row)] += (end - begin).raw();
        longest = std::max(longest, (end - begin).raw());
      });
  EXPECT_LE(longest, kMaxPagesPerRange.raw()) << "one worker walks more pages than the bound";
  for (int64_t b = 0; b < trial.num_rows(); ++b) {
    ASSERT_EQ(walked[Index(b)], CeilDiv(trial.KvLen(b), trial.page())) << "row " << b;
  }
}

void CheckAttention(const Trial& trial) {
  const RandomConfig& config = trial.config;
  std::vector<SequenceCase> cases;
  for (int64_t b = 0; b < std::min<int64_t>(trial.batch.num_real, 3); ++b) {
    const SequenceStep& seq = trial.batch.seqs[Index(b)];
    cases.push_back({.q_len = std::min<int64_t>(seq.q_len.raw(), 12),
                     .kv_len = seq.kv_len.raw(),
                     .parents = trial.batch.parents[Index(b)],
                     .seed = config.seed + Index(b)});
  }
  const PagedBatchShape shape{.page_size = config.page_size,
                              .format = KvFormat::kLatentBf16,
                              .dims = {.latent_dim = 32, .rope_dim = 8},
                              .num_heads = 2,
                              .page_seed = config.seed};
  const PagedBatch eager(cases, shape, ActiveFaults());
  for (int64_t i = 0; i < trial.random.Between(1, 3); ++i) cases.push_back({1, 0, {}, 1});
  const PagedBatch padded(cases, shape, ActiveFaults());
  StepCapacity bucket = config.BucketCapacity();
  bucket.num_seqs = std::max(bucket.num_seqs, ToInt32(std::ssize(cases)));
  bucket.query_tokens = Max(bucket.query_tokens, TokenCount(padded.num_tokens()));
  bucket.pool_pages = padded.pool_pages();
  const MlaShape mla{.num_heads = shape.num_heads, .dims = shape.dims};
  WorkShape one_worker = cpu::MlaWorkShape(mla, 1);
  one_worker.split = config.work.split;
  WorkShape many_workers = one_worker;
  many_workers.num_workers = config.work.num_workers;
  const AttentionResult a =
      RunMla(eager, {.work = &one_worker, .faults = ActiveFaults()}, trial.executor);
  AttentionResult b =
      RunMla(padded, {.capacity = &bucket, .work = &many_workers, .faults = ActiveFaults()},
             trial.executor);
  for (size_t i = a.lse.size(); i < b.lse.size(); ++i) {
    ASSERT_EQ(b.lse[i], -std::numeric_limits<float>::infinity()) << "padded row";
  }
  for (size_t i = a.out.size(); i < b.out.size(); ++i) ASSERT_EQ(b.out[i], 0.0f) << "padded row";
  b.out.resize(a.out.size());
  b.lse.resize(a.lse.size());
  EXPECT_EQ(BitMismatch(b.out, a.out), "");
  EXPECT_EQ(BitMismatch(b.lse, a.lse), "");
  trial.facts.set(kAttention);
}

}  // namespace quire::testing
