// Latent attention of warpgroups, for rows of 512 + 64 values: up to 128 rows (query heads) against
// every key, in a cluster of two CTAs that have half of the columns each.
//
//   producer    a warpgroup: looks up pages, copies keys, tells consumers of each pass
//   consumers   a warpgroup per 64 rows, the same in both CTAs:
//     scores    sums over its half of the columns; each thread hands those of one of its two rows to
//               its fellow in the other CTA, and gets the other half of the row that is its own
//     softmax   of its own row; weights as bf16 to the fellow, the other row's from there
//     values    O += P V over its half of the columns, while the next tile's scores are exchanged
//
// An element of S is the sum of two chains of products, each over one half of the values, ascending; an
// element of O a chain over the keys, ascending. So neither rows beside it nor pages change a bit.
#include "kernels/cuda/mla_attention/mla_attention_halves.cuh"

namespace quire::cuda {
namespace mla {
namespace {

constexpr float kLog2E = 0x1.715476p0f;
constexpr int kProducerBarrier = 1, kConsumerBarrier = 2;  // of a warpgroup; group g has 2 + g

// Which stage of the ring, and how often it was used.
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;

  template <int kStages>
  __device__ __forceinline__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Splits of a piece that are summed as one, and where their keys end.
struct SplitRange {
  int32_t split_keys, step;

  __device__ explicit SplitRange(const Plan& plan, const Piece& piece)
      : split_keys(static_cast<int32_t>(plan.work.split.raw())), step(piece.Step(plan.work)) {}
  __device__ int32_t End(int32_t split, int32_t kv_end) const {
    return min((split + step) * split_keys, kv_end);
  }
};

// ---- Producer ----

template <class Shared, class Copy>
class Producer {
 public:
  __device__ Producer(const MlaKernelArgs& args, const KeyBoxes& boxes, Shared& shared,
                      uint32_t rank)
      : args_(args),
        boxes_(boxes),
        shared_(shared),
        rank_(rank),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  __device__ void RunPiece(const Piece& piece, int32_t row_begin) {
    SyncWarpgroup(kProducerBarrier);  // nobody reads the block before any more
    if (thread_ == 0) {
      shared_.all_rows = RowBlock::Of(args_, piece.tile, row_begin, kMlaRows * Shared::kRowGroups);
    }
    SyncWarpgroup(kProducerBarrier);  // the block is written
    // The least that a row sees: queries ascend, and trees' nodes see every committed key.
    least_visible_ = Block().VisibleTo(args_, Block().first_token);
    const SplitRange range(args_.plan, piece);
    const int32_t kv_end = Block().kv_end;
    const int32_t end = range.End(piece.last - range.step, kv_end);
    Pass pass = Block().PassAt(piece.first * range.split_keys);
    if (pass.key < end) slot_ = LookUp(pass);
    for (int32_t split = piece.first; split < piece.last; split += range.step) {
      const int32_t split_end = range.End(split, kv_end);
      while (pass.key < split_end) {
        const Pass next = Block().Next(pass);
        const int64_t slot = slot_;
        // The page row takes its time to answer, so it is asked before its turn comes.
        if (next.key < end) slot_ = LookUp(next);
        shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
        const bool ends_split = next.key >= split_end;
        if (ComesInBoxes(pass)) {
          CopyBoxes(pass, slot, ends_split);
        } else {
          CopyKeys(pass, slot, ends_split);
        }
        pass = next;
      }
    }
  }

 private:
  __device__ const RowBlock& Block() const { return shared_.all_rows; }
  __device__ HalfRows& Keys() { return shared_.keys[ring_.stage]; }

  // Some rows see keys of this tile that others do not. Then a value that is not finite cannot just be
  // multiplied with 0.
  __device__ bool IsPartlySeen(Pass pass) const {
    return pass.token == kAllTokens && min(pass.key + kTileKeys, Block().kv_end) > least_visible_;
  }
  __device__ bool ComesInBoxes(Pass pass) const {
    return boxes_.rows > 0 && pass.token == kAllTokens &&
           pass.key + kTileKeys <= min(Block().kv_end, least_visible_);
  }

