#include "text/tiktoken.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "io/test_files.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string Line(std::string_view bytes, int id) {
  std::string line;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t k) {
      return i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u;
    };
    const uint32_t bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (size_t k = 0; k < 4; ++k) {
      line += i + k > bytes.size() ? '=' : kBase64[bits >> (18 - 6 * k) & 63];
    }
  }
  return line + " " + std::to_string(id) + "\n";
}

// Every byte, and then these.
std::string Ranks(const std::vector<std::string>& tokens) {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte)
    ranks += Line(std::string(1, static_cast<char>(byte)), byte);
  for (size_t i = 0; i < tokens.size(); ++i) ranks += Line(tokens[i], static_cast<int>(256 + i));
  return ranks;
}

TokenizerConfig Config() {
  return {.where = "c.json",
          .bos_token = "[BOS]",
          .added_tokens = {{.id = 258, .content = "[BOS]", .special = true, .control = true},
                           {.id = 260, .content = "<think>"}}};
}

std::string RanksRefusal(std::string_view ranks, const TokenizerConfig& config = Config()) {
  return InvalidArgument([&] { (void)ParseTiktoken(ranks, "t.model", config); });
}

TEST(TiktokenTest, RanksAreMergesAndIds) {
  const Tokenizer tokenizer(ParseTiktoken(Ranks({"bc", "abc"}), "t.model", Config()));
  EXPECT_EQ(tokenizer.Encode("abc"), (std::vector<int32_t>{257}));
  EXPECT_EQ(tokenizer.Encode("bcd"), (std::vector<int32_t>{256, 'd'}));
  EXPECT_EQ(tokenizer.Decode({{257, 'd'}}), "abcd");
  EXPECT_EQ(tokenizer.bos(), 258);
}

TEST(TiktokenTest, BehindTheRanksAre256SpecialTokens) {
  const Tokenizer tokenizer(ParseTiktoken(Ranks({"bc", "abc"}), "t.model", Config()));
  EXPECT_EQ(tokenizer.vocab_size(), 258 + 256);
  EXPECT_EQ(tokenizer.Encode("[BOS]<think><|reserved_token_300|>"),
            (std::vector<int32_t>{258, 260, 300}));
  EXPECT_TRUE(tokenizer.IsSpecial(258));
  EXPECT_FALSE(tokenizer.IsSpecial(260));
  // As text, whether the config calls them special or not.
  EXPECT_EQ(tokenizer.Encode("<think>", {.parse_special_tokens = false}).size(), 7);
}

TEST(TiktokenTest, LinesThatAreNoTokensAreRefused) {
  EXPECT_EQ(RanksRefusal("IQ== 0\nIg\n"),
            "t.model: line 2: expected a token in base64, a space and an id below 2097152, got "
            "\"Ig\"");
  for (const char* line : {"IQ=", "IQ== ", "IQ== x", "IQ== -1", "IQ== 1 2", "I*== 1", " 1",
                           "IQ== 2097152", "IQ==  1"}) {
    EXPECT_TRUE(RanksRefusal(line).starts_with("t.model: line 1: expected a token")) << line;
  }
  EXPECT_EQ(RanksRefusal("IQ== 0\nIQ== 1\n"),
            "t.model: line 2: expected a new token with a new id, got \"IQ== 1\"");
  EXPECT_EQ(RanksRefusal("IQ== 0\n\nIg== 0\n"),
            "t.model: line 3: expected a new token with a new id, got \"Ig== 0\"");
  EXPECT_EQ(RanksRefusal(Line(std::string(1025, 'a'), 0)),
            "t.model: line 1: expected a token of at most 1024 bytes, got 1025");
}

TEST(TiktokenTest, EveryByteAndEveryIdMustBeThere) {
  EXPECT_EQ(RanksRefusal("IQ== 0\n"),
            "t.model: expected a token for every byte, got none for 0x00");
  EXPECT_EQ(RanksRefusal(Ranks({}) + Line("ab", 300)),
            "t.model: expected ids below the number of tokens, 257, got 300");
}

TEST(TiktokenTest, SpecialTokensThatContradictAreRefused) {
  TokenizerConfig config = Config();
  config.added_tokens[0].id = 7;
  EXPECT_EQ(RanksRefusal(Ranks({"bc", "abc"}), config),
            "c.json: added_tokens_decoder: expected ids of at least 258 and below 514, got 7");
  config = Config();
  config.added_tokens[1].content = "[BOS]";
  EXPECT_EQ(RanksRefusal(Ranks({"bc", "abc"}), config),
            "c.json: added_tokens_decoder.260: expected a new token, got \"[BOS]\" again");
  config = Config();
  config.bos_token = "<s>";
  EXPECT_EQ(RanksRefusal(Ranks({"bc", "abc"}), config),
            R"(c.json: bos_token: expected a token of the vocabulary, got "<s>")");
}

TEST(TiktokenTest, AFolderNeedsTheConfigToo) {
  const TempDir folder;
  folder.Write("tiktoken.model", Ranks({}));
  EXPECT_NE(InvalidArgument([&] { (void)OpenTokenizer(folder.path()); }, folder.path())
                .find("DIR/tokenizer_config.json"),
            std::string::npos);
}

}  // namespace
}  // namespace quire
