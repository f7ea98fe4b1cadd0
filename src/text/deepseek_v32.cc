#include "text/deepseek_v32.h"

#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/jinja_print.h"
#include "text/jinja_value.h"
#include "text/replace_all.h"

namespace quire {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kDsml = "｜DSML｜";
constexpr int64_t kMaxWork = int64_t{1} << 30;

// As json.dumps(value, ensure_ascii=False) in Python, which the model was trained on.
std::string PrintLikePython(const OrderedJson& json) {
  jinja::Heap heap(kMaxWork);
  return jinja::PrintJson(heap, heap.FromJson(json), {});
}

// A member that is not null, or null.
const OrderedJson* Find(const OrderedJson& object, const char* key) {
  const auto member = object.find(key);
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

std::string_view RoleOf(const OrderedJson& message) {
  const OrderedJson* role = Find(message, "role");
  return role != nullptr && role->is_string() ? role->get_ref<const std::string&>()
                                              : std::string_view();
}

bool IsNonEmpty(const OrderedJson* value) { return value != nullptr && !value->empty(); }

std::string Tag(std::string_view name) { return std::string("<").append(kDsml).append(name); }
std::string EndTag(std::string_view name) {
  return std::string("</").append(kDsml).append(name).append(">");
}

class Encoder {
 public:
  Encoder(const OrderedJson& messages, const DeepseekV32Options& options)
      : messages_(messages), options_(options) {
    for (size_t i = 0; i < messages_.size(); ++i) {
      Require(messages_[i].is_object(), "messages[{}]: expected an object", i);
      if (RoleOf(messages_[i]) == "user") last_user_ = static_cast<std::ptrdiff_t>(i);
    }
  }

  std::string Run() {
    out_ = kBos;
    // Tools belong to a system message: to an empty one if there is none.
    if (options_.tools != nullptr && (messages_.empty() || RoleOf(messages_[0]) != "system")) {
      PutTools();
    }
    for (index_ = 0; index_ < messages_.size(); ++index_) PutMessage(messages_[index_]);
    return std::move(out_);
  }

 private:
  template <class... Args>
  [[noreturn]] void Refuse(fmt::format_string<Args...> message, Args&&... args) const {
    throw Error(ErrorCode::kInvalidArgument, "messages[{}]: {}", index_,
                fmt::format(message, std::forward<Args>(args)...));
  }

  void PutMessage(const OrderedJson& message) {
    const std::string_view role = RoleOf(message);
    if (role == "system") return PutSystem(message);
    if (role == "user") return PutUser(message);
    if (role == "assistant") return PutAssistant(message);
    if (role == "tool") return PutResult(message);
    Refuse("expected the role system, user, assistant or tool, got {}", QuoteForMessage(role));
  }

  std::string TextOf(const OrderedJson& message) const {
    const OrderedJson* content = Find(message, "content");
    if (content == nullptr) return "";
    if (content->is_string()) return content->get<std::string>();
    if (!content->is_array()) Refuse("expected a string or an array as content");
    std::string text;
    for (const OrderedJson& part : *content) {
      const OrderedJson* part_text = part.is_object() ? Find(part, "text") : nullptr;
      if (part_text == nullptr || !part_text->is_string()) Refuse("expected parts with text");
      text += part_text->get_ref<const std::string&>();
    }
    return text;
  }

  void PutSystem(const OrderedJson& message) {
    out_ += TextOf(message);
    if (index_ == 0 && options_.tools != nullptr) PutTools();
  }

  void PutTools() {
    Require(options_.tools->is_array(), "tools: expected an array");
    if (options_.tools->empty()) return;
    Require(!options_.tools_prompt.empty(),
            "tools: the model has no text about tools (TOOLS_SYSTEM_TEMPLATE in "
            "encoding/encoding_dsv32.py)");
    std::string schemas;
    for (const OrderedJson& tool : *options_.tools) {
      const OrderedJson* function = tool.is_object() ? Find(tool, "function") : nullptr;
      Require(function != nullptr, "tools: expected objects with a \"function\"");
      schemas += (schemas.empty() ? "" : "\n") + PrintLikePython(*function);
    }
    std::string prompt(options_.tools_prompt);
    prompt = ReplaceAll(prompt, "{dsml_token}", kDsml);
    prompt = ReplaceAll(prompt, "{thinking_start_token}", kThink);
    prompt = ReplaceAll(prompt, "{thinking_end_token}", kEndThink);
    out_ += "\n\n" + ReplaceAll(prompt, "{tool_schemas}", schemas);
  }

  bool IsAfter(std::ptrdiff_t message) const {
    return static_cast<std::ptrdiff_t>(index_) > message;
  }

  void PutUser(const OrderedJson& message) {
    out_.append(kUser).append(TextOf(message)).append(kAssistant);
    PutOpening(static_cast<std::ptrdiff_t>(index_) == last_user_);
  }

  // What an answer begins with.
  void PutOpening(bool may_think) {
    out_ += may_think && options_.mode == ThinkingMode::kThinking ? kThink : kEndThink;
  }

  void PutAssistant(const OrderedJson& message) {
    const OrderedJson* reasoning = Find(message, "reasoning_content");
    const OrderedJson* calls = Find(message, "tool_calls");
    if (options_.mode == ThinkingMode::kThinking && IsAfter(last_user_)) {
      const bool has_reasoning = reasoning != nullptr && reasoning->is_string() &&
                                 !reasoning->get_ref<const std::string&>().empty();
      if (!has_reasoning && !IsNonEmpty(calls)) {
        Refuse("expected reasoning_content or tool_calls after the last user message");
      }
      if (has_reasoning) out_ += reasoning->get_ref<const std::string&>();
      out_ += kEndThink;
    }
    out_ += TextOf(message);
    if (IsNonEmpty(calls)) PutCalls(*calls);
    out_ += kEos;
  }

  void PutCalls(const OrderedJson& calls) {
    if (!calls.is_array()) Refuse("expected an array as tool_calls");
    out_ += "\n\n" + Tag("function_calls") + ">\n";
    for (const OrderedJson& call : calls) {
      const OrderedJson* function = call.is_object() ? Find(call, "function") : nullptr;
      const OrderedJson* name =
          function != nullptr && function->is_object() ? Find(*function, "name") : nullptr;
      if (name == nullptr || !name->is_string()) Refuse("expected tool_calls with function.name");
      out_ += Tag("invoke") + " name=\"" + name->get<std::string>() + "\">\n";
      PutArguments(*function);
      out_ += "\n" + EndTag("invoke") + "\n";
    }
    out_ += EndTag("function_calls");
  }

  // An object, or the text of one.
  OrderedJson ArgumentsOf(const OrderedJson& function) const {
    const OrderedJson* arguments = Find(function, "arguments");
    if (arguments == nullptr) return OrderedJson::object();
    if (!arguments->is_string()) return *arguments;
    return ParseOrderedJson(arguments->get_ref<const std::string&>(),
                            fmt::format("messages[{}]: arguments", index_));
  }

  void PutArguments(const OrderedJson& function) {
    const OrderedJson arguments = ArgumentsOf(function);
    if (!arguments.is_object()) Refuse("expected an object as function.arguments");
    bool is_first = true;
    for (const auto& [key, value] : arguments.items()) {
      if (!std::exchange(is_first, false)) out_ += "\n";
      out_ += Tag("parameter") + " name=\"" + key + "\" string=\"";
      out_ += value.is_string() ? "true\">" : "false\">";
      out_ += value.is_string() ? value.get<std::string>() : PrintLikePython(value);
      out_ += EndTag("parameter");
    }
  }

  void PutResult(const OrderedJson& message) {
    const std::pair<size_t, size_t> place = PlaceOfResult();
    if (place.first == 1) out_ += "\n\n<function_results>";
    out_ += "\n<result>" + TextOf(message) + "</result>";
    if (place.first != place.second) return;
    out_ += "\n</function_results>\n\n";
    PutOpening(IsAfter(last_user_));
  }

  // The number of this result, from 1, and the number of calls that the answer before it made.
  std::pair<size_t, size_t> PlaceOfResult() const {
    size_t answer = index_;
    while (answer > 0 && RoleOf(messages_[answer]) == "tool") --answer;
    const OrderedJson* calls =
        RoleOf(messages_[answer]) == "assistant" ? Find(messages_[answer], "tool_calls") : nullptr;
    const size_t number = index_ - answer;
    if (calls == nullptr || calls->size() < number) Refuse("a result without a call");
    return {number, calls->size()};
  }

  const OrderedJson& messages_;
  const DeepseekV32Options& options_;
  std::ptrdiff_t last_user_ = -1;
  size_t index_ = 0;
  std::string out_;
};

}  // namespace

std::string EncodeDeepseekV32(const OrderedJson& messages, const DeepseekV32Options& options) {
  Require(messages.is_array(), "messages: expected an array");
  return Encoder(messages, options).Run();
}

}  // namespace quire
