#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/token_decoder.h"

namespace quire {
namespace {

using Pieces = std::vector<std::string>;

// What each Put returns, and then Flush.
Pieces Stream(const TokenDecoder& decoder, const std::vector<int32_t>& ids, bool skip = true) {
  TokenDecoder::Stream stream(decoder, {.skip_special_tokens = skip});
  Pieces pieces;
  for (const int32_t id : ids) pieces.push_back(stream.Put(id));
  pieces.push_back(stream.Flush());
  return pieces;
}

// U+00E4 U+00BD U+0142 spell the bytes e4 bd a0 of 你.
TokenDecoder ByteLevel() {
  return TokenDecoder({{.id = 0, .spelling = "Ġhi"},
                       {.id = 1, .spelling = "ä"},
                       {.id = 2, .spelling = "½ł"},
                       {.id = 3, .spelling = "<|end｜>", .special = true},
                       {.id = 5, .spelling = "½"}},
                      {.joining = DecodeRules::Joining::kBytes});
}

TEST(DetokenizerTest, ACharacterWaitsForItsLastByte) {
  EXPECT_EQ(Stream(ByteLevel(), {0, 1, 2, 0}), (Pieces{" hi", "", "你", " hi", ""}));
}

TEST(DetokenizerTest, WhatHasNoEndIsReplaced) {
  EXPECT_EQ(Stream(ByteLevel(), {1, 5}), (Pieces{"", "", "\ufffd"}));
  EXPECT_EQ(Stream(ByteLevel(), {1, 0}), (Pieces{"", "\ufffd hi", ""}));
  EXPECT_EQ(Stream(ByteLevel(), {2}), (Pieces{"\ufffd\ufffd", ""}));
}

TEST(DetokenizerTest, SpecialTokensAreLeftOutIfAskedFor) {
  EXPECT_EQ(Stream(ByteLevel(), {0, 3, 0}), (Pieces{" hi", "", " hi", ""}));
  EXPECT_EQ(Stream(ByteLevel(), {0, 3}, false), (Pieces{" hi", "<|end｜>", ""}));
}

TEST(DetokenizerTest, WhatIsNoTokenIsLeftOut) {
  EXPECT_EQ(Stream(ByteLevel(), {4, 6, -1, 0}), (Pieces{"", "", "", " hi", ""}));
}

TokenDecoder ByteTokens() {
  DecodeRules rules{
      .joining = DecodeRules::Joining::kByteTokens, .strip_count = 1, .strip_character = " "};
  rules.replacements.push_back({.pattern = Regex::Literal("▁", "here"), .content = " "});
  return TokenDecoder({{.id = 0, .spelling = "▁a"},
                       {.id = 1, .spelling = "<0xC3>"},
                       {.id = 2, .spelling = "<0xA9>"},
                       {.id = 3, .spelling = "▁"},
                       {.id = 4, .spelling = "</s>", .special = true}},
                      rules);
}

TEST(DetokenizerTest, OnlyTheFirstSpaceIsStripped) {
  EXPECT_EQ(Stream(ByteTokens(), {0, 0}), (Pieces{"a", " a", ""}));
  EXPECT_EQ(Stream(ByteTokens(), {3, 0}), (Pieces{"", " a", ""}));
  EXPECT_EQ(Stream(ByteTokens(), {4, 0}), (Pieces{"", "a", ""}));
  EXPECT_EQ(Stream(ByteTokens(), {4, 0}, false), (Pieces{"</s>", " a", ""}));
}

TEST(DetokenizerTest, ARunOfByteTokensIsACharacterOrAllReplaced) {
  EXPECT_EQ(Stream(ByteTokens(), {1, 2, 0}), (Pieces{"", "", "é a", ""}));
  EXPECT_EQ(Stream(ByteTokens(), {1, 2}), (Pieces{"", "", "é"}));
  EXPECT_EQ(Stream(ByteTokens(), {1, 2, 1, 0}), (Pieces{"", "", "", "\ufffd\ufffd\ufffd a", ""}));
}

TEST(DetokenizerTest, FlushBeginsANewText) {
  const TokenDecoder decoder = ByteTokens();
  TokenDecoder::Stream stream(decoder, {});
  EXPECT_EQ(stream.Put(0), "a");
  EXPECT_EQ(stream.Put(0), " a");
  EXPECT_EQ(stream.Flush(), "");
  EXPECT_EQ(stream.Put(0), "a");
}

TEST(DetokenizerTest, MetaspaceIsLeftOutOfTheFirstToken) {
  const TokenDecoder decoder({{.id = 0, .spelling = "▁a▁b"}, {.id = 1, .spelling = "▁"}},
                             {.joining = DecodeRules::Joining::kText,
                              .metaspace = "▁",
                              .first_token_without_metaspace = true});
  EXPECT_EQ(Stream(decoder, {0, 0, 1}), (Pieces{"ab", " a b", " ", ""}));
}

// What Continue makes of the tokens behind the first `count`.
std::string Continued(const TokenDecoder& decoder, const std::vector<int32_t>& ids, size_t count) {
  TokenDecoder::Stream stream(decoder, {});
  stream.Continue(std::span(ids).first(count));
  std::string text;
  for (const int32_t id : std::span(ids).subspan(count)) text += stream.Put(id);
  return text + stream.Flush();
}

TEST(DetokenizerTest, AContinuationIsTheRestOfTheWholeText) {
  const TokenDecoder metaspace({{.id = 0, .spelling = "▁a▁b"},
                                {.id = 3, .spelling = "▁"},
                                {.id = 4, .spelling = "</s>", .special = true}},
                               {.joining = DecodeRules::Joining::kText,
                                .metaspace = "▁",
                                .first_token_without_metaspace = true});
  const TokenDecoder byte_tokens = ByteTokens();
  const TokenDecoder byte_level = ByteLevel();
  for (const TokenDecoder* decoder : {&metaspace, &byte_tokens, &byte_level}) {
    for (const std::vector<int32_t>& ids :
         {std::vector<int32_t>{4, 4, 0, 0, 3, 0}, {0, 0}, {3, 3, 0}, {4, 3, 0}, {9, 0, 0}}) {
      const std::string whole = Continued(*decoder, ids, 0);
      for (size_t count = 0; count <= ids.size(); ++count) {
        const std::vector<int32_t> before(ids.begin(), ids.begin() + static_cast<int64_t>(count));
        EXPECT_EQ(Continued(*decoder, before, 0) + Continued(*decoder, ids, count), whole) << count;
      }
    }
  }
  EXPECT_EQ(Continued(byte_tokens, {0, 0}, 1), " a");
  EXPECT_EQ(Continued(byte_tokens, {1, 2, 0}, 2), " a");  // the prompt is a run of bytes
  EXPECT_EQ(Continued(metaspace, {0, 0}, 1), " a b");
}

}  // namespace
}  // namespace quire
