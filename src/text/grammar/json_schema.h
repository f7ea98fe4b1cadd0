// JSON Schemas as grammars: every text of the grammar is JSON that the schema allows. Not every such
// JSON is a text of the grammar; docs/server.md says what is and what is not.
//
// Supported, and everything else is refused by name:
//   type, enum, const, anyOf, oneOf (if no value can match two), allOf (of one), $ref within the schema,
//     $defs, definitions; true, {}
//   properties (written in their order), required, additionalProperties
//   items, prefixItems, minItems, maxItems
//   minLength, maxLength; pattern; format: date-time date time duration email hostname ipv4 ipv6 uuid
//   minimum, maximum, exclusiveMinimum, exclusiveMaximum (for "number": integers up to 10^9)
//   title, description, default, examples, deprecated, readOnly, writeOnly, $comment, $schema, $id: any
#ifndef QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_H_
#define QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_H_

#include <string_view>

#include "io/json.h"
#include "text/grammar/grammar.h"

namespace quire {

// Adds rules to a grammar and returns the expression of a value of the schema. `source` names the
// schema in messages. Throws Error(kInvalidArgument) with the source, where in the schema, and why.
Grammar::Expr AddJsonSchema(Grammar& grammar, const OrderedJson& schema, std::string_view source);

// The same of a schema that allows strings alone, with "type", "enum" or "const": the strings themselves,
// without quotes and escapes, to stand between tags. They have no "</" and do not end with "<"; nor have
// they any "<" where the schema has a pattern, a format or a length.
Grammar::Expr AddTextSchema(Grammar& grammar, const OrderedJson& schema, std::string_view source);

Grammar JsonSchemaGrammar(const OrderedJson& schema, std::string_view source);
// Any object.
Grammar JsonObjectGrammar();

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_JSON_SCHEMA_H_
