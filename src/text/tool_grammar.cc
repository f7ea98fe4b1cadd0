#include "text/tool_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "text/grammar/json_schema.h"
#include "text/utf8.h"

namespace quire {
namespace {

using namespace tool_tags;  // NOLINT: this file writes what they are

// What stands around the names and arguments of calls.
struct CallMarkup {
  std::string_view before = {};                  // all calls, or not
  std::string_view first_tag = {};               // nothing else begins with it
  std::string_view begin = {}, end = {};         // of all calls
  std::string_view call = {}, behind_name = {};  // of one: before its name, and behind it
  std::string_view behind_call = {};
  std::string_view between = {};  // calls
};

CallMarkup MarkupOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kDeepseekV3:
      return {.first_tag = kDeepseekCalls,
              .begin = kDeepseekCalls,
              .end = kDeepseekCallsEnd,
              .call = kDeepseekFunction,
              .behind_name = "\n```json\n",
              .behind_call = "\n```<｜tool▁call▁end｜>",
              .between = "\n"};
    case ToolFormat::kDeepseekV31:
      return {.first_tag = kDeepseekCalls,
              .begin = kDeepseekCalls,
              .end = kDeepseekCallsEnd,
              .call = kDeepseekCall,
              .behind_name = kDeepseekSeparator,
              .behind_call = kDeepseekCallEnd};
    case ToolFormat::kDeepseekV32:
      return {.before = "\n\n",
              .first_tag = kDsmlCalls,
              .begin = "<｜DSML｜function_calls>\n",
              .end = kDsmlCallsEnd,
              .call = kDsmlCall,
              .behind_name = "\">\n",
              .behind_call = "</｜DSML｜invoke>\n"};
    case ToolFormat::kKimiK2:
      return {.first_tag = kKimiCalls,
              .begin = kKimiCalls,
              .end = kKimiCallsEnd,
              .call = "<|tool_call_begin|>functions.",
              .behind_name = kKimiArguments,
              .behind_call = kKimiCallEnd};
    case ToolFormat::kGlm45:
      return {.before = "\n", .first_tag = kGlmCall, .call = kGlmCall, .behind_call = kGlmCallEnd};
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
    return options_.in_text
               ? InText(Calls(call))
               : grammar_.Sequence({grammar_.Optional(Text(markup_.before)), Calls(call)});
  }

 private:
  bool is_glm() const { return options_.format == ToolFormat::kGlm45; }

  Grammar::Expr Calls(Grammar::Rule call) {
    std::vector<Grammar::Expr> parts = {Text(markup_.begin), grammar_.Call(call)};
    if (options_.parallel) {
      parts.push_back(
          grammar_.Repeat(grammar_.Sequence({Text(markup_.between), Space(), grammar_.Call(call)}),
                          0, std::nullopt));
    }
    parts.push_back(Text(markup_.end));
    return grammar_.Sequence(std::move(parts));
  }

  Grammar::Expr InText(Grammar::Expr calls) {
    const Grammar::Expr text = TextWithout(CharactersOf(markup_.first_tag));
    return grammar_.Sequence(
        {text, grammar_.Repeat(grammar_.Sequence({calls, text}), 0, std::nullopt)});
  }

  static std::vector<char32_t> CharactersOf(std::string_view text) {
    std::vector<char32_t> characters;
    for (; !text.empty(); text.remove_prefix(ReadUtf8(text).length)) {
      characters.push_back(ReadUtf8(text).character);
    }
    return characters;
  }

  Grammar::Expr Character(char32_t one) { return grammar_.Characters({{one, one}}); }
  Grammar::Expr NoneOf(char32_t one, char32_t other) {
    return grammar_.Characters(CodePoints({{one, one}, {other, other}}).Complement());
  }

  // Any text that does not have the tag, whose first character is in it once: where the tag has begun and
  // is broken off, it begins anew, or the text goes on with a character that does neither.
  Grammar::Expr TextWithout(std::span<const char32_t> tag) {
    const char32_t first = tag.front();
    QUIRE_CHECK(tag.size() > 1 && std::ranges::count(tag, first) == 1);
    size_t i = tag.size() - 1;
    // From tag[i] on, and from back to front: what may be left of the tag, and how it may break off.
    Grammar::Expr broken = NoneOf(first, tag[i]);
    Grammar::Expr begun = Character(tag[i - 1]);
    for (--i; i > 0; --i) {
      broken =
          grammar_.Choice({NoneOf(first, tag[i]), grammar_.Sequence({Character(tag[i]), broken})});
      begun = grammar_.Sequence({Character(tag[i - 1]), grammar_.Optional(begun)});
    }
    const Grammar::Expr begins = grammar_.Repeat(begun, 0, std::nullopt);
    const Grammar::Expr strays = grammar_.Sequence({begins, Character(first), broken});
    return grammar_.Sequence(
        {grammar_.Repeat(grammar_.Choice({NoneOf(first, first), strays}), 0, std::nullopt),
         begins});
  }

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
    const bool is_held = tool.strict || !options_.in_text;
    const bool has_schema = is_held && tool.parameters.is_object() && !tool.parameters.empty();
    const OrderedJson& schema = has_schema ? tool.parameters : any;
    std::vector<Grammar::Expr> parts = {Text(markup_.call), grammar_.Literal(tool.name)};
    if (options_.format == ToolFormat::kKimiK2) {
      parts.push_back(grammar_.Literal(":"));
      parts.push_back(grammar_.Repeat(grammar_.Characters({{'0', '9'}}), 1, 3));
    }
    parts.push_back(Text(markup_.behind_name));
    if (!in_parts) {
      parts.push_back(AddJsonSchema(grammar_, schema, source));
    } else {
      parts.push_back(is_held ? Parameters(schema, source) : AnyParameters());
    }
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
    return Parameter(grammar_.Literal(name), Text(is_text ? kDsmlText : kDsmlJson), value);
  }

  // `dsml_kind` is for the one format that has it.
  Grammar::Expr Parameter(Grammar::Expr name, Grammar::Expr dsml_kind, Grammar::Expr value) {
    if (is_glm()) {
      return grammar_.Sequence({Space(), Text(kGlmKey), name, Text(kGlmKeyEnd), Space(),
                                Text(kGlmValue), value, Text(kGlmValueEnd)});
    }
    return grammar_.Sequence({Text(kDsmlKey), name, Text(kDsmlKeyEnd), dsml_kind, value,
                              Text(kDsmlValueEnd), grammar_.Literal("\n")});
  }

  Grammar::Expr AnyParameters() {
    const Grammar::Expr name = grammar_.Repeat(NoneOf('<', '"'), 1, std::nullopt);
    const Grammar::Expr kind = grammar_.Choice({Text(kDsmlText), Text(kDsmlJson)});
    const Grammar::Expr text = AddTextSchema(grammar_, {{"type", "string"}}, "any");
    return grammar_.Repeat(Parameter(name, kind, text), 0, std::nullopt);
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
