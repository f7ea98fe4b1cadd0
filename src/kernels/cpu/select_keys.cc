#include "kernels/cpu/select_keys.h"

#include <algorithm>
#include <array>
#include <functional>
#include <type_traits>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/cpu/attention_scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select_keys.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/paged_rows-inl.h"
#include "kernels/cpu/tile_ops-inl.h"

// Outside the per-target part: the same for every SIMD target.
#ifndef QUIRE_KERNELS_CPU_SELECT_KEYS_SHAPE_
#define QUIRE_KERNELS_CPU_SELECT_KEYS_SHAPE_
namespace quire::cpu {

// The top_k highest of the ranks offered so far, and some that are not: they are thrown out when the
// memory, 2 * top_k ranks, is full, so an offer costs a comparison and little more.
class TopRanks {
 public:
  TopRanks() = default;
  TopRanks(uint64_t* memory, int64_t top_k) : ranks_(memory), top_k_(top_k) {}

  static int64_t Capacity(int64_t top_k) { return 2 * top_k; }

  void Offer(uint64_t rank) {
    if (rank <= lowest_) return;
    ranks_[count_++] = rank;
    if (count_ == Capacity(top_k_)) Prune();
  }

  // Those that are left, top_k at most, in any order.
  std::span<uint64_t> Take() {
    if (count_ > top_k_) Prune();
    return {ranks_, static_cast<size_t>(count_)};
  }

 private:
  void Prune() {
    std::nth_element(ranks_, ranks_ + top_k_ - 1, ranks_ + count_, std::greater<>());
    count_ = top_k_;
    lowest_ = ranks_[top_k_ - 1];
  }

  uint64_t* ranks_ = nullptr;
  int64_t top_k_ = 1;
  int64_t count_ = 0;
  // What is not above it is not among the top_k. No rank is 0: a position is below 2^32 - 1.
  uint64_t lowest_ = 0;
};

// What one worker needs while it runs, and what it leaves of query tiles that it shares with others.
struct SelectScratch {
  uint64_t* ranks = nullptr;     // [query tile][2 * top_k]
  uint64_t* partials = nullptr;  // [kPartials][query tile][top_k]
  int64_t* counts = nullptr;     // [kPartials][query tile]: ranks of each partial
  float* q = nullptr;            // [query tile][blocks][dim][kBlockRows]
  float* gates = nullptr;        // [query tile][rows]
  float* keys = nullptr;         // as attention's
  float* p = nullptr;            // [blocks][kTileKeys][kBlockRows]

  static constexpr int64_t kPartials = 2;  // of a tile that it ends, and of one that it only begins

  // The rows of one token: its heads, padded.
  static TileShape Shape(const IndexShape& shape) {
    return TileShape::Of(shape.num_heads, shape.head_dim, 1);
  }
  // Cuts `memory`, or only counts if there is none. Returns the bytes.
  int64_t LayOut(int64_t query_tile, const IndexShape& shape, std::byte* memory) {
    const TileShape rows = Shape(shape);
    int64_t used = 0;
    const auto take = [&](auto*& array, int64_t count) {
      using Element = std::remove_reference_t<decltype(*array)>;
      if (memory != nullptr) array = reinterpret_cast<Element*>(memory + used);
      used += RoundUp(count * static_cast<int64_t>(sizeof(Element)), int64_t{64});  // a cache line
    };
    take(ranks, query_tile * TopRanks::Capacity(shape.top_k));
    take(partials, kPartials * query_tile * shape.top_k);
    take(counts, kPartials * query_tile);
    take(q, query_tile * rows.rows * rows.dim);
    take(gates, query_tile * rows.rows);
    take(keys, ColumnOffset(rows.key_columns));
    take(p, rows.rows * kTileKeys);
    return used;
  }
  static int64_t Bytes(int64_t query_tile, const IndexShape& shape) {
    return SelectScratch().LayOut(query_tile, shape, nullptr);
  }
};

// Key tiles [first, last) of a query tile.
struct SelectPiece {
  QueryTile tile;
  int64_t first = 0, last = 0;
  int64_t num_key_tiles = 0;  // of the whole tile

