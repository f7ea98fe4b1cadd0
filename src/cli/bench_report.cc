#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "cli/describe.h"
#include "device/cpu_model.h"

namespace quire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Percent(double part) { return fmt::format("{:.0f}%", part * 100); }

double OfRoof(const Measurement& m, const cpu::Roofs& roofs) {
  return RoofSeconds(m, roofs) / m.seconds;
}

double OfRead(const Measurement& m, const cpu::Roofs& roofs) {
  return ReadSeconds(m, roofs) / m.seconds;
}

double OfArithmetic(const Measurement& m, const cpu::Roofs& roofs) {
  return ArithmeticSeconds(m, roofs) / m.seconds;
}

// Of the rate that a batch could have: as many times that of one sequence, or what the arithmetic
// allows. Only where one sequence of the same length was measured too.
std::optional<double> OfScaling(const BenchReport& report, const Measurement& m) {
  if (m.batch == 1) return std::nullopt;
  for (const Measurement& one : report.decode) {
    if (one.batch != 1 || one.length != m.length) continue;
    const double most = std::min(static_cast<double>(m.batch) * one.TokensPerSecond(),
                                 report.roofs.flops_per_s / m.FlopsPerToken());
    return m.TokensPerSecond() / most;
  }
  return std::nullopt;
}

// ---- Tables ----

std::string MachineText(const BenchReport& report) {
  if (report.device == DeviceKind::kCuda) {
    return fmt::format("{}, {} steps{}", report.device_name,
                       report.options.mode == StepMode::kGraph ? "graph" : "eager",
                       report.options.deterministic ? ", deterministic" : "");
  }
  return fmt::format("{}, {} threads, {}", report.device_name, report.options.num_threads,
                     cpu::SimdTarget());
}

// "3-1-4".
std::string ShapeText(const TreeShape& shape) {
  return fmt::format("{}-{}-{}", shape.steps, shape.branches, shape.nodes);
}

std::string SimulationText(const SpeculationReport& speculation) {
  if (!speculation.simulated_length) return "";
  return fmt::format(", SIMULATED: {} tokens a draft, by --simulate-accept-length",
                     *speculation.simulated_length);
}

std::string Heading(const BenchReport& report) {
  const ParameterCounts parameters = CountParameters(report.config);
  std::string text = fmt::format("{}: {}, {} parameters ({} per token), {} of weights\n",
                                 report.model, report.config.family, FormatCount(parameters.total),
                                 FormatCount(parameters.active), FormatBytes(report.plan.weights));
  text += fmt::format("{}; KV cache {}, page size {}, steps of up to {} tokens\n",
                      MachineText(report), KvTypeName(report.options.kv_format),
                      report.options.page_size, report.options.max_step_tokens);
  if (report.speculation && report.speculation->simulated_length) {
    text += fmt::format("drafts{}: no guess is the model's\n", SimulationText(*report.speculation));
  }
  return text + fmt::format(
                    "roofs, best of before and after: read {:.1f} GB/s, multiply-add {:.1f} "
                    "GFLOP/s\n",
                    report.roofs.read_bytes_per_s * 1e-9, report.roofs.flops_per_s * 1e-9);
}

std::string PrefillTable(const BenchReport& report) {
  std::string text =
      fmt::format("\nprefill\n{:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>14}\n", "batch", "prompt",
                  "computed", "tokens/s", "ms/step", "GFLOP/s", "% multiply-add");
  for (const Measurement& m : report.prefill) {
    text += fmt::format("{:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>14}\n", m.batch, m.length, m.tokens,
                        FormatDigits(m.TokensPerSecond()), FormatDigits(m.SecondsPerStep() * 1e3),
                        FormatDigits(m.FlopsPerSecond() * 1e-9),
                        Percent(OfArithmetic(m, report.roofs)));
  }
  return text;
}

// How many experts the decode steps had rows for: made-up weights could choose few.
template <class Row>
std::string ExpertsText(const BenchReport& report, const std::vector<Row>& rows) {
  std::string text;
  for (const Row& m : rows) {
    if (m.fewest_experts == 0) continue;
    text +=
        fmt::format("batch {}, context {}: at least {} of {} experts with rows in every layer\n",
                    m.batch, m.length, m.fewest_experts, report.config.moe.route.num_experts);
  }
  return text;
}