  // This thread's slot of a pass: of a key, or of a box's first key.
  __device__ int64_t LookUp(Pass pass) const {
    const int32_t keys = ComesInBoxes(pass) ? boxes_.rows : 1;
    if (thread_ * keys >= kTileKeys) return -1;
    const int32_t limit =
        pass.token == kAllTokens ? Block().kv_end : Block().VisibleTo(args_, pass.token);
    return Block().SlotOf(args_, pass, thread_ * keys, limit);
  }

  // ---- Whole tiles, by the copy engine ----

  __device__ void CopyBoxes(Pass pass, int64_t slot, bool ends_split) {
    PhaseBarrier& full = shared_.full[ring_.stage];
    if (thread_ == 0) {
      shared_.turns[ring_.stage] = {
          .pass = pass, .keeps_others = false, .ends_split = ends_split, .by_engine = true};
      full.ArriveExpecting(sizeof(HalfRows));
      full.Arrive(kWarpgroup);  // as if every thread had copied
    }
    if (thread_ * boxes_.rows < kTileKeys) {
      const uint32_t to = SharedAddress(&Keys());
      const uint32_t row = static_cast<uint32_t>(thread_ * boxes_.rows);
      const int32_t column = static_cast<int32_t>(rank_) * kHalfLatent;
      const int32_t first = static_cast<int32_t>(slot);
#pragma unroll
      for (uint32_t panel = 0; panel < kPanels; ++panel) {
        CopyBox(to + panel * kPanelBytes + row * 128, &boxes_.latent,
                column + static_cast<int32_t>(panel) * 64, first, full.Address());
      }
      CopyBox(to + kRopePanel + row * 64, &boxes_.rope,
              512 + static_cast<int32_t>(rank_) * kHalfRope, first, full.Address());
    }
    ring_.template Advance<Shared::kStages>();
  }

  // ---- Any tile, by all threads ----

  __device__ void CopyKeys(Pass pass, int64_t slot, bool ends_split) {
    Issue(slot);
    if (pass.token == kAllTokens && !IsPartlySeen(pass)) {
      Publish({.pass = pass, .keeps_others = false, .ends_split = ends_split}, /*landed=*/false);
      return;
    }
    const bool found = FoundNonFinite();
    if (pass.token == kAllTokens && found) {
      CopyKeysOfTokens(pass, ends_split);
    } else {
      Publish({.pass = pass, .keeps_others = found, .ends_split = ends_split}, /*landed=*/true);
    }
  }

  // The tile again for each token by itself, with the keys that it sees. Rare: a value is not finite,
  // and not every row sees it. The stage at hand is free.
  __device__ void CopyKeysOfTokens(Pass pass, bool ends_split) {
    const int32_t first = Block().first_token, last = Block().last_token;
    for (int32_t token = first; token <= last; ++token) {
      const Pass one{.key = pass.key, .token = token};
      if (token > first) shared_.empty[ring_.stage].Wait(ring_.parity ^ 1);
      Issue(LookUp(one));
      const bool found = FoundNonFinite();
      Publish({.pass = one, .keeps_others = found, .ends_split = ends_split && token == last},
              /*landed=*/true);
    }
  }

  __device__ void Issue(int64_t slot) {
    int64_t(&slots)[kTileKeys] = shared_.slots[slots_parity_];
    slots_parity_ ^= 1;
    if (thread_ < kTileKeys) slots[thread_] = slot;
    SyncWarpgroup(kProducerBarrier);  // slots are written, and nobody reads those before the last
    Copy::Issue(args_.store, slots, rank_, SharedAddress(&Keys()), thread_);
  }

  // Waits for the tile; whether either half of it holds a value that is not finite.
  __device__ bool FoundNonFinite() {
    CommitCopies();
    WaitForCopies<0>();
    const bool here =
        SyncWarpgroupAny(kProducerBarrier, Copy::FoundNonFinite(SharedAddress(&Keys()), thread_));
    const uint32_t parity = found_count_++ & 1;
    if (thread_ == 0) {
      shared_.found_in.ArriveExpecting(sizeof(uint32_t));
      StoreThere(AddressIn(SharedAddress(&shared_.found_there[parity]), rank_ ^ 1),
                 static_cast<uint32_t>(here), AddressIn(shared_.found_in.Address(), rank_ ^ 1));
    }
    shared_.found_in.Wait(parity);
    const bool there = *static_cast<volatile uint32_t*>(&shared_.found_there[parity]) != 0;
    return here || there;
  }