  bool is_whole() const { return first == 0 && last == num_key_tiles; }
  // Which of its worker's partials it leaves.
  int64_t partial() const { return first > 0 ? 0 : 1; }
};

}  // namespace quire::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace quire {
namespace cpu {
namespace HWY_NAMESPACE {

// sum over heads of gate * relu(p), of one key: p is [blocks][kTileKeys][kBlockRows] from that key on.
// Head h goes to partial sum h % 16, ascending, and those are added as a tree: the order is the same
// for every width of vectors. Rows behind the last head are left out, for 0 times a value that is not
// finite is not 0.
HWY_INLINE float SumHeads(const float* HWY_RESTRICT p, const float* HWY_RESTRICT gates,
                          int64_t num_heads) {
  const DF d;
  VF sums[kRowVecs];
  for (VF& sum : sums) sum = hn::Zero(d);
  for (int64_t head = 0; head < num_heads; head += kBlockRows, p += kTileKeys * kBlockRows) {
    for (int r = 0; r < kRowVecs; ++r) {
      const int64_t first = head + r * kLanes;
      if (first >= num_heads) break;
      const VF dot = hn::LoadU(d, p + r * kLanes);
      const VF kept = hn::IfThenZeroElse(hn::Lt(dot, hn::Zero(d)), dot);
      const VF sum = hn::MulAdd(hn::LoadU(d, gates + first), kept, sums[r]);
      const auto is_head = hn::FirstN(d, static_cast<size_t>(num_heads - first));
      sums[r] = hn::IfThenElse(is_head, sum, sums[r]);
    }
  }
  float parts[kBlockRows];
  for (int r = 0; r < kRowVecs; ++r) hn::StoreU(sums[r], d, parts + r * kLanes);
  for (int64_t half = kBlockRows / 2; half >= 1; half /= 2) {
    for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
  }
  return parts[0];
}

// A piece of a query tile on one worker. Tokens that see no more than top_k keys are not scored.
class PieceRun {
 public:
  PieceRun(const SelectKeysArgs& args, const SelectPiece& piece, const SelectScratch& scratch)
      : args_(args),
        plan_(args.plan),
        piece_(piece),
        shape_(SelectScratch::Shape(args.shape)),
        scratch_(scratch) {}

  // Offers every scored token's keys to its ranks.
  void Run(TopRanks* ranks) const {
    for (int32_t t = 0; t < piece_.tile.q_count; ++t) {
      if (IsScored(t)) PackToken(t);
    }
    for (int64_t tile = piece_.first; tile < piece_.last; ++tile) {
      const TokenCount begin = kKeyTile * tile;
      const TokenCount end = Min(begin + kKeyTile, piece_.tile.kv_end);
      const bool is_shared = SharedByAllQueries(begin);
      if (is_shared) LoadKeys(begin, end, piece_.tile.q_begin);
      for (int32_t t = 0; t < piece_.tile.q_count; ++t) {
        const TokenCount token_end = Min(end, VisibleTo(t));
        if (!IsScored(t) || token_end <= begin) continue;
        if (!is_shared) LoadKeys(begin, token_end, piece_.tile.q_begin + TokenCount(t));
        OfferKeys(t, begin, token_end, ranks[t]);
      }
    }
  }

  bool IsScored(int32_t t) const { return VisibleTo(t) > TokenCount(args_.shape.top_k); }

 private:
  TokenCount VisibleTo(int32_t t) const {
    return Min(piece_.tile.kv_end,
               plan_.Visible(piece_.tile.seq, piece_.tile.q_begin + TokenCount(t)));
  }

  // As attention's: from the last committed tile on each query of a tree has keys of its own.
  bool SharedByAllQueries(TokenCount key) const {
    const size_t seq = static_cast<size_t>(piece_.tile.seq);
    return !plan_.IsTree(piece_.tile.seq) || key + kKeyTile <= plan_.committed[seq];
  }

