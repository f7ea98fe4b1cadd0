#include "serve/completions.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "http/sse.h"
#include "serve/answer_blocks.h"
#include "serve/api_error.h"
#include "serve/event_queue.h"
#include "serve/messages_request.h"
#include "serve/responses_request.h"
#include "textgen/text_model.h"

namespace quire {

void CheckModelName(const std::optional<std::string>& asked, const std::string& served) {
  if (asked && *asked != served) throw ModelNotFound(*asked, served);
}

// A request that can be submitted.
struct Completions::Job {
  AnswerShape shape = {};
  bool stream = false;
  std::vector<TextRequest> requests = {};  // one for each prompt
};

// The engine's part of one HTTP request: what is still open when it goes is cancelled.
class Completions::Submission {
 public:
  explicit Submission(Completions& owner)
      : owner_(owner), queue_(std::make_shared<EventQueue>(owner.events_)) {
    owner_.open_.insert(this);
  }
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;
  ~Submission() {
    Cancel();
    owner_.open_.erase(this);
  }

  // Throws ApiError if the queue is full, a request cannot be computed, or Cancel came before.
  void Submit(std::vector<TextRequest> requests, EngineClock::time_point arrival) {
    if (is_cancelled_) throw FromFinish(FinishReason::kCancelled, "");
    for (size_t prompt = 0; prompt < requests.size(); ++prompt) {
      SubmitOne(prompt, std::move(requests[prompt]), arrival);
    }
  }
  // What has ended is left as it is.
  void Cancel() {
    is_cancelled_ = true;
    for (const RequestId id : ids_) owner_.engine_.Cancel(id);
  }

  EventQueue& queue() { return *queue_; }

 private:
  void SubmitOne(size_t prompt, TextRequest request, EngineClock::time_point arrival) {
    const auto metrics = std::make_shared<RequestMetrics>(owner_.metrics_, arrival,
                                                          std::ssize(request.tokens.prompt));
    // Counted before the engine can answer, and given back if it will not.
    std::shared_ptr<std::atomic<int64_t>> owed = owner_.owed_;
    ++*owed;
    std::optional<RequestId> id;
    try {
      id = owner_.engine_.Submit(std::move(request),
                                 [queue = queue_, metrics, prompt, owed](const TextEvent& event) {
                                   metrics->Take(event, EngineClock::now());
                                   queue->Push(prompt, event);
                                   if (event.last_of_request) --*owed;
                                 });
    } catch (...) {
      --*owed;
      throw;
    }
    if (!id) {
      --*owed;
      throw QueueFull();
    }
    ids_.push_back(*id);
  }

