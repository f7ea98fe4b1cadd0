#include "text/grammar/json_schema.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/grammar/json_grammar.h"
#include "text/grammar/json_schema_keywords.h"
#include "text/grammar/json_schema_one_of.h"
#include "text/grammar/regex_grammar.h"

namespace quire {
namespace {

constexpr size_t kMaxProperties = 1000;  // they are written one inside the other
constexpr double kMaxNumberBound = 1e9;  // beyond, fractions are lost in a double

// Texts of these are valid, though not all valid texts are of these: no leap days, no leap seconds.
struct Format {
  std::string_view name;
  std::string_view regex;
};
#define QUIRE_DATE                                                                             \
  "[0-9]{4}-((01|03|05|07|08|10|12)-(0[1-9]|[12][0-9]|3[01])|(04|06|09|11)-(0[1-9]|[12][0-9]|" \
  "30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define QUIRE_TIME \
  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define QUIRE_LABEL "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?"
#define QUIRE_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
constexpr Format kFormats[] = {
    {"date-time", QUIRE_DATE "T" QUIRE_TIME},
    {"date", QUIRE_DATE},
    {"time", QUIRE_TIME},
    {"duration", "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}[HMS])?|T[0-9]{1,4}[HMS])"},
    {"email",
     "[a-z0-9][a-z0-9_+-]{0,30}(\\.[a-z0-9]{1,10})?@" QUIRE_LABEL "(\\." QUIRE_LABEL "){1,3}"},
    {"hostname", QUIRE_LABEL "(\\." QUIRE_LABEL "){0,4}"},
    {"ipv4", QUIRE_BYTE "(\\." QUIRE_BYTE "){3}"},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
};
#undef QUIRE_DATE
#undef QUIRE_TIME
#undef QUIRE_LABEL
#undef QUIRE_BYTE

// A step of a JSON pointer.
std::string PointerStep(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

class SchemaReader {
 public:
  SchemaReader(Grammar& grammar, const OrderedJson& root, std::string_view source)
      : grammar_(grammar), json_(grammar), root_(root), keywords_(root, source) {}

  Grammar::Expr Read() {
    const Grammar::Expr whole = Value(root_, "#");
    // Rules wait for their turn instead of being written one inside the other.
    while (!pending_.empty()) {
      const Pending next = pending_.back();
      pending_.pop_back();
      grammar_.Define(next.rule, Write(*next.schema, next.where));
    }
    return whole;
  }

  Grammar::Expr ReadText() {
    if (const std::optional<std::vector<OrderedJson>> values = JsonSchemaKeywords::Values(root_)) {
      std::vector<Grammar::Expr> texts;
      for (const OrderedJson& value : *values) {
        texts.push_back(grammar_.Literal(value.get<std::string>()));
      }
      return grammar_.Choice(std::move(texts));
    }
    const CodePoints angle = {{'<', '<'}};
    if (root_.contains("pattern")) {
      return WritePattern(root_, "#", [&](const CodePoints& set) {
        return grammar_.Characters(set.Without(angle));
      });
    }
    if (root_.contains("format")) return WriteFormat(root_, "#");
    const Grammar::Expr plain = grammar_.Characters(angle.Complement());
    if (root_.contains("minLength") || root_.contains("maxLength")) {
      const auto counts = keywords_.ReadCounts(root_, "#", "minLength", "maxLength");
      return grammar_.Repeat(plain, counts.min, counts.max);
    }
    const Grammar::Expr other =
        grammar_.Characters(CodePoints{{'/', '/'}, {'<', '<'}}.Complement());
    return grammar_.Repeat(
        grammar_.Choice({plain, grammar_.Sequence({grammar_.Literal("<"), other})}), 0,
        std::nullopt);
  }

 private:
  struct Pending {
    Grammar::Rule rule;
    const OrderedJson* schema;
    std::string where;
  };

  [[noreturn]] void Refuse(const std::string& where, std::string_view why) const {
    keywords_.Refuse(where, why);
  }

  // The value of a schema, by a rule of its own: one per place.
  Grammar::Expr Value(const OrderedJson& schema, const std::string& where) {
    const auto found = rules_.find(where);
    if (found != rules_.end()) return grammar_.Call(found->second);
    const Grammar::Rule rule = grammar_.AddRule(where);
    rules_.emplace(where, rule);
    pending_.push_back({.rule = rule, .schema = &schema, .where = where});
    return grammar_.Call(rule);
  }

  Grammar::Expr Write(const OrderedJson& schema, const std::string& where) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) Refuse(where, "expected a schema that allows something, got false");
      return json_.AnyValue();
    }
    if (!schema.is_object()) {
      Refuse(where, fmt::format("expected a schema, got {}", DescribeForMessage(schema)));
    }
    keywords_.RefuseUnknown(schema, where);
    if (schema.contains("$ref")) return WriteRef(schema, where);
    if (schema.contains("allOf")) return WriteAllOf(schema, where);
    if (schema.contains("anyOf")) return WriteAnyOf(schema, where, "anyOf");
    if (schema.contains("oneOf")) return WriteAnyOf(schema, where, "oneOf");
    if (schema.contains("const") || schema.contains("enum")) return WriteEnum(schema, where);
    return WriteTypes(schema, where);
  }