  float* QueriesOf(int32_t t) const { return scratch_.q + t * shape_.rows * shape_.dim; }
  float* GatesOf(int32_t t) const { return scratch_.gates + t * shape_.rows; }

  void PackToken(int32_t t) const {
    const int64_t token = piece_.tile.q_begin.raw() + t;
    for (int64_t row = 0; row < shape_.rows; ++row) {
      float* to = QueriesOf(t) + row / kBlockRows * (kBlockRows * shape_.dim) + row % kBlockRows;
      const bool is_head = row < args_.shape.num_heads;
      if (is_head) {
        PackQuery(args_.q, token, row, shape_.dim, to);
      } else {
        PackZeros(shape_.dim, to);
      }
      GatesOf(t)[row] = is_head ? args_.scale * args_.gates.Row<float>(token)[row] : 0.0f;
    }
  }

  void LoadKeys(TokenCount begin, TokenCount end, TokenCount query) const {
    RowTarget to{.base = scratch_.keys, .block_stride = kColumnBlockStride};
    for (TokenCount p = begin; p < end; p += TokenCount(1), to.base += kBlockColumns) {
      DecodeKey(plan_, args_.store, piece_.tile.seq, query, p, shape_.key_columns, to);
    }
  }

  // The decoded keys [begin, end) of token t.
  void OfferKeys(int32_t t, TokenCount begin, TokenCount end, TopRanks& ranks) const {
    const auto num_keys = static_cast<int32_t>((end - begin).raw());
    ScoreTile(QueriesOf(t), shape_.num_blocks(), shape_.dim, scratch_.keys, num_keys, scratch_.p,
              kBlockRows * kTileKeys);
    const int64_t first_local = VisibleTo(t).raw() - args_.shape.local_tokens;
    for (int32_t k = 0; k < num_keys; ++k) {
      const int64_t position = begin.raw() + k;
      const float score = SumHeads(scratch_.p + k * kBlockRows, GatesOf(t), args_.shape.num_heads);
      const bool is_forced = position < args_.shape.init_tokens || position >= first_local;
      ranks.Offer(is_forced ? RankOfForced(position) : RankOf(score, position));
    }
  }

  const SelectKeysArgs& args_;
  const Plan& plan_;
  const SelectPiece piece_;
  const TileShape shape_;
  const SelectScratch scratch_;
};

void RunPiece(const SelectKeysArgs& args, const SelectPiece& piece, const SelectScratch& scratch,
              TopRanks* ranks) {
  PieceRun(args, piece, scratch).Run(ranks);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu
}  // namespace quire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace cpu {
namespace {

HWY_EXPORT(RunPiece);

// Of a query tile: attention's have 64 rows, and a head or more for each token.
constexpr size_t kMaxTokens = 64;

// Where a worker begins: a key tile of a query tile. It ends where the next one begins.
struct SelectStart {
  int64_t tile = 0;
  int64_t key_tile = 0;
};

// The step's query tiles, those that need scores dealt to workers in equal parts of one line.
class SelectWork {
 public:
  explicit SelectWork(const SelectKeysArgs& args)
      : plan_(args.plan), top_k_(args.shape.top_k), num_workers_(args.plan.work.num_workers) {
    for (const QueryTile& tile : plan_.tiles) total_ += Cost(tile);
  }

  int64_t num_workers() const { return num_workers_; }

  SelectStart StartOf(int64_t worker) const {
    const int64_t target = total_ * worker / num_workers_;
    int64_t before = 0;
    for (int64_t i = 0; i < std::ssize(plan_.tiles); ++i) {
      const QueryTile& tile = plan_.tiles[static_cast<size_t>(i)];
      const int64_t cost = Cost(tile);
      if (target < before + cost) return {i, (target - before) / tile.q_count};
      before += cost;
    }
    return {std::ssize(plan_.tiles), 0};
  }

