// Expected values are what CPython 3.11 gives.
#include "text/python_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "io/test_files.h"

namespace quire::jinja {
namespace {

TEST(PythonTextTest, FloatsPrintTheirShortestDigits) {
  EXPECT_EQ(PrintFloat(0.1), "0.1");
  EXPECT_EQ(PrintFloat(-2), "-2.0");
  EXPECT_EQ(PrintFloat(-0.0), "-0.0");
  EXPECT_EQ(PrintFloat(1e15), "1000000000000000.0");
  EXPECT_EQ(PrintFloat(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(PrintFloat(1e16), "1e+16");
  EXPECT_EQ(PrintFloat(1.5e300), "1.5e+300");
  EXPECT_EQ(PrintFloat(0.0001), "0.0001");
  EXPECT_EQ(PrintFloat(0.00001), "1e-05");
  EXPECT_EQ(PrintFloat(5e-324), "5e-324");
  EXPECT_EQ(PrintFloat(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(PythonTextTest, FloatsAreReadAsPythonReadsThem) {
  EXPECT_EQ(ParseFloat(" 1.5\n"), 1.5);
  EXPECT_EQ(ParseFloat("1_000"), 1000);
  EXPECT_EQ(ParseFloat("+.5e1"), 5);
  EXPECT_EQ(ParseFloat("-1e999"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(ParseFloat("1e-999"), 0);
  for (const char* text : {"", "x", "1_", "_1", "1__0", "0x10", "--1", "nan(1)", "1 2"}) {
    EXPECT_EQ(ParseFloat(text), std::nullopt) << text;
  }
}

TEST(PythonTextTest, StringsAreQuotedAsReprDoes) {
  EXPECT_EQ(Quote("it's"), "\"it's\"");
  EXPECT_EQ(Quote("'\""), "'\\'\"'");
  EXPECT_EQ(Quote("a\n\t\\\x01\x7f"), "'a\\n\\t\\\\\\x01\\x7f'");
  EXPECT_EQ(Quote("é你🙂"), "'é你🙂'");
  EXPECT_EQ(Quote("\u00a0\u200b\u3000\U000E0001"), "'\\xa0\\u200b\\u3000\\U000e0001'");
}

TEST(PythonTextTest, CaseIsChangedOneToOneOrNotAtAll) {
  EXPECT_EQ(Upper("stra 1"), "STRA 1");
  EXPECT_EQ(Upper("àÿж"), "ÀŸЖ");
  EXPECT_EQ(Lower("ÀĐЖ你"), "àđж你");
  EXPECT_EQ(Title("they're bill's 2nd"), "They'Re Bill'S 2Nd");
  EXPECT_EQ(Capitalize("éTÉ"), "Été");
  EXPECT_EQ(InvalidArgument([] { (void)Upper("ß"); }),
            "the case of U+00DF is not changed one to one");
}

TEST(PythonTextTest, SpaceIsWhatPythonCallsSpace) {
  EXPECT_EQ(Strip("\u3000\x1c x\u00a0y \u2029"), "x\u00a0y");
  EXPECT_EQ(StripLeft("\u200bx"), "\u200bx");
  EXPECT_EQ(StripRight("xéaé", "éa"), "x");
  EXPECT_EQ(Strip(" \n"), "");
}

TEST(PythonTextTest, LinesEndWhereUnicodeEndsThem) {
  EXPECT_EQ(SplitLines("a\nb\r\nc\rd\u2028e\x0b"),
            (std::vector<std::string_view>{"a", "b", "c", "d", "e"}));
  EXPECT_EQ(SplitLines("\n\nx"), (std::vector<std::string_view>{"", "", "x"}));
  EXPECT_TRUE(SplitLines("").empty());
}

}  // namespace
}  // namespace quire::jinja
