#include "text/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "testing/splitmix64.h"

namespace quire {
namespace {

TEST(Utf8Test, EveryCharacterIsReadAsItWasWritten) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string text;
    AppendUtf8(c, text);
    const Utf8Step step = ReadUtf8(text + "x");
    ASSERT_EQ(step.kind, Utf8Step::Kind::kCharacter) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ(step.character, c);
    ASSERT_EQ(step.length, text.size());
  }
}

// The expected are Python's, of bytes.decode(errors="replace").
TEST(Utf8Test, EveryIllFormedPartBecomesOneReplacementCharacter) {
  EXPECT_EQ(ReplaceIllFormed("a\xff"
                             "b"),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(ReplaceIllFormed("\xe4\xbd"), "\xef\xbf\xbd");  // cut
  EXPECT_EQ(ReplaceIllFormed("\xe4\xbd"
                             "a"),
            "\xef\xbf\xbd"
            "a");                                                       // broken off
  EXPECT_EQ(ReplaceIllFormed("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");  // overlong
  EXPECT_EQ(ReplaceIllFormed("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // surrogate
  EXPECT_EQ(ReplaceIllFormed("\xf0\x9f\x98\xf0\x9f\x98\x80"), "\xef\xbf\xbd\xf0\x9f\x98\x80");
  EXPECT_EQ(ReplaceIllFormed("\xf4\x90\x80\x80").size(), 12);  // past U+10FFFF
  EXPECT_EQ(ReplaceIllFormed(""), "");
}

TEST(Utf8Test, IsUtf8SaysWhetherNothingIsReplaced) {
  uint64_t state = 1;
  for (int trial = 0; trial < 20000; ++trial) {
    std::string bytes;
    for (int i = 0; i < trial % 12; ++i) {
      static constexpr std::string_view kBytes = "ab\x80\xbf\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\xff";
      bytes += kBytes[testing::SplitMix64(state += testing::kSplitMix64Step) % kBytes.size()];
    }
    EXPECT_EQ(IsUtf8(bytes), ReplaceIllFormed(bytes) == bytes);
    EXPECT_TRUE(IsUtf8(ReplaceIllFormed(bytes)));
  }
}

TEST(Utf8Test, WhatIsTakenByteByByteIsWhatIsReplacedAtOnce) {
  const std::string bytes = "h\xc3\xa9\xff\xe4\xbd\xa0\xe4\xbd\xf0\x9f\x98\x80\xf0\x9f";
  std::string pending;
  std::string text;
  for (const char byte : bytes) {
    pending += byte;
    text += TakeSettled(pending);
    EXPECT_LT(pending.size(), 4);
    EXPECT_TRUE(IsUtf8(text));
  }
  EXPECT_EQ(text + ReplaceIllFormed(pending), ReplaceIllFormed(bytes));
}

}  // namespace
}  // namespace quire