  // Calls fn(piece) for every piece of the worker.
  template <class Fn>
  void ForEachPiece(int64_t worker, Fn fn) const {
    const SelectStart begin = StartOf(worker), end = StartOf(worker + 1);
    for (int64_t i = begin.tile; i <= end.tile && i < std::ssize(plan_.tiles); ++i) {
      const QueryTile& tile = plan_.tiles[static_cast<size_t>(i)];
      SelectPiece piece{.tile = tile, .num_key_tiles = KeyTiles(tile)};
      piece.first = i == begin.tile ? begin.key_tile : 0;
      piece.last = i == end.tile ? end.key_tile : piece.num_key_tiles;
      if (piece.first < piece.last) fn(piece);
    }
  }

  // Whether `worker` is the first to begin within a query tile, which has partials to be joined then:
  // that of the worker before it, and those of all that begin in the tile.
  bool IsFirstCut(int64_t worker) const {
    const SelectStart start = StartOf(worker);
    if (start.key_tile == 0) return false;
    const SelectStart before = StartOf(worker - 1);
    return before.tile != start.tile || before.key_tile == 0;
  }

 private:
  int64_t KeyTiles(const QueryTile& tile) const {
    return tile.kv_end > TokenCount(top_k_) ? CeilDiv(tile.kv_end, kKeyTile) : 0;
  }
  int64_t Cost(const QueryTile& tile) const { return KeyTiles(tile) * tile.q_count; }

  const Plan& plan_;
  int64_t top_k_;
  int64_t num_workers_;
  int64_t total_ = 0;
};

class Selection {
 public:
  Selection(const SelectKeysArgs& args, Executor& executor)
      : args_(args), executor_(executor), work_(args) {}

  void Run() const {
    executor_.Run(work_.num_workers(), [&](int64_t worker) {
      ChooseAll(worker);
      RunWorker(worker);
    });
    executor_.Run(work_.num_workers(), [&](int64_t worker) {
      if (worker > 0 && work_.IsFirstCut(worker)) Join(worker);
    });
  }

 private:
  SelectScratch ScratchOf(int64_t worker) const {
    const int64_t query_tile = args_.plan.work.query_tile.raw();
    const int64_t bytes = SelectScratch::Bytes(query_tile, args_.shape);
    SelectScratch scratch;
    scratch.LayOut(query_tile, args_.shape, args_.workspace.data() + worker * bytes);
    return scratch;
  }
  uint64_t* PartialOf(const SelectScratch& scratch, int64_t partial, int64_t t) const {
    const int64_t query_tile = args_.plan.work.query_tile.raw();
    return scratch.partials + (partial * query_tile + t) * args_.shape.top_k;
  }
  int64_t& CountOf(const SelectScratch& scratch, int64_t partial, int64_t t) const {
    return scratch.counts[partial * args_.plan.work.query_tile.raw() + t];
  }
  TopRanks RanksOf(const SelectScratch& scratch, int64_t t) const {
    return {scratch.ranks + t * TopRanks::Capacity(args_.shape.top_k), args_.shape.top_k};
  }
  std::span<int32_t> ChosenBy(TokenCount query) const {
    return args_.chosen.subspan(static_cast<size_t>(query.raw() * args_.shape.top_k),
                                static_cast<size_t>(args_.shape.top_k));
  }

  static size_t At(int32_t t) { return static_cast<size_t>(t); }

  bool IsScored(const QueryTile& tile, int32_t t) const {
    return args_.plan.Visible(tile.seq, tile.q_begin + TokenCount(t)) >
           TokenCount(args_.shape.top_k);
  }

