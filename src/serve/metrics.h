// What a running server can be graphed by: Prometheus text (format 0.0.4), and the same numbers as JSON.
//
// Names are vLLM's, with the prefix "quire:"; every sample has the label model_name. Two sources: what
// the server observes of each request, counted here; and the engine's own, looked at when asked for.
//
//   time_to_first_token_seconds         histogram, a request each: from its arrival to its first token
//   inter_token_latency_seconds         histogram, a pair of tokens of one answer each
//   time_per_output_token_seconds       histogram, an answer of two tokens or more each: mean over it
//   e2e_request_latency_seconds         histogram, a request each: to the end of its last answer
//   request_prompt_tokens, request_generation_tokens   histograms, a request, an answer each
//   request_success_total{finished_reason}   answers: stop, length, cancelled, deadline, failed
//   http_responses_total{status}
//   num_requests_running (answers in a batch), num_requests_waiting, kv_cache_usage_perc (0..1: pages
//   that requests hold), kv_cache_pages{owner="free|cached|in_use"} (cached: by the prefix cache alone),
//   prompt_tokens_total, generation_tokens_total, prefill_tokens_total, prefix_cache_queries_total and
//   prefix_cache_hits_total (tokens), num_preemptions_total, evicted_pages_total, engine_steps_total,
//   spec_decode_num_drafts_total, spec_decode_num_draft_tokens_total,
//   spec_decode_num_accepted_tokens_total, spec_decode_num_accepted_tokens_per_pos_total{position},
//   requests_added_total, requests_refused_total (queue full), seconds_since_last_step (also while there is
//   nothing to do), http_connections_total
//
// vLLM's request_queue_time_seconds is not there: no event says when a request was admitted.
//
// Any thread may call any function.
#ifndef QUIRE_SERVE_METRICS_H_
#define QUIRE_SERVE_METRICS_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/counters.h"
#include "engine/request.h"
#include "textgen/text_engine.h"

namespace quire {

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// Counts observations by upper bound. Not thread-safe by itself.
class Histogram {
 public:
  // Ascending and finite; a bucket for all that is above is added.
  explicit Histogram(std::vector<double> bounds);

  void Observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<int64_t>& counts() const { return counts_; }  // [bounds + 1], not cumulative
  int64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<int64_t> counts_;
  int64_t count_ = 0;
  double sum_ = 0;
};

class Metrics {
 public:
  Metrics(std::string model_name, EngineClock::time_point start);

  void ObserveFirstToken(double seconds);
  void ObserveNextToken(double seconds);
  void ObserveAnswer(FinishReason reason, int64_t output_tokens);
  void ObserveTimePerToken(double seconds);
  void ObserveRequest(double seconds, int64_t prompt_tokens);
  void CountResponse(int status);
  void CountConnection();

  // The body of /metrics.
  std::string Text(const SchedulerSnapshot& engine,
                   EngineClock::duration since_last_step = {}) const;
  // For the live page:
  //   {"model", "uptime_seconds", "pages": {total, free, cached, in_use},
  //    "running": [{request, sample, prompt_tokens, computed_tokens, output_tokens, pages}],
  //    "waiting", "counters": {those of SchedulerCounters since the start},
  //    "answers": {"stop": 3, ...},
  //    "seconds": {"time_to_first_token": {count, sum, p50, p99}, "inter_token_latency": ...,
  //                "e2e_request_latency": ...}, "http_responses": {"200": 5}}
  // A percentile is read off the buckets, linear between bounds, as Prometheus does; null without
  // observations.
  std::string Json(const SchedulerSnapshot& engine, EngineClock::time_point now) const;

 private:
  // All that is observed, so that one lock copies it.
  struct Observed {
    Observed();
    Histogram first_token;
    Histogram next_token;
    Histogram time_per_token;
    Histogram request;
    Histogram prompt_tokens;
    Histogram output_tokens;
    std::map<FinishReason, int64_t> answers;
    std::map<int, int64_t> responses;
    int64_t connections = 0;
  };
  Observed Copy() const;

  const std::string model_name_;
  const EngineClock::time_point start_;
  mutable std::mutex mutex_;
  Observed observed_;  // under mutex_
};

// The events of one engine request on their way into the metrics. Used by one thread at a time; `metrics`
// outlives it. A request that is never given its last event counts no end.
class RequestMetrics {
 public:
  RequestMetrics(Metrics& metrics, EngineClock::time_point arrival, int64_t prompt_tokens);

  void Take(const TextEvent& event, EngineClock::time_point now);

 private:
  struct AnswerTimes {
    int64_t tokens = 0;
    EngineClock::time_point first = {};
    EngineClock::time_point last = {};
  };

  Metrics& metrics_;
  EngineClock::time_point arrival_;
  int64_t prompt_tokens_;
  bool has_token_ = false;
  std::map<int32_t, AnswerTimes> answers_;
};

}  // namespace quire

#endif  // QUIRE_SERVE_METRICS_H_
