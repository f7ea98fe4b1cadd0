#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/json.h"
#include "serve/metrics_text.h"

namespace quire {
namespace {

using std::chrono::milliseconds;

// ---- A reader of the format, by its grammar ----

struct Sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct Family {
  std::string help;
  std::string type;
  std::vector<Sample> samples;
};

std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') ++i;
    out += i > 0 && text[i - 1] == '\\' && text[i] == 'n' ? '\n' : text[i];
  }
  return out;
}

double ReadValue(const std::string& text) {
  if (text == "+Inf") return HUGE_VAL;
  size_t used = 0;
  const double value = std::stod(text, &used);
  EXPECT_EQ(used, text.size()) << text;
  return value;
}

Sample ReadSample(const std::string& line) {
  static const std::regex kSample(R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(.*)\})? (\S+))re");
  static const std::regex kLabel(R"re(([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\"n])*)"(,|$))re");
  Sample sample;
  std::smatch parts;
  if (!std::regex_match(line, parts, kSample)) {
    ADD_FAILURE() << "no sample: " << line;
    return sample;
  }
  sample.name = parts[1];
  sample.value = ReadValue(parts[4]);
  std::string labels = parts[3];
  std::smatch label;
  while (!labels.empty()) {
    if (!std::regex_search(labels, label, kLabel, std::regex_constants::match_continuous)) {
      ADD_FAILURE() << "no label: " << labels;
      return sample;
    }
    EXPECT_TRUE(sample.labels.emplace(label[1], Unescape(label[2])).second) << line;
    labels = label.suffix();
  }
  return sample;
}

// Every line is HELP, TYPE or a sample of the family that these began; no family comes twice.
std::map<std::string, Family> ReadText(const std::string& text) {
  static const std::regex kHelp(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+))");
  static const std::regex kType(R"(# TYPE (\S+) (counter|gauge|histogram))");
  std::map<std::string, Family> families;
  std::string open;
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (std::regex_match(line, parts, kHelp)) {
      open = parts[1];
      EXPECT_FALSE(families.contains(open)) << line;
      families[open].help = parts[2];
    } else if (std::regex_match(line, parts, kType)) {
      EXPECT_EQ(parts[1], open);
      EXPECT_TRUE(families[open].samples.empty() && families[open].type.empty()) << line;
      families[open].type = parts[2];
    } else {
      Family& family = families[open];
      family.samples.push_back(ReadSample(line));
      const std::string& name = family.samples.back().name;
      EXPECT_TRUE(family.type == "histogram"
                      ? name == open + "_bucket" || name == open + "_sum" || name == open + "_count"
                      : name == open)
          << line;
    }
  }
  return families;
}

void ExpectHistogram(const std::string& name, const Family& family, int64_t count, double sum) {
  double last_bound = -HUGE_VAL;
  double last_count = 0;
  std::map<std::string, double> totals;
  for (const Sample& sample : family.samples) {
    if (sample.name != name + "_bucket") {
      totals[sample.name] = sample.value;
      continue;
    }
    const double bound = ReadValue(sample.labels.at("le"));
    EXPECT_GT(bound, last_bound) << name;
    EXPECT_GE(sample.value, last_count) << name;
    last_bound = bound;
    last_count = sample.value;
  }
  EXPECT_EQ(last_bound, HUGE_VAL) << name;
  EXPECT_EQ(last_count, static_cast<double>(count)) << name;
  EXPECT_EQ(totals.at(name + "_count"), static_cast<double>(count)) << name;
  EXPECT_NEAR(totals.at(name + "_sum"), sum, 1e-9) << name;
}

// The samples of a family by one of their labels; "" for one without it.
std::map<std::string, double> ByLabel(const Family& family, const std::string& label) {
  std::map<std::string, double> values;
  for (const Sample& sample : family.samples) {
    const auto found = sample.labels.find(label);
    values[found == sample.labels.end() ? "" : found->second] = sample.value;
  }
  return values;
}

