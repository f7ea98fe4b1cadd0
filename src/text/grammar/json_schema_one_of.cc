#include "text/grammar/json_schema_one_of.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"

namespace quire {

void OneOfSchemas::RequireApart(const OrderedJson& branches, size_t i, const std::string& where) {
  for (size_t j = 0; j < i; ++j) {
    if (AreApart(branches[i], branches[j], 0)) continue;
    keywords_.Refuse(where,
                     fmt::format("\"oneOf\": not supported where a value might match two schemas, "
                                 "here those at {} and {} (\"anyOf\" is)",
                                 j, i));
  }
}

void OneOfSchemas::Spend(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ >= 0) return;
  keywords_.Refuse("\"oneOf\"",
                   fmt::format("expected schemas that can be told apart in {} steps, got more "
                               "or larger ones (\"anyOf\" is not checked)",
                               kMaxApartSteps));
}

bool OneOfSchemas::AreApart(const OrderedJson& a, const OrderedJson& b, int depth) {
  constexpr int kMaxDepth = 16;  // of references
  Spend(1);
  if (!a.is_object() || !b.is_object() || depth > kMaxDepth) return false;
  if (a.contains("$ref")) return AreApart(keywords_.Resolve(a["$ref"], "oneOf"), b, depth + 1);
  if (b.contains("$ref")) return AreApart(a, keywords_.Resolve(b["$ref"], "oneOf"), depth + 1);
  const std::optional<std::vector<OrderedJson>> values_a = JsonSchemaKeywords::Values(a),
                                                values_b = JsonSchemaKeywords::Values(b);
  const int64_t num_a = values_a ? std::ssize(*values_a) : 1;
  const int64_t num_b = values_b ? std::ssize(*values_b) : 1;
  Spend((num_a + num_b) / 16 + num_a * num_b / 1024);
  const auto types_a = keywords_.PossibleTypes(a, "oneOf"),
             types_b = keywords_.PossibleTypes(b, "oneOf");
  const bool share_type = std::ranges::any_of(types_a, [&](const std::string& type) {
    return HasJsonType(types_b, type) || (type == "number" && HasJsonType(types_b, "integer"));
  });
  if (!share_type) return true;
  if (values_a && values_b) {
    return std::ranges::none_of(*values_a, [&](const OrderedJson& value) {
      return std::ranges::find(*values_b, value) != values_b->end();
    });
  }
  if (types_a != std::vector<std::string>{"object"} || types_b != types_a) return false;
  if (!a.contains("properties") || !b.contains("properties")) return false;
  const std::vector<std::string> names = keywords_.Required(a, "oneOf"),
                                 others = keywords_.Required(b, "oneOf");
  Spend(std::ssize(names) * std::ssize(others) / 64);
  for (const std::string& name : names) {
    if (std::ranges::find(others, name) == others.end()) continue;
    Spend(std::ssize(a["properties"]) / 32 + std::ssize(b["properties"]) / 32);
    if (!a["properties"].contains(name) || !b["properties"].contains(name)) continue;
    if (AreApart(a["properties"][name], b["properties"][name], depth + 1)) return true;
  }
  return false;
}

}  // namespace quire
