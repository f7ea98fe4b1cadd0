// The warpgroup that walks a worker's pieces, looks up pages, copies keys, and tells the others of each
// piece (Order) and each pass (Turn).
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PRODUCER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PRODUCER_CUH_

#include "kernels/cuda/mla_attention/mla_attention_participant.cuh"

namespace quire::cuda::mla {

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
    shared_.given[orders_.stage].Arrive();
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
  RingPosition<kStages> ring_;
  uint32_t slots_parity_ = 0;
};

}  // namespace quire::cuda::mla

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_PRODUCER_CUH_
