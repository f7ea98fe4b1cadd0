// What requests and their answers take in memory, against the bytes of a body, or the tokens of an answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "io/test_files.h"
#include "serve/openai_response.h"
#include "serve/text_requests.h"
#include "step/token_constraint.h"
#include "testing/allocation_count.h"
#include "testing/sanitized_share.h"

namespace quire {
namespace {

constexpr size_t kTextBytes = testing::SampledShare(300'000);

std::unique_ptr<const Tokenizer> DeepSeekTokenizer() {
  return OpenTokenizer(QUIRE_TOKENIZERS "/deepseek_v3");
}

std::string Repeated(const std::string& unit) {
  std::string text;
  while (text.size() < kTextBytes) text += unit;
  return text;
}

// The most memory that is in use beside the body while `answer` runs, a byte of the body.
template <class Fn>
double BytesPerBodyByte(const std::string& body, Fn answer) {
  const int64_t before = testing::AllocatedBytes();
  testing::ResetPeakBytes();
  ReplyPieces pieces = answer();
  while (!pieces().empty()) {
  }
  return static_cast<double>(testing::PeakBytes() - before) / static_cast<double>(body.size());
}

TEST(ServeMemoryTest, TokenizeTakesASmallMultipleOfItsBody) {
  const auto tokenizer = DeepSeekTokenizer();
  for (const char* unit :
       {"a", "a b ", "!1", "\n\n x", "the quick brown fox ", "é", "<｜begin▁of▁sentence｜>"}) {
    for (const bool with_pieces : {false, true}) {
      const std::string body =
          nlohmann::json{{"content", Repeated(unit)}, {"with_pieces", with_pieces}}.dump();
      const double bytes = BytesPerBodyByte(body, [&] {
        const TokenizeRequest request = ParseTokenizeRequest(body);
        return TokenizeReply(tokenizer->Encode(request.text, request.options), *tokenizer,
                             request.with_pieces, 400);
      });
      EXPECT_LT(bytes, 16) << unit << " " << with_pieces;
    }
  }
}

TEST(ServeMemoryTest, OneLongWordTakesItsSymbolsOnce) {
  const TempDir folder;
  folder.Write("tokenizer.json", R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": ["a a"]}})");
  const auto tokenizer = OpenTokenizer(folder.path());
  const std::string body = nlohmann::json{{"content", Repeated("a")}}.dump();
  const double bytes = BytesPerBodyByte(body, [&] {
    const TokenizeRequest request = ParseTokenizeRequest(body);
    return TokenizeReply(tokenizer->Encode(request.text, request.options), *tokenizer, false, 400);
  });
  EXPECT_LT(bytes, 40);  // 20 of a symbol, 8 of a merge, and the text itself
}

TEST(ServeMemoryTest, DetokenizeTakesASmallMultipleOfItsBody) {
  const auto tokenizer = DeepSeekTokenizer();
  // A value of JSON takes 16 bytes, and while their list grows there are three times as many.
  for (const char* unit : {"1,", "20,", "128000,"}) {
    const std::string body = "{\"tokens\":[" + Repeated(unit) + "0]}";
    const double bytes = BytesPerBodyByte(body, [&] {
      DetokenizeRequest request = ParseDetokenizeRequest(body);
      return DetokenizeReply(std::move(request.tokens), request.options, *tokenizer);
    });
    EXPECT_LT(bytes, 40) << unit;
  }
}

// An answer of so many tokens with 20 alternatives each.
double WholeAnswerBytes(Endpoint endpoint, int64_t num_tokens) {
  const auto tokenizer = DeepSeekTokenizer();
  AnswerShape shape{.endpoint = endpoint,
                    .logprobs = true,
                    .top_logprobs = 20,
                    .token_ids = true,
                    .text_in_logprobs = true,
                    .tokenizer = tokenizer.get()};
  shape.prompts = {{.text = "a", .tokens = {1}}};
  const int64_t before = testing::AllocatedBytes();
  testing::ResetPeakBytes();
  WholeAnswer answer(std::move(shape));
  for (int64_t i = 1; i <= num_tokens; ++i) {
    TextEvent event;
    event.text.content = " word";
    event.output_tokens = i;
    event.token = TokenScore{.chosen = {.token = 20, .logprob = -1.25f}};
    for (int32_t j = 0; j < 20; ++j) {
      event.token->top.push_back({.token = 20 + j, .logprob = -1.25f - static_cast<float>(j) / 7});
    }
    if (i == num_tokens) event.finish = FinishReason::kLength;
    answer.Take(0, event);
  }
  ReplyPieces pieces = answer.Json();
  int64_t size = 0;
  for (std::string piece = pieces(); !piece.empty(); piece = pieces()) size += std::ssize(piece);
  EXPECT_GT(size, num_tokens * 400);
  return static_cast<double>(testing::PeakBytes() - before) / static_cast<double>(num_tokens);
}

TEST(ServeMemoryTest, AWholeAnswerWithLogprobsTakesAFewHundredBytesAToken) {
  // A kept token has 56 bytes and 20 times 8; their list may have grown by a half just now.
  EXPECT_LT(WholeAnswerBytes(Endpoint::kChat, 3000), 500);
  EXPECT_LT(WholeAnswerBytes(Endpoint::kCompletion, 3000), 500);
  EXPECT_LT(WholeAnswerBytes(Endpoint::kGenerate, 3000), 500);
}

// Held to nothing, by a constraint all the same.
class AnyToken : public TokenConstraint {
 public:
  bool Fill(std::span<uint32_t> mask) override {
    std::ranges::fill(mask, ~0u);
    return true;
  }
  bool Accept(int32_t) override { return true; }
  void Rollback(int64_t) override {}
  bool IsFinished() const override { return false; }
};

// One request of a client may be 256 of the engine's, of 64 answers each.
TEST(ServeMemoryTest, AnswersThatWaitHaveNoMask) {
  const RunnerLimits limits{.page_size = PageSize(64),
                            .pool_pages = PageCount(1025),
                            .context = TokenCount(4096),
                            .max_seqs = 64,
                            .max_step_tokens = TokenCount(2048),
                            .max_samples = 64,
                            .vocab_size = 129'280};
  Scheduler scheduler(limits, {});
  const int64_t before = testing::AllocatedBytes();
  for (int i = 0; i < 256; ++i) {
    Request request{.prompt = {1}, .num_samples = 64};
    request.constraint = [] { return std::make_unique<AnyToken>(); };
    ASSERT_TRUE(scheduler.Add(std::move(request)));
  }
  constexpr int64_t kAnswers = 256 * 64;
  EXPECT_LT((testing::AllocatedBytes() - before) / kAnswers, 1024);
}

}  // namespace
}  // namespace quire
