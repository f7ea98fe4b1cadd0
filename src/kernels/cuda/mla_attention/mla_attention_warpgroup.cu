// Latent attention of warpgroups, for rows of 512 + 64 values: a CTA has 64 rows (query heads) and every key
// of a piece, and a warpgroup for each part of the work.
//
//   scorer      S = Q K^T, softmax, weights to shared memory
//   adders      two, with half of the columns of the values each: O += P V
//   producer    looks up pages, copies keys, tells the others of each pass
//
// The scorer is a tile ahead of the adders, so tensor cores have products while it computes weights.
//
// An element of S is a chain of products over the values, ascending; an element of O a chain over the keys,
// ascending. So neither rows beside it nor pages change a bit.
#include "kernels/cuda/mla_attention/mla_attention_panels.cuh"

namespace quire::cuda {
namespace mla {
namespace {

constexpr unsigned kAllLanes = ~0u;

// Roles, by warpgroup, and the barrier of each.
enum Role : int { kScorer = 0, kAdders = 1, kProducer = 3 };
constexpr int kRoles = 4;
constexpr int BarrierOf(int role) { return 1 + role; }

// Which stage of the ring, and how often it was used.
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// What every role has: the order at hand.
class Participant {
 public:
  __device__ Participant(const MlaKernelArgs& args, SharedTiles& shared, int role)
      : args_(args),
        shared_(shared),
        role_(role),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

 protected:
  // Calls run() for every order, until there are no more.
  template <class Run>
  __device__ __forceinline__ void ForEachOrder(Run run) {
    for (;; orders_.Advance()) {
      shared_.given[orders_.stage].Wait(orders_.parity);
      if (Block().num_rows == 0) return;
      run();
      ArriveWarp(shared_.done[orders_.stage]);
    }
  }

  // Calls run(split, end, has_keys) for the splits [split, end) that are summed as one.
  template <class Run>
  __device__ __forceinline__ void ForEachSplit(Run run) const {
    const int32_t step = ThisPiece().Step(args_.plan.work);
    for (int32_t split = ThisPiece().first; split < ThisPiece().last; split += step) {
      run(split, split + step, split * SplitKeys() < Block().kv_end);
    }
  }

  __device__ __forceinline__ void Sync() const { SyncWarpgroup(BarrierOf(role_)); }
  __device__ __forceinline__ const Order& ThisOrder() const {
    return shared_.orders[orders_.stage];
  }
  __device__ __forceinline__ const Piece& ThisPiece() const { return ThisOrder().piece; }
  __device__ __forceinline__ const RowBlock& Block() const { return ThisOrder().block; }
  __device__ __forceinline__ int32_t SplitKeys() const {
    return static_cast<int32_t>(args_.plan.work.split.raw());
  }
  __device__ __forceinline__ uint32_t KeysAt(int stage) const {
    return SharedAddress(&shared_.keys[stage]);
  }
  // Row 0 or 1 of the two whose sums a product leaves in this thread.
  __device__ __forceinline__ int32_t RowOf(int which) const {
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * which;
  }
  __device__ __forceinline__ int32_t VisibleTo(int which) const {
    return ThisOrder().visible[RowOf(which)];
  }
  // A warp arrives as one.
  __device__ __forceinline__ void ArriveWarp(PhaseBarrier& barrier) const {
    __syncwarp();
    if (thread_ % 32 == 0) barrier.Arrive();
  }

  const MlaKernelArgs& args_;
  SharedTiles& shared_;
  const int role_;
  const int thread_;
  RingPosition orders_;
};

// ---- Producer ----

template <class Keys>
class Producer : Participant {
 public:
  __device__ Producer(const MlaKernelArgs& args, const KeyBoxes& boxes, SharedTiles& shared)
      : Participant(args, shared, kProducer), boxes_(boxes) {}