std::string DecodeTable(const BenchReport& report) {
  std::string text =
      fmt::format("\ndecode\n{:>6} {:>7} {:>9} {:>9} {:>7} {:>9}  {:<12} {:>6} {:>6} {:>9}\n",
                  "batch", "context", "ms/step", "tokens/s", "GB/s", "GFLOP/s", "nearer roof",
                  "% roof", "% read", "% scaling");
  for (const Measurement& m : report.decode) {
    const bool by_memory = ReadSeconds(m, report.roofs) > ArithmeticSeconds(m, report.roofs);
    const std::optional<double> scaling = OfScaling(report, m);
    text += fmt::format(
        "{:>6} {:>7} {:>9} {:>9} {:>7} {:>9}  {:<12} {:>6} {:>6} {:>9}\n", m.batch, m.length,
        FormatDigits(m.SecondsPerStep() * 1e3), FormatDigits(m.TokensPerSecond()),
        FormatDigits(m.BytesPerSecond() * 1e-9), FormatDigits(m.FlopsPerSecond() * 1e-9),
        by_memory ? "memory read" : "multiply-add", Percent(OfRoof(m, report.roofs)),
        Percent(OfRead(m, report.roofs)), scaling ? Percent(*scaling) : "-");
  }
  return text +
         "% scaling: of the lesser of batch x the rate of batch 1 and the multiply-add roof\n" +
         ExpertsText(report, report.decode);
}

// In the order of the columns.
constexpr StepPart kParts[] = {StepPart::kEmbedding, StepPart::kProjections, StepPart::kAttention,
                               StepPart::kMlp,       StepPart::kHead,        StepPart::kPlan,
                               StepPart::kSampling,  StepPart::kOther};

std::string PartsRow(const char* kind, const Measurement& m) {
  const auto steps = static_cast<double>(m.steps);
  std::string row = fmt::format("{:<8} {:>5} {:>7} {:>9}", kind, m.batch, m.length,
                                FormatDigits(m.SecondsPerStep() * 1e3));
  for (const StepPart part : kParts) {
    row += fmt::format(" {:>11}", FormatDigits(m.part_seconds[part] / steps * 1e3));
  }
  return row + "\n";
}

std::string PartsTable(const BenchReport& report) {
  std::string text = fmt::format("\nwhere the time goes, ms per step\n{:<8} {:>5} {:>7} {:>9}", "",
                                 "batch", "length", "step");
  for (const StepPart part : kParts) text += fmt::format(" {:>11}", StepPartName(part));
  text += "\n";
  for (const Measurement& m : report.prefill) text += PartsRow("prefill", m);
  for (const Measurement& m : report.decode) text += PartsRow("decode", m);
  return text;
}