  // The stage is the consumers', once its copies have ended (`landed`: they have).
  __device__ void Publish(const Turn& turn, bool landed) {
    PhaseBarrier& full = shared_.full[ring_.stage];
    if (thread_ == 0) {
      shared_.turns[ring_.stage] = turn;
      full.Arrive();
    }
    if (landed) {
      FenceForProducts();
      full.Arrive();
    } else {
      full.ArriveAfterCopies();
    }
    ring_.template Advance<Shared::kStages>();
  }

  const MlaKernelArgs& args_;
  const KeyBoxes& boxes_;
  Shared& shared_;
  const uint32_t rank_;
  const int thread_;
  int32_t least_visible_ = 0;
  int64_t slot_ = -1;  // of the next pass
  RingPosition ring_;
  uint32_t slots_parity_ = 0, found_count_ = 0;
};

// ---- Consumers ----

template <class Shared>
class Consumer {
 public:
  __device__ Consumer(const MlaKernelArgs& args, Shared& shared, int32_t worker, uint32_t rank,
                      int group)
      : args_(args),
        shared_(shared),
        mail_(shared.mail[group]),
        worker_(worker),
        rank_(rank),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {
    there_ = AddressIn(SharedAddress(&mail_), rank ^ 1);
  }

  __device__ __forceinline__ void RunPiece(const Piece& piece, int32_t row_begin) {
    SyncWarpgroup(kConsumerBarrier + group_);  // nobody reads the block, or the queries, any more
    if (thread_ == 0) {
      shared_.pieces[group_] = piece;
      shared_.blocks[group_] =
          RowBlock::Of(args_, piece.tile, row_begin + kMlaRows * group_, kMlaRows);
    }
    SyncWarpgroup(kConsumerBarrier + group_);  // the block is written
    if (Block().num_rows > 0) {
      LoadQueries();
      RunRows(shared_.pieces[group_]);
    } else {
      SkipRows(shared_.pieces[group_]);
    }
  }

 private:
  static constexpr int kSums = kHalfLatent / 2;  // of a thread: two rows, a quarter of the columns

  __device__ __forceinline__ const RowBlock& Block() const { return shared_.blocks[group_]; }
  __device__ __forceinline__ uint32_t Thread() const { return static_cast<uint32_t>(thread_); }
  // Row 0 or 1 of this thread, in the group.
  __device__ __forceinline__ int32_t RowOf(uint32_t which) const {
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * static_cast<int32_t>(which);
  }
  __device__ __forceinline__ int32_t OwnRow() const { return RowOf(rank_); }

  // ---- Pieces ----

  __device__ __forceinline__ void LoadQueries() {
    const RowBlock& block = Block();
    CopyHalfRows(rank_, SharedAddress(&shared_.q[group_]), thread_, [&](uint32_t row) {
      // Without a row nothing is read; the address must be one of q all the same.
      const bool is_row = static_cast<int32_t>(row) < block.num_rows;
      const int32_t at = is_row ? static_cast<int32_t>(row) : 0;
      const Bf16* from =
          args_.q.Row<Bf16>(block.tile.q_begin.raw() + block.TokenOf(at), block.HeadOf(at));
      return SourceRow{reinterpret_cast<const std::byte*>(from), is_row};
    });
    own_token_ = block.TokenOf(OwnRow());
    own_visible_ = OwnRow() < block.num_rows ? block.VisibleTo(args_, own_token_) : 0;
    CommitCopies();
    WaitForCopies<0>();
    FenceForProducts();
    SyncWarpgroup(kConsumerBarrier + group_);  // queries are written
  }

  __device__ __forceinline__ void RunRows(const Piece& piece) {
    const SplitRange range(args_.plan, piece);
    for (int32_t split = piece.first; split < piece.last; split += range.step) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) o_[i] = 0.0f;
      m_ = -INFINITY;
      l_ = 0.0f;
      if (split * range.split_keys < Block().kv_end) RunSplit();
      ExchangeStats();
      FinishSplit(piece, split, split + range.step, range);
    }
  }

