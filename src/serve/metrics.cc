#include "serve/metrics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "io/json.h"
#include "serve/metrics_text.h"

namespace quire {
namespace {

// The bounds are vLLM's, so that graphs made for it show the same steps; below its smallest a few more,
// for models whose tokens take less.
std::vector<double> FirstTokenBounds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
          1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
}
std::vector<double> TokenBounds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,  0.15, 0.2,  0.3,
          0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10.0, 20.0, 40.0, 80.0};
}
std::vector<double> RequestBounds() {
  return {0.01, 0.05, 0.1,  0.3,  0.5,  0.8,  1.0,   1.5,   2.0,   2.5,   5.0,    10.0,
          15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
}
std::vector<double> CountBounds() {
  return {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
          2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
}

constexpr FinishReason kEnds[] = {FinishReason::kStop, FinishReason::kLength,
                                  FinishReason::kCancelled, FinishReason::kDeadline,
                                  FinishReason::kFailed};

double Seconds(EngineClock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

int64_t PagesTotal(const SchedulerSnapshot& engine) {
  return (engine.pages_free + engine.pages_cached + engine.pages_in_use).raw();
}

// Of the observations, so many lie below; read off the buckets as Prometheus's histogram_quantile does.
OrderedJson Quantile(const Histogram& histogram, double part) {
  if (histogram.count() == 0) return nullptr;
  const double rank = part * static_cast<double>(histogram.count());
  double below = 0;
  for (size_t i = 0; i < histogram.bounds().size(); ++i) {
    const auto count = static_cast<double>(histogram.counts()[i]);
    if (count > 0 && below + count >= rank) {
      const double low = i == 0 ? 0 : histogram.bounds()[i - 1];
      return low + (histogram.bounds()[i] - low) * (rank - below) / count;
    }
    below += count;
  }
  return histogram.bounds().back();  // above: all that is known
}

OrderedJson HistogramJson(const Histogram& histogram) {
  return {{"count", histogram.count()},
          {"sum", histogram.sum()},
          {"p50", Quantile(histogram, 0.5)},
          {"p99", Quantile(histogram, 0.99)}};
}

OrderedJson CountersJson(const SchedulerCounters& counters) {
  return {{"requests_added", counters.requests_added},
          {"requests_refused", counters.requests_refused},
          {"answers_finished", counters.answers_finished},
          {"steps", counters.steps},
          {"mixed_steps", counters.mixed_steps},
          {"prompt_tokens", counters.prompt_tokens},
          {"cached_tokens", counters.cached_tokens},
          {"prefill_tokens", counters.prefill_tokens},
          {"output_tokens", counters.output_tokens},
          {"drafts", counters.drafts},
          {"draft_tokens", counters.draft_tokens},
          {"accepted_tokens", counters.accepted_tokens},
          {"preemptions", counters.preemptions},
          {"page_copies", counters.page_copies},
          {"evicted_pages", counters.evicted_pages}};
}

OrderedJson RunningJson(const SchedulerSnapshot& engine) {
  OrderedJson list = OrderedJson::array();
  for (const SchedulerSnapshot::Running& running : engine.running) {
    list.push_back({{"request", running.request},
                    {"sample", running.sample},
                    {"prompt_tokens", running.prompt_tokens.raw()},
                    {"computed_tokens", running.computed_tokens.raw()},
                    {"output_tokens", running.output_tokens},
                    {"pages", running.pages.raw()}});
  }
  return list;
}

// Positions that no draft has come to are left out, as long as there is one.
void AddDrafts(const SchedulerCounters& counters, MetricsText& text) {
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    text.Counter(name, help, static_cast<double>(value));
  };
  counter("spec_decode_num_drafts_total", "Steps of an answer with tokens that were guessed.",
          counters.drafts);
  counter("spec_decode_num_draft_tokens_total", "Tokens guessed.", counters.draft_tokens);
  counter("spec_decode_num_accepted_tokens_total", "Tokens guessed right.",
          counters.accepted_tokens);
  std::vector<std::pair<std::string, double>> positions;
  for (size_t i = 0; i < counters.accepted_at.size(); ++i) {
    if (i > 0 && counters.accepted_at[i] == 0) break;
    positions.emplace_back(std::to_string(i), static_cast<double>(counters.accepted_at[i]));
  }
  text.Family("spec_decode_num_accepted_tokens_per_pos_total", "counter",
              "Tokens guessed right, by their place in the guess.", "position", positions);
}

void AddEngine(const SchedulerSnapshot& engine, MetricsText& text) {
  const SchedulerCounters& counters = engine.counters;
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    text.Counter(name, help, static_cast<double>(value));
  };
  const auto in_use = static_cast<double>(engine.pages_in_use.raw());
  const auto total = static_cast<double>(PagesTotal(engine));
  text.Gauge("num_requests_running", "Answers that are being computed.",
             static_cast<double>(counters.running));
  text.Gauge("num_requests_waiting", "Requests that wait for their turn.",
             static_cast<double>(counters.waiting));
  text.Gauge("kv_cache_usage_perc", "Part of the pages that requests hold, 0 to 1.",
             total > 0 ? in_use / total : 0);
  text.Family("kv_cache_pages", "gauge",
              "Pages by owner: free, held by the prefix cache alone, held by requests.", "owner",
              {{"free", static_cast<double>(engine.pages_free.raw())},
               {"cached", static_cast<double>(engine.pages_cached.raw())},
               {"in_use", in_use}});
  counter("prompt_tokens_total", "Prompt tokens of admitted requests.", counters.prompt_tokens);
  counter("generation_tokens_total", "Tokens drawn.", counters.output_tokens);
  counter("prefill_tokens_total", "Tokens computed in prefill, after preemption once more.",
          counters.prefill_tokens);
  counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
          counters.prompt_tokens);
  counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
          counters.cached_tokens);
  counter("num_preemptions_total", "Answers that lost their pages to others for a while.",
          counters.preemptions);
  counter("evicted_pages_total", "Pages that the prefix cache gave up.", counters.evicted_pages);
  counter("engine_steps_total", "Steps computed.", counters.steps);
  AddDrafts(counters, text);
  counter("requests_added_total", "Requests that were queued.", counters.requests_added);
  counter("requests_refused_total", "Requests refused because the queue was full.",
          counters.requests_refused);
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  QUIRE_CHECK(!bounds_.empty() && std::ranges::is_sorted(bounds_, std::less_equal<>()) &&
              std::isfinite(bounds_.back()));
}

