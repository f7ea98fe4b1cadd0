#include "text/grammar/json_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "testing/error_message.h"
#include "testing/sanitized_share.h"
#include "text/grammar/random_schema.h"
#include "text/grammar/schema_validator.h"
#include "text/grammar/test_vocabulary.h"

namespace quire {
namespace {

using testing::DrawText;
using testing::ErrorMessage;
using testing::JsonTrie;
using testing::MakeTokenGrammar;
using testing::Matches;
using testing::RandomSchema;
using testing::SchemaValidator;

std::shared_ptr<const TokenGrammar> Compile(const std::string& schema) {
  return MakeTokenGrammar(JsonSchemaGrammar(OrderedJson::parse(schema), "schema"), JsonTrie());
}

std::string Refusal(const std::string& schema) {
  return ErrorMessage(
      [&] { CompileGrammar(JsonSchemaGrammar(OrderedJson::parse(schema), "schema")); });
}

struct Case {
  const char* name;
  std::string schema;
  std::vector<std::string> matching;
  std::vector<std::string> other;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {"types",
       R"({"type": ["null", "boolean", "integer"]})",
       {"null", "true", "false", "0", "-12"},
       {"1.5", "\"a\"", "[]", "nul", "-0", "01", ""}},
      {"number",
       R"({"type": "number"})",
       {"0", "-0.5", "12.25e-3", "1E9"},
       {".5", "1.", "1e", "1e100", "+1", "NaN"}},
      {"string",
       R"({"type": "string"})",
       {R"("")", R"("a\n\"\\\/\u00e9é")", "\"\xf0\x9f\x98\x80\""},
       {"\"a", "\"\n\"", R"("\x")", R"("\ud800")", "\"\xff\""}},
      {"minLength maxLength",
       R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("a\n\u0041")", "\"\xf0\x9f\x98\x80\xc3\xa9\""},
       {R"("a")", R"("abcd")"}},
      {"pattern",
       R"({"type": "string", "pattern": "^a+[\"\\\\\n]$"})",
       {R"("aa\"")", R"("a\\")", R"("a\n")"},
       {R"("a")", R"("b\"")"}},
      {"pattern without anchors",
       R"({"type": "string", "pattern": "b\\d"})",
       {R"("b1")", R"("xx b1 yy")", R"("\"b1")"},
       {R"("b")", R"("")"}},
      {"format date",
       R"({"type": "string", "format": "date"})",
       {R"("2026-02-28")", R"("1999-12-31")"},
       {R"("2026-02-30")", R"("2026-13-01")"}},
      {"format date-time",
       R"({"type": "string", "format": "date-time"})",
       {R"("2026-02-28T12:00:59Z")", R"("2026-02-28T12:00:59.25+01:00")"},
       {R"("2026-02-28")", R"("2026-02-28T24:00:00Z")"}},
      {"format others",
       R"({"anyOf": [{"format": "ipv4"}, {"format": "uuid"}, {"format": "email"}, {"format": "time"},
          {"format": "ipv6"}, {"format": "hostname"}, {"format": "duration"}]})",
       {R"("192.168.0.255")", R"("123e4567-e89b-12d3-a456-426614174000")", R"("a.b@example.org")",
        R"("12:30:00Z")", R"("fe80:0:0:0:0:0:0:1")", R"("example.org")", R"("P3DT2H")"},
       {R"("a b")", R"("-")", "1"}},
      {"minimum maximum",
       R"({"type": "integer", "minimum": -12, "maximum": 1050})",
       {"-12", "-9", "0", "7", "99", "1000", "1050"},
       {"-13", "1051", "2000", "1.5", "00"}},
      {"exclusive bounds",
       R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3})",
       {"1", "2"},
       {"0", "3"}},
      {"bounds of fractions for integers",
       R"({"type": "integer", "minimum": 0.5, "maximum": 2.5})",
       {"1", "2"},
       {"0", "3"}},
      {"bounds of numbers",
       R"({"type": "number", "minimum": -1, "exclusiveMaximum": 2})",
       {"-1", "-0.5", "0", "0.25", "1.999", "1"},
       {"2", "-1.5", "2.5", "1.0"}},
      {"one sided",
       R"({"type": "number", "minimum": 10})",
       {"10", "10.5", "123456789"},
       {"9", "-1", "9.9"}},
      {"enum",
       R"({"enum": ["a", 1, null, {"k": [true]}]})",
       {R"("a")", "1", "null", R"({"k":[true]})"},
       {R"("b")", "true"}},
      {"enum of a type", R"({"type": "string", "enum": ["a", 1]})", {R"("a")"}, {"1"}},
      {"const", R"({"const": "x"})", {R"("x")"}, {R"("y")", "x"}},
      {"properties in their order",
       R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
          "required": ["a", "b"]})",
       {R"({"a":1,"b":true})", "{ \"a\": 1, \"b\": false }", "{\n  \"a\": 1,\n  \"b\": true\n}"},
       {R"({"b":true,"a":1})", R"({"a":1})", R"({"a":1,"b":true,"c":1})", "{}"}},
      {"optional properties",
       R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c":
          {"type": "null"}}, "required": ["b"], "additionalProperties": false})",
       {R"({"b":null})", R"({"a":null,"b":null})", R"({"b":null,"c":null})",
        R"({"a":null,"b":null,"c":null})"},
       {R"({"a":null})", "{}", R"({"c":null,"b":null})", R"({"b":null,})", R"({,"b":null})"}},
      {"all optional",
       R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}})",
       {"{}", R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"},
       {R"({"b":null,"a":null})"}},
      {"additionalProperties",
       R"({"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "null"}},
          "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"a":null})", R"({"a":null,"b":1,"abc":2,"":3})", R"({"x":1})"},
       {R"({"a":1})", R"({"x":1,"ab":2})", R"({"x":null})", R"({"\u0061":1})"}},
      {"required beside additionalProperties",
       R"({"type": "object", "required": ["z"], "additionalProperties": {"type": "integer"}})",
       {R"({"z":1})", R"({"z":1,"y":2})"},
       {"{}", R"({"y":1})"}},
      {"any object", R"({"type": "object"})", {"{}", R"({"a":{"b":[1,"x",null]}})"}, {"[]", "{,}"}},
      {"items",
       R"({"type": "array", "items": {"type": "integer"}})",
       {"[]", "[1]", "[1, 2,3]", "[\n 1\n]"},
       {"[1,]", "[null]", "[,1]"}},
      {"minItems maxItems",
       R"({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2})",
       {"[null]", "[null,null]"},
       {"[]", "[null,null,null]"}},
      {"maxItems 0", R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {"prefixItems",
       R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "items": {"type":
          "boolean"}, "minItems": 1})",
       {"[1]", "[1,null]", "[1,null,true,false]"},
       {"[]", "[null]", "[1,true]"}},
      {"prefixItems alone",
       R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": false})",
       {"[]", "[1]"},
       {"[1,1]"}},
      {"any array", R"({"type": "array"})", {"[]", R"([1,"a",{},[[]]])"}, {"{}"}},
      {"anyOf",
       R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]})",
       {"1", "[1]"},
       {"null"}},
      {"oneOf of types",
       R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})",
       {"1", "\"\""},
       {"null"}},
      {"oneOf by a property",
       R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "null"}},
          "required": ["kind"]}, {"type": "object", "properties": {"kind": {"const": "b"}},
          "required": ["kind"]}]})",
       {R"({"kind":"a","x":null})", R"({"kind":"b"})"},
       {R"({"kind":"b","x":null})"}},
      {"allOf of one", R"({"allOf": [{"type": "integer"}]})", {"1"}, {"null"}},
      {"references",
       R"({"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}})",
       {"[1,2]"},
       {"[null]"}},
      {"a tree",
       R"({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"},
          {"type": "null"}]}}, "required": ["v", "next"], "title": "list", "description": "d"})",
       {R"({"v":1,"next":{"v":2,"next":null}})"},
       {R"({"v":1,"next":{"v":2}})"}},
      {"a type that is not said",
       R"({"properties": {"a": {"minimum": 3}}})",
       {R"({"a":3})"},
       {R"({"a":2})"}},
      {"anything", "{}", {"1", "[{}]", "\"a\""}, {"x"}},
      {"true", "true", {"null"}, {""}},
      {"names that are escaped",
       R"({"type": "object", "properties": {"a\"b\n": {"type": "null"}, "x/y~z": {"type": "null"}},
          "required": ["a\"b\n", "x/y~z"]})",
       {R"({"a\"b\n":null,"x/y~z":null})"},
       {R"({"ab":null})"}},
  };
  return cases;
}

