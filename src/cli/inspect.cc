#include "cli/inspect.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/describe.h"
#include "cli/flags.h"
#include "cli/model_name.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "io/safetensors.h"
#include "local/device.h"
#include "runner/memory_plan.h"

namespace quire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct InspectFlags {
  ModelFlags model = {};
  std::optional<ByteOffset> rank_memory = {};
  bool json = false;
};

// The tensors of one type in the folder's files.
struct StoredType {
  int64_t num_tensors = 0;
  ByteOffset bytes{0};
};

struct Inspection {
  OpenedModel model;
  bool weights_planned = false;  // as dummies would be: there are no files, or the flags say so
  std::map<std::string, StoredType> stored = {};  // by type
  std::optional<MemoryPlan> plan = {};            // of rank 0
  std::string too_large = {};                     // why there is no plan
};

std::map<std::string, StoredType> StoredTypes(const std::filesystem::path& folder) {
  std::map<std::string, StoredType> types;
  const TensorSet files = TensorSet::Open(folder);
  for (const StoredTensor& tensor : files.tensors()) {
    StoredType& type = types[FileDTypeName(tensor.dtype)];
    ++type.num_tensors;
    type.bytes += ByteOffset(tensor.bytes.size());
  }
  return types;
}

// Of ranks that are elsewhere, as much memory as they have, filled with the KV cache.
void PlanElsewhere(ByteOffset memory, double fraction, RunnerOptions& options) {
  options.memory_limit =
      ByteOffset(static_cast<int64_t>(static_cast<double>(memory.raw()) * fraction));
  options.pool_room = PoolRoom::kEverySequence;
}

Inspection Inspect(const InspectFlags& inspect) {
  const ModelFlags& flags = inspect.model;
  const std::filesystem::path folder = FindModel(flags).folder;
  const bool has_files = HasWeightFiles(folder);
  const bool planned = flags.load_format == LoadFormat::kDummy ||
                       (flags.load_format == LoadFormat::kAuto && !has_files);
  const LoadFormat format = planned ? LoadFormat::kDummy : flags.load_format;
  Inspection inspection{.model = OpenModel(folder, format), .weights_planned = planned};
  if (has_files) inspection.stored = StoredTypes(folder);
  const LocalOptions local = MakeLocalOptions(flags, {});
  OpenDraftModel(local.speculation, inspection.model);
  try {
    RunnerOptions options = MakeRunnerOptions(flags.device, local);
    options.head = inspection.model.head ? &*inspection.model.head : nullptr;
    if (inspect.rank_memory) {
      PlanElsewhere(*inspect.rank_memory, flags.mem_fraction_static, options);
    }
    inspection.plan =
        PlanMemory(flags.device, *inspection.model.config, *inspection.model.weights, options);
  } catch (const Error& error) {
    // A model that is too large for this machine can still be looked at.
    if (error.code() != ErrorCode::kCapacityExceeded) throw;
    inspection.too_large = error.what();
  }
  return inspection;
}

std::string ToText(const Inspection& inspection) {
  std::string text = inspection.model.folder.string() + "\n" + Describe(*inspection.model.config);
  if (inspection.model.head) text += Describe(*inspection.model.head->config);
  for (const auto& [name, type] : inspection.stored) {
    text += fmt::format("  {:<12} {} tensors of {}, {}\n",
                        name == inspection.stored.begin()->first ? "files" : "", type.num_tensors,
                        name, FormatBytes(type.bytes));
  }
  text += "\n";
  if (inspection.weights_planned) {
    text += fmt::format("{}weights are planned as --load-format dummy makes them\n",
                        inspection.stored.empty() ? "no weight files: " : "");
  }
  text += inspection.plan ? ToTable(*inspection.plan)
                          : "no memory plan: " + inspection.too_large + "\n";
  return text;
}