void Histogram::Observe(double value) {
  // The first bound that is not below: a bucket has the values up to and with its bound.
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[static_cast<size_t>(bucket)];
  ++count_;
  sum_ += value;
}

Metrics::Observed::Observed()
    : first_token(FirstTokenBounds()),
      next_token(TokenBounds()),
      time_per_token(TokenBounds()),
      request(RequestBounds()),
      prompt_tokens(CountBounds()),
      output_tokens(CountBounds()) {
  // All reasons from the start: a rate needs a sample before the first event.
  for (const FinishReason reason : kEnds) answers[reason] = 0;
}

Metrics::Metrics(std::string model_name, EngineClock::time_point start)
    : model_name_(std::move(model_name)), start_(start) {}

void Metrics::ObserveFirstToken(double seconds) {
  const std::lock_guard lock(mutex_);
  observed_.first_token.Observe(seconds);
}

void Metrics::ObserveNextToken(double seconds) {
  const std::lock_guard lock(mutex_);
  observed_.next_token.Observe(seconds);
}

void Metrics::ObserveAnswer(FinishReason reason, int64_t output_tokens) {
  QUIRE_CHECK(reason != FinishReason::kNone);
  const std::lock_guard lock(mutex_);
  ++observed_.answers[reason];
  observed_.output_tokens.Observe(static_cast<double>(output_tokens));
}

void Metrics::ObserveTimePerToken(double seconds) {
  const std::lock_guard lock(mutex_);
  observed_.time_per_token.Observe(seconds);
}

void Metrics::ObserveRequest(double seconds, int64_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  observed_.request.Observe(seconds);
  observed_.prompt_tokens.Observe(static_cast<double>(prompt_tokens));
}

void Metrics::CountResponse(int status) {
  const std::lock_guard lock(mutex_);
  ++observed_.responses[status];
}

void Metrics::CountConnection() {
  const std::lock_guard lock(mutex_);
  ++observed_.connections;
}

