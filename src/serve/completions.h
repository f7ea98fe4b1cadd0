// /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages and /generate: from a body to a streamed
// or a whole answer.
#ifndef QUIRE_SERVE_COMPLETIONS_H_
#define QUIRE_SERVE_COMPLETIONS_H_

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "http/message.h"
#include "http/server.h"
#include "serve/metrics.h"
#include "serve/on_workers.h"
#include "serve/openai_request.h"
#include "serve/openai_response.h"
#include "serve/tool_fields.h"
#include "text/tool_style.h"
#include "textgen/text_constraint.h"
#include "textgen/text_engine.h"
#include "textgen/text_model.h"

namespace quire {

class EventCarrier;

struct CompletionsOptions {
  std::string model_name = {};
  std::string system_fingerprint = {};
  RequestLimits limits = {};
  std::optional<std::chrono::milliseconds> request_timeout = {};  // the most, whatever one asks for
  std::chrono::milliseconds ping_interval{15'000};  // a stream is silent for no longer than this
  // How the model writes calls of tools. Absent: as its template has it.
  std::optional<ToolFormat> tool_format = {};
  bool splits_reasoning = true;  // what stands between <think> and </think> is no content
};

// Throws ApiError(404) unless `asked` is absent or the model served.
void CheckModelName(const std::optional<std::string>& asked, const std::string& served);

// Used on `io` only.
class Completions {
 public:
  // All outlive this, and this outlives every Handle; metrics and io also what is owed. Bodies are read
  // and prompts tokenized on `workers`: a long one holds up no stream.
  Completions(asio::io_context& io, Workers& workers, TextEngine& engine, Metrics& metrics,
              CompletionsOptions options);

  // Answers with `headers`. Throws ApiError as long as nothing was sent. If the coroutine is cancelled,
  // so are its requests.
  asio::awaitable<void> Handle(Endpoint endpoint, const HttpRequest& request,
                               HttpResponder& responder, const HttpHeaders& headers);

  // Calls in messages as the model's template wants them. Throws ApiError. Any thread may use it.
  void FitToTemplate(Conversation& conversation) const;
  // The tokens of the prompt that a body of /v1/messages/count_tokens makes. On a worker. Throws ApiError.
  int64_t CountTokens(const std::string& body, const std::stop_token& stop) const;

  // Requests that are being answered.
  int64_t num_open() const { return std::ssize(open_); }
  // Requests whose last event the engine has yet to give: it uses what it was given until then.
  int64_t num_owed() const { return *owed_; }
  // Ends them all: they are answered with what kCancelled means.
  void CancelAll();

 private:
  struct Job;
  class Submission;
  template <class Answer>
  class Numbers;

  void CheckContext(size_t prompt_tokens) const;
  void AddTools(const ToolFields& tools, const GenerationFields& generation,
                TextRequest& request) const;
  std::shared_ptr<const TokenGrammar> CompileConstraint(const GenerationFields& fields) const;
  Job Prepare(Endpoint endpoint, const std::string& body, const Arrival& arrival,
              const std::stop_token& stop) const;
  // A conversation that may call tools, whatever its API. Arguments of calls become what the template wants.
  ChatPrompt MakePrompt(ChatCompletionRequest& request, const std::stop_token& stop) const;
  Job PrepareChat(ChatCompletionRequest request, const Arrival& arrival,
                  const std::stop_token& stop) const;
  Job PrepareResponse(const std::string& body, const Arrival& arrival,
                      const std::stop_token& stop) const;
  Job PrepareGenerate(const std::string& body, const Arrival& arrival,
                      const std::stop_token& stop) const;
  void AddPrompts(const std::vector<CompletionPrompt>& prompts, const GenerationFields& generation,
                  const Arrival& arrival, const std::stop_token& stop, Job& job) const;
  Job PrepareCompletion(const std::string& body, const Arrival& arrival,
                        const std::stop_token& stop) const;
  // `answer` is complete when they are.
  template <class Answer>
  asio::awaitable<void> SendWhole(Submission& submission, Answer& answer,
                                  EngineClock::time_point arrival, HttpResponder& responder,
                                  const HttpHeaders& headers);
  template <class Answer>
  asio::awaitable<void> SendStream(Submission& submission, Answer& answer,
                                   EngineClock::time_point arrival, HttpResponder& responder,
                                   const HttpHeaders& headers);

  const std::shared_ptr<EventCarrier> events_;
  Workers& workers_;
  TextEngine& engine_;
  Metrics& metrics_;
  const CompletionsOptions options_;
  const std::unique_ptr<ConstraintCompiler> constraints_;
  const std::optional<ToolStyle> tool_style_;  // absent: the model's calls are not understood
  std::mt19937_64 random_;
  std::set<Submission*> open_;
  // Shared with the engine's thread.
  const std::shared_ptr<std::atomic<int64_t>> owed_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace quire

#endif  // QUIRE_SERVE_COMPLETIONS_H_
