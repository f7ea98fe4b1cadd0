// An error as clients expect it: an HTTP status and {"error": {message, type, param, code}} of OpenAI's
// API, or {"type": "error", "error": {type, message}} of Anthropic's, whose types are in brackets.
//
//   status  type                    code                     when
//   400     invalid_request_error   null                     a field, named by param
//   400     invalid_request_error   context_length_exceeded  prompt too long
//   401     authentication_error    invalid_api_key
//   404     not_found_error         model_not_found, null    an unknown model, an unknown path
//   405, 413, 415, 431 ...          null                     invalid_request_error
//   408     timeout_error           deadline_exceeded        the request's own timeout passed
//   429     rate_limit_error        queue_full
//   500     server_error            step_failed, null        a step failed; anything else of ours
//   503     service_unavailable_error  cancelled, null       loading, draining, ended by the server
//
// [403 permission_error; 413 request_too_large; 500 api_error; 503 overloaded_error; others the same]
#ifndef QUIRE_SERVE_API_ERROR_H_
#define QUIRE_SERVE_API_ERROR_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/request.h"

namespace quire {

enum class ErrorForm { kOpenAi, kAnthropic };

// Of the API that a path belongs to.
ErrorForm ErrorFormOf(std::string_view path);

struct ApiErrorFields {
  int status = 500;
  std::string type = "server_error";
  std::string code = {};   // empty: null
  std::string param = {};  // the path of a field of the body, "messages[2].content"; empty: null
  std::string message = {};
};

class ApiError : public std::runtime_error {
 public:
  explicit ApiError(ApiErrorFields fields)
      : std::runtime_error(fields.message), fields_(std::move(fields)) {}

  int status() const { return fields_.status; }
  const std::string& type() const { return fields_.type; }
  const std::string& code() const { return fields_.code; }
  const std::string& param() const { return fields_.param; }

  // Always UTF-8: what is not, in the message, becomes U+FFFD.
  std::string ToJson(ErrorForm form = ErrorForm::kOpenAi) const;

 private:
  ApiErrorFields fields_;
};

// 400; the message names the field itself.
ApiError BadField(std::string param, std::string message);
ApiError ModelNotFound(std::string_view asked, std::string_view served);
// Both counts are in the message.
ApiError ContextExceeded(int64_t prompt_tokens, int64_t context);
ApiError QueueFull();
ApiError BadApiKey(std::string_view message);
// With the type of the table above: for what HTTP itself refuses, and for health.
ApiError ErrorOfStatus(int status, std::string_view message);
// What the engine or a template refused: 400. "n: expected 1..4, got 9" has the param "n".
ApiError FromError(const Error& error);
// An answer that ended as kCancelled (503: whoever asked is gone, or the server ends), kDeadline (408)
// or kFailed (500, with `error`).
ApiError FromFinish(FinishReason reason, std::string_view error);

}  // namespace quire

#endif  // QUIRE_SERVE_API_ERROR_H_
