#include "text/chat_format.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "text/deepseek_v32.h"
#include "text/python_text.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kToolsTemplateFile = "additional_chat_templates/tool_use.jinja";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kEncoding = "encoding/encoding_dsv32.py";

constexpr std::array<const char*, 5> kOtherTokens = {"pad_token", "unk_token", "sep_token",
                                                     "cls_token", "mask_token"};

std::string ReadText(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

Json ReadJsonIfThere(const fs::path& path) {
  return fs::exists(path) ? ReadJsonFile(path) : Json::object();
}

// A token is written as its text, or as an object with the text as "content".
std::optional<std::string> TokenText(const JsonRef& config, const char* name) {
  const std::optional<JsonRef> token = config.Find(name);
  if (!token) return std::nullopt;
  return token->value().is_object() ? token->At("content").String() : token->String();
}

struct Sources {
  std::optional<std::pair<std::string, std::string>> plain;  // text and name
  std::optional<std::pair<std::string, std::string>> with_tools;
};

// From the list of {name, template} that tokenizer_config.json may have.
void AddNamed(const JsonRef& list, Sources* sources) {
  for (const JsonRef& entry : list.Array()) {
    const std::string name = entry.At("name").String();
    auto* const slot = name == "default"    ? &sources->plain
                       : name == "tool_use" ? &sources->with_tools
                                            : nullptr;
    if (slot != nullptr) *slot = {entry.At("template").String(), entry.At("template").where()};
  }
  Require(sources->plain.has_value(), "{}: expected one with the name \"default\"", list.where());
}

Sources FindSources(const fs::path& folder, const JsonRef& config) {
  Sources sources;
  const fs::path file = folder / kTemplateFile;
  if (fs::exists(file)) {
    sources.plain = {ReadText(file), file.string()};
    const fs::path tools_file = folder / kToolsTemplateFile;
    if (fs::exists(tools_file)) sources.with_tools = {ReadText(tools_file), tools_file.string()};
    return sources;
  }
  const std::optional<JsonRef> entry = config.Find("chat_template");
  if (!entry) return sources;
  if (entry->value().is_array()) {
    AddNamed(*entry, &sources);
  } else {
    sources.plain = {entry->String(), entry->where()};
  }
  return sources;
}

std::optional<ChatTemplate> Parse(const std::optional<std::pair<std::string, std::string>>& source,
                                  const TemplateLimits& limits) {
  if (!source) return std::nullopt;
  return ChatTemplate::Parse(source->first, source->second, limits);
}

std::string ModelType(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const Json json = ReadJsonIfThere(path);
  const std::optional<JsonRef> type = JsonRef(json, path.string()).Find("model_type");
  return type ? type->String() : "";
}

// The text between the triple quotes behind TOOLS_SYSTEM_TEMPLATE in the encoding that comes with
// DeepSeek-V3.2; empty if there is none. It is the model's, so it is read from the model.
std::string ReadToolsPrompt(const fs::path& folder) {
  constexpr std::string_view kQuotes = "\"\"\"";
  const fs::path path = folder / kEncoding;
  if (!fs::exists(path)) return "";
  const std::string program = ReadText(path);
  const size_t name = program.find("TOOLS_SYSTEM_TEMPLATE = \"\"\"");
  if (name == std::string::npos) return "";
  const size_t begin = program.find(kQuotes, name) + kQuotes.size();
  const size_t end = program.find(kQuotes, begin);
  Require(end != std::string::npos, "{}: TOOLS_SYSTEM_TEMPLATE does not end", path.string());
  const std::string prompt = program.substr(begin, end - begin);
  Require(prompt.find('\\') == std::string::npos, "{}: TOOLS_SYSTEM_TEMPLATE has escapes",
          path.string());
  return prompt;
}

bool BoolVariable(const OrderedJson* variables, const char* name) {
  if (variables == nullptr || !variables->is_object()) return false;
  const auto member = variables->find(name);
  if (member == variables->end() || member->is_null()) return false;
  Require(member->is_boolean(), "{}: expected true or false", name);
  return member->get<bool>();
}

std::string RenderDeepseekV32(const ChatRequest& request, std::string_view tools_prompt) {
  const bool thinking = BoolVariable(request.variables, "thinking") ||
                        BoolVariable(request.variables, "enable_thinking");
  return EncodeDeepseekV32(*request.messages,
                           {.mode = thinking ? ThinkingMode::kThinking : ThinkingMode::kChat,
                            .tools = request.tools,
                            .tools_prompt = tools_prompt});
}

}  // namespace