OrderedJson PlanToJson(const MemoryPlan& plan, const ModelFlags& flags) {
  const RunnerLimits& limits = plan.limits;
  return {{"weights_bytes", plan.weights.raw()},
          {"kv_bytes", plan.kv.raw()},
          {"workspace_bytes", plan.workspace.raw()},
          {"step_tables_bytes", plan.step_tables.raw()},
          {"outside_bytes", plan.outside.raw()},
          {"total_bytes", plan.total().raw()},
          {"kv_cache_dtype", KvTypeName(flags.kv_cache_dtype)},
          {"kv_bytes_per_token", plan.kv_per_token.raw()},
          {"index_bytes_per_token", plan.index_per_token.raw()},
          {"draft_weights_bytes", plan.draft_weights.raw()},
          {"draft_bytes_per_token", plan.draft_per_token.raw()},
          {"selection_bytes", plan.selection.raw()},
          {"expanded_bytes", plan.expanded.raw()},
          {"page_size", limits.page_size.raw()},
          {"pages", plan.usable_pages().raw()},
          {"max_total_tokens", plan.usable_tokens().raw() * plan.num_groups},
          {"context_length", limits.context.raw()},
          {"max_running_requests", limits.max_seqs * plan.num_groups},
          {"chunked_prefill_size", limits.max_step_tokens.raw() * plan.num_groups}};
}

OrderedJson ToJson(const Inspection& inspection, const ModelFlags& flags) {
  OrderedJson files = OrderedJson::object();
  for (const auto& [name, type] : inspection.stored) {
    files[name] = {{"tensors", type.num_tensors}, {"bytes", type.bytes.raw()}};
  }
  OrderedJson json;
  json["model"] = inspection.model.folder.string();
  json["config"] = ConfigToJson(*inspection.model.config);
  if (inspection.model.head) json["draft_model"] = ConfigToJson(*inspection.model.head->config);
  json["files"] = std::move(files);
  json["weights"] = inspection.weights_planned ? "dummy" : "safetensors";
  json["memory"] = inspection.plan ? PlanToJson(*inspection.plan, flags) : OrderedJson();
  if (inspection.plan) {
    for (const RankMemory& rank : inspection.plan->ranks) {
      json["memory"]["rank_weights_bytes"].push_back(rank.weights.raw());
      json["memory"]["rank_bytes"].push_back(rank.arena.raw());
    }
  }
  if (!inspection.plan) json["memory_error"] = inspection.too_large;
  return json;
}

void AddInspectFlags(FlagReader& reader, InspectFlags& flags) {
  reader.AddSwitch("--json", flags.json, "Print JSON");
  reader.Add({"--rank-memory", "GB", "",
              "Plan for ranks that have so much memory each, in 10^9 bytes, and not for this\n"
              "machine: a GPU's, for instance"},
             flags.rank_memory, [](const std::string& where, const std::string& text) {
               return ByteOffset(ParseInt(where, text, 1, 1'000'000) * 1'000'000'000);
             });
  AddModelFlags(reader, flags.model);
}

void RunInspect(const InspectFlags& flags) {
  const Inspection inspection = Inspect(flags);
  WriteResult(flags.json ? ToJson(inspection, flags.model).dump(2) + "\n" : ToText(inspection));
}

}  // namespace

void AddInspect(CLI::App& quire) {
  AddCommand(
      quire,
      {"inspect", "Show what a model is and the memory it would take, without loading it",
       "Examples:\n"
       "  quire inspect models/DeepSeek-V2-Lite\n"
       "  quire inspect models/DeepSeek-V2-Lite --context-length 8192 --kv-cache-dtype fp8\n"
       "  quire inspect models/DeepSeek-V3 --tp-size 8 --rank-memory 141 --max-running-requests "
       "256\n"
       "\n"
       "A folder with nothing but config.json will do. Without flags the KV cache is planned for "
       "16\n"
       "sequences of the model's own context length, or less as --max-total-tokens says.\n"},
      AddInspectFlags, RunInspect);
}

}  // namespace quire::cli