  // The pieces of `worker`, of rows [row_begin, + 64) of each tile.
  __device__ void Run(int32_t worker, int32_t row_begin) {
    ForEachPiece(args_.plan, worker, [&](const Piece& piece) {
      if (piece.tile.q_count * args_.num_heads <= row_begin) return;
      if (piece.tile.q_begin.raw() + piece.tile.q_count > args_.num_tokens) return;
      Give([&](Order& order) {
        order.piece = piece;
        order.block = RowBlock::Of(args_, piece.tile, row_begin, kMlaRows);
      });
      RunPiece();
      orders_.Advance();
    });
    Give([](Order& order) { order.block.num_rows = 0; });
  }

 private:
  // Hands out an order, once nobody reads the one before the last.
  template <class Write>
  __device__ void Give(Write write) {
    Order& order = shared_.orders[orders_.stage];
    shared_.done[orders_.stage].Wait(orders_.parity ^ 1);
    if (thread_ == 0) write(order);
    Sync();  // the block is written
    if (thread_ < kMlaRows) {
      const RowBlock& block = order.block;
      order.visible[thread_] =
          thread_ < block.num_rows ? block.VisibleTo(args_, block.TokenOf(thread_)) : 0;
    }
    Sync();  // so is what rows see
    ArriveWarp(shared_.given[orders_.stage]);
  }

  __device__ void RunPiece() {
    // The least that a row sees: queries ascend, and trees' nodes see every committed key.
    least_visible_ = ThisOrder().visible[0];
    const int32_t kv_end = Block().kv_end;
    const int32_t end = min(ThisPiece().last * SplitKeys(), kv_end);
    Pass pass = Block().PassAt(ThisPiece().first * SplitKeys());
    if (pass.key < end) slot_ = LookUp(pass);
    ForEachSplit([&](int32_t, int32_t last, bool) {
      const int32_t split_end = min(last * SplitKeys(), kv_end);
      while (pass.key < split_end) {
        const Pass next = Block().Next(pass);
        const int64_t slot = slot_;
        // The page row takes its time to answer, so it is asked before its turn comes.
        if (next.key < end) slot_ = LookUp(next);
        const bool ends_split = next.key >= split_end;
        if (ComesInBoxes(pass)) {
          CopyBoxes(pass, slot, ends_split);
        } else {
          CopyKeys(pass, slot, ends_split);
        }
        if constexpr (!Keys::kAreCopied) {
          if (next.key < end) Prefetch();
        }
        pass = next;
      }
    });
  }

  __device__ uint32_t To() const { return KeysAt(ring_.stage); }

  // Some rows see keys of this tile that others do not. Then a value that is not finite cannot just be
  // multiplied with 0.
  __device__ bool IsPartlySeen(Pass pass) const {
    return pass.token == kAllTokens && min(pass.key + kTileKeys, Block().kv_end) > least_visible_;
  }
  // Every row sees every key of this tile.
  __device__ bool IsSeenByAll(Pass pass) const {
    return pass.token == kAllTokens && pass.key + kTileKeys <= min(Block().kv_end, least_visible_);
  }
  __device__ bool ComesInBoxes(Pass pass) const {
    return Keys::kAreCopied && boxes_.rows > 0 && IsSeenByAll(pass);
  }

  // This thread's slot of a pass: of a key, or of a box's first key.
  __device__ int64_t LookUp(Pass pass) const {
    const int32_t keys = ComesInBoxes(pass) ? boxes_.rows : 1;
    if (thread_ * keys >= kTileKeys) return -1;
    const int32_t limit =
        pass.token == kAllTokens ? Block().kv_end : ThisOrder().visible[Block().FirstRow(pass)];
    return Block().SlotOf(args_, pass, thread_ * keys, limit);
  }
  // Brings the row of slot_ into L2: rows that are converted are waited for, and memory is far.
  __device__ void Prefetch() const {
    if (slot_ < 0) return;
    const auto* row = reinterpret_cast<const std::byte*>(args_.store.LatentRow(slot_));
#pragma unroll
    for (uint32_t at = 0; at < Keys::kRowBytes; at += 128) PrefetchLine(row + at);
    PrefetchLine(row + Keys::kRowBytes - 1);
  }

