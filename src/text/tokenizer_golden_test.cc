// What tools/make_tokenizer_goldens.py wrote down from other libraries, for a tokenizer of every
// family.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json.h"
#include "testing/sanitized_share.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace quire {
namespace {

using Ids = std::vector<int32_t>;

std::string ReadHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string TextOf(const Json& entry) {
  if (entry.contains("text")) return entry["text"];
  if (entry.contains("hex")) return ReadHex(entry["hex"]);
  std::string text;
  for (int i = 0; i < entry["times"].get<int>(); ++i) text += entry["repeat"].get<std::string>();
  return text;
}

std::string Stream(const Tokenizer& tokenizer, const Ids& ids, const DecodeOptions& options) {
  Detokenizer detokenizer(tokenizer, options);
  std::string text;
  const auto add = [&](const std::string& piece) {
    EXPECT_TRUE(IsUtf8(piece)) << QuoteForMessage(text);
    text += piece;
  };
  for (const int32_t id : ids) add(detokenizer.Put(id));
  add(detokenizer.Flush());
  return text;
}

class TokenizerGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void ExpectDecoded(const Ids& ids, const std::string& text, const std::string& skipped) const {
    for (const bool skip : {false, true}) {
      const DecodeOptions options{.skip_special_tokens = skip};
      EXPECT_EQ(tokenizer_->Decode(ids, options), skip ? skipped : text);
      EXPECT_EQ(Stream(*tokenizer_, ids, options), skip ? skipped : text);
    }
  }

  const std::filesystem::path root_ = QUIRE_TOKENIZERS;
  const std::filesystem::path folder_ = root_ / GetParam();
  const std::unique_ptr<const Tokenizer> tokenizer_ = OpenTokenizer(folder_);
  const Json expected_ = ReadJsonFile(folder_ / "expected.json");
};

TEST_P(TokenizerGoldenTest, TextsBecomeTheSameIds) {
  const Json texts = ReadJsonFile(root_ / "texts.json");
  ASSERT_EQ(texts.size(), expected_["encode"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = TextOf(texts[i]);
    SCOPED_TRACE(QuoteForMessage(ReplaceIllFormed(text)));
    const Json& expected = expected_["encode"][i];
    const Json ids = expected["ids"];
    EXPECT_EQ(Json(tokenizer_->Encode(text)), ids);
    EXPECT_EQ(Json(tokenizer_->Encode(text, {.parse_special_tokens = false})),
              expected.value("plain", ids));
    if (i % 16 == 0) {
      EXPECT_EQ(Json(tokenizer_->Encode(text, {.add_special_tokens = true})),
                expected.value("framed", ids));
    }
  }
}

TEST_P(TokenizerGoldenTest, IdsBecomeTheSameTexts) {
  const Json texts = ReadJsonFile(root_ / "texts.json");
  for (size_t i = 0; i < texts.size(); ++i) {
    const Json& expected = expected_["encode"][i];
    const std::string text = expected.value("text", ReplaceIllFormed(TextOf(texts[i])));
    SCOPED_TRACE(QuoteForMessage(text));
    ExpectDecoded(expected["ids"], text, expected.value("skipped", text));
  }
}

TEST_P(TokenizerGoldenTest, RandomIdsBecomeTheSameTexts) {
  for (const Json& expected : expected_["decode"]) {
    SCOPED_TRACE(expected["ids"].dump());
    ExpectDecoded(expected["ids"], expected["text"], expected["skipped"]);
  }
}

TEST_P(TokenizerGoldenTest, EveryTokenIsFoundByItsSpelling) {
  EXPECT_GT(tokenizer_->vocab_size(), 800);
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    EXPECT_EQ(tokenizer_->FindToken(tokenizer_->TokenSpelling(id)), id);
  }
  for (const AddedToken& token : tokenizer_->added_tokens()) {
    EXPECT_EQ(tokenizer_->TokenSpelling(token.id), token.content);
    EXPECT_EQ(tokenizer_->IsSpecial(token.id), token.special);
  }
  EXPECT_EQ(tokenizer_->TokenSpelling(tokenizer_->vocab_size()), "");
  EXPECT_EQ(tokenizer_->TokenBytes(-1), "");
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGoldenTest,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "glm4", "kimi",
                                           "metaspace", "minicpm3", "splits"),
                         [](const auto& family) { return family.param; });

TEST(TokenizerTest, RolesAreThoseOfTheConfig) {
  const auto tokenizer = OpenTokenizer(std::filesystem::path(QUIRE_TOKENIZERS) / "kimi");
  EXPECT_EQ(tokenizer->bos(), tokenizer->FindToken("[BOS]"));
  EXPECT_EQ(tokenizer->eos(), tokenizer->FindToken("[EOS]"));
  EXPECT_EQ(tokenizer->pad(), tokenizer->FindToken("[PAD]"));
  EXPECT_EQ(tokenizer->unk(), tokenizer->FindToken("[UNK]"));
  EXPECT_FALSE(OpenTokenizer(std::filesystem::path(QUIRE_TOKENIZERS) / "splits")->bos());
}

// Runs that a quadratic step would not get through.
TEST(TokenizerTest, LongRunsAreEncodedAndDecoded) {
  for (const char* family : {"deepseek_v2", "deepseek_v3", "glm4", "kimi"}) {
    const auto tokenizer = OpenTokenizer(std::filesystem::path(QUIRE_TOKENIZERS) / family);
    for (const std::string unit : {"a", " ", "\n", "1", "-", "ก", "\u0301", "<", "A"}) {
      std::string text;
      while (text.size() < testing::SanitizedShare(size_t{300'000})) text += unit;
      text += "1";  // so that a run of spaces is not at the end
      SCOPED_TRACE(std::string(family) + " " + QuoteForMessage(unit));
      EXPECT_TRUE(tokenizer->Decode(tokenizer->Encode(text)) == text);
    }
  }
}

}  // namespace
}  // namespace quire
