#include "interop/prefill_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>

#include "attn/checks.h"
#include "base/error.h"
#include "base/maths.h"
#include "interop/capacity.h"

namespace quire {
namespace {

// Two head numbers share a positive int32.
constexpr int64_t kMaxHeads = std::numeric_limits<int16_t>::max();

// Clusters of workers share nothing; each deals all tiles of its own heads to its own workers.
int32_t NumClusters(const PrefillShape& shape) {
  return std::gcd(shape.num_heads_k, shape.num_workers);
}
int32_t WorkersPerCluster(const PrefillShape& shape) {
  return shape.num_workers / NumClusters(shape);
}

// What sizes the arrays: of a capacity, or of the sequences at hand.
struct PlanFactors {
  int64_t num_seqs = 0;
  int64_t query_splits = 0;  // tiles of the longest query
  int64_t workers = 1;       // of one cluster
  int64_t num_heads_k = 1;

  int64_t Tiles() const { return Product(num_seqs, query_splits); }
  int64_t Works() const {
    return Product(Product(num_seqs + workers - 1, query_splits), num_heads_k);
  }
  int64_t Partials() const {
    return Product(std::min(num_seqs + workers - 1, 2 * (workers - 1)), query_splits);
  }
  std::string ToString() const {
    return fmt::format(
        "num_seqs {}, query tiles {} of a sequence, workers {} of a cluster, "
        "num_heads_k {}",
        num_seqs, query_splits, workers, num_heads_k);
  }
};

PlanFactors FactorsOf(int64_t num_seqs, TokenCount max_q_len, const PrefillShape& shape) {
  return {.num_seqs = num_seqs,
          .query_splits = CeilDiv(max_q_len, shape.query_granularity),
          .workers = WorkersPerCluster(shape),
          .num_heads_k = shape.num_heads_k};
}

PlanFactors FactorsOf(const StepCapacity& capacity, const PrefillShape& shape) {
  return FactorsOf(capacity.num_seqs, shape.max_q_len, shape);
}

// The planner's view of a plan: plain numbers, whatever a block is.
struct Job {
  std::span<const SequenceStep> seqs;
  PrefillShape shape;
  int64_t kv_granularity = 0;  // tokens
  int64_t block_tokens = 0;
  PrefillArrays out;

