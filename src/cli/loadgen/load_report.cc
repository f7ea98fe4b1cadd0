#include "cli/loadgen/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/describe.h"

namespace quire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kMs = 1e3;
constexpr double kPercentiles[] = {50, 90, 95, 99};

// The four latencies, in the order in which they are shown.
struct Latency {
  const char* name;
  const char* title;  // of a plot
  const char* key;
  Distribution LoadSummary::*distribution;
};
constexpr Latency kLatencies[] = {
    {"TTFT", "Time to the first text (TTFT)", "ttft_ms", &LoadSummary::ttft},
    {"TPOT", "Time per output token (TPOT)", "tpot_ms", &LoadSummary::tpot},
    {"ITL", "Between pieces of text (ITL)", "itl_ms", &LoadSummary::itl},
    {"end to end", "End to end", "e2e_ms", &LoadSummary::e2e}};

// A latency that was never measured is not 0.
std::string Ms(const Distribution& distribution, double percent) {
  return distribution.sorted.empty() ? "-" : FormatDigits(distribution.P(percent) * kMs);
}

std::string Load(const LoadShape& shape) {
  return shape.rate > 0 ? fmt::format("{:g}/s", shape.rate) : std::to_string(shape.concurrency);
}

double LoadValue(const LoadShape& shape) {
  return shape.rate > 0 ? shape.rate : static_cast<double>(shape.concurrency);
}

const char* EndpointName(Endpoint endpoint) {
  return endpoint == Endpoint::kChat ? "chat" : "completions";
}

// ---- Tables ----

std::string Heading(const LoadReport& report) {
  const std::string prefix =
      report.workload.shared_prefix == 0
          ? ""
          : fmt::format(" behind {} shared prefix(es) of {}", report.workload.num_prefixes,
                        report.workload.shared_prefix);
  return fmt::format(
      "{}, {}, model {}\nprompts of {} random words{}, answers of {} tokens{}; seed {}\n",
      report.target.url, EndpointName(report.target.endpoint), report.target.model,
      ToText(report.workload.input), prefix, ToText(report.workload.output),
      report.target.ignore_eos == IgnoreEos::kYes ? "" : " at most", report.workload.seed);
}

std::string RunTable(const LoadReport& report) {
  std::string text = fmt::format(
      "\n{:>11} {:>6} {:>6} {:>5} {:>8} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
      report.runs.empty() || report.runs[0].shape.rate == 0 ? "concurrency" : "rate", "ok",
      "failed", "peak", "req/s", "in tok/s", "out tok/s", "cached", "TTFT p50", "TTFT p99",
      "TPOT p50", "TPOT p99", "E2E p50");
  for (size_t i = 0; i < report.runs.size(); ++i) {
    const LoadSummary& s = report.summaries[i];
    text += fmt::format(
        "{:>11} {:>6} {:>6} {:>5} {:>8} {:>9} {:>9} {:>6.0f}% {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        Load(report.runs[i].shape), s.num_ok, s.num_failed(), report.runs[i].peak_concurrency,
        FormatDigits(s.requests_per_s), FormatDigits(s.prompt_tokens_per_s),
        FormatDigits(s.output_tokens_per_s), s.cached_share() * 100, Ms(s.ttft, 50), Ms(s.ttft, 99),
        Ms(s.tpot, 50), Ms(s.tpot, 99), Ms(s.e2e, 50));
  }
  return text;
}

std::string LatencyTable(const LoadReport& report) {
  std::string text =
      fmt::format("\nlatency, ms\n{:>11}  {:<10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "", "",
                  "samples", "mean", "p50", "p90", "p95", "p99");
  for (size_t i = 0; i < report.runs.size(); ++i) {
    for (const Latency& latency : kLatencies) {
      const Distribution& d = report.summaries[i].*latency.distribution;
      text += fmt::format("{:>11}  {:<10} {:>7} {:>9}", Load(report.runs[i].shape), latency.name,
                          d.sorted.size(), d.sorted.empty() ? "-" : FormatDigits(d.mean * kMs));
      for (const double percent : kPercentiles) text += fmt::format(" {:>9}", Ms(d, percent));
      text += "\n";
    }
  }
  return text +
         "TTFT: to the first text. TPOT: (end - first text) / (output tokens - 1) of each answer.\n"
         "ITL: between two pieces of text, of which each may hold several tokens. Rates are of\n"
         "whole answers, over the time from the first request to the end of the last.\n";
}

