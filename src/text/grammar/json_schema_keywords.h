// What the keywords of a JSON Schema say. They are read and checked here, and what is not supported
// is refused by name; json_schema.cc makes a grammar of what they say.
//
// `where` is the place of a schema in the whole one, for messages. What refuses throws
// Error(kInvalidArgument) with the source, that place, and why.
#ifndef QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_
#define QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace quire {

class JsonSchemaKeywords {
 public:
  struct Counts {
    int64_t min = 0;
    std::optional<int64_t> max = {};
  };
  struct Bound {
    double value = 0;
    bool is_exclusive = false;
  };

  // `root` is the whole schema and outlives this; `source` names it in messages.
  JsonSchemaKeywords(const OrderedJson& root, std::string_view source)
      : root_(root), source_(source) {}

  const std::string& source() const { return source_; }

  [[noreturn]] void Refuse(const std::string& where, std::string_view why) const;
  // Refuses a keyword that is not supported anywhere.
  void RefuseUnknown(const OrderedJson& schema, const std::string& where) const;
  // Refuses a keyword that is none of `allowed` and no annotation, as not supported beside the first
  // of them.
  void RequireAlone(const OrderedJson& schema, const std::string& where,
                    std::initializer_list<std::string_view> allowed) const;

  // Each of these reads what keywords say; those that take `where` refuse what they may not say.

  // The schema that a "$ref" refers to.
  const OrderedJson& Resolve(const OrderedJson& ref, const std::string& where) const;
  // The schemas of an "anyOf", "oneOf" or "allOf", which stands alone: an array of one or more.
  const OrderedJson& Branches(const OrderedJson& schema, const std::string& where,
                              const char* name) const;
  // What "const" or "enum" allow; nullopt: there is neither, or "enum" is no array.
  static std::optional<std::vector<OrderedJson>> Values(const OrderedJson& schema);
  // Those of "type", which is there: one or more, each once.
  std::vector<std::string> Types(const OrderedJson& schema, const std::string& where) const;
  // Without a type, a schema that says something of one is about that type. None: of no type.
  static std::vector<std::string> ImpliedTypes(const OrderedJson& schema);
  // Those of the values that "const", "enum" or "type" allow; all where there is none of them.
  std::vector<std::string> PossibleTypes(const OrderedJson& schema, const std::string& where) const;
  // "minItems" and "maxItems", or "minLength" and "maxLength".
  Counts ReadCounts(const OrderedJson& schema, const std::string& where, const char* min,
                    const char* max) const;
  // "minimum" or "exclusiveMinimum", "maximum" or "exclusiveMaximum"; nullopt: there is neither.
  std::optional<Bound> ReadBound(const OrderedJson& schema, const std::string& where,
                                 const char* name, const char* exclusive) const;
  // The names of "required", as they stand there; none without it.
  std::vector<std::string> Required(const OrderedJson& schema, const std::string& where) const;

 private:
  std::optional<int64_t> Count(const OrderedJson& schema, const std::string& where,
                               const char* name) const;

  const OrderedJson& root_;
  std::string source_;
};

// The narrowest type of a value: "integer", not "number", of one without a fraction.
std::string_view JsonTypeOf(const OrderedJson& value);
// Whether a value of the type is of one of these: integers are numbers.
bool HasJsonType(const std::vector<std::string>& types, std::string_view type);

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_KEYWORDS_H_
