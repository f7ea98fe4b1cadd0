// A model's chat template: turns the messages of a conversation into the text that the model reads.
//
// Templates are written in Jinja. ChatTemplate knows the part of it that docs/templates.md lists,
// and gives byte for byte what transformers' apply_chat_template gives; a template that uses
// anything else is refused when it is parsed, by name, line and construct. A template is foreign
// code: it is only ever interpreted, and rendering ends within TemplateLimits whatever it says.
#ifndef QUIRE_TEXT_CHAT_TEMPLATE_H_
#define QUIRE_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "io/json.h"

namespace quire {

namespace jinja {
struct Template;
}  // namespace jinja

struct TemplateLimits {
  int64_t max_source_bytes = int64_t{1} << 20;   // published templates have 1 to 20 KB
  int64_t max_output_bytes = int64_t{64} << 20;  // far beyond any context
  // Bytes copied, plus 16 for each expression or statement: bounds time (seconds) and memory.
  int64_t max_work = int64_t{1} << 30;
};

// What a template raised itself, with raise_exception(message): the conversation is one that the
// model was not made for. what() is the template's message and nothing else.
class TemplateRaised : public Error {
 public:
  explicit TemplateRaised(const std::string& message)
      : Error(ErrorCode::kInvalidArgument, "{}", message) {}
};

// What a template sees besides the messages. The pointers are borrowed for the call.
struct ChatOptions {
  bool add_generation_prompt = true;          // end with the opening of the assistant's turn
  const OrderedJson* tools = nullptr;         // an array as in the OpenAI API; null: none
  std::optional<std::string> bos_token = {};  // absent: undefined in the template
  std::optional<std::string> eos_token = {};
  const OrderedJson* variables = nullptr;  // an object: further names, such as thinking
  std::optional<std::tm> now = {};         // for strftime_now; absent: the local time
};

class ChatTemplate {
 public:
  // `name` is for messages. Throws Error(kInvalidArgument) with name, line and construct.
  static ChatTemplate Parse(std::string_view source, std::string_view name,
                            const TemplateLimits& limits = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `messages`: an array of objects. Throws TemplateRaised; Error(kInvalidArgument) with name and
  // line where the template fails on these messages; Error(kCapacityExceeded) beyond the limits.
  // May be called from several threads at once.
  std::string Render(const OrderedJson& messages, const ChatOptions& options) const;

 private:
  ChatTemplate(std::unique_ptr<const jinja::Template> parsed, std::string_view name,
               const TemplateLimits& limits);

  std::unique_ptr<const jinja::Template> parsed_;
  std::string name_;
  TemplateLimits limits_;
};

}  // namespace quire

#endif  // QUIRE_TEXT_CHAT_TEMPLATE_H_