  // ---- Whole tiles, by the copy engine ----

  __device__ void CopyBoxes(Pass pass, int64_t slot, bool ends_split) {
    WaitForRoom();
    PhaseBarrier(&full)[kParts] = shared_.full[ring_.stage];
    if (thread_ == 0) {
      shared_.turns[ring_.stage] = {.pass = pass, .is_seen_by_all = true, .ends_split = ends_split};
#pragma unroll
      for (uint32_t part = 0; part < kParts; ++part) {
        full[part].ArriveExpecting(kPartPanels * kPanelBytes);
      }
    }
    if (thread_ * boxes_.rows < kTileKeys) {
      const uint32_t to = To() + static_cast<uint32_t>(thread_ * boxes_.rows) * 128;
#pragma unroll
      for (uint32_t panel = 0; panel < kPanels; ++panel) {
        CopyBox(to + panel * kPanelBytes, &boxes_.map, static_cast<int32_t>(panel * kPanelValues),
                static_cast<int32_t>(slot), full[panel / kPartPanels].Address());
      }
    }
    // As if every thread had copied. A warp that issues no box arrives all the same, or the ring could
    // lap it.
    __syncwarp();
    if (thread_ % 32 == 0) {
#pragma unroll
      for (uint32_t part = 0; part < kParts; ++part) full[part].Arrive(32);
    }
    ring_.Advance();
  }

  // ---- Any tile, by all threads ----

  __device__ void CopyKeys(Pass pass, int64_t slot, bool ends_split) {
    const Source source = SourceOf(slot);
    WaitForRoom();
    if (pass.token == kAllTokens && !IsPartlySeen(pass)) {
      Announce({.pass = pass,
                .is_seen_by_all = IsSeenByAll(pass),
                .ends_split = ends_split,
                .needs_fence = Keys::kAreCopied});
      Keys::Copy(To(), thread_, source, [&](uint32_t part) {
        PhaseBarrier& full = shared_.full[ring_.stage][part];
        if constexpr (Keys::kAreCopied) {
          full.ArriveAfterCopies();
        } else {
          FenceForProducts();
          full.Arrive();
        }
      });
      ring_.Advance();
      return;
    }
    const bool found = AnyThread(Keys::CopyAndLook(To(), thread_, source));
    if (pass.token == kAllTokens && found) {
      CopyKeysOfTokens(pass, ends_split);
    } else {
      Publish({.pass = pass, .keeps_others = found, .ends_split = ends_split});
    }
  }

  // The tile again for each token by itself, with the keys that it sees. Rare: a value is not finite,
  // and not every row sees it. The stage at hand is free.
  __device__ void CopyKeysOfTokens(Pass pass, bool ends_split) {
    const int32_t first = Block().first_token, last = Block().last_token;
    for (int32_t token = first; token <= last; ++token) {
      const Pass one{.key = pass.key, .token = token};
      const Source source = SourceOf(LookUp(one));
      if (token > first) WaitForRoom();
      const bool found = AnyThread(Keys::CopyAndLook(To(), thread_, source));
      Publish({.pass = one, .keeps_others = found, .ends_split = ends_split && token == last});
    }
  }

  // Where the rows of a tile come from.
  struct Source {
    const StoreView& store;
    const int64_t* slots;

    __device__ SourceRow operator()(int row) const {
      // Without a key nothing is read; the address must be one of the pool all the same.
      const int64_t slot = slots[row];
      return {reinterpret_cast<const std::byte*>(store.LatentRow(slot >= 0 ? slot : 0)), slot >= 0};
    }
  };
  // Of the tile whose slots the threads have.
  __device__ Source SourceOf(int64_t slot) {
    int64_t(&slots)[kTileKeys] = shared_.slots[slots_parity_];
    slots_parity_ ^= 1;
    if (thread_ < kTileKeys) slots[thread_] = slot;
    Sync();  // slots are written, and nobody reads those before the last
    return {args_.store, slots};
  }
  __device__ void WaitForRoom() { shared_.empty[ring_.stage].Wait(ring_.parity ^ 1); }
  __device__ bool AnyThread(bool says) const {
    return SyncWarpgroupAny(BarrierOf(kProducer), says);
  }

