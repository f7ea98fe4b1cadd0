#include "runner/memory_plan.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/executor.h"
#include "device/arena.h"
#include "kernels/cpu/weight_packer.h"
#include "runner/cpu/cpu_step_device.h"
#include "runner/plan_parts.h"

namespace quire {

namespace {

MemoryPlan PlanOfRank(const ModelConfig& model, WeightSource& source,
                      const RunnerOptions& options) {
  const ModelConfig config = ConfigFor(model, options);
  SerialExecutor serial;
  const auto load = [&](Carver& carver, FunctionRef<void(WeightPacker&)> pack) {
    cpu::CpuWeightPacker packer(carver, serial);
    pack(packer);
  };
  const auto steps = [&](const RunnerLimits& limits) {
    Carver carver;
    CpuStepParts parts;
    return LayOutCpuSteps(config, limits, options, parts, carver);
  };
  return PlanMemory(config, source, options, {.load = load, .steps = steps});
}

}  // namespace

MemoryPlan MakeMemoryPlan(const ModelConfig& model, WeightSource& source,
                          const RunnerOptions& options) {
  return PlanOfRanks(options,
                     [&](const RunnerOptions& each) { return PlanOfRank(model, source, each); });
}

MemoryPlan PlanOfRanks(const RunnerOptions& options,
                       FunctionRef<MemoryPlan(const RunnerOptions&)> plan_of) {
  if (options.num_ranks() == 1) return plan_of(options);
  std::vector<MemoryPlan> alone;
  RunnerOptions each = options;
  for (each.rank = 0; each.rank < options.num_ranks(); ++each.rank) {
    alone.push_back(plan_of(each));
  }
  each.rank = options.rank;
  each.pool_tokens = alone.front().usable_tokens();
  for (const MemoryPlan& rank : alone) {
    each.pool_tokens = Min(each.pool_tokens, rank.usable_tokens());
  }
  MemoryPlan plan = plan_of(each);
  plan.num_ranks = options.num_ranks();
  plan.num_groups = options.dp_size;
  for (const MemoryPlan& rank : alone) {
    // Nothing but the cache depends on the pool.
    plan.ranks.push_back({.weights = rank.weights, .arena = rank.arena() - rank.kv + plan.kv});
  }
  return plan;
}

ByteOffset MemoryPlan::arena_of_all() const {
  if (ranks.empty()) return arena();
  ByteOffset bytes{0};
  for (const RankMemory& rank : ranks) bytes += rank.arena;
  return bytes;
}

std::string FormatBytes(ByteOffset bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < ByteOffset(1024)) return fmt::format("{} B", bytes.raw());
  double value = static_cast<double>(bytes.raw()) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string ToTable(const MemoryPlan& plan) {
  const auto row = [](const char* name, const std::string& value, const std::string& note) {
    return fmt::format("  {:<12} {:>12}{}{}\n", name, value, note.empty() ? "" : "  ", note);
  };
  const RunnerLimits& limits = plan.limits;
  const std::string of =
      plan.num_ranks > 1 ? fmt::format(" of each of {} ranks", plan.num_ranks) : "";
  std::string ranks;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    ranks += row(fmt::format("rank {}", i).c_str(), FormatBytes(plan.ranks[i].arena),
                 fmt::format("of its own, {} of it weights", FormatBytes(plan.ranks[i].weights)));
  }
  return "memory plan" + of + "\n" +
         row("weights", FormatBytes(plan.weights),
             plan.draft_weights > ByteOffset(0)
                 ? fmt::format("{} of them are the draft model's", FormatBytes(plan.draft_weights))
                 : "") +
         row("KV cache", FormatBytes(plan.kv),
             fmt::format("{} per token, {} pages of {} tokens = {} tokens",
                         FormatBytes(plan.kv_per_token), plan.usable_pages(),
                         limits.page_size.raw(), plan.usable_tokens())) +
         row("", "",
             fmt::format("{:.2f} sequences of the context length {}", plan.Concurrency(),
                         limits.context)) +
         (plan.num_groups > 1
              ? row("", "",
                    fmt::format("of {} groups, which hold tokens of their own: {} together",
                                plan.num_groups, plan.usable_tokens() * plan.num_groups))
              : "") +
         (plan.index_per_token > ByteOffset(0)
              ? row("", "",
                    fmt::format("{} of each token's are index keys",
                                FormatBytes(plan.index_per_token)))
              : "") +
         (plan.draft_per_token > ByteOffset(0)
              ? row("", "",
                    fmt::format("{} of each token's are of the layer that drafts",
                                FormatBytes(plan.draft_per_token)))
              : "") +
         row("workspace", FormatBytes(plan.workspace),
             fmt::format("steps of up to {} tokens of {} sequences", limits.max_step_tokens,
                         limits.max_seqs)) +
         row("", "",
             fmt::format("{} of it for partial results of attention",
                         FormatBytes(plan.attention))) +
         (plan.selection > ByteOffset(0)
              ? row("", "",
                    fmt::format("{} of it for choosing keys, whatever the context",
                                FormatBytes(plan.selection)))
              : "") +
         (plan.expanded > ByteOffset(0)
              ? row("", "",
                    fmt::format("{} of it for prompts' keys and values of all heads",
                                FormatBytes(plan.expanded)))
              : "") +
         row("step tables", FormatBytes(plan.step_tables), "page rows, plans, inputs") +
         (plan.outside > ByteOffset(0) ? row("outside", FormatBytes(plan.outside),
                                             "context, modules, graphs, other processes: measured")
                                       : "") +
         row("total", FormatBytes(plan.total()), "") + ranks;
}

}  // namespace quire
