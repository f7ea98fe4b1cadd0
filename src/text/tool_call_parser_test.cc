#include "text/tool_call_parser.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace quire {
namespace {

struct FoundCalls {
  std::string content;
  std::vector<ToolCall> calls;
  bool operator==(const FoundCalls&) const = default;
};
std::ostream& operator<<(std::ostream& out, const FoundCalls& found) {
  out << "content: " << found.content;
  for (const ToolCall& call : found.calls) {
    out << "\n" << call.name << " [" << call.id << "] " << call.arguments;
  }
  return out;
}

std::shared_ptr<const TextParameters> WeatherTexts() {
  return std::make_shared<const TextParameters>(TextParameters{{"weather", {"city"}}});
}

void AddPieces(const ToolPieces& pieces, FoundCalls& found) {
  found.content += pieces.content;
  for (const ToolCallDelta& delta : pieces.calls) {
    EXPECT_EQ(delta.name.has_value(), delta.index == found.calls.size());
    if (delta.name) found.calls.push_back({.id = delta.id.value_or(""), .name = *delta.name});
    ASSERT_LT(delta.index, found.calls.size());
    found.calls[delta.index].arguments += delta.arguments;
  }
}

FoundCalls ParseCalls(ToolFormat format, const std::vector<std::string_view>& pieces) {
  ToolCallParser parser(format, WeatherTexts());
  FoundCalls found;
  for (const std::string_view piece : pieces) AddPieces(parser.Put(piece), found);
  AddPieces(parser.Flush(), found);
  EXPECT_EQ(parser.num_calls(), found.calls.size());
  EXPECT_LE(parser.num_whole_calls(), parser.num_calls());
  return found;
}

struct ToolCase {
  const char* name;
  ToolFormat format;
  std::string text;
  FoundCalls expected;
};

const std::vector<ToolCase>& ToolCases() {
  using enum ToolFormat;
  static const std::vector<ToolCase> cases = {
      {"no call",
       kDeepseekV3,
       " Just <text> with ```json\n{}\n```. \n",
       {" Just <text> with ```json\n{}\n```. \n", {}}},
      {"deepseek_v3",
       kDeepseekV3,
       "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
       "{\"city\": "
       "\"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n"
       "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"I look.", {{"", "weather", R"({"city": "Paris"})"}, {"", "now", "{}"}}}},
      {"deepseek_v3, with code in the arguments and no line feeds around them",
       kDeepseekV3,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n"
       "{\"code\": \"```py\\n1```\"}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"", {{"", "run", "{\"code\": \"```py\\n1```\"}"}}}},
      {"deepseek_v31",
       kDeepseekV31,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": "
       "\"Z\\u00fcrich\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜> {} "
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"", {{"", "weather", R"({"city": "Z\u00fcrich", "days": 3})"}, {"", "now", "{}"}}}},
      {"deepseek_v31, without arguments",
       kDeepseekV31,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       {"", {{"", "now", "{}"}}}},
      {"kimi_k2",
       kKimiK2,
       "Let me see. <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
       "<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>"
       "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
       {"Let me see.",
        {{"functions.weather:0", "weather", R"({"city": "Paris"})"},
         {"functions.now:1", "now", "{}"}}}},
      {"glm45",
       kGlm45,
       "Sure.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12 <b>\"Z\xc3\xbcrich\"\n"
       "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>any</arg_key>\n"
       "<arg_value>[1, {\"a\": null}]</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>\n",
       {"Sure.",
        {{"", "weather",
          "{\"city\": \"12 <b>\\\"Z\xc3\xbcrich\\\"\\n\", \"days\": 3, \"any\": [1, {\"a\": "
          "null}]}"},
         {"", "now", "{}"}}}},
      {"glm47, which leaves out line feeds",
       kGlm45,
       "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</"
       "arg_key>"
       "<arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
       {"", {{"", "weather", R"({"city": "Paris", "days": 3})"}, {"", "now", "{}"}}}},
      {"glm45, a value that is neither text nor JSON",
       kGlm45,
       "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value>a few</arg_value>\n</tool_call>",
       {"", {{"", "weather", R"({"days": "a few"})"}}}},
      {"deepseek_v32",
       kDeepseekV32,
       "Hm.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter "
       "name=\"city\" string=\"true\">San \"Francisco\"</｜DSML｜parameter>\n<｜DSML｜parameter "
       "name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
       "name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       {"Hm.",
        {{"", "weather", R"({"city": "San \"Francisco\"", "days": 3})"}, {"", "now", "{}"}}}},
      // Broken off.
      {"in arguments",
       kDeepseekV31,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Pa",
       {"", {{"", "weather", R"({"city": "Pa)"}}}},
      {"in a name",
       kKimiK2,
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.wea",
       {"<|tool_calls_section_begin|><|tool_call_begin|>functions.wea", {}}},
      {"in a tag", kGlm45, "A <tool_ca", {"A <tool_ca", {}}},
      {"in a value that is text",
       kGlm45,
       "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ro</arg",
       {"", {{"", "weather", "{\"city\": \"Ro</arg"}}}},
      {"in a value that is JSON",
       kGlm45,
       "<tool_call>weather\n<arg_key>days</arg_key>\n<arg_value> [1",
       {"", {{"", "weather", "{\"days\": [1"}}}},
      {"behind a value",
       kGlm45,
       "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n",
       {"", {{"", "weather", R"({"city": "Rome")"}}}},
      {"in a key",
       kDeepseekV32,
       "<｜DSML｜function_calls><｜DSML｜invoke name=\"now\"><｜DSML｜parameter name=\"ci",
       {"<｜DSML｜parameter name=\"ci", {{"", "now", ""}}}},
      // Like calls, and none.
      {"a list without calls",
       kDeepseekV31,
       "See <｜tool▁calls▁begin｜> {\"name\": 1}",
       {"See <｜tool▁calls▁begin｜> {\"name\": 1}", {}}},
      {"the calls of another family",
       kGlm45,
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", {}}},
      {"a tag that is none before one that is",
       kGlm45,
       "Use <tool_call>: <tool_call>now</tool_call>",
       {"Use <tool_call>:", {{"", "now", "{}"}}}},
      {"no name",
       kKimiK2,
       "<|tool_calls_section_begin|><|tool_call_begin|>:0<|tool_call_argument_begin|>",
       {"<|tool_calls_section_begin|><|tool_call_begin|>:0<|tool_call_argument_begin|>", {}}},
      {"a long name",
       kGlm45,
       "<tool_call>" + std::string(300, 'x') + "</tool_call>",
       {"<tool_call>" + std::string(300, 'x') + "</tool_call>", {}}},
      {"a name as long as may be",
       kGlm45,
       "<tool_call>" + std::string(256, 'x') + "</tool_call>",
       {"", {{"", std::string(256, 'x'), "{}"}}}},
      {"a long key",
       kGlm45,
       "<tool_call>now<arg_key>" + std::string(257, 'x') + "</arg_key>",
       {"<arg_key>" + std::string(257, 'x') + "</arg_key>", {{"", "now", ""}}}},
      {"text between calls",
       kDeepseekV31,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>and "
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
       {"and", {{"", "now", "{}"}, {"", "now", "{}"}}}},
      {"text behind calls",
       kKimiK2,
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{"
       "}"
       "<|tool_call_end|><|tool_calls_section_end|> Done.",
       {" Done.", {{"functions.now:0", "now", "{}"}}}},
      {"arguments that are no JSON",
       kDeepseekV31,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>soon<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       {"", {{"", "now", "soon"}}}},
  };
  return cases;
}

TEST(ToolCallParserTest, CallsAreFoundInAWholeText) {
  for (const ToolCase& one : ToolCases()) {
    EXPECT_EQ(ParseCalls(one.format, {one.text}), one.expected) << one.name;
  }
}

TEST(ToolCallParserTest, CallsAreFoundAtEveryCutOfTheTextInTwo) {
  for (const ToolCase& one : ToolCases()) {
    const std::string_view text = one.text;
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      ASSERT_EQ(ParseCalls(one.format, {text.substr(0, cut), text.substr(cut)}), one.expected)
          << one.name << ", cut at " << cut;
    }
  }
}

TEST(ToolCallParserTest, CallsAreFoundByteByByteAndInPieces) {
  for (const ToolCase& one : ToolCases()) {
    std::mt19937 random(7);
    for (const size_t most : {size_t{1}, size_t{4}, size_t{12}, size_t{40}}) {
      std::vector<std::string_view> pieces;
      for (std::string_view rest = one.text; !rest.empty();
           rest.remove_prefix(pieces.back().size())) {
        pieces.push_back(rest.substr(0, 1 + random() % most));
      }
      EXPECT_EQ(ParseCalls(one.format, pieces), one.expected) << one.name << ", up to " << most;
    }
  }
}

// Every text that is cut off gives what the whole one gives, as far as it goes.
TEST(ToolCallParserTest, ATextThatBreaksOffAnywhereGivesTheCallsSoFar) {
  for (const ToolCase& one : ToolCases()) {
    for (size_t end = 0; end < one.text.size(); ++end) {
      const FoundCalls found = ParseCalls(one.format, {std::string_view(one.text).substr(0, end)});
      ASSERT_LE(found.calls.size(), one.expected.calls.size()) << one.name;
      for (size_t i = 0; i < found.calls.size(); ++i) {
        EXPECT_EQ(found.calls[i].name, one.expected.calls[i].name) << one.name << ", " << end;
        EXPECT_EQ(found.calls[i].id, one.expected.calls[i].id) << one.name << ", " << end;
      }
    }
  }
}

TEST(ToolCallParserTest, ArgumentsStreamAsTheyCome) {
  ToolCallParser parser(ToolFormat::kGlm45, WeatherTexts());
  std::vector<std::string> deltas;
  for (const char* piece : {"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Pa", "ris is",
                            " large", "</arg_value>\n</tool_call>"}) {
    for (const ToolCallDelta& delta : parser.Put(piece).calls) deltas.push_back(delta.arguments);
  }
  EXPECT_EQ(deltas, (std::vector<std::string>{"{\"city\": \"Pa", "ris is", " large", "\"}"}));
  EXPECT_EQ(parser.num_whole_calls(), 1u);
}

TEST(ToolCallParserTest, ACallIsWholeWhenItHasEnded) {
  ToolCallParser parser(ToolFormat::kDeepseekV31, nullptr);
  parser.Put("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}");
  EXPECT_EQ(parser.num_calls(), 1u);
  EXPECT_EQ(parser.num_whole_calls(), 0u);
  parser.Put("<｜tool▁call▁end｜>");
  EXPECT_EQ(parser.num_whole_calls(), 1u);
}

TEST(ToolFormatTest, FormatsHaveNamesAndAreRecognised) {
  for (const ToolFormat format : kToolFormats) {
    EXPECT_EQ(FindToolFormat(ToolFormatName(format)), format);
  }
  EXPECT_EQ(FindToolFormat("glm47"), ToolFormat::kGlm45);
  EXPECT_FALSE(FindToolFormat("auto"));
  for (const ToolCase& one : ToolCases()) {
    if (one.expected.calls.size() != 2) continue;
    if (one.format == ToolFormat::kDeepseekV3 || one.expected.content != "and") {
      EXPECT_EQ(GuessToolFormat(one.text), one.format) << one.name;
    }
  }
  EXPECT_FALSE(GuessToolFormat("<tool_call>{\"name\": \"f\"}</tool_call>"));
}

TEST(ToolsTest, WhatTemplatesReadHasWhatIsThere) {
  const std::vector<ToolDefinition> tools = {
      {.name = "a",
       .description = "does",
       .parameters = OrderedJson::parse(R"({"type": "object"})")},
      {.name = "b"}};
  EXPECT_EQ(Dump(ToolsForTemplate(tools)),
            R"([{"type":"function","function":{"name":"a","description":"does","parameters":)"
            R"({"type":"object"}}},{"type":"function","function":{"name":"b"}}])");
  EXPECT_EQ(Dump(ToolCallForTemplate({.id = "i", .name = "a", .arguments = "{}"})),
            R"({"id":"i","type":"function","function":{"name":"a","arguments":"{}"}})");
}

TEST(ToolsTest, TextParametersAreThoseWhoseSchemaAllowsNothingElse) {
  const std::vector<ToolDefinition> tools = {
      {.name = "f", .parameters = OrderedJson::parse(R"({"properties": {"text": {"type": "string"},
        "one_of": {"enum": ["a", "b"]}, "this": {"const": "x"}, "mixed": {"enum": ["a", 1]}, "number":
        {"type": "integer"}, "either": {"type": ["string", "null"]}, "any": true}})")},
      {.name = "g", .parameters = OrderedJson::parse(R"({"properties": 3})")},
      {.name = "h"}};
  EXPECT_EQ(FindTextParameters(tools), (TextParameters{{"f", {"text", "one_of", "this"}}}));
}

}  // namespace
}  // namespace quire
