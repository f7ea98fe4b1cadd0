#include "runner/memory_plan.h"

#include <fmt/format.h>

#include <array>

#include "kernels/cpu/weight_packer.h"
#include "model/rope_table.h"
#include "model/weights.h"
#include "runner/plan_parts.h"
#include "runner/step_memory.h"

namespace quire {

MemoryPlan MakeMemoryPlan(const ModelConfig& config, WeightSource& source,
                          const RunnerOptions& options) {
  CheckOptions(config, options);
  MemoryPlan plan;
  plan.limits = LimitsWithoutPool(config, options);
  SerialExecutor serial;
  Carver weights;
  cpu::CpuWeightPacker weight_packer(weights, serial);
  LoadWeights(config, source, weight_packer);
  plan.weights = weights.used();
  Carver angles;
  cpu::CpuWeightPacker angle_packer(angles, serial);
  MakeRopeAngles(config, plan.limits.context, angle_packer);
  Carver steps;
  const StepMemory memory = LayOutSteps(config, plan.limits, options, steps);
  plan.workspace = angles.used() + memory.workspace_bytes;
  plan.step_tables = memory.table_bytes;
  ChoosePool(config, options, plan);
  return plan;
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
    return fmt::format("  {:<12} {:>12}  {}\n", name, value, note);
  };
  const RunnerLimits& limits = plan.limits;
  return "memory plan\n" + row("weights", FormatBytes(plan.weights), "") +
         row("KV cache", FormatBytes(plan.kv),
             fmt::format("{} per token, {} pages of {} tokens = {} tokens",
                         FormatBytes(plan.kv_per_token), plan.usable_pages(),
                         limits.page_size.raw(), plan.usable_tokens())) +
         row("", "",
             fmt::format("{:.2f} sequences of the context length {}", plan.Concurrency(),
                         limits.context)) +
         row("workspace", FormatBytes(plan.workspace),
             fmt::format("steps of up to {} tokens of {} sequences", limits.max_step_tokens,
                         limits.max_seqs)) +
         row("step tables", FormatBytes(plan.step_tables), "page rows, plans, inputs") +
         (plan.outside > ByteOffset(0) ? row("outside", FormatBytes(plan.outside),
                                             "context, modules, graphs, other processes: measured")
                                       : "") +
         row("total", FormatBytes(plan.total()), "");
}

}  // namespace quire