  // The others are told, with the tile's first part.
  __device__ void Announce(const Turn& turn) {
    if (thread_ != 0) return;
    shared_.turns[ring_.stage] = turn;
    for (PhaseBarrier& full : shared_.full[ring_.stage]) full.Arrive();
  }
  // A tile whose copies have ended.
  __device__ void Publish(const Turn& turn) {
    Announce(turn);
    FenceForProducts();
    for (PhaseBarrier& full : shared_.full[ring_.stage]) full.Arrive();
    ring_.Advance();
  }

  const KeyBoxes& boxes_;
  int32_t least_visible_ = 0;
  int64_t slot_ = -1;  // of the next pass
  RingPosition ring_;
  uint32_t slots_parity_ = 0;
};

// ---- Scorer ----

class Scorer : Participant {
 public:
  __device__ Scorer(const MlaKernelArgs& args, SharedTiles& shared)
      : Participant(args, shared, kScorer), scale_(args.scale * kLog2E) {}

  __device__ __forceinline__ void Run() {
    ForEachOrder([&] {
      LoadQueries();
      ForEachSplit([&](int32_t, int32_t, bool has_keys) {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          m_[which] = -INFINITY;
          l_[which] = 0.0f;
        }
        for (bool ends = !has_keys; !ends;) ends = RunTurn();
        EndSplit();
      });
    });
  }

 private:
  // Nobody else reads queries.
  __device__ __forceinline__ void LoadQueries() {
    Sync();  // products of the piece before have ended in all warps
    const auto source = [&](int row) {
      // Without a row nothing is read; the address must be one of q all the same.
      const bool is_row = row < Block().num_rows;
      const int32_t at = is_row ? row : 0;
      const Bf16* from =
          args_.q.Row<Bf16>(Block().tile.q_begin.raw() + Block().TokenOf(at), Block().HeadOf(at));
      return SourceRow{reinterpret_cast<const std::byte*>(from), is_row};
    };
    CopyRows(SharedAddress(&shared_.q), thread_, source, [](uint32_t) {});
    CommitCopies();
    WaitForCopies<0>();
    FenceForProducts();
    Sync();  // queries are written
  }

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
    const int stage = Uniform(ring_.stage);
    float s[32];
    MultiplyKeys(stage, s);
    const Turn turn = shared_.turns[stage];
    if (!turn.is_seen_by_all) MaskKeys(turn.pass, s);
    float alpha[2];
    Softmax(s, alpha);
    StoreWeights(stage, s, alpha);
    FenceForProducts();
    ArriveWarp(shared_.weighted[stage]);
    ring_.Advance();
    return turn.ends_split;
  }

  // As keys come.
  __device__ __forceinline__ void MultiplyKeys(int stage, float (&s)[32]) {
    const uint32_t q = UniformHere(SharedAddress(&shared_.q)), keys = KeysAt(stage);
    HoldSums(s);
    BeginProducts();
#pragma unroll
    for (uint32_t part = 0; part < kParts; ++part) {
      shared_.full[stage][part].Wait(ring_.parity);
      if (shared_.turns[stage].needs_fence) FenceForProducts();
#pragma unroll
      for (uint32_t i = 0; i < 4 * kPartPanels; ++i) {
        const uint32_t at = (part * kPartPanels + i / 4) * kPanelBytes + i % 4 * 32;
        MultiplyPanels(s, PanelOperand(q, at), PanelOperand(keys, at), part > 0 || i > 0);
      }
    }
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(s);
  }

  // -inf where a row does not see a key, or takes no part in the pass.
  __device__ __forceinline__ void MaskKeys(Pass pass, float (&s)[32]) const {
    int32_t count[2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const bool takes_part =
          pass.token == kAllTokens || pass.token == Block().TokenOf(RowOf(which));
      count[which] = (takes_part ? VisibleTo(which) : 0) - pass.key - thread_ % 4 * 2;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (i / 4 * 8 + i % 2 >= count[i % 4 / 2]) s[i] = -INFINITY;
    }
  }

