// Bytes -> each kind of body: a struct within its promises, or an ApiError of status 400 that is itself
// JSON.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "serve/messages_request.h"
#include "serve/openai_request.h"
#include "serve/responses_request.h"
#include "serve/text_requests.h"
#include "text/utf8.h"

namespace quire {
namespace {

constexpr int64_t kVocabSize = int64_t{1} << 31;  // every token that a body can name
const RequestLimits kLimits{
    .max_depth = 16, .max_n = 4, .max_prompts = 8, .max_output_tokens = 1000};

template <class Fn>
void Try(Fn fn) {
  try {
    fn();
  } catch (const ApiError& error) {
    QUIRE_CHECK(error.status() == 400 && error.type() == "invalid_request_error");
    const Json json = Json::parse(error.ToJson());
    QUIRE_CHECK(!json["error"]["message"].get<std::string>().empty());
  }
}

// What the engine refuses for other reasons than the model's size must have been refused before.
void CheckGeneration(const GenerationFields& fields) {
  const TextRequest request = MakeTextRequest(fields, {1}, {}, {.seed = 1});
  SamplingParams sampling = request.tokens.sampling;
  sampling.logit_bias = request.tokens.logit_bias;
  Validate(sampling, kVocabSize);
  QUIRE_CHECK(fields.n >= 1 && fields.n <= kLimits.max_n);
  QUIRE_CHECK(request.tokens.max_tokens >= 1 &&
              request.tokens.max_tokens <= *kLimits.max_output_tokens);
  QUIRE_CHECK(request.tokens.min_tokens >= 0 &&
              request.tokens.min_tokens <= request.tokens.max_tokens);
  QUIRE_CHECK(fields.stream || !fields.include_usage);
  for (const std::string& stop : request.stop) QUIRE_CHECK(!stop.empty() && IsUtf8(stop));
}

void CheckConversation(const Conversation& conversation) {
  QUIRE_CHECK(conversation.messages.is_array() && !conversation.messages.empty());
  for (const OrderedJson& message : conversation.messages) {
    QUIRE_CHECK(message.at("role").is_string() && message.at("content").is_string());
  }
  QUIRE_CHECK(conversation.template_variables.is_object());
}

void CheckTools(const ToolFields& tools) {
  QUIRE_CHECK(tools.tools.size() <= kMaxTools);
  QUIRE_CHECK(tools.choice == ToolChoice::kNone || !tools.tools.empty());
  for (const ToolDefinition& tool : tools.tools) {
    QUIRE_CHECK(!tool.name.empty() && (tool.parameters.is_null() || tool.parameters.is_object()));
  }
}

void CheckPrompts(const std::vector<CompletionPrompt>& prompts) {
  QUIRE_CHECK(!prompts.empty() && std::cmp_less_equal(prompts.size(), kLimits.max_prompts));
  for (const CompletionPrompt& prompt : prompts) {
    QUIRE_CHECK(std::visit([](const auto& content) { return !content.empty(); }, prompt));
  }
}

void ParseAll(std::string_view body) {
  Try([&] {
    const ChatCompletionRequest request = ParseChatCompletionRequest(body, {}, kLimits);
    CheckGeneration(request.generation);
    CheckConversation(request.conversation);
    CheckTools(request.tools);
    Try([&] {
      Conversation objects = request.conversation;
      objects.MakeArgumentsObjects();
    });
  });
  Try([&] {
    const CompletionRequest request = ParseCompletionRequest(body, {}, kLimits);
    CheckGeneration(request.generation);
    CheckPrompts(request.prompts);
  });
  Try([&] {
    const GenerateRequest request = ParseGenerateRequest(body, {}, kLimits);
    CheckGeneration(request.generation);
    CheckPrompts(request.prompts);
  });
  Try([&] {
    const ChatCompletionRequest request = ParseMessagesRequest(body, {}, kLimits);
    CheckGeneration(request.generation);
    CheckConversation(request.conversation);
  });
  Try([&] { CheckConversation(ParseCountTokensRequest(body, kLimits).conversation); });
  Try([&] {
    const ResponsesRequest request = ParseResponsesRequest(body, {}, kLimits);
    CheckGeneration(request.chat.generation);
    CheckConversation(request.chat.conversation);
    QUIRE_CHECK(request.repeated.is_object());
  });
  Try([&] { QUIRE_CHECK(IsUtf8(ParseTokenizeRequest(body, kLimits).text)); });
  Try([&] {
    for (const int32_t token : ParseDetokenizeRequest(body, kLimits).tokens) {
      QUIRE_CHECK(token >= 0);
    }
  });
  Try([&] { CheckConversation(ParseApplyTemplateRequest(body, kLimits).conversation); });
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  quire::ParseAll({reinterpret_cast<const char*>(bytes), size});
  return 0;
}