  Completions& owner_;
  std::shared_ptr<EventQueue> queue_;
  std::vector<RequestId> ids_;
  bool is_cancelled_ = false;
};

namespace {

std::optional<ToolStyle> ToolStyleOf(const TextModel& model,
                                     const std::optional<ToolFormat>& format) {
  std::optional<ToolStyle> style;
  if (model.chat) style = FindToolStyle(*model.chat);
  if (!format) return style;
  return ToolStyle{.format = *format, .wants_objects = style && style->wants_objects};
}

}  // namespace

Completions::Completions(asio::io_context& io, Workers& workers, TextEngine& engine,
                         Metrics& metrics, CompletionsOptions options)
    : events_(std::make_shared<EventCarrier>(io)),
      workers_(workers),
      engine_(engine),
      metrics_(metrics),
      options_(std::move(options)),
      constraints_(std::make_unique<ConstraintCompiler>(*engine.model().tokenizer,
                                                        engine.engine().limits().vocab_size)),
      tool_style_(ToolStyleOf(engine.model(), options_.tool_format)),
      random_(std::random_device()()) {}

void Completions::CancelAll() {
  for (Submission* submission : open_) submission->Cancel();
}

// ---- On a worker ----

// Throws ApiError if a prompt leaves no room for an answer.
void Completions::CheckContext(size_t prompt_tokens) const {
  const TokenCount context = engine_.engine().limits().context;
  const TokenCount prompt(prompt_tokens);
  if (prompt >= context) throw ContextExceeded(prompt.raw(), context.raw());
}

// Null where a request has none. Throws ApiError, with the field, for one that is not supported.
std::shared_ptr<const TokenGrammar> Completions::CompileConstraint(
    const GenerationFields& fields) const {
  if (!fields.constraint) return nullptr;
  try {
    return constraints_->Compile(*fields.constraint);
  } catch (const Error& error) {
    throw BadField(fields.constraint->source, error.what());
  }
}

Completions::Job Completions::Prepare(Endpoint endpoint, const std::string& body,
                                      const Arrival& arrival, const std::stop_token& stop) const {
  const GenerationConfig& defaults = engine_.model().generation;
  Job job;
  switch (endpoint) {
    case Endpoint::kChat:
      job = PrepareChat(ParseChatCompletionRequest(body, defaults, options_.limits), arrival, stop);
      break;
    case Endpoint::kMessages:
      job = PrepareChat(ParseMessagesRequest(body, defaults, options_.limits), arrival, stop);
      break;
    case Endpoint::kResponses:
      job = PrepareResponse(body, arrival, stop);
      break;
    case Endpoint::kCompletion:
      job = PrepareCompletion(body, arrival, stop);
      break;
    case Endpoint::kGenerate:
      job = PrepareGenerate(body, arrival, stop);
      break;
  }
  job.shape.endpoint = endpoint;
  for (TextRequest& request : job.requests) {
    if (options_.request_timeout) {
      const auto latest = arrival.now + *options_.request_timeout;
      request.tokens.deadline = std::min(request.tokens.deadline.value_or(latest), latest);
    }
  }
  return job;
}

ChatPrompt Completions::MakePrompt(ChatCompletionRequest& request,
                                   const std::stop_token& stop) const {
  CheckModelName(request.generation.model, options_.model_name);
  FitToTemplate(request.conversation);
  const bool has_tools = request.tools.choice != ToolChoice::kNone;
  if (has_tools && !tool_style_ && engine_.model().chat) {
    throw BadField("tools",
                   "tools: expected none, since this model's template writes no calls in a format "
                   "that is known (--tool-call-parser names one)");
  }
  if (has_tools) request.conversation.tools = ToolsForTemplate(request.tools.tools);
  return MakeChatPrompt(engine_.model(), request.conversation.ToChatRequest(), stop);
}

void Completions::FitToTemplate(Conversation& conversation) const {
  if (tool_style_ && tool_style_->wants_objects) conversation.MakeArgumentsObjects();
}

int64_t Completions::CountTokens(const std::string& body, const std::stop_token& stop) const {
  ChatCompletionRequest request = ParseCountTokensRequest(body, options_.limits);
  return std::ssize(MakePrompt(request, stop).tokens);
}

Completions::Job Completions::PrepareResponse(const std::string& body, const Arrival& arrival,
                                              const std::stop_token& stop) const {
  ResponsesRequest request =
      ParseResponsesRequest(body, engine_.model().generation, options_.limits);
  Job job = PrepareChat(std::move(request.chat), arrival, stop);
  job.shape.request = std::move(request.repeated);
  return job;
}

Completions::Job Completions::PrepareChat(ChatCompletionRequest request, const Arrival& arrival,
                                          const std::stop_token& stop) const {
  ChatPrompt prompt = MakePrompt(request, stop);
  CheckContext(prompt.tokens.size());
  const GenerationFields& generation = request.generation;
  Job job{.shape = MakeAnswerShape(request), .stream = generation.stream};
  job.shape.prompts = {{.tokens = prompt.tokens}};
  const auto reasoning = options_.splits_reasoning ? std::optional(prompt.reasoning) : std::nullopt;
  job.requests.push_back(MakeTextRequest(generation, std::move(prompt.tokens), reasoning, arrival));
  job.requests.back().grammar = CompileConstraint(generation);
  if (request.tools.choice != ToolChoice::kNone) {
    AddTools(request.tools, generation, job.requests.back());
  }
  return job;
}

void Completions::AddTools(const ToolFields& tools, const GenerationFields& generation,
                           TextRequest& request) const {
  request.tools = ToolCallOptions{
      .format = tool_style_->format,
      .text_parameters = std::make_shared<const TextParameters>(FindTextParameters(tools.tools)),
      .parallel = tools.parallel};
  request.skip_special_tokens = false;  // those that mark calls are read
  const bool is_required = tools.choice == ToolChoice::kRequired;
  using Kind = TextConstraint::Kind;
  const std::optional<TextConstraint>& constraint = generation.constraint;
  const bool is_json = constraint && (constraint->kind == Kind::kJsonObject ||
                                      constraint->kind == Kind::kJsonSchema);
  if (is_required && constraint && !is_json) {
    throw BadField("tool_choice",
                   fmt::format("tool_choice: expected \"auto\" or \"none\" with {}, which all of "
                               "the text is held to",
                               constraint->source));
  }
  const bool is_strict = !constraint && std::ranges::any_of(tools.tools, &ToolDefinition::strict);
  if (!is_required && !is_json && !is_strict) return;
  // A schema is for content, and calls are none.
  ToolGrammarOptions calls{.format = tool_style_->format,
                           .tools = tools.tools,
                           .name = tools.name,
                           .parallel = tools.parallel,
                           .in_text = !is_required && !is_json};
  try {
    request.grammar =
        constraints_->CompileCalls(std::move(calls), is_required ? std::nullopt : constraint);
  } catch (const Error& error) {
    throw BadField("tools", error.what());
  }
}

Completions::Job Completions::PrepareCompletion(const std::string& body, const Arrival& arrival,
                                                const std::stop_token& stop) const {
  const TextModel& model = engine_.model();
  const CompletionRequest request = ParseCompletionRequest(body, model.generation, options_.limits);
  CheckModelName(request.generation.model, options_.model_name);
  Job job{.shape = MakeAnswerShape(request), .stream = request.generation.stream};
  AddPrompts(request.prompts, request.generation, arrival, stop, job);
  return job;
}

Completions::Job Completions::PrepareGenerate(const std::string& body, const Arrival& arrival,
                                              const std::stop_token& stop) const {
  const GenerateRequest request =
      ParseGenerateRequest(body, engine_.model().generation, options_.limits);
  Job job{.shape = MakeAnswerShape(request), .stream = request.generation.stream};
  AddPrompts(request.prompts, request.generation, arrival, stop, job);
  return job;
}

void Completions::AddPrompts(const std::vector<CompletionPrompt>& prompts,
                             const GenerationFields& generation, const Arrival& arrival,
                             const std::stop_token& stop, Job& job) const {
  const TextModel& model = engine_.model();
  const std::shared_ptr<const TokenGrammar> grammar = CompileConstraint(generation);
  for (const CompletionPrompt& prompt : prompts) {
    // Equal prompts are drawn apart: seeds that differ by one have nothing in common.
    const Arrival of_prompt{.now = arrival.now, .seed = arrival.seed + job.requests.size()};
    AnswerPrompt answer_prompt;
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      answer_prompt.text = *text;
      answer_prompt.tokens = EncodePrompt(model, *text, stop);
      CheckContext(answer_prompt.tokens.size());
    } else {
      answer_prompt.tokens = std::get<std::vector<int32_t>>(prompt);
      CheckContext(answer_prompt.tokens.size());  // their text may be far longer than they are
      answer_prompt.text = model.tokenizer->Decode(
          answer_prompt.tokens, {.skip_special_tokens = generation.skip_special_tokens});
    }
    job.requests.push_back(
        MakeTextRequest(generation, answer_prompt.tokens, std::nullopt, of_prompt));
    job.requests.back().grammar = grammar;
    job.shape.prompts.push_back(std::move(answer_prompt));
  }
}

