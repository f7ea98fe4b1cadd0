#include "textgen/text_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "io/test_files.h"
#include "step/sampling_params.h"
#include "textgen/generation_config.h"

namespace quire {
namespace {

TEST(GenerationConfigTest, ReadsWhatTheMakersWant) {
  const TempDir dir;
  dir.Write("generation_config.json",
            R"({"eos_token_id": [7, 3, 7], "temperature": 0.6, "top_p": 0.95, "top_k": 20,
                "min_p": 0.01, "repetition_penalty": 1.02, "do_sample": false})");
  dir.Write("config.json", R"({"eos_token_id": 9})");
  const GenerationConfig config = ReadGenerationConfig(dir.path());
  EXPECT_EQ(config.eos_tokens, (std::vector<int32_t>{3, 7}));
  EXPECT_EQ(config.sampling.temperature, 0.6f);
  EXPECT_EQ(config.sampling.top_p, 0.95f);
  EXPECT_EQ(config.sampling.top_k, 20);
  EXPECT_EQ(config.sampling.min_p, 0.01f);
  EXPECT_EQ(config.sampling.repetition_penalty, 1.02f);
}

TEST(GenerationConfigTest, WithoutTheFileTheModelsConfigNamesItsEnd) {
  const TempDir dir;
  EXPECT_TRUE(ReadGenerationConfig(dir.path()).eos_tokens.empty());
  dir.Write("config.json", R"({"eos_token_id": 9})");
  EXPECT_EQ(ReadGenerationConfig(dir.path()).eos_tokens, std::vector<int32_t>{9});
  EXPECT_EQ(ReadGenerationConfig(dir.path()).sampling.temperature, 1.0f);
}

TEST(GenerationConfigTest, RefusesWhatCannotBe) {
  const TempDir dir;
  const auto refused = [&](const std::string& text) {
    dir.Write("generation_config.json", text);
    return InvalidArgument([&] { ReadGenerationConfig(dir.path()); }, dir.path());
  };
  EXPECT_EQ(
      refused(R"({"eos_token_id": -1})"),
      "DIR/generation_config.json: eos_token_id: expected an integer in 0..2147483647, got -1");
  EXPECT_EQ(refused(R"({"temperature": -0.5})"),
            "DIR/generation_config.json: temperature: expected 0..10000, got -0.5");
  EXPECT_EQ(refused(R"({"top_p": 2})"),
            "DIR/generation_config.json: top_p: expected 1e-06..1, got 2");
}

class TextModelTest : public ::testing::Test {
 protected:
  TextModelTest() {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy(std::filesystem::path(QUIRE_TOKENIZERS "/deepseek_v3") / name,
                            dir_.path() / name);
    }
  }

  const TempDir dir_;
};

TEST_F(TextModelTest, ItsEndTokensAreThoseOfAllFiles) {
  const int32_t eos = OpenTextModel(dir_.path()).tokenizer->eos().value();
  EXPECT_EQ(OpenTextModel(dir_.path()).generation.eos_tokens, std::vector<int32_t>{eos});
  dir_.Write("generation_config.json", R"({"eos_token_id": 100})");
  std::vector<int32_t> both{100, eos};
  std::ranges::sort(both);
  EXPECT_EQ(OpenTextModel(dir_.path()).generation.eos_tokens, both);
}

TEST_F(TextModelTest, EndTokensThatStepsHaveNoRoomForAreRefused) {
  const auto write = [&](int64_t count) {
    std::string tokens;
    for (int64_t i = 0; i < count; ++i) tokens += (i > 0 ? "," : "") + std::to_string(1000 + i);
    dir_.Write("generation_config.json", R"({"eos_token_id": [)" + tokens + "]}");
  };
  write(kMaxModelStops - 1);  // and the tokenizer's
  EXPECT_EQ(std::ssize(OpenTextModel(dir_.path()).generation.eos_tokens), kMaxModelStops);
  write(kMaxModelStops);
  EXPECT_EQ(InvalidArgument([&] { OpenTextModel(dir_.path()); }, dir_.path()),
            "DIR: eos_token_id: expected at most 64 tokens that end an answer, got 65");
}

TEST_F(TextModelTest, PromptsBeginAsTheTokenizerSays) {
  const TextModel model = OpenTextModel(dir_.path());
  const std::vector<int32_t> tokens = EncodePrompt(model, "Hello");
  EXPECT_EQ(tokens.front(), model.tokenizer->bos());
  EXPECT_EQ(model.tokenizer->Decode(tokens), "Hello");
}

TEST_F(TextModelTest, AConversationIsWrittenByItsTemplate) {
  dir_.Write("chat_template.jinja",
             "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
             "{% if thinking %}<think>{% endif %}");
  const TextModel model = OpenTextModel(dir_.path());
  const OrderedJson messages =
      ParseOrderedJson(R"([{"role": "user", "content": "Hello"}])", "messages");
  ChatPrompt prompt = MakeChatPrompt(model, {.messages = &messages});
  EXPECT_EQ(prompt.text, "<｜begin▁of▁sentence｜>[user]Hello");
  EXPECT_EQ(prompt.reasoning, ReasoningStart::kContent);
  EXPECT_EQ(prompt.tokens.front(), model.tokenizer->bos());
  EXPECT_NE(prompt.tokens[1], model.tokenizer->bos());
  const OrderedJson variables = ParseOrderedJson(R"({"thinking": true})", "variables");
  prompt = MakeChatPrompt(model, {.messages = &messages, .variables = &variables});
  EXPECT_EQ(prompt.reasoning, ReasoningStart::kReasoning);
}

// As Kimi-K2-Thinking's and GLM-4.5's.
TEST_F(TextModelTest, AModelWhoseAnswersHaveReasoningMayBeginItItself) {
  dir_.Write("chat_template.jinja",
             "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}<think>"
             "{{ m.reasoning_content or '' }}</think>{% endif %}{{ m.content }}{% endfor %}"
             "{% if add_generation_prompt %}[assistant]{% if thinking is false %}<think></think>"
             "{% endif %}{% endif %}");
  const TextModel model = OpenTextModel(dir_.path());
  const OrderedJson messages = ParseOrderedJson(
      R"([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "So"}])",
      "messages");
  const OrderedJson off = ParseOrderedJson(R"({"thinking": false})", "variables");
  const auto start = [&](const ChatRequest& request) {
    return MakeChatPrompt(model, request).reasoning;
  };
  EXPECT_EQ(start({.messages = &messages}), ReasoningStart::kEither);
  EXPECT_EQ(start({.messages = &messages, .variables = &off}), ReasoningStart::kContent);
  EXPECT_EQ(start({.messages = &messages, .continue_final_message = true}),
            ReasoningStart::kContent);
  EXPECT_EQ(start({.messages = &messages, .add_generation_prompt = false}),
            ReasoningStart::kContent);
}

TEST_F(TextModelTest, WithoutATemplateItSaysWhy) {
  const TextModel model = OpenTextModel(dir_.path());
  EXPECT_FALSE(model.chat.has_value());
  const OrderedJson messages =
      ParseOrderedJson(R"([{"role": "user", "content": "Hello"}])", "messages");
  const std::string message =
      InvalidArgument([&] { MakeChatPrompt(model, {.messages = &messages}); });
  EXPECT_TRUE(message.starts_with("this model has no chat template: ")) << message;
}

}  // namespace
}  // namespace quire
