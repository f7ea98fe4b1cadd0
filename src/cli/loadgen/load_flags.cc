#include "cli/loadgen/load_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/parse.h"

namespace quire::cli {
namespace {

constexpr int64_t kMaxClients = 16384;
constexpr int64_t kMaxCount = 100'000'000;
// Enough of each concurrency to see the steady state, few enough to wait for.
constexpr int64_t kRequestsPerWorker = 4;
constexpr int64_t kFewestRequests = 16;
constexpr int64_t kOpenLoopRequests = 100;

std::string KeepText(const std::string&, const std::string& text) { return text; }

auto CountFrom(int64_t min, int64_t max = kMaxCount) {
  return [min, max](const std::string& where, const std::string& text) {
    return ParseInt(where, text, min, max);
  };
}

auto NumberFrom(double min, double max) {
  return [min, max](const std::string& where, const std::string& text) {
    return ParseNumber(where, text, min, max);
  };
}

Endpoint ParseEndpoint(const std::string& where, const std::string& text) {
  return ParseChoice<Endpoint>(
      where, text, {{"chat", Endpoint::kChat}, {"completions", Endpoint::kCompletions}});
}

using AddFlag = std::function<Flag(Flag)>;

void AddWhere(FlagReader& reader, LoadFlags& flags, const AddFlag& add) {
  add(reader.Add({"--url", "URL", "",
                  "The server: http://HOST:PORT, https://..., or unix:/path/of/socket.\n"
                  "With it no model is loaded here"},
                 flags.target.url, KeepText));
  add(reader.Add(
      {"--endpoint", "NAME", "chat", "chat: /v1/chat/completions; completions: /v1/completions"},
      flags.target.endpoint, ParseEndpoint));
  add(reader.Add({"--api-key", "KEY", "", "Sent as a bearer token; never in a report"},
                 flags.target.api_key, KeepText))
      .Twin();
  add(reader.Add({"--ca-file", "FILE", "the system's", "https: certificates to trust, in PEM form"},
                 flags.target.ca_file, KeepText));
  add(reader.AddSwitch("--insecure", flags.insecure, "https: do not check the certificate"));
  add(reader.Add({"--timeout", "SECONDS", "600", "When a request that has not ended has failed"},
                 flags.target.timeout, ParseSeconds));
}

void AddHowMany(FlagReader& reader, LoadFlags& flags, const AddFlag& add) {
  add(reader.Add({"--concurrency", "LIST", "1",
                  "Closed loop: so many requests at a time; one run for each number"},
                 flags.concurrency, [](const std::string& where, const std::string& text) {
                   return ParseInts(where, text, 1, kMaxClients);
                 }));
  add(reader.Add({"--request-rate", "R", "",
                  "Open loop instead: R requests a second at random times (Poisson),\n"
                  "whether or not the server keeps up"},
                 flags.request_rate, NumberFrom(1e-3, 1e5)));
  add(reader.Add(
      {"--num-requests", "N", "4 x concurrency, at least 16; 100 with a rate", "Requests of a run"},
      flags.num_requests, CountFrom(1)));
  add(reader.Add({"--duration", "SECONDS", "",
                  "Begin no request after this time; those under way are awaited"},
                 flags.duration, NumberFrom(0.001, 86400)));
  add(reader.Add({"--warmup", "N", "1", "Requests before the first run, which do not count"},
                 flags.warmup, CountFrom(0)));
}

void AddWhat(FlagReader& reader, LoadFlags& flags, const AddFlag& add) {
  add(reader.Add({"--shared-prefix", "LENGTH", "0",
                  "Words in front of every prompt, besides --input-len: load for a prefix cache"},
                 flags.workload.shared_prefix, CountFrom(0, 1'000'000)));
  add(reader.Add({"--num-prefixes", "K", "1", "How many different prefixes there are, in turn"},
                 flags.workload.num_prefixes, CountFrom(1, 100'000)));
  add(reader.Add({"--seed", "N", "1",
                  "Of prompts, lengths and arrivals; a server may still have the prompts\n"
                  "of an earlier run with the same seed in its prefix cache"},
                 flags.workload.seed, [](const std::string& where, const std::string& text) {
                   return static_cast<uint64_t>(ParseInt(where, text, 0));
                 }));
  add(reader.AddSwitch(
      "--no-ignore-eos", flags.no_ignore_eos,
      "Do not send ignore_eos: for servers that refuse it; answers may end early"));
}

}  // namespace

void AddLoadFlags(FlagReader& reader, LoadFlags& flags) {
  const AddFlag add = [](Flag flag) { return flag.Group(kLoadGroup); };
  AddWhere(reader, flags, add);
  AddHowMany(reader, flags, add);
  AddWhat(reader, flags, add);
}

std::vector<LoadShape> MakeShapes(const LoadFlags& flags) {
  Require(!(flags.concurrency && flags.request_rate),
          "--concurrency, --request-rate: expected one of them, got both");
  std::vector<LoadShape> shapes;
  if (flags.request_rate) {
    shapes.push_back({.rate = *flags.request_rate, .max_requests = kOpenLoopRequests});
  } else {
    for (const int64_t n : flags.concurrency.value_or(std::vector<int64_t>{1})) {
      shapes.push_back(
          {.concurrency = n, .max_requests = std::max(kFewestRequests, kRequestsPerWorker * n)});
    }
  }
  for (LoadShape& shape : shapes) {
    // A duration alone is the only limit.
    if (flags.duration) shape.max_requests = LoadShape().max_requests;
    shape.max_requests = flags.num_requests.value_or(shape.max_requests);
    shape.max_seconds = flags.duration.value_or(shape.max_seconds);
  }
  return shapes;
}

}  // namespace quire::cli