  int64_t BlocksPerUnit() const { return kv_granularity / block_tokens; }
  int64_t NumTiles(size_t seq) const { return CeilDiv(seqs[seq].q_len, shape.query_granularity); }
};

struct Tile {
  int64_t number = 0;  // in query order over the step
  int64_t q_begin = 0, q_end = 0;
  int64_t units = 0;      // of kv_granularity: what the tile costs
  int64_t kv_blocks = 0;  // what it reads
};

// Where the dealing of tiles stands.
struct Deal {
  size_t seq = 0;
  int64_t turn = 0;        // of the sequence's tiles
  int64_t first_tile = 0;  // number of the sequence's first tile
  int64_t done = 0;        // blocks of this tile that earlier workers took
  int64_t partials = 0;
};

void SkipSequencesWithoutQueries(const Job& job, Deal& deal) {
  while (deal.seq < job.seqs.size() && job.NumTiles(deal.seq) == 0) ++deal.seq;
}

void NextTile(const Job& job, Deal& deal) {
  deal.done = 0;
  if (++deal.turn < job.NumTiles(deal.seq)) return;
  deal.first_tile += deal.turn;
  deal.turn = 0;
  ++deal.seq;
  SkipSequencesWithoutQueries(job, deal);
}

int64_t VisibleKeys(const Job& job, const SequenceStep& seq, int64_t q_end) {
  if (job.shape.mask == PrefillMask::kFull) return seq.kv_len.raw();
  return std::clamp<int64_t>(seq.kv_len.raw() - seq.q_len.raw() + q_end, 0, seq.kv_len.raw());
}

// Tiles are dealt from both ends in turn (0, n - 1, 1, ...), so that a short causal tile is
// followed by a long one.
Tile TileAt(const Job& job, const Deal& deal) {
  const SequenceStep& seq = job.seqs[deal.seq];
  const int64_t half = deal.turn / 2;
  const int64_t local = deal.turn % 2 == 0 ? half : job.NumTiles(deal.seq) - 1 - half;
  const int64_t granularity = job.shape.query_granularity.raw();
  const int64_t q_begin = local * granularity;
  const int64_t q_end = std::min(q_begin + granularity, seq.q_len.raw());
  const int64_t units = CeilDiv(VisibleKeys(job, seq, q_end), job.kv_granularity);
  const int64_t seq_begin = job.out.qo_indptr[deal.seq];
  const int64_t seq_blocks = job.out.kv_indptr[deal.seq + 1] - job.out.kv_indptr[deal.seq];
  return {.number = deal.first_tile + local,
          .q_begin = seq_begin + q_begin,
          .q_end = seq_begin + q_end,
          .units = std::max<int64_t>(units, 1),
          .kv_blocks = std::min(units * job.BlocksPerUnit(), seq_blocks)};
}

int64_t TotalUnits(const Job& job) {
  int64_t units = 0;
  Deal deal;
  SkipSequencesWithoutQueries(job, deal);
  for (; deal.seq < job.seqs.size(); NextTile(job, deal)) units += TileAt(job, deal).units;
  return units;
}

// Until WriteReduceMaps, reduce_final_map holds (first partial, number of partials) by tile number.
void NotePartial(const Job& job, int64_t tile, int64_t partial) {
  int32_t* noted = job.out.reduce_final_map.data() + 2 * tile;
  if (noted[1]++ == 0) noted[0] = static_cast<int32_t>(partial);
}

// The next `blocks` of the current tile, all that are left or fewer, as work number `work`.
void WriteWork(const Job& job, Deal& deal, int64_t blocks, int32_t head, int64_t work) {
  const Tile tile = TileAt(job, deal);
  const bool finishes = deal.done + blocks == tile.units * job.BlocksPerUnit();
  const bool is_whole = finishes && deal.done == 0;
  const int64_t begin = std::min(deal.done, tile.kv_blocks);
  const int64_t end = std::min(deal.done + blocks, tile.kv_blocks);
  const int64_t kv_first = job.out.kv_indptr[deal.seq];
  const int64_t keys_behind = job.seqs[deal.seq].kv_len.raw() - end * job.block_tokens;
  const int64_t heads = job.shape.heads_per_key_head;
  const auto record = job.out.work_info.subspan(Index(work * kNumWorkFields), kNumWorkFields);
  const auto set = [&](WorkField field, int64_t value) {
    record[field] = static_cast<int32_t>(value);
  };
  set(kWorkSeq, static_cast<int64_t>(deal.seq));
  set(kWorkPartialRow, is_whole ? -1 : job.shape.query_granularity.raw() * deal.partials);
  set(kWorkQueryBegin, tile.q_begin);
  set(kWorkQueryEnd, tile.q_end);
  set(kWorkKvBegin, kv_first + begin);
  set(kWorkKvEnd, kv_first + end);
  set(kWorkKvOffset, finishes ? 0 : keys_behind);
  set(kWorkHeads, (head * heads) | ((head + 1) * heads << 16));
  if (is_whole) return;
  // Every head is cut alike; the first one's cuts are the groups to reduce.
  if (head == 0) NotePartial(job, tile.number, deal.partials);
  ++deal.partials;
}

// Deals up to `capacity` blocks of one head to one worker; returns the number of works so far.
int64_t DealToWorker(const Job& job, Deal& deal, int64_t capacity, int32_t head, int64_t work) {
  while (deal.seq < job.seqs.size() && capacity > 0) {
    const int64_t left = TileAt(job, deal).units * job.BlocksPerUnit() - deal.done;
    const int64_t blocks = std::min(left, capacity);
    WriteWork(job, deal, blocks, head, work++);
    deal.done += blocks;
    capacity -= blocks;
    if (blocks == left) NextTile(job, deal);
  }
  return work;
}

// Fills work_indptr and work_info. A worker takes the same blocks of every head of its cluster.
void DealWorks(const Job& job) {
  const int32_t workers = WorkersPerCluster(job.shape);
  const int32_t heads = job.shape.num_heads_k / NumClusters(job.shape);
  const int64_t units = TotalUnits(job);
  int64_t work = 0;
  job.out.work_indptr[0] = 0;
  for (int32_t cluster = 0; cluster < NumClusters(job.shape); ++cluster) {
    Deal deal;
    SkipSequencesWithoutQueries(job, deal);
    for (int32_t worker = 0; worker < workers; ++worker) {
      const int64_t share = units / workers + (worker < units % workers ? 1 : 0);
      const Deal begin = deal;
      for (int32_t h = 0; h < heads; ++h) {
        deal = begin;
        work = DealToWorker(job, deal, share * job.BlocksPerUnit(), cluster * heads + h, work);
      }
      job.out.work_indptr[Index(cluster * workers + worker + 1)] = static_cast<int32_t>(work);
    }
  }
}

// Turns the noted tiles into groups, in query order. In place: group g comes from a tile >= g.
void WriteReduceMaps(const Job& job) {
  const auto final_map = job.out.reduce_final_map;
  const int64_t granularity = job.shape.query_granularity.raw();
  size_t group = 0, tile = 0;
  int32_t total = 0;
  job.out.reduce_indptr[0] = 0;
  for (size_t b = 0; b < job.seqs.size(); ++b) {
    const int64_t seq_end = job.out.qo_indptr[b + 1];
    for (int64_t begin = job.out.qo_indptr[b]; begin < seq_end; begin += granularity, ++tile) {
      const int32_t first = final_map[2 * tile], count = final_map[2 * tile + 1];
      if (count == 0) continue;
      for (int32_t i = 0; i < count; ++i) {
        job.out.reduce_partial_map[Index(total++)] =
            static_cast<int32_t>(granularity * (first + i));
      }
      final_map[2 * group] = static_cast<int32_t>(begin);
      final_map[2 * group + 1] = static_cast<int32_t>(std::min(begin + granularity, seq_end));
      job.out.reduce_indptr[++group] = total;
    }
  }
  const auto groups = static_cast<int64_t>(group);
  std::fill(job.out.reduce_indptr.begin() + groups, job.out.reduce_indptr.end(), total);
  std::fill(final_map.begin() + 2 * groups, final_map.end(), 0);
  std::fill(job.out.reduce_partial_map.begin() + total, job.out.reduce_partial_map.end(), 0);
}

void CheckSequences(std::span<const SequenceStep> seqs, const PrefillShape& shape,
                    const StepCapacity& capacity) {
  CheckLengths("prefill_plan", seqs);
  TokenCount queries{0}, keys{0}, longest{0};
  for (size_t b = 0; b < seqs.size(); ++b) {
    Require(seqs[b].tree_parents.empty(),
            "prefill_plan: sequence {}: expected no tree, got {} nodes", b, seqs[b].num_nodes());
    queries += seqs[b].q_len;
    keys += seqs[b].kv_len;
    longest = Max(longest, seqs[b].q_len);
  }
  const PlanFactors needed = FactorsOf(static_cast<int64_t>(seqs.size()), longest, shape);
  const PlanFactors sized = FactorsOf(capacity, shape);
  const auto check = [&](const char* buffer, int64_t need, int64_t room) {
    if (need > room) ThrowCapacity(buffer, need, needed.ToString(), room, sized.ToString());
  };
  check("prefill_plan.qo_indptr", needed.num_seqs + 1, sized.num_seqs + 1);
  check("prefill_plan.reduce_final_map", needed.Tiles(), sized.Tiles());
  check("prefill_plan.work_info", needed.Works(), sized.Works());
  check("prefill_plan.reduce_partial_map", needed.Partials(), sized.Partials());
  RequireInt32("prefill_plan", "query tokens", queries.raw());
  RequireInt32("prefill_plan", "keys", keys.raw());
  RequireInt32("prefill_plan", "works", needed.Works());
  RequireInt32("prefill_plan", "partial rows",
               Product(needed.Partials(), shape.query_granularity.raw()));
}

// The parts of the caller's spans that the sizing functions speak of.
PrefillArrays SizedArrays(const PrefillArrays& out, const PrefillShape& shape,
                          const StepCapacity& capacity) {
  const int64_t tiles = PrefillQueryTiles(capacity, shape);
  const int64_t works = PrefillWorks(capacity, shape);
  const int64_t partials = PrefillPartials(capacity, shape);
  const auto sized = [](const char* buffer, std::span<int32_t> entries, int64_t size) {
    RequireEntries(buffer, entries.size(), size);
    return entries.first(Index(size));
  };
  return {
      .qo_indptr = sized("prefill_plan.qo_indptr", out.qo_indptr, IndptrEntries(capacity)),
      .kv_indptr = sized("prefill_plan.kv_indptr", out.kv_indptr, IndptrEntries(capacity)),
      .kv_lens = sized("prefill_plan.kv_lens", out.kv_lens, capacity.num_seqs),
      .work_indptr =
          sized("prefill_plan.work_indptr", out.work_indptr, int64_t{shape.num_workers} + 1),
      .work_info = sized("prefill_plan.work_info", out.work_info, Product(works, kNumWorkFields)),
      .reduce_indptr = sized("prefill_plan.reduce_indptr", out.reduce_indptr, tiles + 1),
      .reduce_final_map =
          sized("prefill_plan.reduce_final_map", out.reduce_final_map, Product(tiles, 2)),
      .reduce_partial_map =
          sized("prefill_plan.reduce_partial_map", out.reduce_partial_map, partials)};
}

template <class Block>
void WriteLengths(const Job& job, PageSize page_size) {
  const PrefillArrays& out = job.out;
  int64_t queries = 0, blocks = 0;
  for (size_t b = 0; b < out.kv_lens.size(); ++b) {
    const SequenceStep seq = b < job.seqs.size() ? job.seqs[b] : SequenceStep{};
    out.qo_indptr[b] = static_cast<int32_t>(queries);
    out.kv_indptr[b] = static_cast<int32_t>(blocks);
    out.kv_lens[b] = static_cast<int32_t>(seq.kv_len.raw());
    queries += seq.q_len.raw();
    blocks += Block::BlocksFor(page_size, seq.kv_len);
  }
  out.qo_indptr.back() = static_cast<int32_t>(queries);
  out.kv_indptr.back() = static_cast<int32_t>(blocks);
}

}  // namespace

void Validate(const PrefillShape& shape) {
  Require(shape.num_heads_k >= 1, "prefill.num_heads_k: expected >= 1, got {}", shape.num_heads_k);
  Require(shape.heads_per_key_head >= 1, "prefill.heads_per_key_head: expected >= 1, got {}",
          shape.heads_per_key_head);
  Require(int64_t{shape.num_heads_k} * shape.heads_per_key_head <= kMaxHeads,
          "prefill: expected at most {} query heads, got num_heads_k {} * heads_per_key_head {}",
          kMaxHeads, shape.num_heads_k, shape.heads_per_key_head);
  Require(shape.num_workers >= 1, "prefill.num_workers: expected >= 1, got {}", shape.num_workers);
  Require(shape.max_q_len >= TokenCount(0), "prefill.max_q_len: expected >= 0, got {}",
          shape.max_q_len);
  // Token numbers are int32, so a larger granularity means nothing; and up to here the planner's
  // int64 sums and products of granularities and block counts cannot wrap.
  const auto require_granularity = [](const char* name, TokenCount granularity) {
    Require(granularity >= TokenCount(1) && granularity <= TokenCount(kMaxInt32),
            "prefill.{}: expected 1..{}, got {}", name, kMaxInt32, granularity);
  };
  require_granularity("query_granularity", shape.query_granularity);
  require_granularity("kv_granularity", shape.kv_granularity);
}

int64_t PrefillQueryTiles(const StepCapacity& capacity, const PrefillShape& shape) {
  return FactorsOf(capacity, shape).Tiles();
}

int64_t PrefillWorks(const StepCapacity& capacity, const PrefillShape& shape) {
  return FactorsOf(capacity, shape).Works();
}

int64_t PrefillPartials(const StepCapacity& capacity, const PrefillShape& shape) {
  return FactorsOf(capacity, shape).Partials();
}

int64_t PrefillPartialRows(const StepCapacity& capacity, const PrefillShape& shape) {
  return Product(PrefillPartials(capacity, shape), shape.query_granularity.raw());
}

template <class Block>
void PlanPrefill(std::span<const SequenceStep> seqs, const StepCapacity& capacity,
                 const PrefillPlan<Block>& out, Faults faults) {
  const PageSize page_size = capacity.page_size;
  const PrefillShape& shape = out.shape;
  const TokenCount block = Block::BlockTokens(page_size);
  Validate(capacity);
  Validate(shape);
  Require(shape.kv_granularity.raw() % block.raw() == 0,
          "prefill.kv_granularity: expected a multiple of the block's {} tokens, got {}", block,
          shape.kv_granularity);
  CheckSequences(seqs, shape, capacity);
  Job job{.seqs = seqs,
          .shape = shape,
          .kv_granularity = shape.kv_granularity.raw(),
          .block_tokens = block.raw(),
          .out = SizedArrays(out.arrays, shape, capacity)};
  if (std::is_same_v<Block, TokenBlocks> && faults.Has(Fault::kTilesCountedInPages)) {
    job.kv_granularity = std::max<int64_t>(job.kv_granularity, page_size.raw());
    job.block_tokens = page_size.raw();
  }
  WriteLengths<Block>(job, page_size);
  std::fill(job.out.reduce_final_map.begin(), job.out.reduce_final_map.end(), 0);
  DealWorks(job);
  WriteReduceMaps(job);
}

template void PlanPrefill<TokenBlocks>(std::span<const SequenceStep>, const StepCapacity&,
                                       const PrefillPlan<TokenBlocks>&, Faults);
template void PlanPrefill<PageBlocks>(std::span<const SequenceStep>, const StepCapacity&,
                                      const PrefillPlan<PageBlocks>&, Faults);

}  // namespace quire