  // ---- Schemas of schemas ----

  Grammar::Expr WriteRef(const OrderedJson& schema, const std::string& where) {
    keywords_.RequireAlone(schema, where, {"$ref"});
    const OrderedJson& target = keywords_.Resolve(schema["$ref"], where);
    return Value(target, schema["$ref"].get<std::string>());
  }

  Grammar::Expr WriteAllOf(const OrderedJson& schema, const std::string& where) {
    const OrderedJson& branches = keywords_.Branches(schema, where, "allOf");
    if (branches.size() != 1) Refuse(where, "\"allOf\": not supported with more than one schema");
    return Value(branches[0], where + "/allOf/0");
  }

  Grammar::Expr WriteAnyOf(const OrderedJson& schema, const std::string& where, const char* name) {
    const OrderedJson& branches = keywords_.Branches(schema, where, name);
    std::vector<Grammar::Expr> ways;
    for (size_t i = 0; i < branches.size(); ++i) {
      if (name == std::string_view("oneOf")) one_of_.RequireApart(branches, i, where);
      ways.push_back(Value(branches[i], fmt::format("{}/{}/{}", where, name, i)));
    }
    return grammar_.Choice(std::move(ways));
  }

  // ---- Values ----

  Grammar::Expr WriteEnum(const OrderedJson& schema, const std::string& where) {
    const char* const name = schema.contains("const") ? "const" : "enum";
    keywords_.RequireAlone(schema, where, {name, "type"});
    if (name == std::string_view("enum") && !schema["enum"].is_array()) {
      Refuse(where, "\"enum\": expected an array");
    }
    std::optional<std::vector<std::string>> types;
    if (schema.contains("type")) types = keywords_.Types(schema, where);
    std::vector<Grammar::Expr> ways;
    const std::optional<std::vector<OrderedJson>> values = JsonSchemaKeywords::Values(schema);
    for (const OrderedJson& value : *values) {
      if (types && !HasJsonType(*types, JsonTypeOf(value))) continue;
      ways.push_back(grammar_.Literal(Dump(value)));
    }
    if (ways.empty()) Refuse(where, fmt::format("\"{}\": expected a value of the type", name));
    return grammar_.Choice(std::move(ways));
  }

  Grammar::Expr WriteTypes(const OrderedJson& schema, const std::string& where) {
    const std::vector<std::string> types = schema.contains("type")
                                               ? keywords_.Types(schema, where)
                                               : JsonSchemaKeywords::ImpliedTypes(schema);
    if (types.empty()) return json_.AnyValue();
    std::vector<Grammar::Expr> ways;
    for (const std::string& type : types) ways.push_back(WriteType(type, schema, where));
    return grammar_.Choice(std::move(ways));
  }

  Grammar::Expr WriteType(std::string_view type, const OrderedJson& schema,
                          const std::string& where) {
    if (type == "null") return grammar_.Literal("null");
    if (type == "boolean")
      return grammar_.Choice({grammar_.Literal("true"), grammar_.Literal("false")});
    if (type == "string") return WriteString(schema, where);
    if (type == "object") return WriteObject(schema, where);
    if (type == "array") return WriteArray(schema, where);
    return WriteNumber(type == "integer", schema, where);
  }

