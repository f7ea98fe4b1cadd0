#include "kernels/cuda/select_keys/select_keys.h"

#include "base/error.h"
#include "kernels/cuda/select_keys/select_keys_launch.h"

namespace quire::cuda {
namespace {

// Why the tensor-core kernel cannot take these arguments; null if it can.
const char* TensorCoreProblem(const SelectKeysArgs& args) {
  const KvLayout& layout = args.store.read_layout();
  if (layout.format() != KvFormat::kIndexKeyFp8 &&
      layout.format() != KvFormat::kIndexKeyFp8Preshuffled) {
    return "e4m3 keys";
  }
  if (args.shape.head_dim != kCodeValues) return "keys of 128 values";
  if (args.shape.num_heads > kCodeHeads) return "64 heads or fewer";
  return nullptr;
}

}  // namespace

SelectScratch LayOutSelect(int64_t num_partials, int32_t num_workers, const IndexShape& shape,
                           Carver& carver) {
  return {.partials = carver.Take<uint64_t>(num_partials * PartialRoom(shape.top_k)),
          .counts = carver.Take<int32_t>(num_partials),
          .candidates = carver.Take<uint64_t>(
              CandidatesAreShared(shape.top_k) ? 0 : num_workers * CandidateRoom(shape.top_k))};
}

WorkShape SelectWorkShape(const IndexShape& shape, int32_t num_sms) {
  quire::Validate(shape);
  Require(num_sms >= 1, "num_sms: expected >= 1, got {}", num_sms);
  return {.query_tile = TokenCount(1),
          .split = kKeyTile,
          .num_workers = num_sms,
          .exact = false,
          .even = true,
          .unread = TokenCount(shape.top_k)};
}

ByteOffset SelectKeysWorkspace(const StepCapacity& capacity, const WorkShape& work,
                               const IndexShape& shape) {
  Validate(capacity);
  Validate(work);
  quire::Validate(shape);
  Carver counter;
  LayOutSelect(MaxPartials(capacity, work), work.num_workers, shape, counter);
  return counter.used();
}

SelectKernel ChooseSelectKernel(const SelectKeysArgs& args) {
  return TensorCoreProblem(args) == nullptr ? SelectKernel::kTensorCore : SelectKernel::kPlain;
}

void SelectKeys(const SelectKeysArgs& args, const Stream& stream, StatusWord status) {
  SelectKeys(args, ChooseSelectKernel(args), stream, status);
}

void SelectKeys(const SelectKeysArgs& args, SelectKernel kernel, const Stream& stream,
                StatusWord status) {
  RequireOnDevice(args.plan);
  const WorkShape& work = args.plan.work;
  Require(
      work.query_tile == TokenCount(1) && !work.exact &&
          work.unread == TokenCount(args.shape.top_k),
      "choosing keys: expected tiles of 1 query, of which those that see {} keys read none, got "
      "{} and {}",
      args.shape.top_k, work.query_tile, work.unread);
  const auto lay_out = [&](Carver& carver) {
    return LayOutSelect(args.plan.num_partials, work.num_workers, args.shape, carver);
  };
  Carver counter;
  lay_out(counter);
  quire::Validate(args, counter.used());
  if (args.q.dim(0) == 0) return;
  Carver carver(args.workspace, MemorySide::kDevice);
  const SelectScratch scratch = lay_out(carver);
  if (kernel == SelectKernel::kPlain) {
    LaunchSelectPlain(args, scratch, stream, status);
  } else {
    const char* problem = TensorCoreProblem(args);
    Require(problem == nullptr, "choosing keys on tensor cores: expected {}", problem);
    LaunchSelectWarpgroup(args, scratch, stream, status);
  }
  LaunchSelectMerge(args, scratch, stream, status);
}

}  // namespace quire::cuda
