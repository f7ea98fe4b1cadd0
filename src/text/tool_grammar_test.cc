#include "text/tool_grammar.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "testing/error_message.h"
#include "text/grammar/schema_validator.h"
#include "text/grammar/test_vocabulary.h"
#include "text/tool_call_parser.h"
#include "text/utf8.h"

namespace quire {
namespace {

using testing::DrawText;
using testing::ErrorMessage;
using testing::JsonTrie;
using testing::MakeTokenGrammar;
using testing::Matches;
using testing::SchemaValidator;

const std::vector<ToolDefinition>& WeatherTools() {
  static const std::vector<ToolDefinition> tools = {
      {.name = "weather", .parameters = OrderedJson::parse(R"({"type": "object", "properties":
        {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer",
        "minimum": 1, "maximum": 9}, "zip": {"type": "string", "pattern": "^[0-9]{2}$"}, "at": {"$ref":
        "#/$defs/place"}}, "required": ["unit", "at"], "additionalProperties": false, "$defs": {"place":
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}})")},
      {.name = "stop_all",
       .parameters = OrderedJson::parse(
           R"({"type": "object", "properties": {}, "additionalProperties": false})")}};
  return tools;
}

struct Drawn {
  std::string content;
  std::vector<ToolCall> calls;
};

// What a parser finds in a text of a grammar.
Drawn ReadCalls(ToolFormat format, const std::string& text) {
  ToolCallParser parser(format,
                        std::make_shared<const TextParameters>(FindTextParameters(WeatherTools())));
  Drawn drawn;
  for (const ToolPieces& pieces : {parser.Put(text), parser.Flush()}) {
    drawn.content += pieces.content;
    for (const ToolCallDelta& delta : pieces.calls) {
      if (delta.name) drawn.calls.push_back({.name = *delta.name});
      drawn.calls.back().arguments += delta.arguments;
    }
  }
  EXPECT_EQ(parser.num_whole_calls(), parser.num_calls()) << text;
  return drawn;
}

void ExpectAllowed(const ToolCall& call, const std::string& text) {
  const ToolDefinition& tool = WeatherTools()[call.name == "weather" ? 0 : 1];
  EXPECT_EQ(tool.name, call.name) << text;
  ASSERT_TRUE(OrderedJson::accept(call.arguments)) << text << "\n" << call.arguments;
  EXPECT_EQ(SchemaValidator(tool.parameters).Check(OrderedJson::parse(call.arguments)), "") << text;
}

TEST(ToolCallGrammarTest, WhatIsDrawnIsCallsWithArgumentsThatTheSchemasAllow) {
  for (const ToolFormat format : kToolFormats) {
    for (const bool parallel : {false, true}) {
      const auto grammar = MakeTokenGrammar(
          ToolCallGrammar({.format = format, .tools = WeatherTools(), .parallel = parallel}),
          JsonTrie());
      std::mt19937 random(3);
      int ended = 0;
      for (int i = 0; i < 30; ++i) {
        const std::optional<std::string> text = DrawText(grammar, random);
        if (!text) continue;
        ++ended;
        const Drawn drawn = ReadCalls(format, *text);
        EXPECT_EQ(drawn.content, "") << *text;
        EXPECT_GE(drawn.calls.size(), 1u) << *text;
        EXPECT_TRUE(parallel || drawn.calls.size() == 1) << *text;
        for (const ToolCall& call : drawn.calls) ExpectAllowed(call, *text);
      }
      EXPECT_GT(ended, 20) << ToolFormatName(format);
    }
  }
}

TEST(ToolCallGrammarTest, ANamedToolIsTheOnlyOne) {
  const auto grammar = MakeTokenGrammar(ToolCallGrammar({.format = ToolFormat::kDeepseekV31,
                                                         .tools = WeatherTools(),
                                                         .name = "stop_all",
                                                         .parallel = false}));
  EXPECT_TRUE(Matches(grammar,
                      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>stop_all<｜tool▁sep｜>{}"
                      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
  EXPECT_FALSE(Matches(grammar,
                       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
                       "{\"unit\":\"C\",\"at\":[]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
}

TEST(ToolCallGrammarTest, BothWaysOfGlmAreItsTexts) {
  const auto grammar = MakeTokenGrammar(
      ToolCallGrammar({.format = ToolFormat::kGlm45, .tools = WeatherTools(), .name = "weather"}));
  EXPECT_TRUE(Matches(grammar,
                      "\n<tool_call>weather\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n"
                      "<arg_key>at</arg_key>\n<arg_value>[true]</arg_value>\n</tool_call>"));
  EXPECT_TRUE(Matches(grammar,
                      "<tool_call>weather<arg_key>unit</arg_key><arg_value>C</arg_value>"
                      "<arg_key>at</arg_key><arg_value>[]</arg_value></tool_call>"));
}

TEST(ToolCallGrammarTest, MarksAreWrittenAsTheirTokensAndStandNowhereElse) {
  const std::vector<std::string> marks = {"<tool_call>", "</tool_call>", "</arg_value>"};
  std::vector<std::string> tokens;
  for (const std::string& mark : marks) tokens.push_back(MarkedText(mark));
  const std::vector<ToolDefinition> tools = {
      {.name = "f",
       .parameters = OrderedJson::parse(R"({"type": "object", "properties": {"a": {"type":
        "string"}}, "required": ["a"]})")}};
  const auto grammar = MakeTokenGrammar(
      ToolCallGrammar(
          {.format = ToolFormat::kGlm45, .tools = tools, .parallel = false, .marks = marks}),
      testing::ByteTrie(tokens));
  GrammarMatcher matcher(grammar);
  const auto accepts_text = [&](std::string_view text) {
    for (const char byte : text) {
      if (!matcher.Accept(static_cast<uint8_t>(byte))) return false;
    }
    return true;
  };
  EXPECT_FALSE(matcher.Accept('<'));  // spelled
  EXPECT_TRUE(matcher.Accept(256));   // as a token
  EXPECT_TRUE(accepts_text("f<arg_key>a</arg_key><arg_value>text"));
  EXPECT_FALSE(matcher.Accept(256));
  EXPECT_FALSE(matcher.Accept(257));
  EXPECT_TRUE(matcher.Accept(258));
  EXPECT_TRUE(matcher.Accept(257));
  EXPECT_TRUE(matcher.is_complete());
}

// A call of "weather" with arguments that WeatherTools does not allow.
std::string DrawWrongCall(ToolFormat format) {
  const std::vector<ToolDefinition> wrong = {
      {.name = "weather",
       .parameters = OrderedJson::parse(R"({"type": "object", "properties": {"zip": {"enum":
        ["none"]}, "more": {"const": [1]}}, "required": ["zip", "more"], "additionalProperties": false})")}};
  std::mt19937 random(1);
  return DrawText(MakeTokenGrammar(
                      ToolCallGrammar({.format = format, .tools = wrong, .parallel = false}),
                      JsonTrie()),
                  random)
      .value_or("no call");
}

TEST(ToolCallGrammarTest, CallsInATextHoldStrictToolsAlone) {
  std::vector<ToolDefinition> strict = WeatherTools();
  strict[0].strict = true;
  std::vector<ToolDefinition> free = WeatherTools();
  free[0].parameters = OrderedJson::parse(R"({"not": {}})");  // never looked at
  for (const ToolFormat format : kToolFormats) {
    const auto in_text = [&](const std::vector<ToolDefinition>& tools) {
      return MakeTokenGrammar(ToolCallGrammar({.format = format, .tools = tools, .in_text = true}),
                              JsonTrie());
    };
    const auto held = in_text(strict), unheld = in_text(free);
    std::mt19937 random(7);
    const auto call = MakeTokenGrammar(
        ToolCallGrammar({.format = format, .tools = WeatherTools(), .name = "weather"}),
        JsonTrie());
    for (int i = 0; i < 5; ++i) {
      const std::string text = DrawText(call, random).value_or("too long");
      for (const std::string& around : {text, "I look. " + text, text + text + "\n\u00e9 < so"}) {
        EXPECT_TRUE(Matches(held, around)) << around;
        EXPECT_TRUE(Matches(unheld, around)) << around;
      }
    }
    const std::string wrong = DrawWrongCall(format);
    EXPECT_FALSE(Matches(held, "I look." + wrong)) << wrong;
    EXPECT_TRUE(Matches(unheld, "I look." + wrong)) << wrong;
  }
}

TEST(ToolCallGrammarTest, ATextAroundCallsHasAnythingButTheirFirstTag) {
  for (const ToolFormat format : kToolFormats) {
    const auto grammar = MakeTokenGrammar(
        ToolCallGrammar({.format = format, .tools = WeatherTools(), .in_text = true}), JsonTrie());
    const std::string tag =
        std::string(format == ToolFormat::kGlm45         ? tool_tags::kGlmCall
                    : format == ToolFormat::kKimiK2      ? tool_tags::kKimiCalls
                    : format == ToolFormat::kDeepseekV32 ? tool_tags::kDsmlCalls
                                                         : tool_tags::kDeepseekCalls);
    EXPECT_TRUE(Matches(grammar, ""));
    EXPECT_TRUE(Matches(grammar, "a < b << c \u4e16\U0001f600\n{\"x\": [1]}"));
    for (size_t i = 1; i < tag.size(); ++i) {
      const std::string part = tag.substr(0, i);
      if (!IsUtf8(part)) continue;
      for (const std::string& text : {part, part + "*", part + part, "<" + part + "*" + part}) {
        EXPECT_TRUE(Matches(grammar, text)) << text;
      }
      EXPECT_FALSE(Matches(grammar, part + tag)) << part;
      EXPECT_FALSE(Matches(grammar, part + tag + "* no call")) << part;
    }
  }
}

TEST(ToolCallGrammarTest, ASchemaThatIsNotSupportedIsRefusedWithItsTool) {
  const std::vector<ToolDefinition> tools = {
      {.name = "f", .parameters = OrderedJson::parse(R"({"not": {}})")}};
  for (const ToolFormat format : kToolFormats) {
    EXPECT_EQ(ErrorMessage([&] { (void)ToolCallGrammar({.format = format, .tools = tools}); }),
              "tools: f: parameters: #: \"not\": not supported");
  }
  const std::vector<ToolDefinition> either = {
      {.name = "f", .parameters = OrderedJson::parse(R"({"anyOf": [{"type": "object"}]})")}};
  EXPECT_NO_THROW((void)ToolCallGrammar({.format = ToolFormat::kKimiK2, .tools = either}));
  EXPECT_EQ(
      ErrorMessage([&] { (void)ToolCallGrammar({.format = ToolFormat::kGlm45, .tools = either}); }),
      "tools: f: parameters: #: \"anyOf\": not supported in this model's format");
}

TEST(GrammarTest, AGrammarMayBePartOfAnother) {
  Grammar inner;
  const Grammar::Rule letters = inner.AddRule("letters");
  inner.Define(letters, inner.Repeat(inner.Characters({{'a', 'b'}}), 1, 2));
  const Grammar::Rule root = inner.AddRule("root");
  inner.Define(root, inner.Sequence({inner.Literal("<"), inner.Call(letters), inner.Literal(">")}));
  inner.SetRoot(root);
  Grammar outer;
  const Grammar::Rule whole = outer.AddRule("whole");
  outer.Define(whole, outer.Choice({outer.Literal("none"), outer.AddGrammar(inner)}));
  outer.SetRoot(whole);
  const auto grammar = MakeTokenGrammar(outer);
  for (const char* text : {"none", "<a>", "<ba>"}) EXPECT_TRUE(Matches(grammar, text)) << text;
  for (const char* text : {"", "<>", "<aba>", "a"}) EXPECT_FALSE(Matches(grammar, text)) << text;
}

}  // namespace
}  // namespace quire