// What the access log says of a request, when it has been answered, or not.
template <class Answer>
class Completions::Numbers {
 public:
  Numbers(HttpResponder& responder, const Answer& answer, EngineClock::time_point arrival)
      : responder_(responder), answer_(answer), arrival_(arrival) {}
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  ~Numbers() {
    const Usage usage = answer_.usage();
    responder_.set_value("prompt_tokens", static_cast<double>(usage.prompt_tokens));
    responder_.set_value("cached_tokens", static_cast<double>(usage.cached_tokens));
    responder_.set_value("output_tokens", static_cast<double>(usage.completion_tokens));
    if (first_token_) responder_.set_value("first_token_seconds", *first_token_);
  }

  void Take(const TextEvent& event) {
    if (first_token_ || event.output_tokens == 0) return;
    first_token_ = std::chrono::duration<double>(EngineClock::now() - arrival_).count();
  }

 private:
  HttpResponder& responder_;
  const Answer& answer_;
  EngineClock::time_point arrival_;
  std::optional<double> first_token_;
};

// ---- Answers ----

namespace {

std::string ToSse(const std::string& chunk) { return SseData(chunk); }
std::string ToSse(const SseEvent& event) { return SseText(event); }

}  // namespace

template <class Answer>
asio::awaitable<void> Completions::SendWhole(Submission& submission, Answer& answer,
                                             EngineClock::time_point arrival,
                                             HttpResponder& responder, const HttpHeaders& headers) {
  Numbers<Answer> numbers(responder, answer, arrival);
  while (!answer.done()) {
    const std::vector<QueuedEvent> events =
        co_await submission.queue().Next(options_.ping_interval);
    for (const QueuedEvent& queued : events) {
      numbers.Take(queued.event);
      (void)answer.Take(queued.prompt, queued.event);
    }
    if (answer.error()) throw *answer.error();
  }
  ReplyPieces pieces = answer.Json();
  std::string first = pieces();
  std::string piece = pieces();
  if (piece.empty()) {
    HttpResponse response{.content_type = std::string(kJsonContentType),
                          .body = std::move(first),
                          .headers = headers};
    co_await responder.Send(std::move(response));
    co_return;
  }
  co_await responder.Start(200, std::string(kJsonContentType), headers);
  co_await responder.Write(first);
  for (; !piece.empty(); piece = pieces()) co_await responder.Write(piece);
  co_await responder.Finish();
}

