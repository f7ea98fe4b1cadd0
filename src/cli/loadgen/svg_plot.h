// Line plots as SVG, in panels beside and below each other.
#ifndef QUIRE_CLI_LOADGEN_SVG_PLOT_H_
#define QUIRE_CLI_LOADGEN_SVG_PLOT_H_

#include <string>
#include <string_view>
#include <vector>

namespace quire::cli {

struct PlotPoint {
  double x = 0;
  double y = 0;
};

struct PlotSeries {
  std::string name = {};
  std::vector<PlotPoint> points = {};  // a line from each to the next
};

enum class PlotMarks { kNone, kDots };
enum class PlotScale { kLinear, kLogarithmic };

struct PlotPanel {
  std::string title = {};
  std::string x_label = {};  // with the unit
  std::string y_label = {};
  PlotScale x_scale = PlotScale::kLinear;  // logarithmic: all x above 0, and x_ticks given
  PlotMarks marks = PlotMarks::kNone;
  std::vector<double> x_ticks = {};  // empty: round numbers
  double y_max = 0;                  // 0: what the points need
  std::vector<PlotSeries> series = {};
};

struct Plot {
  std::string title = {};
  std::string subtitle = {};
  std::vector<PlotPanel> panels = {};  // two in a row
};

// Round numbers, at most about `count`, from `low` to `high` and inside.
std::vector<double> RoundTicks(double low, double high, int count);

// Text for an element or an attribute; what XML cannot hold is replaced.
std::string EscapeXml(std::string_view text);

// Y begins at 0. Points that are not finite are left out.
std::string ToSvg(const Plot& plot);

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_SVG_PLOT_H_
