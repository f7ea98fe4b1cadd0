#include "serve/api_error.h"

#include <nlohmann/json.hpp>

#include "io/json.h"

namespace quire {
namespace {

constexpr const char* kInvalidRequest = "invalid_request_error";

const char* TypeOf(int status) {
  switch (status) {
    case 401:
    case 403:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : kInvalidRequest;
  }
}

// As Anthropic's API names it.
const char* MessagesTypeOf(int status) {
  switch (status) {
    case 403:
      return "permission_error";
    case 413:
      return "request_too_large";
    case 503:
      return "overloaded_error";
    case 504:
      return TypeOf(status);
    default:
      return status >= 500 ? "api_error" : TypeOf(status);
  }
}

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

// The field that a message of the engine begins with: a name of lower-case letters before ": ".
std::string FieldOf(std::string_view message) {
  const std::string_view name = message.substr(0, message.find(": "));
  constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyz_0123456789[].";
  const bool is_name =
      name.size() < message.size() && name.find_first_not_of(kName) == std::string_view::npos;
  return is_name ? std::string(name) : "";
}

}  // namespace

ErrorForm ErrorFormOf(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool is_below =
      path.starts_with(kMessages) && path.substr(kMessages.size()).starts_with('/');
  return path == kMessages || is_below ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
}

std::string ApiError::ToJson(ErrorForm form) const {
  OrderedJson error;
  if (form == ErrorForm::kAnthropic) {
    error = {{"type", "error"},
             {"error", {{"type", MessagesTypeOf(status())}, {"message", what()}}}};
  } else {
    error = {{"error",
              {{"message", what()},
               {"type", type()},
               {"param", TextOrNull(param())},
               {"code", TextOrNull(code())}}}};
  }
  return error.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

ApiError BadField(std::string param, std::string message) {
  return ApiError({.status = 400,
                   .type = kInvalidRequest,
                   .param = std::move(param),
                   .message = std::move(message)});
}

ApiError ModelNotFound(std::string_view asked, std::string_view served) {
  return ApiError({.status = 404,
                   .type = TypeOf(404),
                   .code = "model_not_found",
                   .param = "model",
                   .message = fmt::format("model: expected {}, got {}", QuoteForMessage(served),
                                          QuoteForMessage(asked))});
}

ApiError ContextExceeded(int64_t prompt_tokens, int64_t context) {
  return ApiError({.status = 400,
                   .type = kInvalidRequest,
                   .code = "context_length_exceeded",
                   .param = "prompt",
                   .message = fmt::format("the prompt has {} tokens, which leaves no room for an "
                                          "answer in this model's context length of {} tokens",
                                          prompt_tokens, context)});
}

ApiError QueueFull() {
  return ApiError({.status = 429,
                   .type = TypeOf(429),
                   .code = "queue_full",
                   .message = "the queue is full; try again later"});
}

ApiError BadApiKey(std::string_view message) {
  return ApiError({.status = 401,
                   .type = TypeOf(401),
                   .code = "invalid_api_key",
                   .message = std::string(message)});
}

ApiError ErrorOfStatus(int status, std::string_view message) {
  return ApiError({.status = status, .type = TypeOf(status), .message = std::string(message)});
}

ApiError FromError(const Error& error) { return BadField(FieldOf(error.what()), error.what()); }

ApiError FromFinish(FinishReason reason, std::string_view error) {
  switch (reason) {
    case FinishReason::kCancelled:
      return ApiError({.status = 503,
                       .type = TypeOf(503),
                       .code = "cancelled",
                       .message = "the request was cancelled before its answer was complete"});
    case FinishReason::kDeadline:
      return ApiError({.status = 408,
                       .type = TypeOf(408),
                       .code = "deadline_exceeded",
                       .message = "the request's timeout passed before its answer was complete"});
    case FinishReason::kFailed:
      return ApiError(
          {.status = 500,
           .type = TypeOf(500),
           .code = "step_failed",
           .message = fmt::format("the server failed to compute the answer: {}", error)});
    case FinishReason::kNone:
    case FinishReason::kStop:
    case FinishReason::kLength:
      break;
  }
  throw InternalError(fmt::format("FromFinish: {} is no error", FinishReasonName(reason)));
}

}  // namespace quire
