#include "local/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <system_error>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/maths.h"
#include "runner/remote_runner.h"
#include "runner/step_message.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

int32_t NumberOr(const char* text, int32_t otherwise) {
  if (text == nullptr) return otherwise;
  int32_t number = otherwise;
  std::from_chars(text, text + std::strlen(text), number);
  return number;
}

// Of what has to be the same everywhere: ranks that compute different models would wait for each other.
uint64_t DigestOf(const ModelConfig& config) {
  uint64_t digest = 14695981039346656037u;  // FNV-1a
  for (const int64_t value :
       {int64_t{config.num_layers()}, int64_t{config.hidden_size}, int64_t{config.vocab_size},
        int64_t{config.num_heads}, int64_t{config.latent_dim}, int64_t{config.rope_dim},
        int64_t{config.dense_width}, int64_t{config.moe.expert_width},
        int64_t{config.moe.route.num_experts}, int64_t{config.max_context}}) {
    digest = (digest ^ static_cast<uint64_t>(value)) * 1099511628211u;
  }
  return digest;
}

// What every rank says of itself.
template <class Facts>
std::vector<Facts> GatherFacts(const Facts& own, Collective& ranks) {
  static_assert(std::is_trivially_copyable_v<Facts>);
  constexpr int64_t kWords = CeilDiv(sizeof(Facts), sizeof(float));
  std::vector<float> words(static_cast<size_t>(kWords * ranks.size()));  // bits, no numbers
  std::vector<Share> shares;
  for (int32_t rank = 0; rank < ranks.size(); ++rank) {
    shares.push_back({.first = rank * kWords, .count = kWords});
  }
  std::memcpy(words.data() + ranks.rank() * kWords, &own, sizeof(own));
  ranks.AllGather(TensorView(words.data(), {1, kWords * ranks.size()}), shares);
  std::vector<Facts> all(static_cast<size_t>(ranks.size()));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::memcpy(static_cast<void*>(&all[rank]), words.data() + rank * kWords, sizeof(Facts));
  }
  return all;
}

}  // namespace

RankLaunch FindRankLaunch(const std::function<const char*(const char* name)>& variable) {
  struct Names {
    const char* size;
    const char* rank;
    const char* needs;
  };
  // Slurm numbers every task that it starts; those with PMIx or PMI are to find each other.
  constexpr Names kLaunchers[] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", nullptr},
                                  {"PMI_SIZE", "PMI_RANK", nullptr},
                                  {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "PMIX_RANK"}};
  for (const Names& names : kLaunchers) {
    const int32_t size = NumberOr(variable(names.size), 0);
    if (size < 1 || (names.needs != nullptr && variable(names.needs) == nullptr)) continue;
    return {.rank = NumberOr(variable(names.rank), 0), .size = size};
  }
  return {};
}

MpiModule FindMpi() {
  constexpr const char* kName = "quire_mpi.so";
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<fs::path> places = {program / ".." / "lib" / "quire" / kName};
  // Of a build, where programs of tests lie deeper than quire.
  for (fs::path folder = program; folder.has_relative_path(); folder = folder.parent_path()) {
    places.push_back(folder / kName);
    if (fs::exists(folder / "CMakeCache.txt", ignored)) break;
  }
  return OpenMpiModule(places);
}

namespace {

std::shared_ptr<MpiRank> StartMpi() {
  const MpiModule module = FindMpi();
  Require(module.calls != nullptr, "MPI: {}", module.problem);
  return std::make_shared<MpiRank>(*module.calls);
}

}  // namespace

ProcessRanks::ProcessRanks() : mpi_(StartMpi()) {}

ProcessRanks::~ProcessRanks() {
  if (mpi_->rank() != 0) return;
  try {
    std::vector<std::byte> nothing;
    mpi_->Broadcast(nothing);
  } catch (const std::exception&) {
    // They have failed, and know.
  }
}

std::optional<int32_t> FirstWithoutGpu(std::span<const RankGpu> gpus) {
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto others = gpus.first(rank);
    const bool is_taken = std::ranges::find(others, gpus[rank].id, &RankGpu::id) != others.end();
    if (is_taken || !gpus[rank].is_usable) return static_cast<int32_t>(rank);
  }
  return std::nullopt;
}

// The one that has none says why, and the others wait to hear it.
void TakeGpus(MpiRank& ranks) {
  RankGpu own;
  std::string problem = GpuRanksProblem();
  try {
    if (problem.empty()) own = {.id = UseGpu(ranks.number_on_machine()), .is_usable = true};
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (FirstWithoutGpu(GatherFacts(own, ranks)) == ranks.rank()) {
    const int32_t found = NumGpus();
    ranks.Fail("--device cuda: " +
               (problem.empty()
                    ? fmt::format("expected a GPU of its own for each rank of this "
                                  "machine, found {} GPU{} for {} ranks",
                                  found, found == 1 ? "" : "s", ranks.ranks_of_machine())
                    : problem));
  }
  ranks.WaitForAll();
}

void TellOptions(const RunnerOptions& options, const Speculation& speculation, Collective& ranks) {
  std::vector<std::byte> bytes;
  MessageWriter message(bytes);
  message.Put(options);
  message.Put(speculation.algorithm);
  message.Put(speculation.shape);
  message.PutList(std::span(speculation.choices));
  ranks.Broadcast(bytes);
}

RunnerOptions WithCommonPool(RunnerOptions options, const ModelConfig& config,
                             const MemoryPlan& plan, Collective& ranks) {
  struct Facts {
    int64_t tokens;
    uint64_t digest;
  };
  const Facts own{.tokens = plan.usable_tokens().raw(), .digest = DigestOf(config)};
  options.pool_tokens = plan.usable_tokens();
  const std::vector<Facts> all = GatherFacts(own, ranks);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    options.pool_tokens = Min(options.pool_tokens, TokenCount(all[rank].tokens));
    if (ranks.rank() == 0 && all[rank].digest != own.digest) {
      throw Error(ErrorCode::kInvalidArgument, "the model of rank {} is another one", rank);
    }
  }
  return options;
}

bool FollowRunner(const OpenedModel& model, const RankRoom& room,
                  const std::shared_ptr<Collective>& ranks) {
  std::vector<std::byte> message;
  ranks->Broadcast(message);
  if (message.empty()) return false;
  try {
    MessageReader told(message);
    auto options = told.Take<RunnerOptions>();
    Speculation speculation{.algorithm = told.Take<Speculation::Algorithm>(),
                            .shape = told.Take<TreeShape>()};
    told.TakeList(speculation.choices);
    options.rank = ranks->rank();
    options.num_threads = room.num_threads;
    options.memory_limit = room.memory_limit;
    const auto plan = [&] {
      return PlanMemory(room.device, *model.config, *model.weights, options);
    };
    options = WithCommonPool(options, *model.config, plan(), *ranks);
    const auto progress = [&](ByteOffset) { ranks->ThrowIfFailed(); };
    if (options.dp_size > 1) {
      auto runner =
          MakeRunner(room.device, *model.config, *model.weights, options, plan(), progress, ranks);
      if (speculation.is_on()) {
        runner = Speculate(std::move(runner), speculation, options.faults, {}, ranks.get());
      }
      ServeRunner(*runner, *ranks);
      return true;
    }
    FollowRank(room.device, *model.config, *model.weights, options, plan(), progress, ranks);
  } catch (const std::exception& error) {
    ranks->Fail(error.what());
  }
  ranks->ThrowIfFailed();
  return true;
}

}  // namespace quire
