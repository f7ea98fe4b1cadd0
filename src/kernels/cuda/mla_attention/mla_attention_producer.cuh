// The role that walks a worker's pieces, looks up pages, copies keys, and tells the others of each piece
// (Order) and each pass (Turn).
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PRODUCER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PRODUCER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_participant.cuh"

namespace quire::cuda::mla {

// A warpgroup, which finds room where Place says.
template <class Keys, class Place>
class Producer : Participant {
 public:
  template <class Shared>
  __device__ Producer(const MlaKernelArgs& args, const KeyBoxes& boxes, Shared& shared, int role)
      : Participant(args, shared, role), boxes_(boxes), policy_(ReadOncePolicy()), place_(shared) {}

  // The pieces of `worker`, of rows [row_begin, + Place::kRows) of each tile.
  __device__ void Run(int32_t worker, int32_t row_begin) {
    ForEachPiece(args_.plan, worker, [&](const Piece& piece) {
      if (piece.tile.q_count * args_.num_heads <= row_begin) return;
      if (piece.tile.q_begin.raw() + piece.tile.q_count > args_.num_tokens) return;
      // Every thread asks, so that none waits for another to know what a row sees.
      RowBlock block = RowBlock::Of(args_, piece.tile, row_begin, Place::kRows);
      block.GoOverNodesTogether(args_);
      Give(piece, block);
      RunPiece();
      orders_.Advance();
    });
    Give({}, {});
  }

 private:
  using Parts = typename Place::Parts;

  // Hands out an order, once nobody reads the one before the last.
  __device__ void Give(const Piece& piece, const RowBlock& block) {
    Order& order = told_.orders[orders_.stage];
    told_.done[orders_.stage].Wait(orders_.parity ^ 1);
    if (thread_ == 0) {
      order.piece = piece;
      order.block = block;
    }
    if (thread_ < kMlaRows) {
      const bool is_row = thread_ < block.num_rows;
      const int32_t token = is_row ? block.TokenOf(thread_) : 0;
      const bool has_nodes = is_row && block.HasNodesTogether();
      order.visible[thread_] = has_nodes ? min(block.nodes_begin, block.kv_end)
                               : is_row  ? block.VisibleTo(args_, token)
                                         : 0;
      order.nodes[thread_] = has_nodes ? block.NodesOf(args_, token) : 0;
    }
    Sync();  // all of it is written
    told_.given[orders_.stage].Arrive();
  }

  __device__ void RunPiece() {
    // The least that a row sees: queries ascend, and trees' nodes see every committed key.
    least_visible_ = ThisOrder().visible[0];
    const int32_t kv_end = Block().kv_end;
    Pass pass = Block().PassAt(ThisPiece().first * SplitKeys());
    // Nodes may reach behind what the longest path sees.
    piece_end_ = ThisPiece().last == ThisPiece().num_splits
                     ? kv_end
                     : min(ThisPiece().last * SplitKeys(), kv_end);
    plain_end_ = min(min(kv_end, least_visible_), Block().own_keys_begin);
    split_keys_ = ThisPiece().Step(args_.plan.work) * SplitKeys();
    split_end_ = args_.plan.work.exact ? pass.key + split_keys_ : piece_end_;
    if (Keys::kAreCopied || !IsSeenByAll(pass)) LookAheadFrom(pass);
    while (pass.key < piece_end_) {
      if constexpr (!Keys::kAreCopied) {
        if (IsSeenByAll(pass)) {
          pass = Block().PassAt(ConvertRun(pass.key));
          if (pass.key < piece_end_) LookAheadFrom(pass);
          continue;
        }
      }
      const Pass next = Next(pass);
      const int64_t slot = slot_;
      LookAhead();  // before there are copies under way that it would wait for
      const bool ends_split = EndsSplit(next.key);
      if (ComesInBoxes(pass)) {
        if constexpr (Keys::kAreCopied) {
          // Threads copy the next one, and can begin only when there is room.
          if (!ComesInBoxes(next)) PrefetchRow(slot_);
          CopyBoxes(pass, slot, ends_split);
        }
      } else {
        CopyKeys(pass, slot, ends_split);
      }
      pass = next;
    }
  }