ChatFormat ChatFormat::Load(const std::filesystem::path& folder, const TemplateLimits& limits) {
  const fs::path config_path = folder / kTokenizerConfig;
  const Json config_json = ReadJsonIfThere(config_path);
  const JsonRef config(config_json, config_path.string());
  ChatFormat format;
  format.bos_token_ = TokenText(config, "bos_token");
  format.eos_token_ = TokenText(config, "eos_token");
  for (const char* name : kOtherTokens) {
    if (auto token = TokenText(config, name)) format.other_tokens_[name] = *token;
  }
  const Sources sources = FindSources(folder, config);
  format.template_ = Parse(sources.plain, limits);
  format.tools_template_ = Parse(sources.with_tools, limits);
  if (format.template_) return format;
  Require(
      ModelType(folder) == "deepseek_v32",
      "{}: found no {}, no \"chat_template\" in {}, and no model_type deepseek_v32 in config.json",
      folder.string(), kTemplateFile, kTokenizerConfig);
  format.tools_prompt_ = ReadToolsPrompt(folder);
  return format;
}

std::string ChatFormat::Render(const ChatRequest& request) const {
  QUIRE_CHECK(request.messages != nullptr);
  if (!request.continue_final_message) return RenderWhole(request);
  // A mark behind the content shows where it ends, whatever the template makes of it; the content
  // itself may stand elsewhere, too. Its own space shows whether the template trims, and then so do we.
  constexpr std::string_view kMark = "QUIRE_END_OF_THE_MESSAGE ";
  QUIRE_CHECK(!request.messages->empty() && request.messages->back().at("content").is_string());
  OrderedJson messages = *request.messages;
  messages.back()["content"].get_ref<std::string&>() += kMark;
  ChatRequest marked = request;
  marked.messages = &messages;
  marked.add_generation_prompt = false;
  std::string text = RenderWhole(marked);
  const std::string_view word = kMark.substr(0, kMark.size() - 1);
  const size_t end = text.rfind(word);
  Require(end != std::string::npos,
          "continue_final_message: the model's template does not write the last message");
  const bool trims = !text.substr(end).starts_with(kMark);
  text.resize(end);
  return trims ? std::string(jinja::StripRight(text)) : text;
}

std::string ChatFormat::RenderWhole(const ChatRequest& request) const {
  if (!template_) return RenderDeepseekV32(request, tools_prompt_);
  OrderedJson variables = OrderedJson::object();
  for (const auto& [name, text] : other_tokens_) variables[name] = text;
  if (request.variables != nullptr && !request.variables->is_null()) {
    Require(request.variables->is_object(), "variables: expected an object");
    variables.update(*request.variables);
  }
  const ChatTemplate& used =
      request.tools != nullptr && tools_template_ ? *tools_template_ : *template_;
  return used.Render(*request.messages, {.add_generation_prompt = request.add_generation_prompt,
                                         .tools = request.tools,
                                         .bos_token = bos_token_,
                                         .eos_token = eos_token_,
                                         .variables = &variables});
}

bool ChatFormat::EndsInReasoning(const std::string& prompt) {
  return jinja::StripRight(prompt).ends_with("<think>");
}

bool ChatFormat::EndsBehindReasoning(const std::string& prompt) {
  return jinja::StripRight(prompt).ends_with("</think>");
}

bool ChatFormat::WritesReasoning() const {
  const OrderedJson messages = {
      {{"role", "user"}, {"content", "a"}},
      {{"role", "assistant"}, {"content", "b"}, {"reasoning_content", "c"}}};
  try {
    return Render({.messages = &messages, .add_generation_prompt = false}).find("<think>") !=
           std::string::npos;
  } catch (const Error&) {  // a template that wants other conversations
    return false;
  }
}

}  // namespace quire