TEST(JsonSchemaTest, EveryKeywordAllowsWhatItSaysAndNothingElse) {
  for (const Case& one : Cases()) {
    const auto grammar = Compile(one.schema);
    const OrderedJson schema = OrderedJson::parse(one.schema);
    for (const std::string& text : one.matching) {
      EXPECT_TRUE(Matches(grammar, text)) << one.name << ": " << text;
      EXPECT_EQ(SchemaValidator(schema).Check(OrderedJson::parse(text)), "") << one.name;
    }
    for (const std::string& text : one.other) {
      EXPECT_FALSE(Matches(grammar, text)) << one.name << ": " << text;
    }
  }
}

TEST(JsonSchemaTest, WhatIsDrawnOfEveryKeywordParsesAndValidates) {
  for (const Case& one : Cases()) {
    const auto grammar = Compile(one.schema);
    const OrderedJson schema = OrderedJson::parse(one.schema);
    std::mt19937 random(1);
    int ended = 0;
    for (int i = 0; i < 30; ++i) {
      const std::optional<std::string> text = DrawText(grammar, random);
      if (!text) continue;  // strings without a bound may be long
      ++ended;
      EXPECT_EQ(SchemaValidator(schema).Check(OrderedJson::parse(*text)), "")
          << one.name << ": " << *text;
    }
    EXPECT_GT(ended, 0) << one.name;
  }
}