  // A group without rows: its turns pass by.
  __device__ __forceinline__ void SkipRows(const Piece& piece) {
    const SplitRange range(args_.plan, piece);
    for (int32_t split = piece.first; split < piece.last; split += range.step) {
      if (split * range.split_keys >= Block().kv_end) continue;
      for (bool ends = false; !ends;) {
        shared_.full[ring_.stage].Wait(ring_.parity);
        ends = shared_.turns[ring_.stage].ends_split;
        Release(ring_.stage);
        ring_.template Advance<Shared::kStages>();
      }
    }
  }

  __device__ __forceinline__ void Release(int stage) {
    __syncwarp();
    if (thread_ % 32 == 0) shared_.empty[stage].Arrive();
  }

  // ---- Turns ----

  // Products overlap with what threads do: values of a turn are added while the next turn's scores are
  // exchanged and become weights, and scores of the turn after that while these weights are exchanged.
  __device__ __forceinline__ void RunSplit() {
    float s[32];
    BeginTurn(s);
    bool ends = RunTurn</*kIsFirst=*/true>(s);
    while (!ends) ends = RunTurn</*kIsFirst=*/false>(s);
    AddValues();
    WaitForProducts<0>();
    FinishValues();
  }

  // The next turn is at hand, and its scores are under way.
  __device__ __forceinline__ void BeginTurn(float (&s)[32]) {
    const int stage = Uniform(ring_.stage);
    shared_.full[stage].Wait(ring_.parity);
    turn_ = shared_.turns[stage];
    if (!turn_.by_engine) FenceForProducts();
    stage_ = stage;
    ring_.template Advance<Shared::kStages>();
    IssueScores(SharedAddress(&shared_.keys[stage]), s);
  }

  // The turn at hand, up to its values, and the beginning of the next one unless the split ends with this
  // one, which is returned.
  template <bool kIsFirst>
  __device__ __forceinline__ bool RunTurn(float (&s)[32]) {
    if (thread_ == 0) {
      mail_.scores_in.ArriveExpecting(Mail::kScoresBytes);
      mail_.weights_in.ArriveExpecting(Mail::kWeightsBytes);
    }
    WaitForProducts<0>();
    HoldSums(s);
    float own[16];
    SendScores(s, own);
    if constexpr (!kIsFirst) AddValues();
    mail_.scores_in.Wait(mail_parity_);
    TakeScores(own);
    float alpha[2];
    uint32_t weights[8];
    Softmax(turn_.pass, own, weights, alpha);
    const int stage = stage_;
    const int32_t token = turn_.keeps_others ? turn_.pass.token : kAllTokens;
    const bool ends = turn_.ends_split;
    if (ends) {
      mail_.weights_in.Wait(mail_parity_);
      if constexpr (!kIsFirst) WaitForProducts<0>();
    } else {
      BeginTurn(s);
      mail_.weights_in.Wait(mail_parity_);
      if constexpr (!kIsFirst) WaitForProducts<1>();
    }
    mail_parity_ ^= 1;
    if constexpr (!kIsFirst) FinishValues();
    Rescale(weights, alpha);
    stage_of_values_ = stage;
    token_of_values_ = token;
    return ends;
  }

  __device__ __forceinline__ void IssueScores(uint32_t keys, float (&s)[32]) {
    const uint32_t q = UniformHere(SharedAddress(&shared_.q[group_]));
    HoldSums(s);
    BeginProducts();
#pragma unroll
    for (uint32_t i = 0; i < 4 * kPanels; ++i) {
      const uint32_t at = i / 4 * kPanelBytes + i % 4 * 32;
      MultiplyPanels(s, PanelOperand<PanelRow::k128Bytes>(q, at),
                     PanelOperand<PanelRow::k128Bytes>(keys, at), i > 0);
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t at = kRopePanel + i * 32;
      MultiplyPanels(s, PanelOperand<PanelRow::k64Bytes>(q, at),
                     PanelOperand<PanelRow::k64Bytes>(keys, at), true);
    }
    CommitProducts();
  }