std::string TokenLines(const LoadReport& report) {
  std::string text;
  for (size_t i = 0; i < report.runs.size(); ++i) {
    const LoadSummary& s = report.summaries[i];
    if (s.num_ok == 0) continue;
    const auto ok = static_cast<double>(s.num_ok);
    text += fmt::format("{}: {:.1f} prompt and {:.1f} output tokens a request on average{}\n",
                        ShapeName(report.runs[i].shape), static_cast<double>(s.prompt_tokens) / ok,
                        static_cast<double>(s.output_tokens) / ok,
                        s.num_without_usage == 0
                            ? ""
                            : fmt::format("; {} answers without usage: their pieces of text are "
                                          "counted as tokens",
                                          s.num_without_usage));
  }
  return text.empty() ? "" : "\n" + text;
}

std::string FailureLines(const LoadReport& report) {
  std::string text;
  for (size_t i = 0; i < report.runs.size(); ++i) {
    const LoadSummary& s = report.summaries[i];
    for (const auto& [kind, count] : s.failures) {
      text += fmt::format("{}: {} failed, {}: {}\n", ShapeName(report.runs[i].shape), count, kind,
                          s.first_message.at(kind));
    }
    if (s.num_unfinished > 0) {
      text += fmt::format("{}: {} not finished when the run was ended\n",
                          ShapeName(report.runs[i].shape), s.num_unfinished);
    }
  }
  return text.empty() ? "" : "\n" + text;
}

// ---- JSON ----

OrderedJson ToJson(const Distribution& d) {
  if (d.sorted.empty()) return {{"samples", 0}};
  OrderedJson json{{"samples", d.sorted.size()}, {"mean", d.mean * kMs}};
  for (const double percent : kPercentiles) {
    json[fmt::format("p{:g}", percent)] = d.P(percent) * kMs;
  }
  json["min"] = d.sorted.front() * kMs;
  json["max"] = d.sorted.back() * kMs;
  return json;
}

template <class T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

OrderedJson ToJson(const RequestRecord& record) {
  OrderedJson itl = OrderedJson::array();
  for (size_t i = 1; i < record.deltas.size(); ++i) {
    itl.push_back((record.deltas[i] - record.deltas[i - 1]) * kMs);
  }
  const bool has_text = !record.deltas.empty();
  return {{"index", record.index},
          {"outcome", OutcomeName(record)},
          {"message", record.message},
          {"input_words", record.input_words},
          {"max_tokens", record.max_tokens},
          {"prompt_tokens", OrNull(record.prompt_tokens)},
          {"cached_tokens", OrNull(record.cached_tokens)},
          {"output_tokens", OrNull(record.output_tokens)},
          {"finish_reason", record.finish_reason},
          {"begin_s", record.begin},
          {"ttft_ms", has_text ? OrderedJson((record.deltas[0] - record.begin) * kMs) : nullptr},
          {"e2e_ms", (record.end - record.begin) * kMs},
          {"itl_ms", std::move(itl)}};
}

OrderedJson ToJson(const LoadResult& run, const LoadSummary& s) {
  OrderedJson json;
  json["concurrency"] = run.shape.rate > 0 ? OrderedJson() : OrderedJson(run.shape.concurrency);
  json["request_rate"] = run.shape.rate > 0 ? OrderedJson(run.shape.rate) : OrderedJson();
  json["seconds"] = run.seconds;
  json["interrupted"] = run.was_stopped;
  json["peak_concurrency"] = run.peak_concurrency;
  json["ok"] = s.num_ok;
  json["failed"] = s.num_failed();
  json["unfinished"] = s.num_unfinished;
  json["failures"] = s.failures;
  json["prompt_tokens"] = s.prompt_tokens;
  json["cached_tokens"] = s.cached_tokens;
  json["output_tokens"] = s.output_tokens;
  json["answers_without_usage"] = s.num_without_usage;
  json["requests_per_s"] = s.requests_per_s;
  json["prompt_tokens_per_s"] = s.prompt_tokens_per_s;
  json["output_tokens_per_s"] = s.output_tokens_per_s;
  json["cached_share"] = s.cached_share();
  for (const Latency& latency : kLatencies) json[latency.key] = ToJson(s.*latency.distribution);
  json["requests"] = OrderedJson::array();
  for (const RequestRecord& record : run.records) json["requests"].push_back(ToJson(record));
  return json;
}

// ---- Plot ----

// Latency percentiles against the load.
PlotPanel LatencyPanel(const LoadReport& report, const Latency& latency) {
  PlotPanel panel{.title = latency.title, .y_label = "ms"};
  for (const double percent : {50.0, 90.0, 99.0}) {
    PlotSeries series{.name = fmt::format("p{:g}", percent)};
    for (size_t i = 0; i < report.runs.size(); ++i) {
      const Distribution& d = report.summaries[i].*latency.distribution;
      if (d.sorted.empty()) continue;
      series.points.push_back({LoadValue(report.runs[i].shape), d.P(percent) * kMs});
    }
    panel.series.push_back(std::move(series));
  }
  return panel;
}