  // Scores become weights, exp2(scale_ * (score - m)). alpha: what older sums are to be multiplied with.
  // m follows the maximum only where weights would pass 2^kSlack otherwise, so alpha is mostly 1.
  __device__ __forceinline__ void Softmax(float (&s)[32], float (&alpha)[2]) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      float tops[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        tops[i % 4] = fmaxf(tops[i % 4], s[i / 2 * 4 + 2 * which + i % 2]);
      }
      float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
      const float before = m_[which];
      if (scale_ * (top - before) > kSlack) m_[which] = top;
      const float anchor = scale_ * Anchor(m_[which]);
      alpha[which] = Base2Exponent::Exp(scale_ * before - anchor);  // 1 where m stays
      float sum = 0.0f;
#pragma unroll
      for (int chunk = 0; chunk < 8; ++chunk) {
        float &low = s[4 * chunk + 2 * which], &high = s[4 * chunk + 2 * which + 1];
        low = Base2Exponent::Exp(__fmaf_rn(scale_, low, -anchor));
        high = Base2Exponent::Exp(__fmaf_rn(scale_, high, -anchor));
        sum += low + high;
      }
      l_[which] = __fmaf_rn(alpha[which], l_[which], sum);
    }
  }

  __device__ __forceinline__ void StoreWeights(int stage, const float (&s)[32],
                                               const float (&alpha)[2]) {
    const uint32_t panel = KeysAt(stage) + kWeightsPanel;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const uint32_t row = static_cast<uint32_t>(RowOf(which));
#pragma unroll
      for (uint32_t chunk = 0; chunk < 8; ++chunk) {
        StoreShared4(panel + PanelChunk(row, chunk) + static_cast<uint32_t>(thread_) % 4 * 4,
                     PackBf16(s[4 * chunk + 2 * which], s[4 * chunk + 2 * which + 1]));
      }
      if (thread_ % 4 == 0) shared_.alpha[stage][row] = alpha[which];
    }
  }

  // A thread's l is of its own keys: a quarter of every eight.
  __device__ __forceinline__ void EndSplit() {
    shared_.taken.Wait(ended_parity_ ^ 1);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      l_[which] += __shfl_xor_sync(kAllLanes, l_[which], 1);
      l_[which] += __shfl_xor_sync(kAllLanes, l_[which], 2);
      if (thread_ % 4 == 0)
        shared_.stats[RowOf(which)] = make_float2(scale_ * m_[which], l_[which]);
    }
    ArriveWarp(shared_.ended);
    ended_parity_ ^= 1;
  }

  static constexpr float kSlack = 8.0f;

  const float scale_;
  float m_[2], l_[2];  // of our rows; m not scaled, l of our keys until the split ends
  RingPosition ring_;
  uint32_t ended_parity_ = 0;
};

// ---- Adders ----

class Adder : Participant {
 public:
  __device__ Adder(const MlaKernelArgs& args, SharedTiles& shared, int32_t worker, int role)
      : Participant(args, shared, role), worker_(worker), half_(role - kAdders) {}