  Grammar::Expr WriteString(const OrderedJson& schema, const std::string& where) {
    const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
    const bool has_pattern = schema.contains("pattern"), has_format = schema.contains("format");
    if (has_pattern && has_format) Refuse(where, "\"format\": not supported beside \"pattern\"");
    if (has_length && (has_pattern || has_format)) {
      Refuse(where, fmt::format("\"{}\": not supported beside \"{}\"",
                                schema.contains("minLength") ? "minLength" : "maxLength",
                                has_pattern ? "pattern" : "format"));
    }
    if (has_pattern || has_format) {
      const Grammar::Expr inside =
          has_pattern ? WritePattern(schema, where,
                                     [&](const CodePoints& set) { return json_.CharacterOf(set); })
                      : WriteFormat(schema, where);
      return grammar_.Sequence({grammar_.Literal("\""), inside, grammar_.Literal("\"")});
    }
    if (!has_length) return json_.String();
    const auto counts = keywords_.ReadCounts(schema, where, "minLength", "maxLength");
    return grammar_.Sequence({grammar_.Literal("\""),
                              grammar_.Repeat(json_.Character(), counts.min, counts.max),
                              grammar_.Literal("\"")});
  }

  Grammar::Expr WritePattern(const OrderedJson& schema, const std::string& where,
                             std::function<Grammar::Expr(const CodePoints&)> characters) {
    if (!schema["pattern"].is_string()) Refuse(where, "\"pattern\": expected a string");
    const RegexOptions options{.anchoring = RegexAnchoring::kSearch,
                               .characters = std::move(characters)};
    return AddRegex(grammar_, schema["pattern"].get<std::string>(),
                    fmt::format("{}: {}: \"pattern\"", keywords_.source(), where), options);
  }

  Grammar::Expr WriteFormat(const OrderedJson& schema, const std::string& where) {
    const std::string name =
        schema["format"].is_string() ? schema["format"].get<std::string>() : "";
    const auto* const format = std::ranges::find(kFormats, name, &Format::name);
    if (format == std::end(kFormats)) {
      Refuse(where,
             fmt::format("\"format\": {}: not supported", DescribeForMessage(schema["format"])));
    }
    return AddRegex(grammar_, format->regex, "format");
  }

  // ---- Numbers ----

  Grammar::Expr WriteNumber(bool is_integer, const OrderedJson& schema, const std::string& where) {
    const auto low = keywords_.ReadBound(schema, where, "minimum", "exclusiveMinimum");
    const auto high = keywords_.ReadBound(schema, where, "maximum", "exclusiveMaximum");
    if (!low && !high) return is_integer ? json_.Integer() : json_.Number();
    if (!is_integer) {
      for (const auto& bound : {low, high}) {
        if (!bound) continue;
        if (bound->value == std::floor(bound->value) && std::abs(bound->value) <= kMaxNumberBound) {
          continue;
        }
        Refuse(where,
               fmt::format("\"minimum\", \"maximum\": expected an integer of at most 10^9 for "
                           "a \"number\", got {}",
                           bound->value));
      }
    }
    int64_t first = -kMaxJsonInteger, last = kMaxJsonInteger;
    if (low) {
      const double up = std::ceil(low->value);
      first = static_cast<int64_t>(up) + (low->is_exclusive && up == low->value ? 1 : 0);
    }
    if (high) {
      const double down = std::floor(high->value);
      last = static_cast<int64_t>(down) - (high->is_exclusive && down == high->value ? 1 : 0);
    }
    std::vector<Grammar::Expr> ways;
    if (first <= last) ways.push_back(json_.IntegerBetween(first, last));
    if (!is_integer) {
      const int64_t above = low ? static_cast<int64_t>(low->value) : -kMaxJsonInteger;
      const int64_t below = high ? static_cast<int64_t>(high->value) : kMaxJsonInteger;
      if (above < below) ways.push_back(json_.FractionBetween(above, below));
    }
    if (ways.empty()) Refuse(where, "\"minimum\", \"maximum\": expected a number between them");
    return grammar_.Choice(std::move(ways));
  }

  // ---- Arrays ----

