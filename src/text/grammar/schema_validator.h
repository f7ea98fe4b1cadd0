// What JSON Schema says of a value, as far as json_schema.h goes: for tests, and written apart from
// the grammar.
#ifndef QUIRE_TEXT_GRAMMAR_SCHEMA_VALIDATOR_H_
#define QUIRE_TEXT_GRAMMAR_SCHEMA_VALIDATOR_H_

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "io/json.h"
#include "text/utf8.h"

namespace quire::testing {

class SchemaValidator {
 public:
  explicit SchemaValidator(const OrderedJson& root) : root_(root) {}

  // "" or why not.
  std::string Check(const OrderedJson& value) const { return Check(value, root_); }

 private:
  static bool IsOf(const std::string& type, const OrderedJson& value) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "integer") {
      return value.is_number_integer() ||
             (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
    }
    return value.is_number();
  }

  static int64_t Length(std::string_view text) {
    int64_t length = 0;
    for (; !text.empty(); text.remove_prefix(ReadUtf8(text).length)) ++length;
    return length;
  }

  std::string Check(const OrderedJson& value, const OrderedJson& schema) const {
    if (schema.is_boolean()) return schema.get<bool>() ? "" : "false";
    const auto fail = [&](const std::string& key) { return key + " of " + value.dump(); };
    for (const auto& [key, is] : schema.items()) {
      if (key == "$ref") {
        const auto why =
            Check(value, root_.at(OrderedJson::json_pointer(is.get<std::string>().substr(1))));
        if (!why.empty()) return why;
      } else if (key == "type") {
        const bool ok =
            is.is_string() ? IsOf(is, value)
                           : std::ranges::any_of(is, [&](const auto& t) { return IsOf(t, value); });
        if (!ok) return fail(key);
      } else if (key == "enum") {
        if (std::ranges::find(is, value) == is.end()) return fail(key);
      } else if (key == "const") {
        if (value != is) return fail(key);
      } else if (key == "anyOf" || key == "oneOf" || key == "allOf") {
        const auto good =
            std::ranges::count_if(is, [&](const auto& s) { return Check(value, s).empty(); });
        const bool ok = key == "anyOf"   ? good > 0
                        : key == "oneOf" ? good == 1
                                         : good == static_cast<int64_t>(is.size());
        if (!ok) return fail(key);
      }
    }
    if (value.is_object()) return CheckObject(value, schema);
    if (value.is_array()) return CheckArray(value, schema);
    if (value.is_string()) {
      const auto text = value.get<std::string>();
      if (schema.contains("minLength") && Length(text) < schema["minLength"])
        return fail("minLength");
      if (schema.contains("maxLength") && Length(text) > schema["maxLength"])
        return fail("maxLength");
      if (schema.contains("pattern") &&
          !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) {
        return fail("pattern");
      }
    }
    if (value.is_number()) {
      const auto n = value.get<double>();
      const auto bound = [&](const char* key) { return schema[key].get<double>(); };
      if (schema.contains("minimum") && n < bound("minimum")) return fail("minimum");
      if (schema.contains("maximum") && n > bound("maximum")) return fail("maximum");
      if (schema.contains("exclusiveMinimum") && n <= bound("exclusiveMinimum")) {
        return fail("exclusiveMinimum");
      }
      if (schema.contains("exclusiveMaximum") && n >= bound("exclusiveMaximum")) {
        return fail("exclusiveMaximum");
      }
    }
    return "";
  }

  std::string CheckObject(const OrderedJson& value, const OrderedJson& schema) const {
    const OrderedJson none = OrderedJson::object();
    const OrderedJson& properties = schema.contains("properties") ? schema["properties"] : none;
    if (schema.contains("required")) {
      for (const auto& name : schema["required"]) {
        if (!value.contains(name.get<std::string>())) return "required " + name.dump();
      }
    }
    for (const auto& [name, member] : value.items()) {
      std::string why;
      if (properties.contains(name)) {
        why = Check(member, properties[name]);
      } else if (schema.contains("additionalProperties")) {
        why = Check(member, schema["additionalProperties"]);
      }
      if (!why.empty()) return name + ": " + why;
    }
    return "";
  }

  std::string CheckArray(const OrderedJson& value, const OrderedJson& schema) const {
    if (schema.contains("minItems") && value.size() < schema["minItems"]) return "minItems";
    if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return "maxItems";
    const size_t prefix = schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < value.size(); ++i) {
      std::string why;
      if (i < prefix) {
        why = Check(value[i], schema["prefixItems"][i]);
      } else if (schema.contains("items")) {
        why = Check(value[i], schema["items"]);
      }
      if (!why.empty()) return std::to_string(i) + ": " + why;
    }
    return "";
  }

  const OrderedJson& root_;
};

}  // namespace quire::testing

#endif  // QUIRE_TEXT_GRAMMAR_SCHEMA_VALIDATOR_H_