template <class Answer>
asio::awaitable<void> Completions::SendStream(Submission& submission, Answer& answer,
                                              EngineClock::time_point arrival,
                                              HttpResponder& responder,
                                              const HttpHeaders& headers) {
  HttpHeaders stream_headers = headers;
  stream_headers.Add("Cache-Control", "no-cache");
  stream_headers.Add("X-Accel-Buffering", "no");  // proxies pass every piece on
  co_await responder.Start(200, std::string(kSseContentType), std::move(stream_headers));
  Numbers<Answer> numbers(responder, answer, arrival);
  auto last_write = EngineClock::now();
  while (!answer.done() && !answer.error()) {
    const std::vector<QueuedEvent> events =
        co_await submission.queue().Next(options_.ping_interval);
    std::string out;
    for (const QueuedEvent& queued : events) {
      numbers.Take(queued.event);
      for (const auto& chunk : answer.Take(queued.prompt, queued.event)) out += ToSse(chunk);
    }
    if (answer.error()) responder.set_error(answer.error()->what());
    if (answer.error() || answer.done()) {
      out += answer.Ending();
    } else if (out.empty() && EngineClock::now() - last_write >= options_.ping_interval) {
      out += kSsePing;  // tokens may come whose text is held back
    }
    if (out.empty()) continue;
    co_await responder.Write(out);
    last_write = EngineClock::now();
  }
  co_await responder.Finish();
}

// ---- Every request ----

asio::awaitable<void> Completions::Handle(Endpoint endpoint, const HttpRequest& request,
                                          HttpResponder& responder, const HttpHeaders& headers) {
  const Arrival arrival{.now = EngineClock::now(), .seed = random_()};
  const std::string id = MakeAnswerId(endpoint, random_(), random_());
  // Open from here on: whoever drains waits for what is still being read, too.
  Submission submission(*this);
  Job job = co_await RunOnWorkers(workers_.For(request.body.size()), [&](std::stop_token stop) {
    return Prepare(endpoint, request.body, arrival, stop);
  });
  responder.DropBody();  // an answer may take long
  job.shape.id = id;
  job.shape.created = SecondsSince1970();
  job.shape.model = options_.model_name;
  job.shape.system_fingerprint = options_.system_fingerprint;
  job.shape.tokenizer = engine_.model().tokenizer.get();

  submission.Submit(std::move(job.requests), arrival.now);
  if (endpoint == Endpoint::kMessages || endpoint == Endpoint::kResponses) {
    const std::unique_ptr<BlockAnswer> answer =
        MakeBlockAnswer(std::move(job.shape), job.stream ? Delivery::kStream : Delivery::kWhole);
    if (job.stream) {
      co_await SendStream(submission, *answer, arrival.now, responder, headers);
    } else {
      co_await SendWhole(submission, *answer, arrival.now, responder, headers);
    }
  } else if (job.stream) {
    StreamedAnswer answer(std::move(job.shape));
    co_await SendStream(submission, answer, arrival.now, responder, headers);
  } else {
    WholeAnswer answer(std::move(job.shape));
    co_await SendWhole(submission, answer, arrival.now, responder, headers);
  }
}

}  // namespace quire