  Grammar::Expr WriteArray(const OrderedJson& schema, const std::string& where) {
    const auto counts = keywords_.ReadCounts(schema, where, "minItems", "maxItems");
    std::vector<Grammar::Expr> first;  // of prefixItems
    if (schema.contains("prefixItems")) {
      const OrderedJson& prefix = schema["prefixItems"];
      if (!prefix.is_array()) Refuse(where, "\"prefixItems\": expected an array of schemas");
      for (size_t i = 0; i < prefix.size(); ++i) {
        first.push_back(Value(prefix[i], fmt::format("{}/prefixItems/{}", where, i)));
      }
    }
    // Those behind: any, none, or of a schema.
    std::optional<Grammar::Expr> rest;
    const bool none_behind = schema.contains("items") && schema["items"] == false;
    if (!none_behind) {
      rest = schema.contains("items") ? Value(schema["items"], where + "/items") : json_.AnyValue();
    }
    int64_t most = counts.max.value_or(std::numeric_limits<int64_t>::max());
    if (!rest) most = std::min(most, std::ssize(first));
    if (most < counts.min) Refuse(where, "\"minItems\": expected no more than \"prefixItems\" has");
    if (std::cmp_greater(first.size(), most)) first.resize(static_cast<size_t>(most));

    // [ ] or [ item (, item)* ]: the items of the prefix, each of which ends the array if the fewest
    // are there, then the rest.
    const auto item = [&](size_t i, Grammar::Expr value) {
      std::vector<Grammar::Expr> parts;
      if (i > 0) parts = {grammar_.Literal(","), json_.Space()};
      parts.push_back(value);
      parts.push_back(json_.Space());
      return grammar_.Sequence(std::move(parts));
    };
    std::optional<Grammar::Expr> tail;  // what may follow the prefix, "]" not included
    const int64_t num_first = std::ssize(first);
    if (rest && most > num_first) {
      const int64_t min = std::max<int64_t>(0, counts.min - num_first);
      std::optional<int64_t> max;
      if (counts.max) max = most - num_first;
      if (num_first > 0) {
        tail = grammar_.Repeat(item(1, *rest), min, max);
      } else {
        // The first has no comma.
        if (max) max = *max - 1;
        const Grammar::Expr some = grammar_.Sequence(
            {item(0, *rest), grammar_.Repeat(item(1, *rest), std::max<int64_t>(0, min - 1), max)});
        tail = min > 0 ? some : grammar_.Optional(some);
      }
    }
    Grammar::Expr inside = tail ? *tail : grammar_.Empty();
    for (int64_t i = num_first - 1; i >= 0; --i) {
      const auto n = static_cast<size_t>(i);
      inside = grammar_.Sequence({item(n, first[n]), inside});
      if (i >= counts.min) inside = grammar_.Optional(inside);
    }
    return grammar_.Sequence({grammar_.Literal("["), json_.Space(), inside, grammar_.Literal("]")});
  }

  // ---- Objects ----

  struct Property {
    std::string name;
    Grammar::Expr value;
    bool is_required;
  };
  struct Object {
    std::vector<Property> properties;
    std::optional<Grammar::Expr> other;  // a member that is not declared, without its comma
    std::map<std::pair<size_t, bool>, Grammar::Rule> rules;
    std::string where;
  };

  Grammar::Expr WriteObject(const OrderedJson& schema, const std::string& where) {
    Object object;
    object.where = where;
    const std::vector<std::string> names = keywords_.Required(schema, where);
    const std::set<std::string> required(names.begin(), names.end());
    const OrderedJson none = OrderedJson::object();
    const OrderedJson& properties = schema.contains("properties") ? schema["properties"] : none;
    if (!properties.is_object() || properties.size() > kMaxProperties) {
      Refuse(where,
             fmt::format("\"properties\": expected an object of at most {}", kMaxProperties));
    }
    std::vector<std::string> declared;
    for (const auto& [name, value] : properties.items()) {
      declared.push_back(name);
      object.properties.push_back(
          {.name = name,
           .value = Value(value, fmt::format("{}/properties/{}", where, PointerStep(name))),
           .is_required = required.contains(name)});
    }
    // What is not said of others: none beside those that are declared, any where none is.
    const bool says = schema.contains("additionalProperties");
    const bool allows = says ? schema["additionalProperties"] != false : properties.empty();
    for (const std::string& name : required) {
      if (properties.contains(name)) continue;
      if (!allows) {
        Refuse(where, fmt::format("\"required\": {}: expected among \"properties\"",
                                  QuoteForMessage(name)));
      }
      declared.push_back(name);
      object.properties.push_back(
          {.name = name,
           .value = says ? Value(schema["additionalProperties"], where + "/additionalProperties")
                         : json_.AnyValue(),
           .is_required = true});
    }
    if (allows) {
      const Grammar::Expr value =
          says ? Value(schema["additionalProperties"], where + "/additionalProperties")
               : json_.AnyValue();
      const Grammar::Expr key = declared.empty() ? json_.String() : json_.StringExcept(declared);
      object.other =
          grammar_.Sequence({key, grammar_.Literal(":"), json_.Space(), value, json_.Space()});
    }
    return grammar_.Sequence({grammar_.Literal("{"), json_.Space(), Members(object, 0, true)});
  }

