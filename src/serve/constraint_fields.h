// The fields of a request that say what an answer is held to.
//
//   response_format {"type": "text" | "json_object"}, or {"type": "json_schema", "json_schema":
//     {"name", "description", "strict", "schema"}}: OpenAI's. The schema is kept to, strict or not
//   structured_outputs {"json" | "regex" | "choice" | "grammar" | "json_object"}: vLLM's
//   guided_json, guided_regex, guided_choice, guided_grammar: vLLM's older names
//   json_schema, regex, ebnf of sampling_params: SGLang's
//   text.format of /v1/responses: as response_format, but for "name" ... "schema" beside "type"
//   output_config.format of /v1/messages: {"type": "json_schema", "schema"}
//
// A schema may be an object or its text. One constraint at most.
#ifndef QUIRE_SERVE_CONSTRAINT_FIELDS_H_
#define QUIRE_SERVE_CONSTRAINT_FIELDS_H_

#include <optional>

#include "serve/request_fields.h"
#include "textgen/text_constraint.h"

namespace quire {

// All throw ApiError. The constraint's source is the path of its field.
std::optional<TextConstraint> ReadConstraint(RequestFields& body);
std::optional<TextConstraint> ReadSamplingConstraint(RequestFields& params);
// With text.format, and output_config.format, if there is one; vLLM's fields are taken beside them.
std::optional<TextConstraint> ReadTextConstraint(const std::optional<RequestField>& format,
                                                 RequestFields& body);
std::optional<TextConstraint> ReadOutputConstraint(const std::optional<RequestField>& format,
                                                   RequestFields& body);

// JSON Schemas of these fields, by name.
OrderedJson ConstraintSchemas();
OrderedJson StructuredSchemas();  // vLLM's alone
OrderedJson SamplingConstraintSchemas();
OrderedJson TextFormatSchema();
OrderedJson OutputFormatSchema();

}  // namespace quire

#endif  // QUIRE_SERVE_CONSTRAINT_FIELDS_H_