  // A split ends before `key`, or the piece does.
  __device__ bool EndsSplit(int32_t key) {
    if (key < min(split_end_, piece_end_)) return false;
    split_end_ += split_keys_;
    return true;
  }

  __device__ void LookAheadFrom(Pass pass) {
    ahead_ = pass;
    listed_ = RowBlock::kNoKey;
    key_ = {.page = 0, .offset = RowBlock::kNoKey};
#pragma unroll 1
    for (int i = 0; i < 3; ++i) LookAhead();
  }
  // Takes the look-ups of the three passes that come next a step further each: page rows take their time to
  // answer.
  __device__ void LookAhead() {
    const PagedKey next = Block().PageOf(args_, listed_);
    slot_ = Block().SlotOf(args_, key_);
    key_ = next;
    listed_ = ahead_.key < piece_end_ ? ListedAt(ahead_) : RowBlock::kNoKey;
    ahead_ = Next(ahead_);
  }

  __device__ Pass Next(Pass pass) const {
    // As the block says, which lies in shared memory: that is asked only where it matters.
    if (IsPlain(pass.key + kTileKeys)) return {.key = pass.key + kTileKeys, .token = kAllTokens};
    return Block().Next(pass);
  }
  // The pass of all tokens at `key` is one, and every row sees every key of its tile.
  __device__ bool IsPlain(int32_t key) const { return key + kTileKeys <= plain_end_; }

  // Some rows see keys of this tile that others do not. Then a value that is not finite cannot just be
  // multiplied with 0.
  __device__ bool IsPartlySeen(Pass pass) const {
    return pass.token == kAllTokens && min(pass.key + kTileKeys, Block().kv_end) > least_visible_;
  }
  // Every row sees every key of this tile.
  __device__ bool IsSeenByAll(Pass pass) const {
    return pass.token == kAllTokens && IsPlain(pass.key);
  }
  __device__ bool ComesInBoxes(Pass pass) const {
    return Keys::kAreCopied && boxes_.rows > 0 && IsSeenByAll(pass);
  }

  // The key of a pass that this thread looks up, or the first one of its box.
  __device__ int32_t ListedAt(Pass pass) const {
    const int32_t key = ComesInBoxes(pass) ? thread_ % kWarp * boxes_.rows : thread_;
    if (key >= kTileKeys) return RowBlock::kNoKey;
    const int32_t limit = IsSeenByAll(pass) ? plain_end_
                          : pass.token == kAllTokens || Block().HasNodesTogether()
                              ? Block().kv_end
                              : ThisOrder().visible[Block().FirstRow(pass)];
    return Block().ListedAt(args_, pass, key, limit);
  }
  __device__ int64_t LookUp(Pass pass) const {
    return Block().SlotOf(args_, Block().PageOf(args_, ListedAt(pass)));
  }

  // ---- Whole tiles, by the copy engine ----

  // A warp has a part of the tile, for which it arrives as if every thread had copied, and a lane a box's keys. No
  // warp falls a lap behind, since its part would be missing; one without a part waits for nothing.
  __device__ void CopyBoxes(Pass pass, int64_t slot, bool ends_split) {
    const uint32_t part = static_cast<uint32_t>(thread_) / kWarp;
    if (part < Parts::kParts) CopyPart(part, pass, slot, ends_split);
    place_.Advance();
  }
  __device__ void CopyPart(uint32_t part, Pass pass, int64_t slot, bool ends_split) {
    PhaseBarrier& full = place_.Full(part);
    place_.WaitForRoom(part);
    const int32_t key = thread_ % kWarp * boxes_.rows;
    if (key < kTileKeys) {
      Keys::CopyBoxes(boxes_, args_.store, place_, part, key, slot, policy_);
    }
    __syncwarp();
    if (thread_ % kWarp != 0) return;
    // Behind the copies, which wait for nothing of it: no phase ends without.
    if (part == 0) {
      place_.ThisTurn() = {.pass = pass, .is_seen_by_all = true, .ends_split = ends_split};
    }
    full.ArriveExpecting(Keys::PartBytes(place_, part));
    full.Arrive(kWarpgroup);
  }

  // ---- Any tile, by all threads ----

