// A ChatFormat knows how a model wants its conversations written. It is found in the model's folder.
//
//   chat_template.jinja     the template; additional_chat_templates/tool_use.jinja with tools
//   tokenizer_config.json   chat_template (a string, or a list of {name, template}: "default", and
//                           "tool_use" where tools are given), if there is no such file; bos_token,
//                           eos_token and the other special tokens
//   config.json             model_type deepseek_v32: no template, text/deepseek_v32.h instead
#ifndef QUIRE_TEXT_CHAT_FORMAT_H_
#define QUIRE_TEXT_CHAT_FORMAT_H_

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "io/json.h"
#include "text/chat_template.h"

namespace quire {

// What a request says about the prompt. The pointers are borrowed for the call.
struct ChatRequest {
  const OrderedJson* messages = nullptr;  // an array of objects, required
  const OrderedJson* tools = nullptr;     // an array; null: none
  bool add_generation_prompt = true;
  // The text ends within the last message, behind its content, so that the model goes on with it.
  // Requires a content that is a text; add_generation_prompt is not looked at.
  bool continue_final_message = false;
  const OrderedJson* variables = nullptr;  // an object, such as {"thinking": true}
};

class ChatFormat {
 public:
  // Throws Error(kInvalidArgument) if the folder holds no template, with what was looked for, or
  // one that is refused.
  static ChatFormat Load(const std::filesystem::path& folder, const TemplateLimits& limits = {});

  // The text of the conversation, special tokens included: to be tokenized without adding any.
  // Throws as ChatTemplate::Render, and Error(kInvalidArgument) if the last message is to be continued
  // and the template does not write it.
  std::string Render(const ChatRequest& request) const;

  // Whether `prompt`, as rendered, leaves the model inside <think>: where a ReasoningSplitter
  // (text/reasoning.h) starts.
  static bool EndsInReasoning(const std::string& prompt);
  // The same of a prompt that ends behind </think>: the model is told not to think.
  static bool EndsBehindReasoning(const std::string& prompt);
  // Whether the template writes <think> in earlier answers: asked for a prompt that ends in neither way,
  // the model writes it too.
  bool WritesReasoning() const;

  const std::optional<std::string>& bos_token() const { return bos_token_; }
  const std::optional<std::string>& eos_token() const { return eos_token_; }

 private:
  ChatFormat() = default;

  std::string RenderWhole(const ChatRequest& request) const;

  std::optional<ChatTemplate> template_;        // absent: DeepSeek-V3.2's own encoding
  std::optional<ChatTemplate> tools_template_;  // used instead where tools are given
  std::string tools_prompt_;                    // of DeepSeek-V3.2; empty: the folder has none
  std::optional<std::string> bos_token_;
  std::optional<std::string> eos_token_;
  std::map<std::string, std::string> other_tokens_;  // "pad_token" -> its text
};

}  // namespace quire

#endif  // QUIRE_TEXT_CHAT_FORMAT_H_
