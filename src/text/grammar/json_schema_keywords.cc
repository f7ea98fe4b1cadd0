#include "text/grammar/json_schema_keywords.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/grammar/json_grammar.h"

namespace quire {
namespace {

constexpr int64_t kMaxCount = 100'000;  // minItems, maxLength ...

constexpr std::string_view kTypes[] = {"null",   "boolean", "object", "array",
                                       "number", "integer", "string"};
constexpr std::string_view kAnnotations[] = {
    "title",     "description", "default", "examples", "deprecated", "readOnly",
    "writeOnly", "$comment",    "$schema", "$id",      "$defs",      "definitions"};

struct TypeKeyword {
  std::string_view name;
  std::string_view type;
};
constexpr TypeKeyword kTypeKeywords[] = {
    {"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
    {"items", "array"},       {"prefixItems", "array"},       {"minItems", "array"},
    {"maxItems", "array"},    {"minLength", "string"},        {"maxLength", "string"},
    {"pattern", "string"},    {"format", "string"},           {"minimum", "number"},
    {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}};

bool IsAnnotation(std::string_view key) {
  return std::ranges::find(kAnnotations, key) != std::end(kAnnotations);
}

void AddOnce(const std::string& type, std::vector<std::string>& types) {
  if (std::ranges::find(types, type) == types.end()) types.push_back(type);
}

}  // namespace

std::string_view JsonTypeOf(const OrderedJson& value) {
  switch (value.type()) {
    case OrderedJson::value_t::null:
      return "null";
    case OrderedJson::value_t::boolean:
      return "boolean";
    case OrderedJson::value_t::object:
      return "object";
    case OrderedJson::value_t::array:
      return "array";
    case OrderedJson::value_t::string:
      return "string";
    case OrderedJson::value_t::number_integer:
    case OrderedJson::value_t::number_unsigned:
      return "integer";
    default:
      return "number";
  }
}

bool HasJsonType(const std::vector<std::string>& types, std::string_view type) {
  return std::ranges::find(types, type) != types.end() ||
         (type == "integer" && std::ranges::find(types, "number") != types.end());
}

void JsonSchemaKeywords::Refuse(const std::string& where, std::string_view why) const {
  throw Error(ErrorCode::kInvalidArgument, "{}: {}: {}", source_, where, why);
}

void JsonSchemaKeywords::RefuseUnknown(const OrderedJson& schema, const std::string& where) const {
  constexpr std::string_view kOthers[] = {"type",  "enum",  "const", "anyOf",
                                          "oneOf", "allOf", "$ref"};
  for (const auto& [key, value] : schema.items()) {
    const bool is_known =
        IsAnnotation(key) || std::ranges::find(kOthers, key) != std::end(kOthers) ||
        std::ranges::find(kTypeKeywords, key, &TypeKeyword::name) != std::end(kTypeKeywords);
    if (!is_known) Refuse(where, fmt::format("{}: not supported", QuoteForMessage(key)));
  }
}

void JsonSchemaKeywords::RequireAlone(const OrderedJson& schema, const std::string& where,
                                      std::initializer_list<std::string_view> allowed) const {
  for (const auto& [key, value] : schema.items()) {
    if (IsAnnotation(key) || std::ranges::find(allowed, key) != allowed.end()) continue;
    Refuse(where, fmt::format("{}: not supported beside {}", QuoteForMessage(key),
                              QuoteForMessage(*allowed.begin())));
  }
}

const OrderedJson& JsonSchemaKeywords::Resolve(const OrderedJson& ref,
                                               const std::string& where) const {
  const std::string text = ref.is_string() ? ref.get<std::string>() : "";
  if (!text.starts_with('#') || (text.size() > 1 && text[1] != '/')) {
    Refuse(where,
           fmt::format("\"$ref\": expected \"#\" or \"#/...\", a place in this schema, got {}",
                       DescribeForMessage(ref)));
  }
  try {
    return root_.at(OrderedJson::json_pointer(text.substr(1)));
  } catch (const OrderedJson::exception&) {
    Refuse(where, fmt::format("\"$ref\": {}: no such place", QuoteForMessage(text)));
  }
}

const OrderedJson& JsonSchemaKeywords::Branches(const OrderedJson& schema, const std::string& where,
                                                const char* name) const {
  RequireAlone(schema, where, {name});
  const OrderedJson& branches = schema[name];
  if (!branches.is_array() || branches.empty()) {
    Refuse(where, fmt::format("\"{}\": expected an array of schemas, got {}", name,
                              DescribeForMessage(branches)));
  }
  return branches;
}

std::optional<std::vector<OrderedJson>> JsonSchemaKeywords::Values(const OrderedJson& schema) {
  if (schema.contains("const")) return std::vector<OrderedJson>(1, schema["const"]);
  if (!schema.contains("enum") || !schema["enum"].is_array()) return std::nullopt;
  return std::vector<OrderedJson>(schema["enum"].begin(), schema["enum"].end());
}

std::vector<std::string> JsonSchemaKeywords::Types(const OrderedJson& schema,
                                                   const std::string& where) const {
  const OrderedJson& type = schema["type"];
  std::vector<std::string> types;
  const auto add = [&](const OrderedJson& one) {
    const std::string name = one.is_string() ? one.get<std::string>() : "";
    if (std::ranges::find(kTypes, name) == std::end(kTypes)) {
      Refuse(where,
             fmt::format("\"type\": expected a type of JSON, got {}", DescribeForMessage(one)));
    }
    AddOnce(name, types);
  };
  if (type.is_array()) {
    for (const OrderedJson& one : type) add(one);
  } else {
    add(type);
  }
  if (types.empty()) Refuse(where, "\"type\": expected a type, got none");
  return types;
}

std::vector<std::string> JsonSchemaKeywords::ImpliedTypes(const OrderedJson& schema) {
  std::vector<std::string> types;
  for (const TypeKeyword& keyword : kTypeKeywords) {
    if (schema.contains(keyword.name) && !HasJsonType(types, keyword.type)) {
      types.emplace_back(keyword.type);
    }
  }
  return types;
}

std::vector<std::string> JsonSchemaKeywords::PossibleTypes(const OrderedJson& schema,
                                                           const std::string& where) const {
  std::vector<std::string> types;
  if (const auto values = Values(schema)) {
    for (const OrderedJson& value : *values) AddOnce(std::string(JsonTypeOf(value)), types);
    return types;
  }
  if (schema.contains("type")) return Types(schema, where);
  return {kTypes, kTypes + std::size(kTypes)};
}

std::optional<int64_t> JsonSchemaKeywords::Count(const OrderedJson& schema,
                                                 const std::string& where, const char* name) const {
  if (!schema.contains(name)) return std::nullopt;
  const OrderedJson& value = schema[name];
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= kMaxCount;
  if (!fits) {
    Refuse(where, fmt::format("\"{}\": expected an integer 0..{}, got {}", name, kMaxCount,
                              DescribeForMessage(value)));
  }
  return value.get<int64_t>();
}

JsonSchemaKeywords::Counts JsonSchemaKeywords::ReadCounts(const OrderedJson& schema,
                                                          const std::string& where, const char* min,
                                                          const char* max) const {
  const Counts counts{.min = Count(schema, where, min).value_or(0),
                      .max = Count(schema, where, max)};
  if (counts.max.value_or(counts.min) < counts.min) {
    Refuse(where, fmt::format("\"{}\": expected {} or more, as \"{}\", got {}", max, counts.min,
                              min, *counts.max));
  }
  return counts;
}

std::optional<JsonSchemaKeywords::Bound> JsonSchemaKeywords::ReadBound(
    const OrderedJson& schema, const std::string& where, const char* name,
    const char* exclusive) const {
  if (schema.contains(name) && schema.contains(exclusive)) {
    Refuse(where, fmt::format("\"{}\": not supported beside \"{}\"", exclusive, name));
  }
  const char* const found = schema.contains(name) ? name : exclusive;
  if (!schema.contains(found)) return std::nullopt;
  if (!schema[found].is_number()) {
    Refuse(where, fmt::format("\"{}\": expected a number, got {}", found,
                              DescribeForMessage(schema[found])));
  }
  const double value = schema[found].get<double>();
  if (!(std::abs(value) < static_cast<double>(kMaxJsonInteger))) {
    Refuse(where, fmt::format("\"{}\": expected at most 17 digits, got {}", found, value));
  }
  return Bound{.value = value, .is_exclusive = found == exclusive};
}

std::vector<std::string> JsonSchemaKeywords::Required(const OrderedJson& schema,
                                                      const std::string& where) const {
  std::vector<std::string> names;
  if (!schema.contains("required")) return names;
  if (!schema["required"].is_array()) Refuse(where, "\"required\": expected an array of names");
  for (const OrderedJson& name : schema["required"]) {
    if (!name.is_string()) Refuse(where, "\"required\": expected an array of names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

}  // namespace quire