  // Brings a row into L2.
  __device__ void PrefetchRow(int64_t slot) const {
    if (slot < 0) return;
    const auto* row = reinterpret_cast<const std::byte*>(args_.store.LatentRow(slot));
    for (uint32_t at = 0; at < Keys::kRowBytes; at += 128) PrefetchLine(row + at);
  }
  __device__ void CopyKeys(Pass pass, int64_t slot, bool ends_split) {
    const Source source = SourceOf(slot);
    if (pass.token == kAllTokens && !IsPartlySeen(pass)) {
      const Turn turn{.pass = pass,
                      .is_seen_by_all = IsSeenByAll(pass),
                      .ends_split = ends_split,
                      .needs_fence = Keys::kAreCopied};
      const auto begin = [&](uint32_t part) {
        place_.WaitForNextRoom(part);
        Announce(turn, part);
      };
      Keys::Copy(place_, thread_, source, begin, [&](uint32_t part, uint32_t end) {
        if constexpr (Keys::kAreCopied) {
          place_.Full(part).ArriveAfterCopies();
        } else {
          Tell(part, end);
        }
      });
      place_.Advance();
      return;
    }
    WaitForRoom();
    const bool found = AnyThread(Keys::CopyAndLook(place_, thread_, source));
    if (pass.token == kAllTokens && found) {
      CopyKeysOfTokens(pass, ends_split);
    } else {
      Publish({.pass = pass, .keeps_others = found, .ends_split = ends_split});
    }
  }

  // ---- Whole tiles, converted one behind the other ----

