#include "serve/metrics_text.h"

#include <fmt/format.h>

#include <cmath>

namespace quire {
namespace {

enum class Quotes { kWith, kWithout };

// Backslashes and line feeds; in a label's value the quotes too.
std::string Escape(std::string_view text, Quotes quotes) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\\\";
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (c == '"' && quotes == Quotes::kWith) {
      escaped += "\\\"";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// The shortest that reads back as the same number.
std::string FormatNumber(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void MetricsText::Counter(std::string_view name, std::string_view help, double value) {
  Begin(name, "counter", help);
  Sample(name, "", {}, value);
}

void MetricsText::Gauge(std::string_view name, std::string_view help, double value) {
  Begin(name, "gauge", help);
  Sample(name, "", {}, value);
}

void MetricsText::Family(std::string_view name, std::string_view type, std::string_view help,
                         std::string_view label,
                         const std::vector<std::pair<std::string, double>>& samples) {
  Begin(name, type, help);
  for (const auto& [label_value, value] : samples) Sample(name, "", {{label, label_value}}, value);
}

void MetricsText::Add(std::string_view name, std::string_view help, const Histogram& histogram) {
  Begin(name, "histogram", help);
  int64_t cumulative = 0;
  for (size_t i = 0; i < histogram.counts().size(); ++i) {
    cumulative += histogram.counts()[i];
    const double bound = i < histogram.bounds().size() ? histogram.bounds()[i] : HUGE_VAL;
    Sample(name, "_bucket", {{"le", FormatNumber(bound)}}, static_cast<double>(cumulative));
  }
  Sample(name, "_sum", {}, histogram.sum());
  Sample(name, "_count", {}, static_cast<double>(histogram.count()));
}

void MetricsText::Begin(std::string_view name, std::string_view type, std::string_view help) {
  text_ += fmt::format("# HELP {}{} {}\n", prefix_, name, Escape(help, Quotes::kWithout));
  text_ += fmt::format("# TYPE {}{} {}\n", prefix_, name, type);
}

void MetricsText::Sample(std::string_view name, std::string_view suffix,
                         const std::vector<MetricLabel>& labels, double value) {
  text_ += fmt::format("{}{}{}", prefix_, name, suffix);
  char before = '{';
  for (const auto* list : {&std::as_const(common_), &labels}) {
    for (const auto& [label, label_value] : *list) {
      text_ += fmt::format("{}{}=\"{}\"", before, label, Escape(label_value, Quotes::kWith));
      before = ',';
    }
  }
  if (before == ',') text_ += '}';
  text_ += fmt::format(" {}\n", FormatNumber(value));
}

}  // namespace quire
