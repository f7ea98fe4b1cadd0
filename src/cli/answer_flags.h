// The flags of commands that answer: how to draw, when to stop, what the template is told.
#ifndef QUIRE_CLI_ANSWER_FLAGS_H_
#define QUIRE_CLI_ANSWER_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "io/json.h"
#include "textgen/generation_config.h"
#include "textgen/text_engine.h"

namespace quire::cli {

// What is not set is as the model's makers say.
struct AnswerFlags {
  std::optional<float> temperature = {};
  std::optional<float> top_p = {};
  std::optional<int32_t> top_k = {};
  std::optional<float> min_p = {};
  std::optional<uint64_t> seed = {};
  std::optional<int64_t> max_tokens = {};
  int64_t min_tokens = 0;
  std::vector<std::string> stop = {};
  bool ignore_eos = false;
  std::string system = {};
  std::string template_kwargs = {};  // a JSON object, or empty
  bool quiet = false;
};

// `flags` must outlive the reader.
void AddAnswerFlags(FlagReader& reader, AnswerFlags& flags);

// A request without its prompt. Without --seed every one has a seed of its own. Throws
// Error(kInvalidArgument) if flags contradict each other.
TextRequest MakeRequest(const AnswerFlags& flags, const GenerationConfig& defaults);

// A message for a chat template, its content made UTF-8 as a tokenizer would make it.
OrderedJson MakeMessage(const char* role, std::string_view content);

// The messages of a conversation that has not begun: the system prompt, if there is one.
OrderedJson FirstMessages(const std::string& system);

// An empty object if the flag was not given. Throws Error(kInvalidArgument) unless it is an object.
OrderedJson TemplateVariables(const AnswerFlags& flags);

}  // namespace quire::cli

#endif  // QUIRE_CLI_ANSWER_FLAGS_H_
