#include "text/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/grammar/json_schema.h"

namespace quire {
namespace {

using namespace tool_tags;  // NOLINT: this file writes what they are

// What stands around the names and arguments of calls.
struct CallMarkup {
  std::string_view before = {};                  // all calls, or not
  std::string_view begin = {}, end = {};         // of all calls
  std::string_view call = {}, behind_name = {};  // of one: before its name, and behind it
  std::string_view behind_call = {};
  std::string_view between = {};  // calls
};

CallMarkup MarkupOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kDeepseekV3:
      return {.begin = kDeepseekCalls,
              .end = kDeepseekCallsEnd,
              .call = kDeepseekFunction,
              .behind_name = "\n```json\n",
              .behind_call = "\n```<｜tool▁call▁end｜>",
              .between = "\n"};
    case ToolFormat::kDeepseekV31:
      return {.begin = kDeepseekCalls,
              .end = kDeepseekCallsEnd,
              .call = kDeepseekCall,
              .behind_name = kDeepseekSeparator,
              .behind_call = kDeepseekCallEnd};
    case ToolFormat::kDeepseekV32:
      return {.before = "\n\n",
              .begin = "<｜DSML｜function_calls>\n",
              .end = kDsmlCallsEnd,
              .call = kDsmlCall,
              .behind_name = "\">\n",
              .behind_call = "</｜DSML｜invoke>\n"};
    case ToolFormat::kKimiK2:
      return {.begin = kKimiCalls,
              .end = kKimiCallsEnd,
              .call = "<|tool_call_begin|>functions.",
              .behind_name = kKimiArguments,
              .behind_call = kKimiCallEnd};
    case ToolFormat::kGlm45:
      return {.before = "\n", .call = kGlmCall, .behind_call = kGlmCallEnd};
  }
  throw InternalError("a tool format that is not known");
}

std::span<const std::string_view> MarksOf(ToolFormat format) {
  static constexpr std::string_view kDeepseekMarks[] = {
      kDeepseekCalls, kDeepseekCallsEnd, kDeepseekCall, kDeepseekSeparator, kDeepseekCallEnd};
  static constexpr std::string_view kDsmlMarks[] = {"｜DSML｜"};
  static constexpr std::string_view kKimiMarks[] = {kKimiCalls, kKimiCallsEnd, kKimiCall,
                                                    kKimiArguments, kKimiCallEnd};
  static constexpr std::string_view kGlmMarks[] = {kGlmCall,   kGlmCallEnd, kGlmKey,
                                                   kGlmKeyEnd, kGlmValue,   kGlmValueEnd};
  switch (format) {
    case ToolFormat::kDeepseekV3:
    case ToolFormat::kDeepseekV31:
      return kDeepseekMarks;
    case ToolFormat::kDeepseekV32:
      return kDsmlMarks;
    case ToolFormat::kKimiK2:
      return kKimiMarks;
    case ToolFormat::kGlm45:
      return kGlmMarks;
  }
  throw InternalError("a tool format that is not known");
}

class ToolGrammarWriter {
 public:
  ToolGrammarWriter(Grammar& grammar, const ToolGrammarOptions& options)
      : grammar_(grammar), options_(options), markup_(MarkupOf(options.format)) {}

  Grammar::Expr Write() {
    std::vector<Grammar::Expr> calls;
    for (const ToolDefinition& tool : options_.tools) {
      if (!options_.name || *options_.name == tool.name) calls.push_back(Call(tool));
    }
    Require(!calls.empty(), "tools: expected one to call");
    const Grammar::Rule call = grammar_.AddRule("call");
    grammar_.Define(call, grammar_.Choice(std::move(calls)));
    std::vector<Grammar::Expr> parts = {grammar_.Optional(Text(markup_.before)),
                                        Text(markup_.begin), grammar_.Call(call)};
    if (options_.parallel) {
      parts.push_back(
          grammar_.Repeat(grammar_.Sequence({Text(markup_.between), Space(), grammar_.Call(call)}),
                          0, std::nullopt));
    }
    parts.push_back(Text(markup_.end));
    return grammar_.Sequence(std::move(parts));
  }

 private:
  bool is_glm() const { return options_.format == ToolFormat::kGlm45; }

  // Markup, with its marks as the vocabulary has them.
  Grammar::Expr Text(std::string_view text) {
    std::string marked;
    while (!text.empty()) {
      const auto mark = std::ranges::find_if(
          options_.marks, [&](const std::string& one) { return text.starts_with(one); });
      if (mark == options_.marks.end()) {
        marked += text.front();
        text.remove_prefix(1);
      } else {
        marked += MarkedText(*mark);
        text.remove_prefix(mark->size());
      }
    }
    return grammar_.Literal(marked);
  }