SchedulerSnapshot EngineNow() {
  SchedulerSnapshot engine;
  engine.counters = {.requests_added = 11,
                     .requests_refused = 2,
                     .answers_finished = 9,
                     .steps = 300,
                     .mixed_steps = 30,
                     .prompt_tokens = 1000,
                     .cached_tokens = 400,
                     .prefill_tokens = 650,
                     .output_tokens = 500,
                     .drafts = 90,
                     .draft_tokens = 270,
                     .accepted_tokens = 100,
                     .accepted_at = {70, 25, 5},
                     .preemptions = 3,
                     .page_copies = 7,
                     .evicted_pages = 8,
                     .waiting = 4,
                     .running = 1};
  engine.pages_free = PageCount(50);
  engine.pages_cached = PageCount(30);
  engine.pages_in_use = PageCount(20);
  engine.running = {{.request = 6,
                     .sample = 1,
                     .prompt_tokens = TokenCount(12),
                     .computed_tokens = TokenCount(14),
                     .output_tokens = 3,
                     .pages = PageCount(2)}};
  return engine;
}

TextEvent Event(int32_t sample, int64_t output_tokens, FinishReason finish = FinishReason::kNone,
                bool last = false) {
  TextEvent event;
  event.sample = sample;
  event.output_tokens = output_tokens;
  event.finish = finish;
  event.last_of_request = last;
  return event;
}

EngineClock::time_point At(int64_t ms) { return EngineClock::time_point(milliseconds(ms)); }

// Two answers, of 3 tokens and of 1, and a request that ended before its first token.
void ObserveTwoRequests(Metrics& metrics) {
  RequestMetrics request(metrics, At(1000), 12);
  request.Take(Event(0, 1), At(1040));
  request.Take(Event(1, 1), At(1040));
  request.Take(Event(0, 2), At(1050));
  request.Take(Event(1, 1, FinishReason::kDeadline), At(1055));
  request.Take(Event(0, 3, FinishReason::kStop, true), At(1070));
  RequestMetrics cancelled(metrics, At(2000), 5);
  cancelled.Take(Event(0, 0, FinishReason::kCancelled, true), At(2500));
  metrics.CountResponse(200);
  metrics.CountResponse(200);
  metrics.CountResponse(429);
}

TEST(MetricsTest, TheTextIsOfTheFormat) {
  Metrics metrics("a \"b\\c\nd", At(0));
  ObserveTwoRequests(metrics);
  const std::map<std::string, Family> families = ReadText(metrics.Text(EngineNow()));
  for (const auto& [name, family] : families) {
    EXPECT_TRUE(name.starts_with("quire:")) << name;
    EXPECT_FALSE(family.help.empty() || family.type.empty()) << name;
    EXPECT_EQ(family.type == "counter", name.ends_with("_total")) << name;
    std::set<std::map<std::string, std::string>> seen;
    for (const Sample& sample : family.samples) {
      EXPECT_EQ(sample.labels.at("model_name"), "a \"b\\c\nd") << name;
      auto key = sample.labels;
      key["name"] = sample.name;
      EXPECT_TRUE(seen.insert(key).second) << name << ": a sample twice";
    }
  }
}

TEST(MetricsTest, WhatWasObservedAddsUp) {
  Metrics metrics("m", At(0));
  ObserveTwoRequests(metrics);
  const std::map<std::string, Family> families = ReadText(metrics.Text(EngineNow()));
  const auto expect = [&](const std::string& name, int64_t count, double sum) {
    ASSERT_TRUE(families.contains("quire:" + name)) << name;
    EXPECT_EQ(families.at("quire:" + name).type, "histogram");
    ExpectHistogram("quire:" + name, families.at("quire:" + name), count, sum);
  };
  expect("time_to_first_token_seconds", 1, 0.040);
  expect("inter_token_latency_seconds", 2, 0.010 + 0.020);
  expect("time_per_output_token_seconds", 1, 0.015);
  expect("e2e_request_latency_seconds", 2, 0.070 + 0.500);
  expect("request_prompt_tokens", 2, 12 + 5);
  expect("request_generation_tokens", 3, 3 + 1 + 0);
  EXPECT_EQ(ByLabel(families.at("quire:request_success_total"), "finished_reason"),
            (std::map<std::string, double>{
                {"stop", 1}, {"length", 0}, {"cancelled", 1}, {"deadline", 1}, {"failed", 0}}));
  EXPECT_EQ(ByLabel(families.at("quire:http_responses_total"), "status"),
            (std::map<std::string, double>{{"200", 2}, {"429", 1}}));
}