// The folder's own name.
std::string ModelName(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

double MsPerToken(const Measurement& m) { return m.SecondsPerStep() * 1e3; }

double AttentionMs(const Measurement& m) {
  return m.part_seconds[StepPart::kAttention] / static_cast<double>(m.steps) * 1e3;
}

std::string ContextTable(const BenchReport& report, const std::string& model,
                         const std::vector<Measurement>& contexts) {
  if (contexts.empty()) return {};
  std::string text = fmt::format(
      "\ncost per token against context length, one sequence{}\n{:>8} {:>9} {:>13} "
      "{:>11} {:>9} {:>6}\n",
      report.compared ? ", " + ModelName(model) : "", "context", "ms/token", "attention ms",
      "KV read", "GB/s", "% roof");
  for (const Measurement& m : contexts) {
    const ByteOffset kv_read(static_cast<int64_t>(m.kv_bytes / static_cast<double>(m.steps)));
    text +=
        fmt::format("{:>8} {:>9} {:>13} {:>11} {:>9} {:>6}\n", m.length,
                    FormatDigits(MsPerToken(m)), FormatDigits(AttentionMs(m)), FormatBytes(kv_read),
                    FormatDigits(m.BytesPerSecond() * 1e-9), Percent(OfRoof(m, report.roofs)));
  }
  return text;
}

// Both models side by side, and how many times as long the second takes.
std::string ComparedTable(const BenchReport& report) {
  if (!report.compared) return {};
  const std::string names[] = {ModelName(report.model), ModelName(report.compared->model)};
  const size_t width = std::max<size_t>({12, names[0].size(), names[1].size()});
  std::string text = fmt::format(
      "\nms per token, attention's part of them, and how many times as long the second model "
      "takes\n"
      "{:>8} {:>{}} {:>{}}\n{:>8} {:>{}} {:>{}} {:>{}} {:>{}} {:>6}\n",
      "", names[0], 2 * width + 1, names[1], 2 * width + 1, "context", "a token", width,
      "attention", width, "a token", width, "attention", width, "times");
  for (size_t i = 0; i < report.contexts.size(); ++i) {
    const Measurement& one = report.contexts[i];
    const Measurement& other = report.compared->contexts[i];
    text += fmt::format("{:>8} {:>{}} {:>{}} {:>{}} {:>{}} {:>6.2f}\n", one.length,
                        FormatDigits(MsPerToken(one)), width, FormatDigits(AttentionMs(one)), width,
                        FormatDigits(MsPerToken(other)), width, FormatDigits(AttentionMs(other)),
                        width, MsPerToken(other) / MsPerToken(one));
  }
  return text;
}

// What a step costs, in plain ones, is how many tokens it has to give to pay.
std::string SpeculationTable(const BenchReport& report) {
  if (!report.speculation) return {};
  const SpeculationReport& speculation = *report.speculation;
  std::string text =
      fmt::format("\ndecode with {} {}{}\n{:>6} {:>7} {:>9} {:>9} {:>12} {:>9} {:>8} {:>7}  {}\n",
                  speculation.algorithm, ShapeText(speculation.shape), SimulationText(speculation),
                  "batch", "context", "ms/step", "of plain", "tokens/step", "tokens/s", "speed-up",
                  "drafts", "right by position");
  for (size_t i = 0; i < speculation.rows.size(); ++i) {
    const DraftMeasurement& m = speculation.rows[i];
    const Measurement& plain = report.decode[i];
    text += fmt::format("{:>6} {:>7} {:>9} {:>9.2f} {:>12.2f} {:>9} {:>8.2f} {:>7} ", m.batch,
                        m.length, FormatDigits(m.SecondsPerStep() * 1e3),
                        m.SecondsPerStep() / plain.SecondsPerStep(), m.TokensPerStep(),
                        FormatDigits(m.TokensPerSecond()),
                        m.TokensPerSecond() / plain.TokensPerSecond(), m.drafts);
    for (const int64_t right : m.right_at) {
      text += fmt::format(
          " {:.2f}",
          m.drafts == 0 ? 0.0 : static_cast<double>(right) / static_cast<double>(m.drafts));
    }
    text += "\n";
  }
  text +=
      "of plain: steps of the table above that one takes, and so the tokens it must give to pay\n";
  return text + ExpertsText(report, speculation.rows);
}

// ---- Plot ----

PlotPanel ContextPanel(const BenchReport& report, const char* title,
                       double (*value)(const Measurement&)) {
  PlotPanel panel{.title = title,
                  .x_label = "context, tokens",
                  .y_label = "ms per token",
                  .x_scale = PlotScale::kLogarithmic,
                  .marks = PlotMarks::kDots};
  const auto add = [&](const std::string& model, const std::vector<Measurement>& contexts) {
    PlotSeries series{.name = ModelName(model)};
    for (const Measurement& m : contexts) {
      series.points.push_back({static_cast<double>(m.length), value(m)});
    }
    panel.series.push_back(std::move(series));
  };
  add(report.model, report.contexts);
  if (report.compared) add(report.compared->model, report.compared->contexts);
  for (const PlotPoint& point : panel.series[0].points) panel.x_ticks.push_back(point.x);
  std::ranges::sort(panel.x_ticks);
  return panel;
}

// ---- JSON ----

OrderedJson RowToJson(const BenchReport& report, const Measurement& m, const char* length_name) {
  const cpu::Roofs& roofs = report.roofs;
  const auto steps = static_cast<double>(m.steps);
  OrderedJson parts;
  for (const StepPart part : kParts) {
    parts[StepPartName(part)] = m.part_seconds[part] / steps * 1e3;
  }
  return {{"batch", m.batch},
          {length_name, m.length},
          {"steps", m.steps},
          {"tokens", m.tokens},
          {"seconds", m.seconds},
          {"ms_per_step", m.SecondsPerStep() * 1e3},
          {"tokens_per_s", m.TokensPerSecond()},
          {"flops", m.flops},
          {"fewest_experts", m.fewest_experts},
          {"weight_bytes", m.weight_bytes},
          {"kv_bytes", m.kv_bytes},
          {"gflop_per_s", m.FlopsPerSecond() * 1e-9},
          {"gb_per_s", m.BytesPerSecond() * 1e-9},
          {"percent_of_roof", OfRoof(m, roofs) * 100},
          {"percent_of_read", OfRead(m, roofs) * 100},
          {"percent_of_multiply_add", OfArithmetic(m, roofs) * 100},
          {"ms_per_step_by_part", std::move(parts)}};
}

OrderedJson DecodeToJson(const BenchReport& report) {
  OrderedJson rows = OrderedJson::array();
  for (const Measurement& m : report.decode) {
    rows.push_back(RowToJson(report, m, "context"));
    const std::optional<double> scaling = OfScaling(report, m);
    rows.back()["percent_of_scaling"] = scaling ? OrderedJson(*scaling * 100) : OrderedJson();
  }
  return rows;
}

OrderedJson RowsToJson(const BenchReport& report, const std::vector<Measurement>& measurements,
                       const char* length_name) {
  OrderedJson rows = OrderedJson::array();
  for (const Measurement& m : measurements) rows.push_back(RowToJson(report, m, length_name));
  return rows;
}

OrderedJson SpeculationToJson(const BenchReport& report) {
  const SpeculationReport& speculation = *report.speculation;
  OrderedJson rows = OrderedJson::array();
  for (size_t i = 0; i < speculation.rows.size(); ++i) {
    const DraftMeasurement& m = speculation.rows[i];
    const Measurement& plain = report.decode[i];
    rows.push_back({{"batch", m.batch},
                    {"context", m.length},
                    {"steps", m.steps},
                    {"drafts", m.drafts},
                    {"tokens", m.tokens},
                    {"seconds", m.seconds},
                    {"ms_per_step", m.SecondsPerStep() * 1e3},
                    {"plain_ms_per_step", plain.SecondsPerStep() * 1e3},
                    {"tokens_per_step", m.TokensPerStep()},
                    {"tokens_per_s", m.TokensPerSecond()},
                    {"speed_up", m.TokensPerSecond() / plain.TokensPerSecond()},
                    {"right_at", m.right_at},
                    {"fewest_experts", m.fewest_experts}});
  }
  return {
      {"algorithm", speculation.algorithm},
      {"num_steps", speculation.shape.steps},
      {"topk", speculation.shape.branches},
      {"num_draft_tokens", speculation.shape.nodes},
      {"simulated_accept_length",
       speculation.simulated_length ? OrderedJson(*speculation.simulated_length) : OrderedJson()},
      {"rows", std::move(rows)}};
}

}  // namespace