  // Those from `key` on; returns where they end. Each warp looks up the rows that it loads, so that none waits
  // for another, and keeps little else in registers.
  __device__ int32_t ConvertRun(int32_t key) {
    const int32_t end = min(plain_end_, piece_end_) / kTileKeys * kTileKeys;
    run_begin_ = key;
    ListRows(key, end);
    PrefetchRows(key + kTileKeys, end);
    typename Keys::Run run(place_);
    run.Begin(thread_, RowsOf(key));
    while (key < end) {
      // Here and not in the loop over tiles, which would wait before a branch for all that is under way.
      ListRows(key + kTilesAtOnce * kTileKeys, end);
      const int32_t batch_end = min(key + kTilesAtOnce * kTileKeys, end);
#pragma unroll 1
      for (; key < batch_end; key += kTileKeys) {
        PrefetchRows(key + 2 * kTileKeys, end);
        const Turn turn{.pass = {.key = key, .token = kAllTokens},
                        .is_seen_by_all = true,
                        .ends_split = EndsSplit(key + kTileKeys),
                        .needs_fence = Keys::kReadersFence};
        const auto begin = [&](uint32_t part) {
          place_.WaitForNextRoom(part);
          Announce(turn, part, Keys::template PeerBytes<Parts>(part));
        };
        const auto copied = [&](uint32_t part, uint32_t end) {
          if constexpr (!Keys::kReadersFence) FenceForProducts();
          Arrive(part, end);
        };
        // Behind the last tile it is loaded again, and not used.
        const int32_t next = min(key + kTileKeys, end - kTileKeys);
        run.Copy(place_, thread_, RowsOf(key), RowsOf(next), begin, copied);
        place_.Advance();
      }
    }
    return end;
  }
  // Where the rows of the run's tile at `key` are listed.
  __device__ int ListOf(int32_t key) const { return (key - run_begin_) / kTileKeys % kListedTiles; }
  __device__ auto RowsOf(int32_t key) const {
    return [rows = place_.Listed(ListOf(key))](int row) { return SourceRow{rows[row], true}; };
  }
  // A warp loads this many rows of a tile, and so many lanes look up or prefetch them: kRowsAtOnce, and as many where
  // the warpgroup's next ones begin.
  static constexpr int32_t kRowsAtOnce = kWarp / static_cast<int32_t>(Keys::kRowThreads);
  static constexpr int32_t kWarpRows = 2 * kRowsAtOnce;
  static constexpr int32_t kGroups = kWarp / kWarpRows;
  __device__ int32_t LaneRow() const {
    return static_cast<int32_t>(Keys::FirstRow()) + thread_ / kWarp * kRowsAtOnce +
           thread_ % kRowsAtOnce +
           thread_ % kWarpRows / kRowsAtOnce * (kWarpgroup / kWarp * kRowsAtOnce);
  }
  __device__ int32_t LaneGroup() const { return thread_ % kWarp / kWarpRows; }
  // Lists the warp's rows of kTilesAtOnce tiles.
  __device__ void ListRows(int32_t key, int32_t end) {
    __syncwarp();  // what was listed there was read
#pragma unroll
    for (int32_t i = 0; i < kTilesAtOnce; i += kGroups) {
      const int32_t tile = key + (i + LaneGroup()) * kTileKeys;
      if (tile >= end) continue;
      const Pass pass{.key = tile, .token = kAllTokens};
      const int64_t slot = Block().SlotOf(args_, pass, LaneRow(), end);
      place_.Listed(ListOf(tile))[LaneRow()] =
          reinterpret_cast<const std::byte*>(args_.store.LatentRow(slot));
    }
    __syncwarp();
  }
  // Brings the warp's rows of a tile into L2: memory is far.
  __device__ void PrefetchRows(int32_t key, int32_t end) const {
    if (key >= end) return;
    // Groups of lanes begin in different places of the row, which is on six lines.
    constexpr uint32_t kLines = CeilDiv(6, kGroups);
    const uint32_t begin = static_cast<uint32_t>(LaneGroup()) * kLines * 128;
    const std::byte* row = place_.Listed(ListOf(key))[LaneRow()];
#pragma unroll
    for (uint32_t i = 0; i < kLines; ++i) {
      PrefetchLine(row + min(begin + i * 128, Keys::kRowBytes - 1));
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
      const bool found = AnyThread(Keys::CopyAndLook(place_, thread_, source));
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
    int64_t(&slots)[kTileKeys] = told_.slots[slots_parity_];
    slots_parity_ ^= 1;
    if (thread_ < kTileKeys) slots[thread_] = slot;
    Sync();  // slots are written, and nobody reads those before the last
    return {args_.store, slots};
  }
  __device__ bool AnyThread(bool says) const { return SyncWarpgroupAny(barrier_, says); }
  __device__ void WaitForRoom() const {
#pragma unroll
    for (uint32_t part = 0; part < Parts::kParts; ++part) place_.WaitForNextRoom(part);
  }

  // The others are told, with the tile's first part. There is room for this one, of which another CTA stores some
  // bytes.
  __device__ void Announce(const Turn& turn, uint32_t part, uint32_t peer_bytes = 0) {
    if (thread_ != 0) return;
    if (part == 0) place_.ThisTurn() = turn;
    if (peer_bytes > 0) {
      place_.Full(part).ArriveExpecting(peer_bytes);
    } else {
      place_.Full(part).Arrive();
    }
  }
  // Parts [part, end) are written.
  __device__ void Tell(uint32_t part, uint32_t end) {
    FenceForProducts();
    Arrive(part, end);
  }
  __device__ void Arrive(uint32_t part, uint32_t end) {
#pragma unroll
    for (; part < end; ++part) place_.Full(part).Arrive();
  }
  // A tile whose copies have ended.
  __device__ void Publish(const Turn& turn) {
    for (uint32_t part = 0; part < Parts::kParts; ++part) Announce(turn, part);
    Tell(0, Parts::kParts);
    place_.Advance();
  }

  const KeyBoxes& boxes_;
  const uint64_t policy_;
  int32_t least_visible_ = 0;
  int32_t piece_end_ = 0;                   // keys
  int32_t plain_end_ = 0;                   // every row sees the keys before it, in passes of all
  int32_t split_end_ = 0, split_keys_ = 0;  // of the split at hand
  int32_t run_begin_ = 0;                   // of tiles that are converted one behind the other
  // Of the three passes that come next, and the one behind them.
  int64_t slot_ = -1;
  PagedKey key_ = {.page = 0, .offset = RowBlock::kNoKey};
  int32_t listed_ = RowBlock::kNoKey;
  Pass ahead_ = {};
  Place place_;
  uint32_t slots_parity_ = 0;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PRODUCER_CUH_