  // Hands the other row's sums over; `own` are those of our own.
  __device__ __forceinline__ void SendScores(const float (&s)[32], float (&own)[16]) {
    const bool second = rank_ == 1;
    float other[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float low = s[i / 2 * 4 + i % 2], high = s[i / 2 * 4 + 2 + i % 2];
      own[i] = second ? high : low;
      other[i] = second ? low : high;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      StoreThere(there_ + offsetof(Mail, scores) + (i * kWarpgroup + Thread()) * sizeof(float4),
                 make_float4(other[4 * i], other[4 * i + 1], other[4 * i + 2], other[4 * i + 3]),
                 there_ + offsetof(Mail, scores_in));
    }
  }
  __device__ __forceinline__ void TakeScores(float (&own)[16]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 more = mail_.scores[i][thread_];
      own[4 * i] += more.x;
      own[4 * i + 1] += more.y;
      own[4 * i + 2] += more.z;
      own[4 * i + 3] += more.w;
    }
  }

  // Scores become weights, which are sent too. alpha[rank] is our row's.
  __device__ __forceinline__ void Softmax(Pass pass, float (&s)[16], uint32_t (&weights)[8],
                                          float (&alpha)[2]) {
    const bool takes_part = pass.token == kAllTokens || pass.token == own_token_;
    const int32_t count = (takes_part ? own_visible_ : 0) - pass.key - thread_ % 4 * 2;
    const float scale = args_.scale * kLog2E;
#pragma unroll
    for (int i = 0; i < 16; ++i) s[i] *= scale;
    if (!__all_sync(kAllLanes, count >= kTileKeys)) {
#pragma unroll
      for (int i = 0; i < 16; ++i) s[i] = i / 2 * 8 + i % 2 < count ? s[i] : -INFINITY;
    }
    float top = m_;
#pragma unroll
    for (int i = 0; i < 16; ++i) top = fmaxf(top, s[i]);
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
    const float anchor = Anchor(top);
    const float own_alpha = Base2Exponent::Exp(m_ - anchor);
    m_ = top;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float low = Base2Exponent::Exp(s[2 * i] - anchor);
      const float high = Base2Exponent::Exp(s[2 * i + 1] - anchor);
      sum += low + high;
      weights[i] = PackBf16(low, high);
    }
    l_ = __fmaf_rn(own_alpha, l_, sum);
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      StoreThere(
          there_ + offsetof(Mail, weights) + (i * kWarpgroup + Thread()) * sizeof(uint4),
          make_uint4(weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]),
          there_ + offsetof(Mail, weights_in));
    }
    if (thread_ % 4 == 0) {
      StoreThere(there_ + offsetof(Mail, alpha) + Thread() / 4 * sizeof(float), own_alpha,
                 there_ + offsetof(Mail, weights_in));
    }
    alpha[0] = alpha[1] = own_alpha;
  }

  // Takes the other row's weights, and multiplies older sums.
  __device__ __forceinline__ void Rescale(const uint32_t (&weights)[8], float (&alpha)[2]) {
    const bool second = rank_ == 1;
    const float other_alpha = mail_.alpha[thread_ / 4];
    if (second) {
      alpha[0] = other_alpha;
    } else {
      alpha[1] = other_alpha;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 mail = mail_.weights[i][thread_];
      const uint32_t other[4] = {mail.x, mail.y, mail.z, mail.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // chunk of eight keys
        const int chunk = 4 * i + j;
        p_[chunk / 2][chunk % 2 * 2] = second ? other[j] : weights[chunk];
        p_[chunk / 2][chunk % 2 * 2 + 1] = second ? weights[chunk] : other[j];
      }
    }
    if (!__any_sync(kAllLanes, alpha[0] != 1.0f || alpha[1] != 1.0f)) return;
#pragma unroll
    for (int i = 0; i < kSums; ++i) o_[i] *= alpha[i % 4 / 2];
  }

  // ---- Values ----

  __device__ __forceinline__ void AddValues() {
    if (token_of_values_ != kAllTokens) {
      AddValuesOfToken(token_of_values_);
      return;
    }
    IssueValues();
  }
  __device__ __forceinline__ void IssueValues() {
    const uint32_t keys = SharedAddress(&shared_.keys[Uniform(stage_of_values_)]);
    HoldSums(o_);
    BeginProducts();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      MultiplyRows(o_, p_[i], PanelOperand<PanelRow::k128Bytes>(keys, i * 16 * 128, kPanelBytes));
    }
    CommitProducts();
  }
  // Their products have ended.
  __device__ __forceinline__ void FinishValues() {
    HoldSums(o_);
    Release(stage_of_values_);
  }
  // Rows of other tokens keep their sums: 0 times a value that is not finite is not 0.
  __device__ __forceinline__ void AddValuesOfToken(int32_t token) {
    const StateView kept = StateAt(args_, args_.kept, worker_);
    ForEachRow([&](int32_t row, uint32_t) {
      float* o = kept.o + (Block().row_begin + row) * kept.o_stride;
      return [o](int32_t column, float x, float y) {
        *reinterpret_cast<float2*>(o + column) = make_float2(x, y);
      };
    });
    IssueValues();
    WaitForProducts<0>();
    HoldSums(o_);
    ForEachRow([&](int32_t row, uint32_t) {
      const float* o = kept.o + (Block().row_begin + row) * kept.o_stride;
      const bool keeps = Block().TokenOf(row) != token;
      return [o, keeps](int32_t column, float& x, float& y) {
        if (!keeps) return;
        const float2 before = *reinterpret_cast<const float2*>(o + column);
        x = before.x;
        y = before.y;
      };
    });
  }

  // ---- States ----

  // m and l of both rows. A thread's l is of its own keys: a quarter of every eight.
  __device__ __forceinline__ void ExchangeStats() {
    l_ += __shfl_xor_sync(kAllLanes, l_, 1);
    l_ += __shfl_xor_sync(kAllLanes, l_, 2);
    if (thread_ == 0) mail_.stats_in.ArriveExpecting(Mail::kStatsBytes);
    if (thread_ % 4 == 0) {
      StoreThere(there_ + offsetof(Mail, stats) +
                     (stats_parity_ * kWarpgroup / 4 + Thread() / 4) * sizeof(float2),
                 make_float2(m_, l_), there_ + offsetof(Mail, stats_in));
    }
    mail_.stats_in.Wait(stats_parity_);
    const float2 other = mail_.stats[stats_parity_][thread_ / 4];
    stats_parity_ ^= 1;
    const bool second = rank_ == 1;
    row_m_[0] = second ? other.x : m_;
    row_l_[0] = second ? other.y : l_;
    row_m_[1] = second ? m_ : other.x;
    row_l_[1] = second ? l_ : other.y;
  }

  // Calls per_row(row, which) for this thread's rows, and what it returns with (column, x, y) for the
  // row's pairs of sums.
  template <class PerRow>
  __device__ __forceinline__ void ForEachRow(PerRow per_row) {
#pragma unroll
    for (uint32_t which = 0; which < 2; ++which) {
      if (RowOf(which) >= Block().num_rows) continue;
      auto per_pair = per_row(RowOf(which), which);
      const int32_t column = static_cast<int32_t>(rank_) * kHalfLatent + thread_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kHalfLatent / 8; ++n) {
        per_pair(column + n * 8, o_[4 * n + 2 * which], o_[4 * n + 2 * which + 1]);
      }
    }
  }
  // m, l and lse of a row are written by one thread.
  __device__ __forceinline__ bool WritesOwnRow() const {
    return thread_ % 4 == 0 && OwnRow() < Block().num_rows;
  }

  // What was summed since the split began: splits [split, end), more than one only if they are all of
  // the piece.
  __device__ __forceinline__ void FinishSplit(const Piece& piece, int32_t split, int32_t end,
                                              const SplitRange& range) {
    if (piece.first > 0) {
      StorePartial(piece.partial + split - piece.first);
      return;
    }
    const StateView folded = StateAt(args_, args_.folded, worker_);
    if (split > 0) FoldWith(folded, split * range.split_keys);
    if (end < piece.last) {
      StoreSums(folded);
      shared_.folded[group_][thread_] = make_float4(row_m_[0], row_l_[0], row_m_[1], row_l_[1]);
    } else if (piece.last < piece.num_splits) {
      StorePartial(piece.partial);
    } else {
      Write(piece);
    }
  }

  __device__ __forceinline__ void StoreSums(const StateView& to) {
    ForEachRow([&](int32_t row, uint32_t) {
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
    if (!WritesOwnRow()) return;
    to.m[Block().row_begin + OwnRow()] = rank_ == 1 ? row_m_[1] : row_m_[0];
    to.l[Block().row_begin + OwnRow()] = rank_ == 1 ? row_l_[1] : row_l_[0];
  }

  // The state at hand becomes `earlier` and itself folded; rows that do not reach the split, which
  // begins at `begin`, keep the earlier one as it is. Every thread reads the sums that it wrote.
  __device__ __forceinline__ void FoldWith(const StateView& earlier, int32_t begin) {
    const float4 folded = shared_.folded[group_][thread_];
    const float folded_m[2] = {folded.x, folded.z}, folded_l[2] = {folded.y, folded.w};
    Fold folds[2];
    bool reaches[2];
#pragma unroll
    for (uint32_t which = 0; which < 2; ++which) {
      folds[which] =
          Fold::Of<Base2Exponent>(folded_m[which], folded_l[which], row_m_[which], row_l_[which]);
      const int32_t row = RowOf(which);
      reaches[which] =
          row < Block().num_rows && begin < Block().VisibleTo(args_, Block().TokenOf(row));
      row_m_[which] = reaches[which] ? folds[which].m : folded_m[which];
      row_l_[which] = reaches[which] ? folds[which].l : folded_l[which];
    }
    ForEachRow([&](int32_t row, uint32_t which) {
      const float* o = earlier.o + (Block().row_begin + row) * earlier.o_stride;
      return [fold = folds[which], reach = reaches[which], o](int32_t column, float& x, float& y) {
        const float2 before = *reinterpret_cast<const float2*>(o + column);
        x = reach ? fold.Sum(before.x, x) : before.x;
        y = reach ? fold.Sum(before.y, y) : before.y;
      };
    });
  }

  template <class T, class Store>
  __device__ __forceinline__ void WriteAs(const Piece& piece, Store store) {
    ForEachRow([&](int32_t row, uint32_t which) {
      const float factor = ShareOfOne(row_l_[which]);
      T* to =
          args_.out.Row<T>(piece.tile.q_begin.raw() + Block().TokenOf(row), Block().HeadOf(row));
      return [factor, to, store](int32_t column, float x, float y) {
        store(to + column, x * factor, y * factor);
      };
    });
  }
  __device__ __forceinline__ void Write(const Piece& piece) {
    if (args_.out.is_bf16) {
      WriteAs<Bf16>(piece, [](Bf16* to, float x, float y) {
        *reinterpret_cast<uint32_t*>(to) = PackBf16(x, y);
      });
    } else {
      WriteAs<float>(piece, [](float* to, float x, float y) {
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
      });
    }
    if (!WritesOwnRow()) return;
    const float m = rank_ == 1 ? row_m_[1] : row_m_[0], l = rank_ == 1 ? row_l_[1] : row_l_[0];
    WriteLse(args_, piece.tile.q_begin.raw() + own_token_, Block().HeadOf(OwnRow()),
             l == 0.0f ? -INFINITY : Base2Exponent::LogSumExp(m, l));
  }

  const MlaKernelArgs& args_;
  Shared& shared_;
  Mail& mail_;
  const int32_t worker_;
  const uint32_t rank_;
  const int group_;
  const int thread_;
  uint32_t there_;  // the mail of the other CTA

  int32_t own_token_ = 0, own_visible_ = 0;  // of our row
  float m_, l_;                              // of our row; l of our keys
  float row_m_[2], row_l_[2];                // of both, when a split has ended
  float o_[kSums];
  uint32_t p_[4][4];                      // weights whose values are yet to be added
  int stage_of_values_ = 0;               // where those are
  int32_t token_of_values_ = kAllTokens;  // whose rows alone they are for
  Turn turn_;                             // at hand
  int stage_ = 0;                         // where its keys are
  RingPosition ring_;                     // of the next
  uint32_t mail_parity_ = 0, stats_parity_ = 0;
};

// ---- The kernel ----

// Registers of a thread where two groups and a producer share a multiprocessor. They begin with 168 each:
// what one warpgroup takes, another has given back.
constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
static_assert(2 * kConsumerRegisters + kProducerRegisters <= 3 * 168);

template <class Shared>
__device__ void InitBarriers(Shared& shared) {
  for (PhaseBarrier& full : shared.full) full.Init(kWarpgroup + 1);
  for (PhaseBarrier& empty : shared.empty) empty.Init(4 * Shared::kRowGroups);
  for (Mail& mail : shared.mail) {
    mail.scores_in.Init(1);
    mail.weights_in.Init(1);
    mail.stats_in.Init(1);
  }
  shared.found_in.Init(1);
  FenceBarrierInit();
}

// Clusters of a worker are neighbours: they read the same keys.
template <int kGroups, class Copy>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kWarpgroup*(kGroups + 1), 1)
    MlaWarpgroup(const __grid_constant__ MlaKernelArgs args, const __grid_constant__ KeyBoxes boxes,
                 int32_t clusters_per_worker) {
  using Shared = SharedHalves<kGroups>;
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) InitBarriers(shared);
  SyncCluster();
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / 2;
  const uint32_t rank = RankInCluster();
  const int32_t worker = cluster / clusters_per_worker;
  const int32_t row_begin = cluster % clusters_per_worker * kMlaRows * kGroups;
  const int role = Uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const auto for_each_piece = [&](auto run) {
    ForEachPiece(args.plan, worker, [&](const Piece& piece) {
      if (piece.tile.q_count * args.num_heads <= row_begin) return;
      if (piece.tile.q_begin.raw() + piece.tile.q_count > args.num_tokens) return;
      run(piece);
    });
  };
  if (role == kGroups) {
    if constexpr (kGroups > 1) GiveRegistersBack<kProducerRegisters>();
    Producer<Shared, Copy> producer(args, boxes, shared, rank);
    for_each_piece([&](const Piece& piece) { producer.RunPiece(piece, row_begin); });
  } else {
    if constexpr (kGroups > 1) TakeRegisters<kConsumerRegisters>();
    Consumer<Shared> consumer(args, shared, worker, rank, role);
    for_each_piece([&](const Piece& piece) { consumer.RunPiece(piece, row_begin); });
  }
  SyncCluster();  // nobody leaves while mail may come
}

