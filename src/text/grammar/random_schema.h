// Random JSON Schemas, for tests.
#ifndef QUIRE_TEXT_GRAMMAR_RANDOM_SCHEMA_H_
#define QUIRE_TEXT_GRAMMAR_RANDOM_SCHEMA_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "io/json.h"

namespace quire::testing {

class RandomSchema {
 public:
  explicit RandomSchema(uint32_t seed) : random_(seed) {}

  // Of an object, which has an end within a few hundred tokens mostly: what has no bound is rare.
  OrderedJson Object(int depth = 3) {
    OrderedJson properties = OrderedJson::object();
    OrderedJson required = OrderedJson::array();
    const uint32_t count = Below(4);
    for (uint32_t i = 0; i < count; ++i) {
      const std::string name = std::string(kNames[Below(8)]) + std::to_string(i);
      properties[name] = Value(depth - 1);
      if (Below(2) == 0) required.push_back(name);
    }
    OrderedJson schema = {{"type", "object"}, {"properties", properties}, {"required", required}};
    const uint32_t others = Below(6);
    if (others == 0) schema["additionalProperties"] = OrderedJson{{"type", "boolean"}};
    if (others > 1) schema["additionalProperties"] = false;
    return schema;
  }

 private:
  static constexpr const char* kNames[] = {"a",    "id",    "name", "caf\xc3\xa9",
                                           "x\"y", "tab\t", "",     "nam"};

  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  OrderedJson Value(int depth) {
    switch (Below(depth > 0 ? 11 : 8)) {
      case 0:
        return {{"type", "boolean"}};
      case 1:
        return {{"type", OrderedJson::array({"integer", "null"})},
                {"minimum", -static_cast<int>(Below(2000))},
                {"maximum", Below(300)}};
      case 2:
        return {{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1 + Below(1000)}};
      case 3:
        return {{"type", "string"}, {"minLength", Below(3)}, {"maxLength", 3 + Below(10)}};
      case 4:
        return {{"enum",
                 OrderedJson::array({"red", "gr\"een", 3, nullptr, OrderedJson::array({1, "a"})})}};
      case 5:
        return {{"type", "string"}, {"pattern", "^[a-f]{2,6}(-[\"0-9]{1,3})?$"}};
      case 6:
        return {{"type", "string"}, {"format", Below(2) == 0 ? "date-time" : "uuid"}};
      case 7:
        return {{"const", OrderedJson{{"k", 1.5}}}};
      case 8:
        return {{"type", "array"},
                {"items", Value(depth - 1)},
                {"minItems", Below(2)},
                {"maxItems", 1 + Below(3)}};
      case 9:
        return {{"anyOf", OrderedJson::array({Value(depth - 1), Value(depth - 1)})}};
      default:
        return Object(depth);
    }
  }

  std::mt19937 random_;
};

}  // namespace quire::testing

#endif  // QUIRE_TEXT_GRAMMAR_RANDOM_SCHEMA_H_