TEST(MetricsTest, TheEngineIsShownAsItIs) {
  const Metrics metrics("m", At(0));
  const std::map<std::string, Family> families = ReadText(metrics.Text(EngineNow()));
  const std::map<std::string, double> expected = {{"num_requests_running", 1},
                                                  {"num_requests_waiting", 4},
                                                  {"kv_cache_usage_perc", 0.2},
                                                  {"prompt_tokens_total", 1000},
                                                  {"generation_tokens_total", 500},
                                                  {"prefill_tokens_total", 650},
                                                  {"prefix_cache_queries_total", 1000},
                                                  {"prefix_cache_hits_total", 400},
                                                  {"num_preemptions_total", 3},
                                                  {"evicted_pages_total", 8},
                                                  {"engine_steps_total", 300},
                                                  {"requests_added_total", 11},
                                                  {"requests_refused_total", 2},
                                                  {"spec_decode_num_drafts_total", 90},
                                                  {"spec_decode_num_draft_tokens_total", 270},
                                                  {"spec_decode_num_accepted_tokens_total", 100}};
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(families.contains("quire:" + name)) << name;
    EXPECT_EQ(ByLabel(families.at("quire:" + name), "none"),
              (std::map<std::string, double>{{"", value}}))
        << name;
  }
  EXPECT_EQ(ByLabel(families.at("quire:kv_cache_pages"), "owner"),
            (std::map<std::string, double>{{"free", 50}, {"cached", 30}, {"in_use", 20}}));
  EXPECT_EQ(ByLabel(families.at("quire:spec_decode_num_accepted_tokens_per_pos_total"), "position"),
            (std::map<std::string, double>{{"0", 70}, {"1", 25}, {"2", 5}}));
}

TEST(MetricsTest, AHistogramCountsUpToAndWithItsBounds) {
  Histogram histogram({1, 2, 4});
  for (const double value : {0.0, 1.0, 1.5, 2.0, 4.5, 100.0}) histogram.Observe(value);
  EXPECT_EQ(histogram.counts(), (std::vector<int64_t>{2, 2, 0, 2}));
  EXPECT_EQ(histogram.count(), 6);
  EXPECT_EQ(histogram.sum(), 109);
  MetricsText text("p_", {});
  text.Add("h", "Help with \\ and\nline", histogram);
  EXPECT_EQ(text.text(),
            "# HELP p_h Help with \\\\ and\\nline\n"
            "# TYPE p_h histogram\n"
            "p_h_bucket{le=\"1\"} 2\n"
            "p_h_bucket{le=\"2\"} 4\n"
            "p_h_bucket{le=\"4\"} 4\n"
            "p_h_bucket{le=\"+Inf\"} 6\n"
            "p_h_sum 109\n"
            "p_h_count 6\n");
}

TEST(MetricsTest, BoundsThatDoNotAscendAreRefused) {
  EXPECT_THROW(Histogram({}), InternalError);
  EXPECT_THROW(Histogram({1, 1}), InternalError);
  EXPECT_THROW(Histogram({2, 1}), InternalError);
  EXPECT_THROW(Histogram({1, HUGE_VAL}), InternalError);
}

TEST(MetricsTest, NumbersAreNotRounded) {
  MetricsText text("", {{"l", "v"}});
  text.Counter("big_total", "Big.", 9007199254740991.0);
  text.Gauge("small", "Small.", 1e-7);
  const std::map<std::string, Family> families = ReadText(text.text());
  EXPECT_EQ(families.at("big_total").samples[0].value, 9007199254740991.0);
  EXPECT_EQ(families.at("small").samples[0].value, 1e-7);
}