Metrics::Observed Metrics::Copy() const {
  const std::lock_guard lock(mutex_);
  return observed_;
}

std::string Metrics::Text(const SchedulerSnapshot& engine,
                          EngineClock::duration since_last_step) const {
  const Observed seen = Copy();
  MetricsText text("quire:", {{"model_name", model_name_}});
  text.Add("time_to_first_token_seconds", "From a request's arrival to its first token.",
           seen.first_token);
  text.Add("inter_token_latency_seconds", "Between two tokens of an answer.", seen.next_token);
  text.Add("time_per_output_token_seconds", "Mean over an answer of the time between its tokens.",
           seen.time_per_token);
  text.Add("e2e_request_latency_seconds", "From a request's arrival to the end of its last answer.",
           seen.request);
  text.Add("request_prompt_tokens", "Prompt tokens of a request.", seen.prompt_tokens);
  text.Add("request_generation_tokens", "Tokens of an answer.", seen.output_tokens);
  std::vector<std::pair<std::string, double>> answers;
  for (const auto& [reason, count] : seen.answers) {
    answers.emplace_back(FinishReasonName(reason), static_cast<double>(count));
  }
  text.Family("request_success_total", "counter", "Answers that have ended, by the reason.",
              "finished_reason", answers);
  std::vector<std::pair<std::string, double>> responses;
  for (const auto& [status, count] : seen.responses) {
    responses.emplace_back(std::to_string(status), static_cast<double>(count));
  }
  text.Family("http_responses_total", "counter", "HTTP responses by status.", "status", responses);
  text.Counter("http_connections_total", "Connections that were taken.",
               static_cast<double>(seen.connections));
  text.Gauge("seconds_since_last_step", "Seconds since a step last ended.",
             Seconds(since_last_step));
  AddEngine(engine, text);
  return text.text();
}

std::string Metrics::Json(const SchedulerSnapshot& engine, EngineClock::time_point now) const {
  const Observed seen = Copy();
  const SchedulerCounters& counters = engine.counters;
  OrderedJson answers = OrderedJson::object();
  for (const auto& [reason, count] : seen.answers) answers[FinishReasonName(reason)] = count;
  OrderedJson responses = OrderedJson::object();
  for (const auto& [status, count] : seen.responses) responses[std::to_string(status)] = count;
  const OrderedJson json = {{"model", model_name_},
                            {"uptime_seconds", Seconds(now - start_)},
                            {"pages",
                             {{"total", PagesTotal(engine)},
                              {"free", engine.pages_free.raw()},
                              {"cached", engine.pages_cached.raw()},
                              {"in_use", engine.pages_in_use.raw()}}},
                            {"running", RunningJson(engine)},
                            {"waiting", counters.waiting},
                            {"counters", CountersJson(counters)},
                            {"answers", std::move(answers)},
                            {"seconds",
                             {{"time_to_first_token", HistogramJson(seen.first_token)},
                              {"inter_token_latency", HistogramJson(seen.next_token)},
                              {"e2e_request_latency", HistogramJson(seen.request)}}},
                            {"http_responses", std::move(responses)}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

RequestMetrics::RequestMetrics(Metrics& metrics, EngineClock::time_point arrival,
                               int64_t prompt_tokens)
    : metrics_(metrics), arrival_(arrival), prompt_tokens_(prompt_tokens) {}

void RequestMetrics::Take(const TextEvent& event, EngineClock::time_point now) {
  AnswerTimes& answer = answers_[event.sample];
  if (event.output_tokens > answer.tokens) {
    if (!std::exchange(has_token_, true)) metrics_.ObserveFirstToken(Seconds(now - arrival_));
    if (answer.tokens == 0) {
      answer.first = now;
    } else {
      metrics_.ObserveNextToken(Seconds(now - answer.last));
    }
    answer.last = now;
    answer.tokens = event.output_tokens;
  }
  if (event.finish != FinishReason::kNone) {
    metrics_.ObserveAnswer(event.finish, answer.tokens);
    if (answer.tokens > 1) {
      metrics_.ObserveTimePerToken(Seconds(answer.last - answer.first) /
                                   static_cast<double>(answer.tokens - 1));
    }
  }
  if (event.last_of_request) metrics_.ObserveRequest(Seconds(now - arrival_), prompt_tokens_);
}

}  // namespace quire