  __device__ __forceinline__ void Run() {
    ForEachOrder([&] {
      ForEachSplit([&](int32_t split, int32_t end, bool has_keys) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) o_[i / 64][i % 64] = 0.0f;
        for (bool ends = !has_keys; !ends;) ends = RunTurn();
        TakeStats();
        FinishSplit(split, end);
      });
    });
  }

 private:
  static constexpr int kHalf = 256;        // columns
  static constexpr int kSums = kHalf / 2;  // of a thread: two rows, a quarter of the columns

  // ---- Turns ----

  // Returns whether the split ends with this turn.
  __device__ __forceinline__ bool RunTurn() {
    const int stage = Uniform(ring_.stage);
    for (const PhaseBarrier& full : shared_.full[stage]) full.Wait(ring_.parity);
    shared_.weighted[stage].Wait(ring_.parity);
    const Turn turn = shared_.turns[stage];
    if (turn.needs_fence) FenceForProducts();
    Rescale(stage);
    if (turn.keeps_others) {
      AddValuesOfToken(stage, turn.pass.token);
    } else {
      AddValues(stage);
    }
    ArriveWarp(shared_.empty[stage]);
    ring_.Advance();
    return turn.ends_split;
  }

  // Multiplies older sums.
  __device__ __forceinline__ void Rescale(int stage) {
    const float alpha[2] = {shared_.alpha[stage][RowOf(0)], shared_.alpha[stage][RowOf(1)]};
    if (!__any_sync(kAllLanes, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) o_[i / 64][i % 64] *= alpha[i % 4 / 2];
  }

  __device__ __forceinline__ void AddValues(int stage) {
    const uint32_t weights = KeysAt(stage) + kWeightsPanel;
    const uint32_t values =
        KeysAt(stage) + static_cast<uint32_t>(half_) * (kPanels / 2 * kPanelBytes);
    HoldSums(o_[0]);
    HoldSums(o_[1]);
    BeginProducts();
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      MultiplyValues(o_[i % 2], PanelOperand(weights, i / 2 * 32),
                     PanelOperand(values, i % 2 * 2 * kPanelBytes + i / 2 * 16 * 128, kPanelBytes));
    }
    CommitProducts();
    WaitForProducts<0>();
    HoldSums(o_[0]);
    HoldSums(o_[1]);
  }
  // Rows of other tokens keep their sums: 0 times a value that is not finite is not 0.
  __device__ __forceinline__ void AddValuesOfToken(int stage, int32_t token) {
    const StateView kept = StateAt(args_, args_.kept, worker_);
    ForEachRow([&](int32_t row, int) {
      float* o = kept.o + (Block().row_begin + row) * kept.o_stride;
      return [o](int32_t column, float x, float y) {
        *reinterpret_cast<float2*>(o + column) = make_float2(x, y);
      };
    });
    AddValues(stage);
    ForEachRow([&](int32_t row, int) {
      const float* o = kept.o + (Block().row_begin + row) * kept.o_stride;
      const bool keeps = Block().TokenOf(row) != token;
      return [o, keeps](int32_t column, float& x, float& y) {
        const float2 before = *reinterpret_cast<const float2*>(o + column);
        x = Select(keeps, before.x, x);
        y = Select(keeps, before.y, y);
      };
    });
  }

  // ---- States ----

  // m and l of the split that has ended.
  __device__ __forceinline__ void TakeStats() {
    shared_.ended.Wait(ended_parity_);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const float2 stats = shared_.stats[RowOf(which)];
      m_[which] = stats.x;
      l_[which] = stats.y;
    }
    ArriveWarp(shared_.taken);
    ended_parity_ ^= 1;
  }

  // Calls per_row(row, which) for this thread's rows, and what it returns with (column, x, y) for the
  // row's pairs of sums.
  template <class PerRow>
  __device__ __forceinline__ void ForEachRow(PerRow per_row) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (RowOf(which) >= Block().num_rows) continue;
      auto per_pair = per_row(RowOf(which), which);
      const int32_t column = half_ * kHalf + thread_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
        float(&o)[64] = o_[n / 16];
        per_pair(column + n * 8, o[n % 16 * 4 + 2 * which], o[n % 16 * 4 + 2 * which + 1]);
      }
    }
  }
  // Calls per_row(row, m, l), in one thread of all that have the row.
  template <class PerRow>
  __device__ __forceinline__ void ForEachStatistic(PerRow per_row) const {
    if (half_ != 0 || thread_ % 4 != 0) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      if (RowOf(which) < Block().num_rows) per_row(RowOf(which), m_[which], l_[which]);
    }
  }

  // What was summed since the split began: splits [split, end), more than one only if they are all of
  // the piece.
  __device__ __forceinline__ void FinishSplit(int32_t split, int32_t end) {
    const Piece& piece = ThisPiece();
    if (piece.first > 0) {
      StorePartial(piece.partial + split - piece.first);
      return;
    }
    const StateView folded = StateAt(args_, args_.folded, worker_);
    if (split > 0) FoldWith(folded, split * SplitKeys());
    if (end < piece.last) {
      StoreSums(folded);
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        folded_m_[which] = m_[which];
        folded_l_[which] = l_[which];
      }
    } else if (piece.last < piece.num_splits) {
      StorePartial(piece.partial);
    } else {
      Write();
    }
  }

  __device__ __forceinline__ void StoreSums(const StateView& to) {
    ForEachRow([&](int32_t row, int) {
      float* o = to.o + (Block().row_begin + row) * to.o_stride;
      return [o](int32_t column, float x, float y) {
        *reinterpret_cast<float2*>(o + column) = make_float2(x, y);
      };
    });
  }

  __device__ __forceinline__ void StorePartial(int64_t index) {
    if (index >= args_.max_partials) {
      if (thread_ == 0) {
        Report(args_.status, DeviceFault::kCapacity, Launch::kMlaAttention,
               static_cast<uint32_t>(index));
      }
      return;
    }
    const StateView to = StateAt(args_, args_.partials, index);
    StoreSums(to);
    ForEachStatistic([&](int32_t row, float m, float l) {
      to.m[Block().row_begin + row] = m;
      to.l[Block().row_begin + row] = l;
    });
  }

  // The state at hand becomes `earlier` and itself folded; rows that do not reach the split, which
  // begins at `begin`, keep the earlier one as it is. Every thread reads the sums that it wrote.
  __device__ __forceinline__ void FoldWith(const StateView& earlier, int32_t begin) {
    Fold folds[2];
    bool reaches[2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      folds[which] =
          Fold::Of<Base2Exponent>(folded_m_[which], folded_l_[which], m_[which], l_[which]);
      reaches[which] = begin < VisibleTo(which);
      m_[which] = reaches[which] ? folds[which].m : folded_m_[which];
      l_[which] = reaches[which] ? folds[which].l : folded_l_[which];
    }
    ForEachRow([&](int32_t row, int which) {
      const float* o = earlier.o + (Block().row_begin + row) * earlier.o_stride;
      return [fold = folds[which], reach = reaches[which], o](int32_t column, float& x, float& y) {
        const float2 before = *reinterpret_cast<const float2*>(o + column);
        x = Select(reach, fold.Sum(before.x, x), before.x);
        y = Select(reach, fold.Sum(before.y, y), before.y);
      };
    });
  }

  template <class T, class Store>
  __device__ __forceinline__ void WriteAs(Store store) {
    ForEachRow([&](int32_t row, int which) {
      const float factor = ShareOfOne(l_[which]);
      T* to = args_.out.Row<T>(Token(row), Block().HeadOf(row));
      return [factor, to, store](int32_t column, float x, float y) {
        store(to + column, x * factor, y * factor);
      };
    });
  }
  __device__ __forceinline__ void Write() {
    if (args_.out.is_bf16) {
      WriteAs<Bf16>(
          [](Bf16* to, float x, float y) { *reinterpret_cast<uint32_t*>(to) = PackBf16(x, y); });
    } else {
      WriteAs<float>(
          [](float* to, float x, float y) { *reinterpret_cast<float2*>(to) = make_float2(x, y); });
    }
    ForEachStatistic([&](int32_t row, float m, float l) {
      WriteLse(args_, Token(row), Block().HeadOf(row),
               l == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(m, l));
    });
  }
  __device__ __forceinline__ int64_t Token(int32_t row) const {
    return Block().tile.q_begin.raw() + Block().TokenOf(row);
  }

  const int32_t worker_;
  const int half_;
  float o_[2][kSums / 2];
  float m_[2], l_[2];                // of our rows, when a split has ended
  float folded_m_[2], folded_l_[2];  // of the splits before
  RingPosition ring_;
  uint32_t ended_parity_ = 0;
};