TEST(JsonSchemaTest, WhatIsDrawnOfRandomSchemasParsesAndValidates) {
  const auto num_schemas = testing::SanitizedShare(uint32_t{300});
  uint32_t ended = 0;
  for (uint32_t seed = 0; seed < num_schemas; ++seed) {
    const OrderedJson schema = RandomSchema(seed).Object();
    const auto grammar = MakeTokenGrammar(JsonSchemaGrammar(schema, "schema"), JsonTrie());
    std::mt19937 random(seed);
    for (int i = 0; i < 10; ++i) {
      const std::optional<std::string> text = DrawText(grammar, random);
      if (!text) continue;
      ++ended;
      ASSERT_TRUE(OrderedJson::accept(*text)) << *text;
      ASSERT_EQ(SchemaValidator(schema).Check(OrderedJson::parse(*text)), "")
          << "seed " << seed << ": " << schema.dump() << "\n"
          << *text;
    }
  }
  EXPECT_GT(ended, num_schemas * 2500 / 300);
}

TEST(JsonSchemaTest, WhatIsNotSupportedIsRefusedByNameAndPlace) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"({"not": {}})", "schema: #: \"not\": not supported"},
      {R"({"if": {}})", "schema: #: \"if\": not supported"},
      {R"({"type": "object", "properties": {"a/b": {"multipleOf": 2}}})",
       "schema: #/properties/a~1b: \"multipleOf\": not supported"},
      {R"({"type": "object", "patternProperties": {}})",
       "schema: #: \"patternProperties\": not supported"},
      {R"({"type": "object", "minProperties": 1})", "schema: #: \"minProperties\": not supported"},
      {R"({"type": "array", "uniqueItems": true})", "schema: #: \"uniqueItems\": not supported"},
      {R"({"type": "array", "contains": {}})", "schema: #: \"contains\": not supported"},
      {R"({"type": "object", "dependentRequired": {}})",
       "schema: #: \"dependentRequired\": not supported"},
      {R"({"allOf": [{}, {}]})", "schema: #: \"allOf\": not supported with more than one schema"},
      {R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})",
       "schema: #: \"oneOf\": not supported where a value might match two schemas, here those at 0 "
       "and "
       "1 (\"anyOf\" is)"},
      {R"({"anyOf": [{}], "type": "object"})",
       "schema: #: \"type\": not supported beside \"anyOf\""},
      {R"({"$ref": "#/$defs/x", "minimum": 1})",
       "schema: #: \"minimum\": not supported beside \"$ref\""},
      {R"({"$ref": "https://example.org/x"})",
       "schema: #: \"$ref\": expected \"#\" or \"#/...\", a place in this schema, got "
       "\"https://example.org/x\""},
      {R"({"$ref": "#/$defs/x"})", "schema: #: \"$ref\": \"#/$defs/x\": no such place"},
      {R"({"$ref": "#"})",
       "grammar: rule root: expected a rule that some text matches, got one that no text does"},
      {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})",
       "grammar: rule #: expected to read something before it calls itself (left recursion)"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "grammar: rule root: expected a rule that some text matches, got one that no text does"},
      {R"({"type": "text"})", "schema: #: \"type\": expected a type of JSON, got \"text\""},
      {R"({"type": []})", "schema: #: \"type\": expected a type, got none"},
      {R"({"type": "string", "format": "color"})",
       "schema: #: \"format\": \"color\": not supported"},
      {R"({"type": "string", "format": "date", "maxLength": 3})",
       "schema: #: \"maxLength\": not supported beside \"format\""},
      {R"({"type": "string", "pattern": "a", "minLength": 3})",
       "schema: #: \"minLength\": not supported beside \"pattern\""},
      {R"x({"type": "string", "pattern": "(?=a)"})x",
       "schema: #: \"pattern\": at byte 4: expected no lookahead or lookbehind (not supported)"},
      {R"({"type": "string", "maxLength": -1})",
       "schema: #: \"maxLength\": expected an integer 0..100000, got -1"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})",
       "schema: #: \"maxItems\": expected 3 or more, as \"minItems\", got 2"},
      {R"({"type": "number", "minimum": 0.5})",
       "schema: #: \"minimum\", \"maximum\": expected an integer of at most 10^9 for a \"number\", "
       "got "
       "0.5"},
      {R"({"type": "integer", "minimum": 3, "maximum": 2})",
       "schema: #: \"minimum\", \"maximum\": expected a number between them"},
      {R"({"type": "integer", "minimum": 3, "exclusiveMinimum": 2})",
       "schema: #: \"exclusiveMinimum\": not supported beside \"minimum\""},
      {R"({"type": "object", "properties": {}, "required": ["a"], "additionalProperties": false})",
       "schema: #: \"required\": \"a\": expected among \"properties\""},
      {R"({"enum": []})", "schema: #: \"enum\": expected a value of the type"},
      {R"({"enum": ["a"], "minLength": 2})",
       "schema: #: \"minLength\": not supported beside \"enum\""},
      {"false", "schema: #: expected a schema that allows something, got false"},
      {"[]", "schema: #: expected a schema, got an array of 0"},
      {R"({"properties": {"a": false}, "required": ["a"]})",
       "schema: #/properties/a: expected a schema that allows something, got false"},
  };
  for (const auto& [schema, message] : cases) EXPECT_EQ(Refusal(schema), message) << schema;
}