  // Queries that see no more than they may choose; the tiles are dealt out one by one.
  void ChooseAll(int64_t worker) const {
    for (size_t i = static_cast<size_t>(worker); i < args_.plan.tiles.size();
         i += static_cast<size_t>(work_.num_workers())) {
      const QueryTile& tile = args_.plan.tiles[i];
      for (int32_t t = 0; t < tile.q_count; ++t) {
        if (IsScored(tile, t)) continue;
        const TokenCount query = tile.q_begin + TokenCount(t);
        const int64_t visible = args_.plan.Visible(tile.seq, query).raw();
        const std::span<int32_t> chosen = ChosenBy(query);
        for (int64_t p = 0; p < std::ssize(chosen); ++p) {
          chosen[static_cast<size_t>(p)] = p < visible ? static_cast<int32_t>(p) : -1;
        }
      }
    }
  }

  void RunWorker(int64_t worker) const {
    const SelectScratch scratch = ScratchOf(worker);
    const int64_t query_tile = args_.plan.work.query_tile.raw();
    std::fill_n(scratch.counts, SelectScratch::kPartials * query_tile, int64_t{0});
    work_.ForEachPiece(worker, [&](const SelectPiece& piece) {
      std::array<TopRanks, kMaxTokens> ranks;
      for (int32_t t = 0; t < piece.tile.q_count; ++t) ranks[At(t)] = RanksOf(scratch, t);
      HWY_DYNAMIC_DISPATCH(RunPiece)(args_, piece, scratch, ranks.data());
      for (int32_t t = 0; t < piece.tile.q_count; ++t) {
        if (!IsScored(piece.tile, t)) continue;
        const std::span<const uint64_t> left = ranks[At(t)].Take();
        if (piece.is_whole()) {
          Write(piece.tile.q_begin + TokenCount(t), left);
        } else {
          std::ranges::copy(left, PartialOf(scratch, piece.partial(), t));
          CountOf(scratch, piece.partial(), t) = std::ssize(left);
        }
      }
    });
  }

  // The partials of the query tile within which `first` begins.
  void Join(int64_t first) const {
    const int64_t number = work_.StartOf(first).tile;
    const QueryTile& tile = args_.plan.tiles[static_cast<size_t>(number)];
    for (int32_t t = 0; t < tile.q_count; ++t) {
      if (!IsScored(tile, t)) continue;
      TopRanks ranks = RanksOf(ScratchOf(first), t);
      const auto offer = [&](int64_t worker, int64_t partial) {
        const SelectScratch scratch = ScratchOf(worker);
        const uint64_t* from = PartialOf(scratch, partial, t);
        for (int64_t i = 0; i < CountOf(scratch, partial, t); ++i) ranks.Offer(from[i]);
      };
      offer(first - 1, 1);
      for (int64_t worker = first; worker < work_.num_workers(); ++worker) {
        if (work_.StartOf(worker).tile != number) break;
        offer(worker, 0);
      }
      Write(tile.q_begin + TokenCount(t), ranks.Take());
    }
  }

  // A scored query's choice: as many as may be chosen.
  void Write(TokenCount query, std::span<const uint64_t> ranks) const {
    const std::span<int32_t> chosen = ChosenBy(query);
    QUIRE_CHECK(ranks.size() == chosen.size(), "{} of {} keys", ranks.size(), chosen.size());
    std::ranges::transform(ranks, chosen.begin(), PositionOfRank);
    std::ranges::sort(chosen);
  }

  const SelectKeysArgs& args_;
  Executor& executor_;
  const SelectWork work_;
};

}  // namespace

ByteOffset SelectKeysWorkspace(const WorkShape& work, const IndexShape& shape) {
  Validate(work);
  Validate(shape);
  return ByteOffset(SelectScratch::Bytes(work.query_tile.raw(), shape)) * work.num_workers;
}

void SelectKeys(const SelectKeysArgs& args, Executor& executor) {
  Validate(args.shape);
  Require(args.plan.work.query_tile <= TokenCount(int64_t{kMaxTokens}),
          "work.query_tile: expected at most {}, got {}", kMaxTokens, args.plan.work.query_tile);
  Validate(args, SelectKeysWorkspace(args.plan.work, args.shape));
  Selection(args, executor).Run();
}

}  // namespace cpu
}  // namespace quire
#endif  // HWY_ONCE
