#include "cli/loadgen/load_answer.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"

namespace quire::cli {
namespace {

constexpr int64_t kMany = std::numeric_limits<int64_t>::max();
constexpr int kOkStatus = 200;

// Whether one of these strings is there and not empty.
bool HasText(const JsonRef& object, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    const std::optional<JsonRef> text = object.Find(key);
    if (text && !text->String().empty()) return true;
  }
  return false;
}

// Thinking is text too; servers have two names for it.
bool HasText(Endpoint endpoint, const JsonRef& choice) {
  if (endpoint == Endpoint::kCompletions) return HasText(choice, {"text"});
  const std::optional<JsonRef> delta = choice.Find("delta");
  return delta && HasText(*delta, {"content", "reasoning_content", "reasoning"});
}

void ReadUsage(const JsonRef& usage, RequestRecord& record) {
  const auto read = [](const JsonRef& object, const char* key, std::optional<int64_t>& target) {
    const std::optional<JsonRef> number = object.Find(key);
    if (number) target = number->Int(0, kMany);
  };
  read(usage, "prompt_tokens", record.prompt_tokens);
  read(usage, "completion_tokens", record.output_tokens);
  const std::optional<JsonRef> details = usage.Find("prompt_tokens_details");
  if (details) read(*details, "cached_tokens", record.cached_tokens);
}

// What the server says went wrong: the message of an error object, or all of it.
std::string ErrorText(std::string_view body) {
  try {
    const Json json = ParseJson(body, "answer");
    return JsonRef(json, "answer").At("error").At("message").String();
  } catch (const Error&) {
    return QuoteForMessage(body);
  }
}

}  // namespace

std::string OutcomeName(const RequestRecord& record) {
  switch (record.outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kHttpStatus:
      return fmt::format("http {}", record.http_status);
    case Outcome::kConnection:
      return "connection";
    case Outcome::kTimeout:
      return "timeout";
    case Outcome::kEarlyEnd:
      return "early end";
    case Outcome::kMalformed:
      return "malformed";
    case Outcome::kServerError:
      return "server error";
    case Outcome::kUnfinished:
      return "unfinished";
  }
  throw InternalError("an outcome without a name");
}

LoadAnswer::LoadAnswer(Endpoint endpoint, RequestRecord& record)
    : endpoint_(endpoint), record_(record) {}

void LoadAnswer::End(Outcome outcome, std::string_view message, double now) {
  if (record_.outcome != Outcome::kUnfinished) return;
  record_.outcome = outcome;
  record_.message = message;
  record_.end = now;
}

void LoadAnswer::Feed(std::string_view bytes, double now) {
  record_.http_status = kOkStatus;  // others go to Refuse
  num_bytes_ += std::ssize(bytes);
  try {
    parser_.Feed(bytes, [&](const SseEvent& event) { OnEvent(event, now); });
  } catch (const Error& error) {
    End(Outcome::kMalformed, error.what(), now);
    throw;
  }
}

void LoadAnswer::OnEvent(const SseEvent& event, double now) {
  ++num_events_;
  if (is_done_) return;
  if (event.data != "[DONE]") return OnChunk(event.data, now);
  is_done_ = true;
  Require(!record_.deltas.empty() || !record_.finish_reason.empty(),
          "answer: expected text or a finish_reason before [DONE], got neither");
  End(Outcome::kOk, "", now);
}

void LoadAnswer::OnChunk(std::string_view data, double now) {
  const Json json = ParseJson(data, "answer");
  const JsonRef chunk(json, "answer");
  if (chunk.Find("error")) {
    End(Outcome::kServerError, ErrorText(data), now);
    throw Error(ErrorCode::kInvalidArgument, "answer: got an error");
  }
  const std::optional<JsonRef> usage = chunk.Find("usage");
  if (usage) ReadUsage(*usage, record_);
  bool has_text = false;
  for (const JsonRef& choice : chunk.At("choices").Array()) {
    has_text |= HasText(endpoint_, choice);
    const std::optional<JsonRef> reason = choice.Find("finish_reason");
    if (reason) record_.finish_reason = reason->String();
  }
  if (has_text) record_.deltas.push_back(now);
}

void LoadAnswer::Finish(std::string_view content_type, double now) {
  record_.http_status = kOkStatus;
  if (num_events_ == 0 && num_bytes_ > 0) {
    return End(Outcome::kMalformed,
               fmt::format("expected server-sent events, got {}", QuoteForMessage(content_type)),
               now);
  }
  End(Outcome::kEarlyEnd,
      fmt::format("the answer ended without [DONE] after {} pieces of text", record_.deltas.size()),
      now);
}

void LoadAnswer::Refuse(int status, std::string_view body, double now) {
  record_.http_status = status;
  End(Outcome::kHttpStatus, fmt::format("status {}: {}", status, ErrorText(body)), now);
}

void LoadAnswer::Break(std::string_view reason, double now) {
  End(num_bytes_ > 0 ? Outcome::kEarlyEnd : Outcome::kConnection, reason, now);
}

}  // namespace quire::cli
