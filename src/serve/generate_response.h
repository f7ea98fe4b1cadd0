// Answers of SGLang's /generate, as JSON.
#ifndef QUIRE_SERVE_GENERATE_RESPONSE_H_
#define QUIRE_SERVE_GENERATE_RESPONSE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "io/json.h"
#include "serve/openai_response.h"

namespace quire {

// One answer, whole or as far as it has come: {"text", "meta_info": {"id", "finish_reason",
// "prompt_tokens", "completion_tokens", "cached_tokens"}}, and "index" if there are more answers.
struct GeneratedText {
  size_t index = 0;
  std::string text = {};
  std::optional<std::string> finish_reason = {};  // "stop", "length"; nullopt: it goes on
  std::optional<std::string> stopped_by = {};     // the stop string
  Usage usage = {};                               // of this answer
};
OrderedJson GeneratedTextJson(const AnswerShape& shape, const GeneratedText& generated);

}  // namespace quire

#endif  // QUIRE_SERVE_GENERATE_RESPONSE_H_
