#include "text/made_up_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/test_files.h"

namespace quire {
namespace {

TEST(MadeUpTokenizerTest, EveryTokenIsTextAndIsFoundAgain) {
  constexpr int32_t kVocabSize = 102400;  // DeepSeek-V2's
  const auto tokenizer = MakeUpTokenizer(kVocabSize);
  EXPECT_EQ(tokenizer->vocab_size(), kVocabSize);
  EXPECT_EQ(tokenizer->eos(), std::nullopt);
  for (int32_t id = 256; id < kVocabSize; ++id) {
    const std::string text = tokenizer->Decode({{id}});
    ASSERT_EQ(tokenizer->Encode(text), std::vector<int32_t>{id}) << text;
  }
}

TEST(MadeUpTokenizerTest, CommonWordsComeFirstThenShortOnes) {
  const auto tokenizer = MakeUpTokenizer(1100);
  EXPECT_EQ(tokenizer->Decode({{256, 257, 355, 356, 381, 382}}), " the of light a z aa");
  // " an" is a common word, and comes once.
  const int32_t am = tokenizer->FindToken("\u0120am").value();
  EXPECT_EQ(tokenizer->Decode({{am, am + 1}}), " am ao");
}

TEST(MadeUpTokenizerTest, TextIsWordsThatAreTokensAndBytes) {
  const auto tokenizer = MakeUpTokenizer(360);
  EXPECT_EQ(tokenizer->Encode("b a\n the c"), (std::vector<int32_t>{'b', 356, '\n', 256, 358}));
  EXPECT_EQ(tokenizer->Encode(" owl"), (std::vector<int32_t>{' ', 'o', 'w', 'l'}));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("Gr\u00fc\u00dfe, a b!")), "Gr\u00fc\u00dfe, a b!");
  EXPECT_EQ(tokenizer->Encode("").size(), 0u);
}

TEST(MadeUpTokenizerTest, AVocabularyWithoutAllBytesIsRefused) {
  EXPECT_EQ(InvalidArgument([] { MakeUpTokenizer(255); }),
            "vocab_size: expected 256..2097152, so that tokens can be made up, got 255");
  EXPECT_EQ(MakeUpTokenizer(256)->Decode({{'h', 'i'}}), "hi");
}

}  // namespace
}  // namespace quire