// ---- The kernel ----

// Registers of a thread. They begin with 144 each: what adders take, the scorer has given back.
constexpr int kScorerRegisters = 80, kAdderRegisters = 168, kProducerRegisters = 96;
static_assert(kScorerRegisters + 2 * kAdderRegisters + kProducerRegisters <= 512);

__device__ void InitBarriers(SharedTiles& shared) {
  constexpr uint32_t kWarps = kWarpgroup / 32;
  for (int stage = 0; stage < kStages; ++stage) {
    for (PhaseBarrier& full : shared.full[stage]) full.Init(kWarpgroup + 1);
    shared.weighted[stage].Init(kWarps);
    shared.empty[stage].Init(2 * kWarps);
  }
  shared.ended.Init(kWarps);
  shared.taken.Init(2 * kWarps);
  for (PhaseBarrier& given : shared.given) given.Init(kWarps);
  for (PhaseBarrier& done : shared.done) done.Init(3 * kWarps);
  FenceBarrierInit();
}

// CTAs of a worker, one per 64 rows of a tile, are neighbours: they read the same keys.
template <class Keys>
__global__ void __launch_bounds__(kRoles* kWarpgroup, 1)
    MlaWarpgroup(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ KeyBoxes boxes,
                 int32_t ctas_per_worker) {
  extern __shared__ __align__(1024) std::byte memory[];
  SharedTiles& shared = *reinterpret_cast<SharedTiles*>(memory);
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();
  const int32_t worker = static_cast<int32_t>(blockIdx.x) / ctas_per_worker;
  const int32_t row_begin = static_cast<int32_t>(blockIdx.x) % ctas_per_worker * kMlaRows;
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  if (role == kScorer) {
    GiveRegistersBack<kScorerRegisters>();
    Scorer(args, shared).Run();
  } else if (role == kProducer) {
    GiveRegistersBack<kProducerRegisters>();
    Producer<Keys>(args, boxes, shared).Run(worker, row_begin);
  } else {
    TakeRegisters<kAdderRegisters>();
    Adder(args, shared, worker, role).Run();
  }
}

