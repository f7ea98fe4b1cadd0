// Prometheus's text format, version 0.0.4: families of samples, each with HELP and TYPE.
#ifndef QUIRE_SERVE_METRICS_TEXT_H_
#define QUIRE_SERVE_METRICS_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/metrics.h"

namespace quire {

using MetricLabel = std::pair<std::string_view, std::string>;  // name, value: any bytes of UTF-8

class MetricsText {
 public:
  // `prefix` begins every name; `common` labels are on every sample.
  MetricsText(std::string_view prefix, std::vector<MetricLabel> common)
      : prefix_(prefix), common_(std::move(common)) {}

  // A family of one sample.
  void Counter(std::string_view name, std::string_view help, double value);
  void Gauge(std::string_view name, std::string_view help, double value);
  // A family of several samples, told apart by a label.
  void Family(std::string_view name, std::string_view type, std::string_view help,
              std::string_view label, const std::vector<std::pair<std::string, double>>& samples);
  // name_bucket{le}, cumulative, name_sum and name_count.
  void Add(std::string_view name, std::string_view help, const Histogram& histogram);

  const std::string& text() const { return text_; }

 private:
  void Begin(std::string_view name, std::string_view type, std::string_view help);
  void Sample(std::string_view name, std::string_view suffix,
              const std::vector<MetricLabel>& labels, double value);

  std::string prefix_;
  std::vector<MetricLabel> common_;
  std::string text_;
};

}  // namespace quire

#endif  // QUIRE_SERVE_METRICS_TEXT_H_
