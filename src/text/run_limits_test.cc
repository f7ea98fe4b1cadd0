#include "text/run_limits.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace quire {
namespace {

using Cuts = std::vector<std::string_view>;

TEST(RunLimitsTest, ARunIsCutWhereItGetsTooLong) {
  EXPECT_EQ(CutLongRuns("abcdefgh  ij", {.max_text = 100, .max_run = 3}),
            (Cuts{"abc", "def", "gh  ij"}));
  EXPECT_EQ(CutLongRuns("a     b", {.max_text = 100, .max_run = 3}), (Cuts{"a   ", "  b"}));
  EXPECT_EQ(CutLongRuns("éééé", {.max_text = 100, .max_run = 3}), (Cuts{"ééé", "é"}));
  EXPECT_EQ(CutLongRuns("ab", {.max_text = 100, .max_run = 3}), (Cuts{"ab"}));
}

TEST(RunLimitsTest, ALongTextIsCutAndItsRunsBeginAnew) {
  EXPECT_EQ(CutLongRuns("abcdefgh", {.max_text = 4, .max_run = 3}), (Cuts{"abc", "d", "efg", "h"}));
  EXPECT_EQ(CutLongRuns("a b c d e", {.max_text = 4, .max_run = 3}), (Cuts{"a b ", "c d ", "e"}));
}

// Python's str.isspace has the separators of ASCII, which \s has not.
TEST(RunLimitsTest, SpaceIsWhatPythonSays) {
  EXPECT_EQ(CutLongRuns("ab\x1c"
                        "cd",
                        {.max_text = 100, .max_run = 3}),
            (Cuts{"ab\x1c"
                  "cd"}));
  EXPECT_EQ(CutLongRuns("  \x1c  ", {.max_text = 100, .max_run = 3}), (Cuts{"  \x1c", "  "}));
}

}  // namespace
}  // namespace quire