// Boxes of a page's rows, of 64 keys at most.
KeyBoxes KeyBoxesOf(const StoreView& store) {
  KeyBoxes boxes{};
  // Rows of a box are counted in 32 bits.
  if (store.num_slots > INT32_MAX) return boxes;
  for (int32_t rows : {64, 32, 16}) {
    if (store.page_size % rows != 0) continue;
    boxes.map = MakeTensorMap({.data = store.memory,
                               .rows = store.num_slots,
                               .columns = kPanels * kPanelValues,
                               .row_bytes = store.parts[0].row_stride,
                               .box_rows = rows,
                               .box_columns = kPanelValues});
    boxes.rows = rows;
    break;
  }
  return boxes;
}

template <class Keys>
void Launch(const MlaKernelArgs& args, const KeyBoxes& boxes, const Stream& stream) {
  const int32_t ctas = CeilDiv(args.tile_rows, kMlaRows);
  constexpr int kBytes = static_cast<int>(sizeof(SharedTiles));
  Check(
      cudaFuncSetAttribute(MlaWarpgroup<Keys>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "MlaWarpgroup: shared memory");
  MlaWarpgroup<Keys><<<static_cast<unsigned>(args.plan.work.num_workers * ctas),
                       kRoles * kWarpgroup, kBytes, stream.get()>>>(args, boxes, ctas);
  CheckLaunch("MlaWarpgroup");
}

}  // namespace
}  // namespace mla

void LaunchMlaWarpgroup(const MlaAttentionArgs& args, const Stream& stream, StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, status);
  if (kernel_args.store.format == KvFormat::kLatentFp8) {
    mla::Launch<mla::Fp8Keys>(kernel_args, {}, stream);
  } else {
    mla::Launch<mla::Bf16Keys>(kernel_args, mla::KeyBoxesOf(kernel_args.store), stream);
  }
}

}  // namespace quire::cuda
