#include "text/chat_template.h"

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/jinja_eval.h"
#include "text/jinja_objects.h"
#include "text/jinja_parser.h"
#include "text/jinja_scope.h"
#include "text/jinja_value.h"

namespace quire {
namespace {

using jinja::Heap;
using jinja::Scope;
using jinja::Value;

// The text of a message's reasoning, under whichever name it comes; null if there is none.
const Value* FindReasoning(Heap& heap, const jinja::Dict& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* value = jinja::FindKey(heap, message, name);
    if (value != nullptr && !value->Is(jinja::Kind::kNone)) return value;
  }
  return nullptr;
}

// A message as templates know it: with its reasoning under both names that they use, in the order
// in which transformers arranges it.
Value MessageValue(Heap& heap, const OrderedJson& json) {
  const Value plain = heap.FromJson(json);
  const jinja::Dict& message = plain.AsDict();
  const Value* const reasoning = FindReasoning(heap, message);
  if (reasoning == nullptr) return plain;
  const Value* const thinking = jinja::FindKey(heap, message, "thinking");
  std::vector<std::pair<Value, Value>> members;
  members.emplace_back(heap.String("thinking"), thinking != nullptr ? *thinking : *reasoning);
  for (const auto& [key, value] : message.members) {
    if (key.AsString() == "thinking") continue;
    members.emplace_back(key, key.AsString() == "reasoning_content" ? *reasoning : value);
  }
  if (jinja::FindKey(heap, message, "reasoning_content") == nullptr) {
    members.emplace_back(heap.String("reasoning_content"), *reasoning);
  }
  return heap.DictOf(std::move(members));
}

Value MessagesValue(Heap& heap, const OrderedJson& messages) {
  Require(messages.is_array(), "messages: expected an array");
  std::vector<Value> values;
  for (const OrderedJson& message : messages) {
    Require(message.is_object(), "messages[{}]: expected an object", values.size());
    values.push_back(MessageValue(heap, message));
  }
  return heap.List(std::move(values));
}

// Everything that a template can name without setting it.
void DefineVariables(Heap& heap, const OrderedJson& messages, const ChatOptions& options,
                     Scope* scope) {
  jinja::DefineFunctions(heap, options.now, scope);
  scope->Set("messages", MessagesValue(heap, messages));
  scope->Set("tools", options.tools != nullptr ? heap.FromJson(*options.tools) : Value::None());
  scope->Set("documents", Value::None());
  scope->Set("add_generation_prompt", Value::Bool(options.add_generation_prompt));
  if (options.bos_token) scope->Set("bos_token", heap.String(*options.bos_token));
  if (options.eos_token) scope->Set("eos_token", heap.String(*options.eos_token));
  if (options.variables == nullptr || options.variables->is_null()) return;
  Require(options.variables->is_object(), "variables: expected an object");
  for (const auto& member : options.variables->items()) {
    scope->Set(member.key(), heap.FromJson(member.value()));
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::Template> parsed, std::string_view name,
                           const TemplateLimits& limits)
    : parsed_(std::move(parsed)), name_(name), limits_(limits) {}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::Parse(std::string_view source, std::string_view name,
                                 const TemplateLimits& limits) {
  Require(std::ssize(source) <= limits.max_source_bytes, "{}: expected at most {} bytes, got {}",
          name, limits.max_source_bytes, source.size());
  auto parsed = std::make_unique<const jinja::Template>(jinja::ParseTemplate(source, name));
  return {std::move(parsed), name, limits};
}

std::string ChatTemplate::Render(const OrderedJson& messages, const ChatOptions& options) const {
  Heap heap(limits_.max_work);
  Scope globals(nullptr);
  jinja::Renderer renderer(*parsed_, heap, globals, limits_.max_output_bytes);
  try {
    DefineVariables(heap, messages, options, &globals);
    return renderer.Run();
  } catch (const TemplateRaised&) {
    throw;
  } catch (const Error& error) {
    throw Error(error.code(), "{}: line {}: {}", name_, renderer.line(), error.what());
  }
}

}  // namespace quire
