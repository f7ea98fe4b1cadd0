// A TextModel is what a model's folder says about text: its tokenizer, its way to write conversations,
// and the tokens that end its answers.
#ifndef QUIRE_TEXTGEN_TEXT_MODEL_H_
#define QUIRE_TEXTGEN_TEXT_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_format.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"
#include "textgen/generation_config.h"

namespace quire {

// Immutable: any number of threads may use it.
struct TextModel {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<ChatFormat> chat;  // absent: the folder has no template that can be used,
  std::string no_chat;             // and this says why
  bool writes_reasoning = false;   // ChatFormat::WritesReasoning
  GenerationConfig generation;     // its eos_tokens are those of the tokenizer too
};

// Throws Error(kInvalidArgument), with the file, the key, the expected and the actual.
TextModel OpenTextModel(const std::filesystem::path& folder);
// Of a model whose weights are made up, and whose folder has no tokenizer: its tokens are made up, too
// (text/made_up_tokenizer.h). It does not chat, and nothing but a limit ends its answers.
TextModel MakeUpTextModel(int64_t vocab_size);

// The tokens of a text to be continued, with what the tokenizer puts before every text. `stop` as in
// EncodeOptions.
std::vector<int32_t> EncodePrompt(const TextModel& model, std::string_view text,
                                  std::stop_token stop = {});

// A conversation, to be continued by the model's answer.
struct ChatPrompt {
  std::string text;
  std::vector<int32_t> tokens;
  ReasoningStart reasoning = ReasoningStart::kContent;
};

// Throws Error(kInvalidArgument) if the model has no template, or as ChatFormat::Render.
ChatPrompt MakeChatPrompt(const TextModel& model, const ChatRequest& request,
                          std::stop_token stop = {});

}  // namespace quire

#endif  // QUIRE_TEXTGEN_TEXT_MODEL_H_
