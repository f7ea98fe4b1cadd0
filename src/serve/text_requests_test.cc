#include "serve/text_requests.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/test_tokenizer.h"

namespace quire {
namespace {

template <class Fn>
std::string RefusalMessage(Fn fn) {
  try {
    fn();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    return error.what();
  }
  return "no error";
}

TEST(TextRequestsTest, ContentIsTokenizedAsItIsAndAPromptAsAModelReadsIt) {
  EXPECT_FALSE(ParseTokenizeRequest(R"({"content": "a"})").options.add_special_tokens);
  EXPECT_TRUE(ParseTokenizeRequest(R"({"prompt": "a"})").options.add_special_tokens);
  const TokenizeRequest request = ParseTokenizeRequest(
      R"({"content": "", "add_special": true, "parse_special": false, "with_pieces": true,
          "model": "m"})");
  EXPECT_EQ(request.text, "");
  EXPECT_TRUE(request.options.add_special_tokens && request.with_pieces);
  EXPECT_FALSE(request.options.parse_special_tokens);
  EXPECT_EQ(request.model, "m");
  EXPECT_FALSE(ParseTokenizeRequest(R"({"prompt": "a", "add_special_tokens": false})")
                   .options.add_special_tokens);
}

TEST(TextRequestsTest, WrongTokenizeBodies) {
  const auto refusal = [](const char* body) {
    return RefusalMessage([&] { (void)ParseTokenizeRequest(body); });
  };
  EXPECT_EQ(refusal("{}"), "content: missing, and so is prompt");
  EXPECT_EQ(refusal(R"({"content": "a", "prompt": "b"})"),
            "prompt: expected null beside \"content\", got \"b\"");
  EXPECT_EQ(refusal(R"({"content": 3})"), "content: expected a string, got 3");
  EXPECT_EQ(refusal(R"({"content": "a", "pieces": true})"), "pieces: unknown field");
  EXPECT_EQ(refusal(R"({"content": "a", "add_special": true, "add_special_tokens": true})"),
            "add_special: expected null beside \"add_special_tokens\", got true");
}

TEST(TextRequestsTest, TokensAndPieces) {
  const auto tokenizer = SmallTokenizer();
  const std::vector<int32_t> tokens = tokenizer->Encode("Hi€", {.add_special_tokens = true});
  EXPECT_EQ(TokenizeJson(tokens, *tokenizer, false), R"({"tokens":[8,7,4,5,6],"count":5})");
  EXPECT_EQ(TokenizeJson({tokens.data(), 3}, *tokenizer, true),
            R"({"tokens":[{"id":8,"piece":"<s>"},{"id":7,"piece":"Hi"},{"id":4,"piece":[226]}],)"
            R"("count":3})");
  EXPECT_EQ(TokenizeJson({}, *tokenizer, true), R"({"tokens":[],"count":0})");
}

TEST(TextRequestsTest, Detokenize) {
  const DetokenizeRequest request = ParseDetokenizeRequest(R"({"tokens": [8, 7]})");
  EXPECT_EQ(request.tokens, (std::vector<int32_t>{8, 7}));
  EXPECT_FALSE(request.options.skip_special_tokens);
  EXPECT_TRUE(ParseDetokenizeRequest(R"({"tokens": [], "skip_special_tokens": true})")
                  .options.skip_special_tokens);
  EXPECT_EQ(DetokenizeJson("a\"€"), "{\"content\":\"a\\\"€\"}");
  const auto refusal = [](const char* body) {
    return RefusalMessage([&] { (void)ParseDetokenizeRequest(body); });
  };
  EXPECT_EQ(refusal("{}"), "tokens: missing");
  EXPECT_EQ(refusal(R"({"tokens": "8"})"), "tokens: expected an array of token ids, got \"8\"");
  EXPECT_EQ(refusal(R"({"tokens": [1, -1]})"),
            "tokens[1]: expected an integer 0..2147483647, got -1");
  EXPECT_EQ(refusal(R"({"tokens": [2147483648]})"),
            "tokens[0]: expected an integer 0..2147483647, got 2147483648");
}

TEST(TextRequestsTest, ApplyTemplate) {
  const ApplyTemplateRequest request = ParseApplyTemplateRequest(
      R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false,
          "chat_template_kwargs": {"thinking": true}, "model": "m"})");
  const ChatRequest chat = request.conversation.ToChatRequest();
  EXPECT_EQ(chat.messages->dump(), R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(chat.variables->dump(), R"({"thinking":true})");
  EXPECT_FALSE(chat.add_generation_prompt);
  EXPECT_EQ(chat.tools, nullptr);
  EXPECT_EQ(ApplyTemplateJson("<s>a"), R"({"prompt":"<s>a"})");
  EXPECT_EQ(RefusalMessage([] { (void)ParseApplyTemplateRequest(R"({"messages": [], "n": 2})"); }),
            "messages: expected at least one message, got an array of 0");
  EXPECT_EQ(RefusalMessage([] {
              (void)ParseApplyTemplateRequest(
                  R"({"messages": [{"role": "user", "content": "a"}], "temperature": 0})");
            }),
            "temperature: unknown field");
}

}  // namespace
}  // namespace quire