TEST(MetricsTest, TheLivePageSeesTheSameNumbers) {
  Metrics metrics("m", At(500));
  ObserveTwoRequests(metrics);
  const Json json = ParseJson(metrics.Json(EngineNow(), At(3000)), "stats");
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["uptime_seconds"], 2.5);
  EXPECT_EQ(json["answers"], Json::parse(R"({"stop": 1, "length": 0, "cancelled": 1, "deadline": 1,
                                             "failed": 0})"));
  EXPECT_EQ(json["pages"],
            Json::parse(R"({"total": 100, "free": 50, "cached": 30, "in_use": 20})"));
  EXPECT_EQ(json["running"], Json::parse(R"([{"request": 6, "sample": 1, "prompt_tokens": 12,
                                  "computed_tokens": 14, "output_tokens": 3, "pages": 2}])"));
  EXPECT_EQ(json["waiting"], 4);
  EXPECT_EQ(json["counters"]["requests_added"], 11);
  EXPECT_EQ(json["counters"]["requests_refused"], 2);
  EXPECT_EQ(json["counters"]["prompt_tokens"], 1000);
  EXPECT_EQ(json["counters"]["cached_tokens"], 400);
  EXPECT_EQ(json["counters"]["prefill_tokens"], 650);
  EXPECT_EQ(json["counters"]["output_tokens"], 500);
  EXPECT_EQ(json["counters"]["steps"], 300);
  EXPECT_EQ(json["counters"]["mixed_steps"], 30);
  EXPECT_EQ(json["counters"]["drafts"], 90);
  EXPECT_EQ(json["counters"]["draft_tokens"], 270);
  EXPECT_EQ(json["counters"]["accepted_tokens"], 100);
  EXPECT_EQ(json["counters"]["preemptions"], 3);
  EXPECT_EQ(json["counters"]["evicted_pages"], 8);
  EXPECT_EQ(json["counters"]["page_copies"], 7);
  EXPECT_EQ(json["http_responses"], Json::parse(R"({"200": 2, "429": 1})"));
  const Json& first = json["seconds"]["time_to_first_token"];
  EXPECT_EQ(first["count"], 1);
  EXPECT_NEAR(first["sum"].get<double>(), 0.04, 1e-9);
  // One observation in the bucket from 0.02 to 0.04.
  EXPECT_NEAR(first["p50"].get<double>(), 0.03, 1e-9);
  EXPECT_EQ(json["seconds"]["inter_token_latency"]["count"], 2);
  EXPECT_EQ(json["seconds"]["e2e_request_latency"]["count"], 2);
}

TEST(MetricsTest, WithoutObservationsThereIsNoPercentile) {
  const Metrics metrics("m", At(0));
  const Json json = ParseJson(metrics.Json({}, At(0)), "stats");
  EXPECT_TRUE(json["seconds"]["time_to_first_token"]["p50"].is_null());
  EXPECT_EQ(json["pages"]["total"], 0);
  EXPECT_EQ(ByLabel(ReadText(metrics.Text({})).at("quire:kv_cache_usage_perc"), "")[""], 0);
}

TEST(MetricsTest, WhatLiesAboveAllBoundsIsAtTheLast) {
  Metrics metrics("m", At(0));
  metrics.ObserveFirstToken(1e6);
  const Json json = ParseJson(metrics.Json({}, At(0)), "stats");
  EXPECT_EQ(json["seconds"]["time_to_first_token"]["p99"], 2560);
}

TEST(MetricsTest, ManyThreadsLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  Metrics metrics("m", At(0));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        metrics.ObserveNextToken(0.01);
        metrics.ObserveAnswer(FinishReason::kStop, 3);
        metrics.CountResponse(200);
        if (round % 100 == 0) (void)metrics.Text({});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Json json = ParseJson(metrics.Json({}, At(0)), "stats");
  EXPECT_EQ(json["seconds"]["inter_token_latency"]["count"], kThreads * kRounds);
  EXPECT_EQ(json["answers"]["stop"], kThreads * kRounds);
  EXPECT_EQ(json["http_responses"]["200"], kThreads * kRounds);
}

}  // namespace
}  // namespace quire
