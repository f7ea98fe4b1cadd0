#include "kernels/cuda/mla_attention/mla_attention.h"

#include <algorithm>

#include "base/error.h"
#include "base/maths.h"
#include "kernels/attention_checks.h"
#include "kernels/cuda/mla_attention/mla_attention_launch.h"

namespace quire::cuda {
namespace {

// Keys per split. In exact mode every split is folded (64 rows of sums are read and written); 132
// multiprocessors share a sequence of 128k. Otherwise a
// split is no more than where a worker may begin.
constexpr TokenCount kExactSplitKeys{1024};
constexpr TokenCount kSplitKeys{64};

// Of more tokens the kernel for few rows is the slower one. Tokens that share keys are tiles of their own as long as
// they have so few rows together: one behind the other, in a tile, they would take longer.
constexpr TokenCount kMostFewTokens{8};
constexpr int64_t kMostRowsApart = 32;
// A step of so few tokens has workers that are clusters. Of a split each of their CTAs has 32 keys; where there are more
// tokens than kFewestTokens, which keep the clusters busy by themselves, 64, so that fewer tiles are cut. What a cut costs
// is a state that goes through memory, in which time a cluster has read as many tiles.
constexpr TokenCount kFewestTokens{4};
constexpr TokenCount kFewestSplitKeys{32 * kMlaFewCtas}, kClusterSplitKeys{64 * kMlaFewCtas};
constexpr int32_t kClusterCutCost = 4;
// What a cut costs of tiles with more rows than kMlaNarrowRows: a CTA leaves 128 KiB of sums there, which are
// written, read and folded.
constexpr int32_t kWideCutCost = 14;
// What such a tile costs beside its keys. Tiles of prompts have few of them, or many.
constexpr int32_t kWideTileCost = 4;

// Of 132 CTAs so many read rows of bf16 as fast as all, up to 16 query rows each: one by itself takes about a microsecond
// for a tile of 72 KiB, by count, and all together 2.2. A third more than that says, since other tiles may be slower.
constexpr int32_t kNarrowEnough = 80, kNarrowOf = 132;

bool IsMultipleOf(int64_t value, int64_t of) { return value % of == 0; }
bool IsAligned(const void* at, int64_t bytes) {
  return IsMultipleOf(static_cast<int64_t>(reinterpret_cast<uintptr_t>(at)), bytes);
}

// Why the tensor-core kernel cannot take these arguments; null if it can.
const char* TensorCoreProblem(const MlaAttentionArgs& args) {
  const KvLayout& layout = args.store.read_layout();
  if (!(layout.dims() == KvDims{512, 64})) return "rows of 512 + 64 values";
  if (layout.format() != KvFormat::kLatentBf16 && layout.format() != KvFormat::kLatentFp8) {
    return "a bf16 or fp8 store";
  }
  if (!IsAligned(args.store.Page(kScratchPage), 16)) return "a store on 16 bytes";
  if (args.q.dtype() != DType::kBf16) return "bf16 queries";
  if (args.q.dim(0) == 0) return nullptr;
  if (!IsAligned(args.q.Address<Bf16>(), 16) || !IsMultipleOf(args.q.stride(0), 8) ||
      !IsMultipleOf(args.q.stride(1), 8)) {
    return "query rows on 16 bytes";
  }
  const void* out = args.out.dtype() == DType::kF32 ? static_cast<void*>(args.out.Address<float>())
                                                    : args.out.Address<Bf16>();
  if (!IsAligned(out, 2 * DTypeBytes(args.out.dtype())) || !IsMultipleOf(args.out.stride(0), 2) ||
      !IsMultipleOf(args.out.stride(1), 2)) {
    return "output rows on two elements";
  }
  return nullptr;
}

// Where a row lies is a number of 32 bits in kernels for few rows.
bool HasFewSlots(const KvStore& store) {
  return store.read_layout().page_size().TokensIn(store.num_pages()).raw() <= INT32_MAX;
}

// Why the one for few rows cannot take what the other can; null if it can. Bits of exact mode are those of one
// kernel, whatever stands beside a row.
const char* FewRowsProblem(const MlaAttentionArgs& args) {
  const WorkShape& work = args.plan.work;
  if (work.exact) return "a plan that is not exact";
  if (args.store.read_layout().format() != KvFormat::kLatentBf16) return "a bf16 store";
  if (work.query_tile != TokenCount(1)) return "tiles of one token";
  if (args.q.dim(1) > kMlaFewRows) return "16 heads at most";
  if (args.plan.mask_words > 1) return "trees of 64 nodes at most";
  if (work.ctas != 1 && work.ctas != kMlaFewCtas) return "workers of 1 or 8 CTAs";
  if (!HasFewSlots(args.store)) return "a store of 2^31 rows at most";
  return nullptr;
}

// Whether workers are CTAs of clusters that may share splits in exact mode. Other workers are the narrow kernel's.
bool SharesSplits(const MlaAttentionArgs& args, const KeyLists& lists) {
  const WorkShape& work = args.plan.work;
  return work.exact && work.ctas == kMlaFewCtas && IsMultipleOf(work.num_workers, kMlaFewCtas) &&
         work.split <= kExactSplitKeys && work.query_tile == TokenCount(1) &&
         args.q.dim(1) <= kMlaExactRows &&
         args.store.read_layout().format() == KvFormat::kLatentBf16 && lists.chosen == nullptr &&
         HasFewSlots(args.store);
}

ByteOffset WorkspaceOf(const Plan& plan, int64_t num_heads, const KvDims& dims) {
  const int64_t rows = plan.work.query_tile.raw() * num_heads;
  // A plan on the device says how many partials its capacity can have, not how many this step has.
  return ByteOffset(4 * MlaStateFloats(rows, dims.latent_dim)) *
         (2 * plan.work.num_workers + plan.num_partials);
}

template <class Args>
ByteOffset WorkspaceOf(const Args& args) {
  return WorkspaceOf(args.plan, args.q.rank() == 3 ? args.q.dim(1) : 0, args.store.layout().dims());
}

// Of arguments that were checked.
void Run(const MlaAttentionArgs& args, const KeyLists& lists, MlaKernel kernel,
         const Stream& stream, StatusWord status) {
  if (args.q.dim(0) == 0) return;
  if (kernel == MlaKernel::kPlain) {
    LaunchMlaPlain(args, lists, stream, status);
    LaunchMlaMerge(args, MlaExponent::kNatural, stream, status);
    return;
  }
  const char* problem = TensorCoreProblem(args);
  const bool has_few = kernel == MlaKernel::kFewRows;
  if (problem == nullptr && has_few) problem = FewRowsProblem(args);
  if (problem == nullptr && lists.chosen != nullptr && args.plan.work.ctas > 1) {
    problem = "workers of one CTA for lists";
  }
  Require(problem == nullptr, "mla attention on tensor cores: expected {}", problem);
  const bool is_narrow = args.plan.work.query_tile.raw() * args.q.dim(1) <= kMlaNarrowRows;
  const bool has_codes = args.store.read_layout().format() == KvFormat::kLatentFp8;
  (has_few                     ? LaunchMlaFew
   : is_narrow && has_codes    ? LaunchMlaCodes
   : SharesSplits(args, lists) ? LaunchMlaFewExact
   : is_narrow                 ? LaunchMlaNarrow
                               : LaunchMlaWarpgroup)(args, lists, stream, status);
  if (has_few && args.plan.work.ctas > 1) return;  // whoever is last has merged
  LaunchMlaMerge(args, MlaExponent::kBase2, stream, status);
}

}  // namespace

MlaRoom QueryMlaRoom() {
  return {.num_sms = QueryDevice().num_sms, .num_clusters = MostMlaClusters()};
}

WorkShape MlaWorkShape(const MlaShape& shape, const MlaRoom& room, MlaStep step, bool exact,
                       TokenCount most_tokens, KvFormat format) {
  const int32_t num_sms = room.num_sms;
  quire::Validate(shape);
  Require(num_sms >= 1, "num_sms: expected >= 1, got {}", num_sms);
  const bool decodes = step == MlaStep::kDecode;
  WorkShape work{.query_tile = TokenCount(1),
                 .split = exact ? kExactSplitKeys : kSplitKeys,
                 .num_workers = 1,
                 .exact = exact};
  // A CTA fills a multiprocessor. A tile of more rows than it holds takes several, side by side so that
  // they read the same keys at about the same time.
  const int32_t ctas = CeilDiv(shape.num_heads, kMlaRows);
  const bool are_few = !exact && most_tokens <= kMostFewTokens && shape.num_heads <= kMlaFewRows;
  const bool are_apart = are_few && most_tokens.raw() * shape.num_heads <= kMostRowsApart;
  if (!decodes && !are_apart) {
    work.query_tile = Min(TokenCount(std::max(1, kMlaRows / shape.num_heads)), most_tokens);
  }
  work.from_both_ends = exact && !decodes;  // others are cut where workers want them
  work.num_workers = std::max(1, num_sms / ctas);
  // Clusters that leave a quarter of the device idle are not worth it.
  const bool has_clusters = int64_t{room.num_clusters} * kMlaFewCtas * 4 >= int64_t{num_sms} * 3;
  const bool may_be_clusters = most_tokens <= kMostFewTokens &&
                               shape.num_heads <= (exact ? kMlaExactRows : kMlaFewRows) &&
                               work.query_tile == TokenCount(1) && shape.dims == KvDims{512, 64} &&
                               format == KvFormat::kLatentBf16;
  if (work.query_tile.raw() * shape.num_heads > kMlaNarrowRows) {
    work.tile_cost = kWideTileCost;
    work.cut_cost = kWideCutCost;
  } else if (format == KvFormat::kLatentBf16 && shape.dims == KvDims{512, 64}) {
    work.enough_workers = work.num_workers * kNarrowEnough / kNarrowOf;
  }
  if (has_clusters && may_be_clusters) {
    work.ctas = kMlaFewCtas;
    work.enough_workers = 0;
    work.num_workers = std::max(1, room.num_clusters / CeilDiv(shape.num_heads, kMlaFewRows));
    if (exact) {
      // A worker for every CTA. Tiles dealt out whole would be one cluster's, so that none is shared.
      work.num_workers *= kMlaFewCtas;
      work.cut_cost = 0;
    } else {
      work.cut_cost = kClusterCutCost;
      work.split = most_tokens <= kFewestTokens ? kFewestSplitKeys : kClusterSplitKeys;
    }
  }
  return work;
}

ByteOffset MlaAttentionWorkspace(const StepCapacity& capacity, const WorkShape& work,
                                 const MlaShape& shape) {
  Validate(capacity);
  Validate(work);
  quire::Validate(shape);
  const int64_t rows = work.query_tile.raw() * shape.num_heads;
  return ByteOffset(4 * MlaStateFloats(rows, shape.dims.latent_dim)) *
         (2 * work.num_workers + MaxPartials(capacity, work));
}

MlaKernel ChooseMlaKernel(const MlaAttentionArgs& args) {
  if (TensorCoreProblem(args) != nullptr) return MlaKernel::kPlain;
  const bool has_few = TokenCount(args.q.dim(0)) <= kMostFewTokens;
  return has_few && FewRowsProblem(args) == nullptr ? MlaKernel::kFewRows : MlaKernel::kTensorCore;
}

void MlaAttention(const MlaAttentionArgs& args, const Stream& stream, StatusWord status) {
  MlaAttention(args, ChooseMlaKernel(args), stream, status);
}

void MlaAttention(const MlaAttentionArgs& args, MlaKernel kernel, const Stream& stream,
                  StatusWord status) {
  RequireOnDevice(args.plan);
  quire::Validate(args, WorkspaceOf(args));
  Run(args, {}, kernel, stream, status);
}

WorkShape SparseWorkShape(const MlaShape& shape, int32_t top_k, int32_t num_sms, bool exact) {
  WorkShape work = MlaWorkShape(shape, {.num_sms = num_sms}, MlaStep::kDecode, exact);
  work.most_keys = TokenCount(top_k);
  work.enough_workers = 0;  // rows of lists come one by one
  return work;
}

void SparseAttention(const SparseAttentionArgs& args, const Stream& stream, StatusWord status) {
  RequireOnDevice(args.plan);
  quire::Validate(args, WorkspaceOf(args));
  Require(args.plan.work.query_tile == TokenCount(1) &&
              args.plan.work.most_keys == TokenCount(args.top_k),
          "sparse attention: expected tiles of 1 query that read {} keys, got {} and {}",
          args.top_k, args.plan.work.query_tile, args.plan.work.most_keys);
  const MlaAttentionArgs over_lists{.plan = args.plan,
                                    .store = args.store,
                                    .q = args.q,
                                    .out = args.out,
                                    .lse = args.lse,
                                    .scale = args.scale,
                                    .workspace = args.workspace};
  Run(over_lists, {.chosen = args.chosen.data(), .top_k = args.top_k}, ChooseMlaKernel(over_lists),
      stream, status);
}

}  // namespace quire::cuda