// Boxes of a page's rows, of 64 keys at most.
KeyBoxes KeyBoxesOf(const StoreView& store) {
  KeyBoxes boxes{};
  for (int32_t rows : {64, 32, 16}) {
    if (store.page_size % rows != 0) continue;
    TensorMapShape shape{.data = store.memory,
                         .rows = store.num_slots,
                         .columns = 576,
                         .row_bytes = store.parts[0].row_stride,
                         .box_rows = rows,
                         .box_columns = 64};
    boxes.latent = MakeTensorMap(shape);
    shape.box_columns = kHalfRope;
    boxes.rope = MakeTensorMap(shape);
    boxes.rows = rows;
    break;
  }
  return boxes;
}

template <int kGroups, class Copy>
void Launch(const MlaKernelArgs& args, const Stream& stream) {
  const int32_t clusters = CeilDiv(args.tile_rows, kMlaRows * kGroups);
  const auto kernel = MlaWarpgroup<kGroups, Copy>;
  constexpr int kBytes = static_cast<int>(sizeof(SharedHalves<kGroups>));
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "MlaWarpgroup: shared memory");
  const unsigned ctas = static_cast<unsigned>(2 * args.plan.work.num_workers * clusters);
  kernel<<<ctas, kWarpgroup*(kGroups + 1), kBytes, stream.get()>>>(args, KeyBoxesOf(args.store),
                                                                   clusters);
  CheckLaunch("MlaWarpgroup");
}

}  // namespace
}  // namespace mla

void LaunchMlaWarpgroup(const MlaAttentionArgs& args, const Stream& stream, StatusWord status) {
  const MlaKernelArgs kernel_args = KernelArgsOf(args, status);
  if (kernel_args.tile_rows > kMlaRows) {
    mla::Launch<2, mla::CopyBf16>(kernel_args, stream);
  } else {
    mla::Launch<1, mla::CopyBf16>(kernel_args, stream);
  }
}

}  // namespace quire::cuda
