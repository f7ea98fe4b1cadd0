// The fields of a request that say what an answer is held to.
//
//   response_format {"type": "text" | "json_object"}, or {"type": "json_schema", "json_schema":
//     {"name", "description", "strict", "schema"}}: OpenAI's. The schema is kept to, strict or not
//   structured_outputs {"json" | "regex" | "choice" | "grammar" | "json_object"}: vLLM's
//   guided_json, guided_regex, guided_choice, guided_grammar: vLLM's older names
//   json_schema, regex, ebnf of sampling_params: SGLang's
//
// A schema may be an object or its text. One constraint at most.
#ifndef QUIRE_SERVE_CONSTRAINT_FIELDS_H_
#define QUIRE_SERVE_CONSTRAINT_FIELDS_H_

#include <optional>

#include "serve/request_fields.h"
#include "textgen/text_constraint.h"

namespace quire {

// Both throw ApiError. The constraint's source is the path of its field.
std::optional<TextConstraint> ReadConstraint(RequestFields& body);
std::optional<TextConstraint> ReadSamplingConstraint(RequestFields& params);

// JSON Schemas of these fields, by name.
OrderedJson ConstraintSchemas();
OrderedJson SamplingConstraintSchemas();

}  // namespace quire

#endif  // QUIRE_SERVE_CONSTRAINT_FIELDS_H_
