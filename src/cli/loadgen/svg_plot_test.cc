#include "cli/loadgen/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace quire::cli {
namespace {

// Checks what XML demands of such a file: tags that close in order, quoted attributes, no bare
// '<' or '&'. Returns what is wrong, or "".
std::string XmlProblem(std::string_view xml) {
  std::vector<std::string> open;
  while (!xml.empty()) {
    const size_t tag = xml.find('<');
    const std::string_view text = xml.substr(0, tag);
    for (size_t at = text.find('&'); at != std::string_view::npos; at = text.find('&', at + 1)) {
      if (text.find(';', at) == std::string_view::npos) return "a bare &";
    }
    if (tag == std::string_view::npos) break;
    const size_t end = xml.find('>', tag);
    if (end == std::string_view::npos) return "a tag without end";
    std::string_view body = xml.substr(tag + 1, end - tag - 1);
    if (body.find('<') != std::string_view::npos) return "a < in a tag";
    size_t quotes = 0;
    for (const char c : body) quotes += c == '"';
    if (quotes % 2 != 0) return "an attribute without end";
    if (body.starts_with('/')) {
      if (open.empty() || open.back() != body.substr(1)) return "a wrong closing tag";
      open.pop_back();
    } else if (!body.ends_with('/')) {
      open.emplace_back(body.substr(0, body.find(' ')));
    }
    xml.remove_prefix(end + 1);
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

size_t Count(std::string_view text, std::string_view word) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) ++count;
  return count;
}

PlotPanel Example() {
  return {
      .title = "TTFT",
      .x_label = "concurrency",
      .y_label = "ms",
      .x_scale = PlotScale::kLogarithmic,
      .marks = PlotMarks::kDots,
      .x_ticks = {1, 16, 64},
      .series = {{"p50", {{1, 10}, {16, 20}, {64, 80}}}, {"p99", {{1, 20}, {16, 90}, {64, 400}}}}};
}

TEST(SvgPlotTest, APlotIsWellFormedAndHasAllThatWasAskedFor) {
  const std::string svg =
      ToSvg({.title = "a model", .subtitle = "chat", .panels = {Example(), Example(), Example()}});
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_TRUE(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(Count(svg, "<polyline"), 6u);
  EXPECT_EQ(Count(svg, "<circle"), 18u);
  for (const char* text : {">a model<", ">chat<", ">TTFT<", ">concurrency<", ">ms<", ">p50<",
                           ">p99<", ">1<", ">16<", ">64<", ">400<"}) {
    EXPECT_GE(Count(svg, text), 1u) << text;
  }
}

TEST(SvgPlotTest, PointsLieInTheirFrameAndHigherIsMore) {
  const std::string svg =
      ToSvg({.panels = {{.y_max = 100, .series = {{"", {{0, 0}, {5, 50}, {10, 100}}}}}}});
  // A frame of 390 x 216 pixels, y downwards.
  EXPECT_NE(svg.find("points=\"0.0,216.0 195.0,108.0 390.0,0.0\""), std::string::npos) << svg;
}

TEST(SvgPlotTest, HostileTextIsEscaped) {
  PlotPanel panel = Example();
  panel.title = "<script>\"&'\x01\xff";
  const std::string svg = ToSvg({.title = "a<b&c", .panels = {panel}});
  EXPECT_EQ(XmlProblem(svg), "");
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("&lt;script&gt;&quot;&amp;"), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b&amp;c"), std::string::npos);
}

TEST(SvgPlotTest, NoPointsOnePointAndOnesThatAreNotFiniteAreDrawn) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const auto& points : std::vector<std::vector<PlotPoint>>{
           {}, {{5, 5}}, {{0, 0}}, {{nan, 1}, {1, inf}}, {{1, 0}, {2, nan}, {3, 0}}}) {
    for (const PlotScale scale : {PlotScale::kLinear, PlotScale::kLogarithmic}) {
      if (scale == PlotScale::kLogarithmic && !points.empty() && points[0].x == 0) continue;
      const std::string svg =
          ToSvg({.panels = {{.x_scale = scale, .x_ticks = {1}, .series = {{"a", points}}}}});
      EXPECT_EQ(XmlProblem(svg), "");
      EXPECT_EQ(svg.find("nan"), std::string::npos);
      EXPECT_EQ(svg.find("inf"), std::string::npos);
    }
  }
  EXPECT_EQ(XmlProblem(ToSvg({})), "");
}

TEST(SvgPlotTest, TicksAreRound) {
  EXPECT_FALSE(std::signbit(RoundTicks(0, 1, 5)[0]));
  EXPECT_EQ(RoundTicks(0, 1, 5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(RoundTicks(0, 99, 5), (std::vector<double>{0, 20, 40, 60, 80}));
  EXPECT_EQ(RoundTicks(7, 32, 3), (std::vector<double>{10, 20, 30}));
  EXPECT_EQ(RoundTicks(3, 3, 5), (std::vector<double>{}));
  for (const double high : {1e-7, 0.03, 7.0, 1234.0, 5e9}) {
    const std::vector<double> ticks = RoundTicks(0, high, 6);
    EXPECT_GE(ticks.size(), 3u) << high;
    EXPECT_LE(ticks.size(), 7u) << high;
    EXPECT_LE(ticks.back(), high * (1 + 1e-9)) << high;
  }
}

}  // namespace
}  // namespace quire::cli