  // GLM-4.5 has line feeds where GLM-4.7 has none.
  Grammar::Expr Space() {
    return is_glm() ? grammar_.Optional(grammar_.Literal("\n")) : grammar_.Empty();
  }

  Grammar::Expr Call(const ToolDefinition& tool) {
    const std::string source = fmt::format("tools: {}: parameters", tool.name);
    const bool in_parts = is_glm() || options_.format == ToolFormat::kDeepseekV32;
    const OrderedJson any = {{"type", "object"}};
    const bool has_schema = tool.parameters.is_object() && !tool.parameters.empty();
    const OrderedJson& schema = has_schema ? tool.parameters : any;
    std::vector<Grammar::Expr> parts = {Text(markup_.call), grammar_.Literal(tool.name)};
    if (options_.format == ToolFormat::kKimiK2) {
      parts.push_back(grammar_.Literal(":"));
      parts.push_back(grammar_.Repeat(grammar_.Characters({{'0', '9'}}), 1, 3));
    }
    parts.push_back(Text(markup_.behind_name));
    parts.push_back(in_parts ? Parameters(schema, source)
                             : AddJsonSchema(grammar_, schema, source));
    parts.push_back(Space());
    parts.push_back(Text(markup_.behind_call));
    return grammar_.Sequence(std::move(parts));
  }

  // Arguments one by one, in the order of the schema.
  Grammar::Expr Parameters(const OrderedJson& schema, const std::string& source) {
    (void)JsonSchemaGrammar(schema, source);  // refuses what is not supported of the whole
    for (const char* other : {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}) {
      Require(!schema.contains(other), "{}: #: \"{}\": not supported in this model's format",
              source, other);
    }
    if (!schema.contains("properties")) return grammar_.Empty();
    std::vector<Grammar::Expr> parts;
    for (const auto& [name, value] : schema["properties"].items()) {
      const Grammar::Expr part = Parameter(name, value, schema, source);
      parts.push_back(IsRequired(schema, name) ? part : grammar_.Optional(part));
    }
    if (parts.empty()) return grammar_.Empty();
    return grammar_.Sequence(std::move(parts));
  }

  static bool IsRequired(const OrderedJson& schema, const std::string& name) {
    if (!schema.contains("required")) return false;
    return std::ranges::find(schema["required"], OrderedJson(name)) != schema["required"].end();
  }

  Grammar::Expr Parameter(const std::string& name, const OrderedJson& schema,
                          const OrderedJson& parameters, const std::string& source) {
    const std::string place = fmt::format("{}: {}", source, name);
    const bool is_text = IsTextSchema(schema);
    const Grammar::Expr value =
        is_text ? AddTextSchema(grammar_, schema, place) : Json(schema, parameters, place);
    if (is_glm()) {
      return grammar_.Sequence({Space(), Text(kGlmKey), grammar_.Literal(name), Text(kGlmKeyEnd),
                                Space(), Text(kGlmValue), value, Text(kGlmValueEnd)});
    }
    return grammar_.Sequence({Text(kDsmlKey), grammar_.Literal(name), Text(kDsmlKeyEnd),
                              Text(is_text ? kDsmlText : kDsmlJson), value, Text(kDsmlValueEnd),
                              grammar_.Literal("\n")});
  }

  Grammar::Expr Json(const OrderedJson& schema, const OrderedJson& parameters,
                     const std::string& place) {
    // With what it may refer to.
    OrderedJson alone = schema;
    for (const char* shared : {"$defs", "definitions"}) {
      if (alone.is_object() && parameters.contains(shared)) alone[shared] = parameters[shared];
    }
    return AddJsonSchema(grammar_, alone, place);
  }

  Grammar& grammar_;
  const ToolGrammarOptions& options_;
  const CallMarkup markup_;
};

}  // namespace

std::vector<std::string> FindToolMarks(ToolFormat format, const Tokenizer& tokenizer) {
  std::vector<std::string> found;
  for (const AddedToken& token : tokenizer.added_tokens()) {
    const auto marks = MarksOf(format);
    if (std::ranges::find(marks, token.content) != marks.end()) found.push_back(token.content);
  }
  return found;
}

Grammar::Expr AddToolCalls(Grammar& grammar, const ToolGrammarOptions& options) {
  return ToolGrammarWriter(grammar, options).Write();
}

Grammar ToolCallGrammar(const ToolGrammarOptions& options) {
  Grammar grammar;
  const Grammar::Rule root = grammar.AddRule("root");
  grammar.Define(root, AddToolCalls(grammar, options));
  grammar.SetRoot(root);
  return grammar;
}

}  // namespace quire