  Grammar::Expr Member(const Property& property, bool is_first) {
    std::vector<Grammar::Expr> parts;
    if (!is_first) parts = {grammar_.Literal(","), json_.Space()};
    for (const Grammar::Expr part : {grammar_.Literal(Dump(OrderedJson(property.name)) + ":"),
                                     json_.Space(), property.value, json_.Space()}) {
      parts.push_back(part);
    }
    return grammar_.Sequence(std::move(parts));
  }

  // The members from number i on, and "}".
  Grammar::Expr Members(Object& object, size_t i, bool is_first) {
    std::vector<Grammar::Expr> parts;
    for (; i < object.properties.size(); ++i) {
      if (!object.properties[i].is_required) {
        parts.push_back(grammar_.Call(OptionalFrom(object, i, is_first)));
        return grammar_.Sequence(std::move(parts));
      }
      parts.push_back(Member(object.properties[i], is_first));
      is_first = false;
    }
    if (object.other) {
      const Grammar::Expr more =
          grammar_.Repeat(grammar_.Sequence({grammar_.Literal(","), json_.Space(), *object.other}),
                          0, std::nullopt);
      parts.push_back(is_first ? grammar_.Optional(grammar_.Sequence({*object.other, more}))
                               : more);
    }
    parts.push_back(grammar_.Literal("}"));
    return grammar_.Sequence(std::move(parts));
  }

  // The same where number i may be left out: with it, or without.
  Grammar::Rule OptionalFrom(Object& object, size_t i, bool is_first) {
    const auto found = object.rules.find({i, is_first});
    if (found != object.rules.end()) return found->second;
    const Grammar::Rule rule =
        grammar_.AddRule(fmt::format("{}, from property {}", object.where, i));
    object.rules.emplace(std::pair(i, is_first), rule);
    grammar_.Define(rule,
                    grammar_.Choice({grammar_.Sequence({Member(object.properties[i], is_first),
                                                        Members(object, i + 1, false)}),
                                     Members(object, i + 1, is_first)}));
    return rule;
  }

  Grammar& grammar_;
  JsonRules json_;
  const OrderedJson& root_;
  JsonSchemaKeywords keywords_;
  OneOfSchemas one_of_{keywords_};
  std::map<std::string, Grammar::Rule> rules_;  // by place
  std::vector<Pending> pending_;
};

}  // namespace

Grammar::Expr AddJsonSchema(Grammar& grammar, const OrderedJson& schema, std::string_view source) {
  return SchemaReader(grammar, schema, source).Read();
}

Grammar::Expr AddTextSchema(Grammar& grammar, const OrderedJson& schema, std::string_view source) {
  return SchemaReader(grammar, schema, source).ReadText();
}

Grammar JsonSchemaGrammar(const OrderedJson& schema, std::string_view source) {
  Grammar grammar;
  const Grammar::Rule root = grammar.AddRule("root");
  grammar.Define(root, AddJsonSchema(grammar, schema, source));
  grammar.SetRoot(root);
  return grammar;
}

Grammar JsonObjectGrammar() {
  Grammar grammar;
  const Grammar::Rule root = grammar.AddRule("root");
  JsonRules json(grammar);
  grammar.Define(root, json.AnyObject());
  grammar.SetRoot(root);
  return grammar;
}

}  // namespace quire