TEST(JsonSchemaTest, LargeSchemasAreRefusedAndNotSlow) {
  OrderedJson wide = {{"type", "object"}, {"properties", OrderedJson::object()}};
  for (int i = 0; i < 1000; ++i)
    wide["properties"]["p" + std::to_string(i)] = {{"type", "integer"}};
  EXPECT_EQ(Refusal(wide.dump()), "no error");
  wide["properties"]["one more"] = true;
  EXPECT_EQ(Refusal(wide.dump()), "schema: #: \"properties\": expected an object of at most 1000");
  EXPECT_EQ(Refusal(R"({"type": "string", "maxLength": 100000})"), "no error");
  EXPECT_EQ(
      Refusal(R"({"type": "array", "items": {"type": "string", "maxLength": 50000}, "minItems":
      40000, "prefixItems": [{"maxLength": 100000}]})"),
      "grammar: expected at most 131072 states, got more");
}

// Two objects of so many properties, each one of the two again.
std::string SchemasOfEachOther(int num_properties) {
  OrderedJson schema = {
      {"oneOf", {{{"$ref", "#/$defs/a"}}, {{"$ref", "#/$defs/b"}}}},
  };
  for (const std::string name : {"a", "b"}) {
    OrderedJson& object = schema["$defs"][name] = {{"type", "object"}};
    for (int i = 0; i < num_properties; ++i) {
      const std::string property = "p" + std::to_string(i);
      object["properties"][property] = {{"$ref", "#/$defs/" + name}};
      object["required"].push_back(property);
    }
  }
  return schema.dump();
}

// The ways through properties of properties are num_properties^5.
TEST(JsonSchemaTest, WhatCannotBeToldApartSoonIsRefused) {
  EXPECT_EQ(Refusal(SchemasOfEachOther(2)),
            "schema: #: \"oneOf\": not supported where a value might match two schemas, here those "
            "at 0 and 1 (\"anyOf\" is)");
  const std::string too_much =
      "schema: \"oneOf\": expected schemas that can be told apart in 524288 steps, got more or "
      "larger ones (\"anyOf\" is not checked)";
  EXPECT_EQ(Refusal(SchemasOfEachOther(100)), too_much);
  if (testing::kSanitizedParts > 1) return;  // what follows takes as many steps, three times
  OrderedJson constants;
  for (int i = 0; i < 1000; ++i) constants["oneOf"].push_back({{"const", i}});
  EXPECT_EQ(Refusal(constants.dump()), "no error");
  for (int i = 1000; i < 1100; ++i) constants["oneOf"].push_back({{"const", i}});
  EXPECT_EQ(Refusal(constants.dump()), too_much);
  OrderedJson required = {{"type", "object"}};
  for (int i = 0; i < 10'000; ++i) required["required"].push_back("p" + std::to_string(i));
  required["properties"] = OrderedJson::object();
  EXPECT_EQ(Refusal(OrderedJson{{"oneOf", {required, required}}}.dump()), too_much);
}

}  // namespace
}  // namespace quire
