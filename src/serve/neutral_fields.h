// Fields of the APIs that we do not do, and that clients send all the same with the value that asks
// for nothing. Any other value is refused by name; openai_request.h has the list.
#ifndef QUIRE_SERVE_NEUTRAL_FIELDS_H_
#define QUIRE_SERVE_NEUTRAL_FIELDS_H_

#include "serve/request_fields.h"

namespace quire {

// Of both kinds of request, of one, of the other. Throw ApiError.
void RequireNeutralFields(RequestFields& body);
void RequireNeutralChatFields(RequestFields& body);
void RequireNeutralCompletionFields(RequestFields& body);
// Of SGLang's /generate, and of its sampling_params.
void RequireNeutralGenerateFields(RequestFields& body);
void RequireNeutralSamplingFields(RequestFields& params);
// Of Anthropic's /v1/messages, and of OpenAI's /v1/responses.
void RequireNeutralMessagesFields(RequestFields& body);
void RequireNeutralResponsesFields(RequestFields& body);

// JSON Schema of the values that are accepted, by name; the same tables.
enum class NeutralFor {
  kBoth,
  kChat,
  kCompletion,
  kGenerate,
  kSamplingParams,
  kMessages,
  kResponses
};
OrderedJson NeutralSchemas(NeutralFor fields);

}  // namespace quire

#endif  // QUIRE_SERVE_NEUTRAL_FIELDS_H_
