#include "serve/constraint_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/openai_request.h"

namespace quire {
namespace {

using ConstraintKind = TextConstraint::Kind;

std::optional<TextConstraint> ChatConstraint(const std::string& field) {
  return ParseChatCompletionRequest(
             R"({"messages": [{"role": "user", "content": "x"}], )" + field + "}", {})
      .generation.constraint;
}

std::optional<TextConstraint> GenerateConstraint(const std::string& params) {
  return ParseGenerateRequest(R"({"text": "x", "sampling_params": {)" + params + "}}", {})
      .generation.constraint;
}

std::string ConstraintRefusal(const std::string& field) {
  try {
    (void)ChatConstraint(field);
  } catch (const ApiError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ConstraintFieldsTest, EveryNameSaysTheSame) {
  const std::string schema = R"({"type":"object","properties":{"b":{},"a":{}}})";
  const std::vector<std::pair<std::string, std::string>> schemas = {
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
          "description": "d", "schema": )" +
           schema + "}}",
       "response_format.json_schema.schema"},
      {R"("structured_outputs": {"json": )" + schema + "}", "structured_outputs.json"},
      {R"("guided_json": )" + schema, "guided_json"},
      {R"("guided_json": )" + Json(schema).dump(), "guided_json"},
  };
  for (const auto& [field, source] : schemas) {
    const std::optional<TextConstraint> constraint = ChatConstraint(field);
    ASSERT_TRUE(constraint) << field;
    EXPECT_EQ(constraint->kind, ConstraintKind::kJsonSchema);
    EXPECT_EQ(constraint->texts, std::vector<std::string>{schema});  // in the order of its keys
    EXPECT_EQ(constraint->source, source);
  }
  EXPECT_EQ(ChatConstraint(R"("response_format": {"type": "json_object"})")->kind,
            ConstraintKind::kJsonObject);
  EXPECT_EQ(ChatConstraint(R"("structured_outputs": {"json_object": true})")->kind,
            ConstraintKind::kJsonObject);
  for (const char* field :
       {R"("guided_regex": "a+")", R"("structured_outputs": {"regex": "a+"})"}) {
    EXPECT_EQ(ChatConstraint(field)->kind, ConstraintKind::kRegex);
    EXPECT_EQ(ChatConstraint(field)->texts, std::vector<std::string>{"a+"});
  }
  for (const char* field :
       {R"("guided_choice": ["a", "b"])", R"("structured_outputs": {"choice": ["a", "b"]})"}) {
    EXPECT_EQ(ChatConstraint(field)->kind, ConstraintKind::kChoice);
    EXPECT_EQ(ChatConstraint(field)->texts, (std::vector<std::string>{"a", "b"}));
  }
  for (const char* field : {R"("guided_grammar": "root ::= [a]")",
                            R"("structured_outputs": {"grammar": "root ::= [a]"})"}) {
    EXPECT_EQ(ChatConstraint(field)->kind, ConstraintKind::kEbnf);
  }
  EXPECT_EQ(GenerateConstraint(R"("json_schema": "{}")")->kind, ConstraintKind::kJsonSchema);
  EXPECT_EQ(GenerateConstraint(R"("regex": "a")")->kind, ConstraintKind::kRegex);
  EXPECT_EQ(GenerateConstraint(R"("ebnf": "root ::= [a]")")->kind, ConstraintKind::kEbnf);
}

TEST(ConstraintFieldsTest, NothingAskedForIsNoConstraint) {
  for (const char* field :
       {R"("n": 1)", R"("response_format": {"type": "text"})", R"("response_format": null)",
        R"("structured_outputs": {})", R"("structured_outputs": {"json_object": false})",
        R"("guided_json": null)"}) {
    EXPECT_FALSE(ChatConstraint(field)) << field;
  }
}

TEST(ConstraintFieldsTest, WhatIsWrongIsRefusedByName) {
  EXPECT_EQ(
      ConstraintRefusal(R"("response_format": {"type": "xml"})"),
      "response_format.type: expected \"text\", \"json_object\" or \"json_schema\", got \"xml\"");
  EXPECT_EQ(ConstraintRefusal(R"("response_format": {"type": "json_schema"})"),
            "response_format.json_schema: missing");
  EXPECT_EQ(ConstraintRefusal(
                R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})"),
            "response_format.json_schema.schema: missing");
  EXPECT_EQ(ConstraintRefusal(R"("response_format": {"type": "text", "schema": {}})"),
            "response_format.schema: unknown field");
  EXPECT_EQ(ConstraintRefusal(R"("structured_outputs": {"structural_tag": "x"})"),
            "structured_outputs.structural_tag: unknown field");
  EXPECT_EQ(ConstraintRefusal(R"("guided_choice": [])"),
            "guided_choice: expected an array of 1..10000 strings, got an array of 0");
  EXPECT_EQ(ConstraintRefusal(R"("guided_choice": ["a", 1])"),
            "guided_choice[1]: expected a string, got 1");
  EXPECT_EQ(ConstraintRefusal(R"("guided_json": 7)"),
            "guided_json: expected a JSON Schema, or the text of one, got 7");
  EXPECT_EQ(ConstraintRefusal(R"("guided_regex": "a", "guided_choice": ["a"])"),
            "guided_choice: expected one constraint, got guided_regex too");
}

}  // namespace
}  // namespace quire
