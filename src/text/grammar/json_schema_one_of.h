// What tells the schemas of a "oneOf" apart. The grammar is that of "anyOf", whose texts may match
// more than one schema, so "oneOf" is supported only if it is clear that no value can match two: by
// their types, by what "const" and "enum" allow, and in objects by a property that both require.
#ifndef QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_ONE_OF_H_
#define QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_ONE_OF_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "io/json.h"
#include "text/grammar/json_schema_keywords.h"

namespace quire {

// One for all that a whole schema has of "oneOf": they have the steps together.
class OneOfSchemas {
 public:
  // `keywords`, those of the whole schema, outlive this.
  explicit OneOfSchemas(const JsonSchemaKeywords& keywords) : keywords_(keywords) {}

  // Refuses branch i of the "oneOf" at `where` if a value might match both it and one before it, or
  // if the steps do not suffice to tell: throws Error(kInvalidArgument), as JsonSchemaKeywords does.
  void RequireApart(const OrderedJson& branches, size_t i, const std::string& where);

 private:
  // Steps to tell the schemas of "oneOf" apart, of about a microsecond: those that refer to each
  // other could take for ever. Enough for a thousand that are compared in pairs.
  static constexpr int64_t kMaxApartSteps = int64_t{1} << 19;

  // Whether it is clear that no value matches both.
  bool AreApart(const OrderedJson& a, const OrderedJson& b, int depth);
  void Spend(int64_t steps);

  const JsonSchemaKeywords& keywords_;
  int64_t steps_left_ = kMaxApartSteps;
};

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_ONE_OF_H_
