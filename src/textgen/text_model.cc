#include "textgen/text_model.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "step/sampling_params.h"
#include "text/made_up_tokenizer.h"

namespace quire {

TextModel OpenTextModel(const std::filesystem::path& folder) {
  TextModel model;
  model.tokenizer = OpenTokenizer(folder);
  model.generation = ReadGenerationConfig(folder);
  if (const std::optional<int32_t> eos = model.tokenizer->eos()) {
    std::vector<int32_t>& tokens = model.generation.eos_tokens;
    const auto place = std::ranges::lower_bound(tokens, *eos);
    if (place == tokens.end() || *place != *eos) tokens.insert(place, *eos);
  }
  Require(std::ssize(model.generation.eos_tokens) <= kMaxModelStops,
          "{}: eos_token_id: expected at most {} tokens that end an answer, got {}",
          folder.string(), kMaxModelStops, model.generation.eos_tokens.size());
  try {
    model.chat = ChatFormat::Load(folder);
    model.writes_reasoning = model.chat->WritesReasoning();
  } catch (const Error& error) {
    model.no_chat = error.what();
  }
  return model;
}

TextModel MakeUpTextModel(int64_t vocab_size) {
  TextModel model;
  model.tokenizer = MakeUpTokenizer(vocab_size);
  model.no_chat = "its tokens are made up, since its folder has no tokenizer";
  return model;
}

std::vector<int32_t> EncodePrompt(const TextModel& model, std::string_view text,
                                  std::stop_token stop) {
  return model.tokenizer->Encode(text, {.add_special_tokens = true, .stop = std::move(stop)});
}

ChatPrompt MakeChatPrompt(const TextModel& model, const ChatRequest& request,
                          std::stop_token stop) {
  Require(model.chat.has_value(), "this model has no chat template: {}", model.no_chat);
  ChatPrompt prompt;
  prompt.text = model.chat->Render(request);
  prompt.tokens = model.tokenizer->Encode(prompt.text, {.stop = std::move(stop)});
  const bool is_begun = request.continue_final_message || !request.add_generation_prompt;
  if (ChatFormat::EndsInReasoning(prompt.text)) {
    prompt.reasoning = ReasoningStart::kReasoning;
  } else if (model.writes_reasoning && !is_begun && !ChatFormat::EndsBehindReasoning(prompt.text)) {
    prompt.reasoning = ReasoningStart::kEither;
  }
  return prompt;
}

}  // namespace quire
