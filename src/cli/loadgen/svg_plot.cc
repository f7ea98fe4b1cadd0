#include "cli/loadgen/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace quire::cli {
namespace {

// In pixels. A panel is its frame and room for labels around it.
constexpr double kPanelWidth = 480, kPanelHeight = 320;
constexpr double kLeft = 64, kRight = 26, kTop = 56, kBottom = 48;  // right: half of a label
constexpr double kHeading = 64;
constexpr double kFrameWidth = kPanelWidth - kLeft - kRight;
constexpr double kFrameHeight = kPanelHeight - kTop - kBottom;
constexpr double kTickGap = 28;  // labels nearer than this would touch

// Of Okabe and Ito: told apart with every kind of colour vision.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7"};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool IsFinite(const PlotPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

// From values to pixels.
class Axes {
 public:
  explicit Axes(const PlotPanel& panel) : is_log_(panel.x_scale == PlotScale::kLogarithmic) {
    Range x, y;
    y.Add(0);
    for (const PlotSeries& series : panel.series) {
      for (const PlotPoint& point : series.points) {
        if (!IsFinite(point)) continue;
        x.Add(point.x);
        y.Add(point.y);
      }
    }
    if (x.low > x.high) x = {1, 2};  // no points; 0 has no logarithm
    if (!is_log_) x.low = std::min(x.low, 0.0);
    x_low_ = Scale(x.low);
    x_high_ = Scale(x.high);
    if (x_high_ <= x_low_) x_low_ -= 0.5, x_high_ = x_low_ + 1;
    y_high_ = panel.y_max > 0 ? panel.y_max : y.high > 0 ? y.high * 1.05 : 1;
  }

  double X(double x) const { return (Scale(x) - x_low_) / (x_high_ - x_low_) * kFrameWidth; }
  double Y(double y) const { return kFrameHeight - y / y_high_ * kFrameHeight; }
  std::vector<double> XTicks() const { return RoundTicks(x_low_, x_high_, 8); }
  std::vector<double> YTicks() const { return RoundTicks(0, y_high_, 6); }

 private:
  double Scale(double x) const { return is_log_ ? std::log(x) : x; }

  bool is_log_;
  double x_low_, x_high_, y_high_;
};

std::string Text(double x, double y, const char* attributes, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     EscapeXml(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
      y2, colour);
}

std::string DrawTicks(const PlotPanel& panel, const Axes& axes) {
  std::string out;
  for (const double y : axes.YTicks()) {
    out += Line(0, axes.Y(y), kFrameWidth, axes.Y(y), "#e4e4e4");
    out += Text(-6, axes.Y(y) + 4, "text-anchor=\"end\"", fmt::format("{:g}", y));
  }
  double last = -kTickGap;
  for (const double x : panel.x_ticks.empty() ? axes.XTicks() : panel.x_ticks) {
    if (axes.X(x) - last < kTickGap) continue;
    last = axes.X(x);
    out += Line(last, kFrameHeight, last, kFrameHeight + 4, "#333333");
    out += Text(last, kFrameHeight + 17, "text-anchor=\"middle\"", fmt::format("{:g}", x));
  }
  return out;
}

std::string DrawSeries(const PlotPanel& panel, const PlotSeries& series, const char* colour,
                       const Axes& axes) {
  std::string points, dots;
  for (const PlotPoint& point : series.points) {
    if (!IsFinite(point)) continue;
    const double x = axes.X(point.x), y = axes.Y(point.y);
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x, y);
    if (panel.marks == PlotMarks::kDots) {
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", x, y,
                          colour);
    }
  }
  if (points.empty()) return {};
  return fmt::format(
             "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\" "
             "stroke-linejoin=\"round\"/>\n",
             points, colour) +
         dots;
}

// Above the frame, where no line can run through it.
std::string DrawLegend(const PlotPanel& panel) {
  if (panel.series.size() < 2) return {};
  std::string out;
  double x = 0;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    const char* colour = kColours[i % std::size(kColours)];
    out += fmt::format("<rect x=\"{:.1f}\" y=\"-15\" width=\"14\" height=\"4\" fill=\"{}\"/>\n", x,
                       colour);
    out += Text(x + 19, -9, "", panel.series[i].name);
    x += 36 + 7.0 * static_cast<double>(panel.series[i].name.size());
  }
  return out;
}

std::string DrawPanel(const PlotPanel& panel, double left, double top) {
  const Axes axes(panel);
  std::string out = fmt::format("<g transform=\"translate({:.1f} {:.1f})\">\n", left, top);
  out += Text(0, -28, "font-size=\"14\" font-weight=\"bold\"", panel.title);
  out += DrawLegend(panel);
  out += DrawTicks(panel, axes);
  out += fmt::format("<path d=\"M0,0 V{0:.1f} H{1:.1f}\" fill=\"none\" stroke=\"#333333\"/>\n",
                     kFrameHeight, kFrameWidth);
  out += Text(kFrameWidth / 2, kFrameHeight + 36, "text-anchor=\"middle\"", panel.x_label);
  out += Text(-kFrameHeight / 2, -46, "text-anchor=\"middle\" transform=\"rotate(-90)\"",
              panel.y_label);
  for (size_t i = 0; i < panel.series.size(); ++i) {
    out += DrawSeries(panel, panel.series[i], kColours[i % std::size(kColours)], axes);
  }
  return out + "</g>\n";
}

}  // namespace

std::vector<double> RoundTicks(double low, double high, int count) {
  if (!(high > low)) return {};
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  // As multiples, so that errors do not add up; a tick at an end is not lost to rounding, and one
  // at 0 is not -0.
  for (double n = std::ceil(low / step - 1e-9) + 0.0; n * step <= high + 1e-9 * step; ++n) {
    ticks.push_back(n * step);
  }
  return ticks;
}

std::string EscapeXml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (static_cast<unsigned char>(c) < ' ') {
      out += ' ';
    } else if (static_cast<unsigned char>(c) > '~') {
      out += '?';  // plain ASCII is always well-formed, whatever bytes a name has
    } else {
      out += c;
    }
  }
  return out;
}

std::string ToSvg(const Plot& plot) {
  const size_t columns = std::min<size_t>(2, std::max<size_t>(1, plot.panels.size()));
  const size_t rows = (plot.panels.size() + columns - 1) / columns;
  const double width = kPanelWidth * static_cast<double>(columns);
  const double height = kHeading + kPanelHeight * static_cast<double>(rows);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\" "
      "fill=\"#222222\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height);
  out += Text(18, 28, "font-size=\"18\" font-weight=\"bold\"", plot.title);
  out += Text(18, 50, "fill=\"#555555\"", plot.subtitle);
  for (size_t i = 0; i < plot.panels.size(); ++i) {
    out += DrawPanel(plot.panels[i], kLeft + kPanelWidth * static_cast<double>(i % columns),
                     kHeading + kTop + kPanelHeight * static_cast<double>(i / columns));
  }
  return out + "</svg>\n";
}

}  // namespace quire::cli
