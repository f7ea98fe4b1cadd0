// Who answers questions: a model of this machine, or a server.
#ifndef QUIRE_CLI_EVAL_ANSWERER_H_
#define QUIRE_CLI_EVAL_ANSWERER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "cli/interrupt.h"
#include "cli/local_model.h"

namespace quire::cli {

// How a question is put.
enum class AskAs {
  kChat,  // as a user's message, in the model's template
  kText,  // as a text to be continued
};

struct AskOptions {
  AskAs as = AskAs::kChat;
  int64_t max_tokens = 512;
  double temperature = 0;
  std::string stop = {};  // a text that ends the answer; empty: none
};

struct GivenAnswer {
  std::string text = {};  // without reasoning
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  std::string error = {};        // not empty: there is no answer, and why
  bool was_interrupted = false;  // there is none because of ctrl-C
};

class Answerer {
 public:
  virtual ~Answerer() = default;
  // Waits for the answer, or for ctrl-C. From any number of threads.
  virtual GivenAnswer Ask(const std::string& question, const AskOptions& options) = 0;
};

// Both arguments outlive it.
std::unique_ptr<Answerer> MakeLocalAnswerer(LocalModel& model, const Interrupt& interrupt);

struct ServerAddress {
  std::string url = {};  // with or without "/v1" at its end
  std::string api_key = {};
  std::string model = {};  // empty: the server's only one
  std::chrono::milliseconds timeout{600'000};
};
// `interrupt` outlives it.
std::unique_ptr<Answerer> MakeServerAnswerer(ServerAddress server, const Interrupt& interrupt);

}  // namespace quire::cli

#endif  // QUIRE_CLI_EVAL_ANSWERER_H_
