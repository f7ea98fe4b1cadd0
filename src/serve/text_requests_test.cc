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

std::string Joined(ReplyPieces pieces) {
  std::string all;
  for (std::string piece = pieces(); !piece.empty(); piece = pieces()) all += piece;
  return all;
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

TEST(TextRequestsTest, MessagesAreTokenizedAsTheModelReadsThem) {
  const TokenizeRequest request = ParseTokenizeRequest(
      R"({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false})");
  ASSERT_TRUE(request.conversation.has_value());
  EXPECT_FALSE(request.conversation->add_generation_prompt);
  EXPECT_FALSE(request.options.add_special_tokens);
  const auto refusal = [](const char* body) {
    return RefusalMessage([&] { (void)ParseTokenizeRequest(body); });
  };
  EXPECT_EQ(refusal(R"({"messages": [{"role": "user", "content": "a"}], "content": "b"})"),
            "messages: expected null beside a text, got an array of 1");
  EXPECT_EQ(refusal(R"({"content": "b", "add_generation_prompt": true})"),
            "add_generation_prompt: expected null without \"messages\", got true");
}

TEST(TextRequestsTest, WrongTokenizeBodies) {
  const auto refusal = [](const char* body) {
    return RefusalMessage([&] { (void)ParseTokenizeRequest(body); });
  };
  EXPECT_EQ(refusal("{}"), "content: missing, and so are prompt and messages");
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
  EXPECT_EQ(Joined(TokenizeReply(tokens, *tokenizer, false, 400)),
            R"({"tokens":[8,7,4,5,6],"count":5,"max_model_len":400})");
  EXPECT_EQ(Joined(TokenizeReply({8, 7, 4}, *tokenizer, true, 400)),
            R"({"tokens":[{"id":8,"piece":"<s>"},{"id":7,"piece":"Hi"},{"id":4,"piece":[226]}],)"
            R"("count":3,"max_model_len":400})");
  EXPECT_EQ(Joined(TokenizeReply({}, *tokenizer, true, 400)),
            R"({"tokens":[],"count":0,"max_model_len":400})");
}

TEST(TextRequestsTest, AReplyOfAnyLengthComesInSmallPieces) {
  const auto tokenizer = SmallTokenizer();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 100'000; ++i) tokens.push_back(i % 10);
  const auto check = [](ReplyPieces pieces) {
    std::string all;
    int num_pieces = 0;
    for (std::string piece = pieces(); !piece.empty(); piece = pieces(), ++num_pieces) {
      EXPECT_LT(piece.size(), 100'000u);
      all += piece;
    }
    EXPECT_GT(num_pieces, 2);
    return nlohmann::json::parse(all);
  };
  const nlohmann::json reply = check(TokenizeReply(tokens, *tokenizer, true, 400));
  ASSERT_EQ(reply["tokens"].size(), tokens.size());
  EXPECT_EQ(reply["tokens"][54'321]["id"], 1);
  EXPECT_EQ(reply["count"], tokens.size());
  const std::string text = tokenizer->Decode(tokens, {.skip_special_tokens = false});
  EXPECT_EQ(check(DetokenizeReply(tokens, {.skip_special_tokens = false}, *tokenizer))["content"],
            text);
  EXPECT_EQ(check(ApplyTemplateReply("x" + text))["prompt"], "x" + text);
}

TEST(TextRequestsTest, TokensHaveALimit) {
  EXPECT_EQ(RefusalMessage([] {
              (void)ParseDetokenizeRequest(R"({"tokens": [1, 2, 3]})", {.max_text_tokens = 2});
            }),
            "tokens: expected at most 2 token ids, got an array of 3");
  EXPECT_EQ(ParseDetokenizeRequest(R"({"tokens": [1, 2]})", {.max_text_tokens = 2}).tokens.size(),
            2u);
  EXPECT_EQ(ParseTokenizeRequest(R"({"content": "a"})", {.max_text_tokens = 2}).options.max_tokens,
            2u);
  EXPECT_EQ(RefusalMessage([] {
              (void)ParseDetokenizeRequest(R"({"tokens": [1, 2, 3]})", {.max_values = 4});
            }),
            "body: line 1, column 20: more values than are allowed");
}

TEST(TextRequestsTest, Detokenize) {
  const DetokenizeRequest request = ParseDetokenizeRequest(R"({"tokens": [8, 7]})");
  EXPECT_EQ(request.tokens, (std::vector<int32_t>{8, 7}));
  EXPECT_FALSE(request.options.skip_special_tokens);
  EXPECT_TRUE(ParseDetokenizeRequest(R"({"tokens": [], "skip_special_tokens": true})")
                  .options.skip_special_tokens);
  const auto tokenizer = SmallTokenizer();
  EXPECT_EQ(
      Joined(DetokenizeReply({7, 3, 4, 5, 6, 4, 9}, {.skip_special_tokens = false}, *tokenizer)),
      "{\"content\":\"Hi!€\uFFFD</s>\",\"prompt\":\"Hi!€\uFFFD</s>\",\"text\":\"Hi!€\uFFFD</s>\"}");
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
  EXPECT_EQ(Joined(ApplyTemplateReply("<s>\"a€")), "{\"prompt\":\"<s>\\\"a€\"}");
  EXPECT_EQ(RefusalMessage([] { (void)ParseApplyTemplateRequest(R"({"messages": [], "n": 2})"); }),
            "messages: expected at least one message, got an array of 0");
  EXPECT_EQ(RefusalMessage([] {
              (void)ParseApplyTemplateRequest(
                  R"({"messages": [{"role": "user", "content": "a"}], "temperature": 0})");
            }),
            "temperature: unknown field");
}

TEST(TextRequestsTest, ATemplateIsToldOfTools) {
  const std::string body = R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type":
    "function", "function": {"name": "now", "strict": true}}]})";
  const std::string expected = R"([{"type":"function","function":{"name":"now"}}])";
  EXPECT_EQ(ParseApplyTemplateRequest(body).conversation.tools.dump(), expected);
  EXPECT_EQ(ParseTokenizeRequest(body).conversation->tools.dump(), expected);
  EXPECT_EQ(RefusalMessage([] { (void)ParseTokenizeRequest(R"({"prompt": "a", "tools": []})"); }),
            "tools: expected null without \"messages\", got an array of 0");
}

}  // namespace
}  // namespace quire