PlotPanel ThroughputPanel(const LoadReport& report) {
  PlotSeries series{.name = "output"};
  for (size_t i = 0; i < report.runs.size(); ++i) {
    series.points.push_back(
        {LoadValue(report.runs[i].shape), report.summaries[i].output_tokens_per_s});
  }
  return {.title = "Output throughput", .y_label = "tokens/s", .series = {std::move(series)}};
}

// How many percent of the samples are at most x. At most some hundred points: more cannot be seen.
PlotPanel CdfPanel(const LoadSummary& summary, const Latency& latency) {
  constexpr size_t kPoints = 400;
  const std::vector<double>& sorted = (summary.*latency.distribution).sorted;
  PlotSeries series{.name = latency.name};
  const size_t stride = std::max<size_t>(1, sorted.size() / kPoints);
  const auto add = [&](size_t i) {
    const double share = static_cast<double>(i + 1) / static_cast<double>(sorted.size());
    series.points.push_back({sorted[i] * kMs, 100 * share});
  };
  for (size_t i = 0; i < sorted.size(); i += stride) add(i);
  if (!sorted.empty()) add(sorted.size() - 1);
  return {.title = fmt::format("{}, {} samples", latency.title, sorted.size()),
          .x_label = "ms",
          .y_label = "% of samples at most this",
          .y_max = 100,
          .series = {std::move(series)}};
}

std::vector<PlotPanel> PanelsOverLoad(const LoadReport& report) {
  std::vector<PlotPanel> panels;
  for (const Latency& latency : kLatencies) {
    if (latency.distribution == &LoadSummary::itl) continue;  // four panels fill the plot
    panels.push_back(LatencyPanel(report, latency));
  }
  panels.push_back(ThroughputPanel(report));
  for (PlotPanel& panel : panels) {
    panel.x_label = "concurrency, requests at a time";
    panel.x_scale = PlotScale::kLogarithmic;
    panel.marks = PlotMarks::kDots;
    for (const LoadResult& run : report.runs) panel.x_ticks.push_back(LoadValue(run.shape));
    std::sort(panel.x_ticks.begin(), panel.x_ticks.end());
    for (PlotSeries& series : panel.series) {
      std::sort(series.points.begin(), series.points.end(),
                [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
    }
  }
  return panels;
}

}  // namespace

std::string ShapeName(const LoadShape& shape) {
  return shape.rate > 0 ? fmt::format("{:g} requests/s", shape.rate)
                        : fmt::format("concurrency {}", shape.concurrency);
}

bool LoadReport::all_failed() const {
  int64_t ok = 0, failed = 0;
  for (const LoadSummary& summary : summaries) {
    ok += summary.num_ok;
    failed += summary.num_failed();
  }
  return ok == 0 && failed > 0;
}

bool LoadReport::was_stopped() const { return !runs.empty() && runs.back().was_stopped; }

std::string ToTables(const LoadReport& report) {
  return Heading(report) + RunTable(report) + LatencyTable(report) + TokenLines(report) +
         FailureLines(report);
}

OrderedJson ToJson(const LoadReport& report) {
  OrderedJson json;
  json["command"] = report.command_line;
  json["version"] = QUIRE_VERSION;
  json["machine"] = {{"cpu", report.cpu}, {"threads", report.num_threads}};
  json["settings"] = {{"url", report.target.url},
                      {"endpoint", EndpointName(report.target.endpoint)},
                      {"model", report.target.model},
                      {"input_len", ToText(report.workload.input)},
                      {"output_len", ToText(report.workload.output)},
                      {"shared_prefix", report.workload.shared_prefix},
                      {"num_prefixes", report.workload.num_prefixes},
                      {"ignore_eos", report.target.ignore_eos == IgnoreEos::kYes},
                      {"seed", report.workload.seed},
                      {"warmup", report.warmup},
                      {"timeout_s", static_cast<double>(report.target.timeout.count()) * 1e-3}};
  json["runs"] = OrderedJson::array();
  for (size_t i = 0; i < report.runs.size(); ++i) {
    json["runs"].push_back(ToJson(report.runs[i], report.summaries[i]));
  }
  return json;
}

Plot ToPlot(const LoadReport& report) {
  Plot plot{.title = fmt::format("{} at {}", report.target.model, report.target.url)};
  plot.subtitle = fmt::format("{}, prompts of {} words, answers of {} tokens",
                              EndpointName(report.target.endpoint), ToText(report.workload.input),
                              ToText(report.workload.output));
  if (report.runs.size() > 1) {
    plot.panels = PanelsOverLoad(report);
    return plot;
  }
  if (report.runs.empty()) return plot;
  plot.subtitle += fmt::format("; {}, {:.1f} output tokens/s", ShapeName(report.runs[0].shape),
                               report.summaries[0].output_tokens_per_s);
  for (const Latency& latency : kLatencies) {
    plot.panels.push_back(CdfPanel(report.summaries[0], latency));
  }
  return plot;
}

}  // namespace quire::cli
