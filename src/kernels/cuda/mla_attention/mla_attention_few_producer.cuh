// The warps of the kernel for few rows that look up pages and copy keys.
#ifndef QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_PRODUCER_CUH_
#define QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_PRODUCER_CUH_

#include "device/cuda/kernel.cuh"
#include "kernels/cuda/mla_attention/mla_attention_few_pieces.cuh"

namespace quire::cuda::mla::few {

// Each of its warps copies eight keys of a stage, and looks up those of four stages at once: a round.
template <int kCtas>
class FewProducer {
 public:
  __device__ FewProducer(const FewArgs& args, SharedFew<kCtas>& shared)
      : args_(args),
        shared_(shared),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarp % kProducers),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarp) {}

  __device__ void Run(const FewPieces<kCtas>& pieces) {
    pieces.ForEach([&](const FewPiece& few) { Copy(few); });
    TakeTurn();  // where there was no piece
  }

 private:
  static constexpr int32_t kRoundKeys = 4 * kStageKeys;

  // A key takes two steps to be found, each of which asks memory for what the next one needs: they are taken one and
  // two rounds before it is copied. The plan is older than the kernel before this one, and so are keys of earlier
  // steps: they are asked for before the turn, as far as there is room. Queries, and keys of this step, are not.
  __device__ void Copy(const FewPiece& few) {
    if (HasLists()) TakeTurn();  // which the kernel before may have written
    const uint64_t nodes = few.Nodes(args_);
    int32_t own = few.begin + lane_ / 8 * kStageKeys + warp_ * 8 + lane_ % 8;
    PagedKey paged = PageOf(few, ListedAt(few, nodes, own));
    int32_t listed = ListedAt(few, nodes, own += kRoundKeys);
    const int32_t old_end = min(few.old_end, few.begin + kRoundKeys);
    bool has_asked = false;
#pragma unroll 1
    for (int32_t key = few.begin; key < few.end;) {
      const int32_t slot = SlotOf(few, paged);
      paged = PageOf(few, listed);
      listed = ListedAt(few, nodes, own += kRoundKeys);
#pragma unroll 1
      for (int32_t first = 0; first < kWarp && key < few.end; first += 8, key += kStageKeys) {
        if (!has_asked && key + kStageKeys > old_end) {
          CopyQueries(few);
          has_asked = true;
        }
        CopyStage(slot, first);
      }
    }
    if (!has_asked) CopyQueries(few);
  }

  // Rows that there are not are the first one's.
  __device__ void CopyQueries(const FewPiece& few) {
    TakeTurn();
    shared_.heard.Wait(asked_parity_ ^ 1);
    const int32_t to = warp_ * 4 + lane_ / 8, row = to < args_.num_heads ? to : 0;
    const Bf16* from = args_.q.Row<Bf16>(few.token, row);
    CopyRow(shared_.q[to], reinterpret_cast<const std::byte*>(from), true);
    shared_.asked.ArriveAfterCopies();
    asked_parity_ ^= 1;
  }

  // ---- Where a key lies ----

  // Behind the last key comes the last one again, which nobody sees there. Where there is none, there may be no pages.
  __device__ int32_t ListedAt(const FewPiece& few, uint64_t nodes, int32_t key) const {
    if (few.begin >= few.end) return RowBlock::kNoKey;
    key = min(key, few.end - 1);
    if (HasLists()) {
      const int32_t* chosen = args_.lists.chosen + int64_t{few.token} * args_.lists.top_k + key;
      return LoadHere<int32_t>(reinterpret_cast<const std::byte*>(chosen));
    }
    const int32_t node = key - few.nodes_begin;
    return node < 0 || (nodes >> node & 1) != 0 ? key : RowBlock::kNoKey;
  }
  __device__ PagedKey PageOf(const FewPiece& few, int32_t listed) const {
    if (listed == RowBlock::kNoKey) return {.page = 0, .offset = RowBlock::kNoKey};
    int32_t position = listed;
    if (HasLists()) {
      const RowBlock block{.tile = {.seq = few.seq, .q_begin = TokenCount(few.token)},
                           .kv_len = few.kv_len};
      position = block.ChosenPosition(args_, listed);
    }
    const int32_t index = args_.pages.PageOf(position);
    const PageId* page = args_.plan.RowAt(few.page_row) + index;
    return {.page = index < args_.plan.row_width.raw()
                        ? LoadHere<int32_t>(reinterpret_cast<const std::byte*>(page))
                        : -1,
            .offset = position - index * args_.pages.page_size};
  }
  // Of a node of another path -1.
  __device__ int32_t SlotOf(const FewPiece& few, PagedKey key) const {
    if (key.offset == RowBlock::kNoKey) return -1;
    return static_cast<int32_t>(
        cuda::SlotOf(args_.store, key, few.seq, Launch::kMlaAttention, args_.status));
  }
  __device__ bool HasLists() const { return kCtas == 1 && args_.lists.chosen != nullptr; }

  // ---- Copies ----

  // Of the keys whose slots lanes from `first` on have; for a node of another path zeros.
  __device__ void CopyStage(int32_t slot, int32_t first) {
    shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
#pragma unroll
    for (int32_t i = 0; i < 8; i += 4) {
      const int32_t row = i + lane_ / 8;
      const int32_t its_slot = __shfl_sync(kAllLanes, slot, first + row);
      const uint8_t* from = args_.store.LatentRow(its_slot >= 0 ? its_slot : 0);
      CopyRow(shared_.keys[ring_.stage][warp_ * 8 + row], reinterpret_cast<const std::byte*>(from),
              its_slot >= 0);
    }
    shared_.full[ring_.stage].ArriveAfterCopies();
    ring_.Advance();
  }
  // By eight lanes; zeros where there is none.
  __device__ void CopyRow(const std::byte* to, const std::byte* from, bool is_row) const {
    const uint32_t chunk = static_cast<uint32_t>(lane_) % 8 * 16;
#pragma unroll
    for (uint32_t i = 0; i < kRowBytes; i += 128) {
      CopyAsync16(SharedAddress(to) + chunk + i, from + chunk + i, is_row ? 16 : 0);
    }
  }

  const FewArgs& args_;
  SharedFew<kCtas>& shared_;
  const int32_t warp_, lane_;
  RingPosition<SharedFew<kCtas>::kStages> ring_;
  uint32_t asked_parity_ = 0;
};

}  // namespace quire::cuda::mla::few

#endif  // QUIRE_KERNELS_CUDA_MLA_ATTENTION_MLA_ATTENTION_FEW_PRODUCER_CUH_
