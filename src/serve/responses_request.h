// Bodies of OpenAI's /v1/responses, as the chat requests that they are. Refusals as in openai_request.h.
//
//   input                a text, which is the user's, or items:
//                          {"type": "message" (or absent), "role", "content"}: roles as of chat; content a
//                            text, or parts {"type": "input_text"}, of the assistant {"type": "output_text"}
//                          {"type": "reasoning", "content": [{"type": "reasoning_text"}]}
//                          {"type": "function_call", "call_id", "name", "arguments"}
//                          {"type": "function_call_output", "call_id", "output": a text or input_text parts}
//                        What the assistant said, thought and called without anybody in between is one
//                        message.
//                        Texts are joined by a line feed
//   instructions         a text: the first message, the system's
//   tools                [{"type": "function", "name", "description", "parameters", "strict"}]
//   tool_choice          "auto", "none", "required" or {"type": "function", "name"}
//   parallel_tool_calls  false: one call at most
//   max_output_tokens    1 or more; absent: up to the end of the context
//   text                 {"format"}: see constraint_fields.h
//   reasoning            {"effort": "none"} sets the template's variables thinking and enable_thinking to
//                        false; "summary" only "auto"
//   stream_options       {"include_obfuscation": false}
//   store                only false; absent: false. previous_response_id, conversation, background, prompt,
//                        include, truncation ... only with what asks for nothing
//   user, safety_identifier, prompt_cache_key: any text, metadata: any object, which comes back
//
// and what all bodies take (ReadEngineFields), stop, stop_token_ids, min_tokens, chat_template_kwargs,
// structured_outputs and the like. Ids and statuses of items are not looked at.
#ifndef QUIRE_SERVE_RESPONSES_REQUEST_H_
#define QUIRE_SERVE_RESPONSES_REQUEST_H_

#include <nlohmann/json.hpp>
#include <string_view>

#include "io/json.h"
#include "serve/openai_request.h"

namespace quire {

struct ResponsesRequest {
  ChatCompletionRequest chat = {};
  OrderedJson repeated = OrderedJson::object();  // AnswerShape::request
};

ResponsesRequest ParseResponsesRequest(std::string_view body, const GenerationConfig& defaults,
                                       const RequestLimits& limits = {});

// JSON Schema of the body, as in openai_request.h.
OrderedJson ResponsesSchema(const RequestLimits& limits = {});

}  // namespace quire

#endif  // QUIRE_SERVE_RESPONSES_REQUEST_H_