std::string ToTables(const BenchReport& report) {
  return Heading(report) + PrefillTable(report) + DecodeTable(report) + SpeculationTable(report) +
         PartsTable(report) + ContextTable(report, report.model, report.contexts) +
         (report.compared ? ContextTable(report, report.compared->model, report.compared->contexts)
                          : "") +
         ComparedTable(report);
}

Plot ToPlot(const BenchReport& report) {
  return {.title = "Time per decoded token over the context, one sequence",
          .subtitle = fmt::format("{}; KV cache {}, page size {}", MachineText(report),
                                  KvTypeName(report.options.kv_format), report.options.page_size),
          .panels = {ContextPanel(report, "Whole steps", MsPerToken),
                     ContextPanel(report, "Attention, choosing keys included", AttentionMs)}};
}

OrderedJson ToJson(const BenchReport& report) {
  OrderedJson json;
  json["command"] = report.command_line;
  json["version"] = QUIRE_VERSION;
  json["machine"] = {{"cpu", CpuModel()},
                     {"device", DeviceKindName(report.device)},
                     {"device_name", report.device_name},
                     {"threads", report.options.num_threads},
                     {"simd", cpu::SimdTarget()},
                     {"read_gb_per_s", report.roofs.read_bytes_per_s * 1e-9},
                     {"multiply_add_gflop_per_s", report.roofs.flops_per_s * 1e-9}};
  json["model"] = report.model;
  json["config"] = ConfigToJson(report.config);
  json["options"] = {{"page_size", report.options.page_size.raw()},
                     {"kv_cache_dtype", KvTypeName(report.options.kv_format)},
                     {"chunked_prefill_size", report.options.max_step_tokens.raw()},
                     {"step_mode", report.options.mode == StepMode::kEager ? "eager" : "graph"}};
  json["memory"] = {{"weights_bytes", report.plan.weights.raw()},
                    {"kv_bytes", report.plan.kv.raw()},
                    {"total_bytes", report.plan.total().raw()}};
  json["prefill"] = RowsToJson(report, report.prefill, "prompt");
  json["decode"] = DecodeToJson(report);
  json["contexts"] = RowsToJson(report, report.contexts, "context");
  if (report.speculation) json["speculation"] = SpeculationToJson(report);
  if (report.compared) {
    const ComparedModel& other = *report.compared;
    json["compared"] = {{"model", other.model},
                        {"config", ConfigToJson(other.config)},
                        {"memory",
                         {{"weights_bytes", other.plan.weights.raw()},
                          {"kv_bytes", other.plan.kv.raw()},
                          {"total_bytes", other.plan.total().raw()}}},
                        {"contexts", RowsToJson(report, other.contexts, "context")}};
  }
  return json;
}

}  // namespace quire::cli
