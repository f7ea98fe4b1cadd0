// Bodies of Anthropic's /v1/messages and /v1/messages/count_tokens, as the chat requests that they are. Refusals
// as in openai_request.h.
//
//   messages         roles user, assistant and system; content a text, or blocks: {"type": "text"}; of the assistant
//                    {"type": "thinking"}, which becomes reasoning_content, and {"type": "tool_use"}; of the
//                    user {"type": "tool_result"}, which becomes a message of the role tool, whatever
//                    is_error says. Texts are joined by a line feed. If the last message is the assistant's, the answer goes on with it
//   system           a text or text blocks: the first message
//   tools            [{"name", "description", "input_schema", "strict", "type": "custom" or absent}]
//   tool_choice      {"type": "auto" | "any" | "none"} or {"type": "tool", "name"};
//                    "disable_parallel_tool_use": true for one call at most
//   max_tokens       1 or more, required
//   stop_sequences   up to 16, as "stop" of OpenAI's API
//   thinking         {"type": "enabled", "budget_tokens"} and {"type": "adaptive"} set the template's
//                    variables thinking and enable_thinking to true, {"type": "disabled"} to false. The
//                    budget is not looked at: max_tokens is the only limit
//   output_config    {"format": {"type": "json_schema", "schema"}}; "effort" only "high", their default
//   cache_control    any object, everywhere: every prefix is cached
//   metadata         any object; service_tier "auto", "standard_only"
//
// and what all bodies take (ReadEngineFields), stop_token_ids, min_tokens, chat_template_kwargs,
// structured_outputs and the like.
#ifndef QUIRE_SERVE_MESSAGES_REQUEST_H_
#define QUIRE_SERVE_MESSAGES_REQUEST_H_

#include <string_view>

#include "io/json.h"
#include "serve/openai_request.h"

namespace quire {

ChatCompletionRequest ParseMessagesRequest(std::string_view body, const GenerationConfig& defaults,
                                           const RequestLimits& limits = {});
// Of count_tokens: without what says how to answer.
ChatCompletionRequest ParseCountTokensRequest(std::string_view body,
                                              const RequestLimits& limits = {});

// JSON Schemas of the bodies, as in openai_request.h.
OrderedJson MessagesSchema(const RequestLimits& limits = {});
OrderedJson CountTokensSchema(const RequestLimits& limits = {});

}  // namespace quire

#endif  // QUIRE_SERVE_MESSAGES_REQUEST_H_
