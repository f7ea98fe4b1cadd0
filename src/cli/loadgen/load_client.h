// Sends the requests of a load to an OpenAI-compatible server.
#ifndef QUIRE_CLI_LOADGEN_LOAD_CLIENT_H_
#define QUIRE_CLI_LOADGEN_LOAD_CLIENT_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/loadgen/load_answer.h"
#include "cli/loadgen/load_record.h"
#include "cli/loadgen/workload.h"
#include "http/client.h"

namespace quire::cli {

// Whether answers are asked to go on to their full length.
enum class IgnoreEos { kNo, kYes };

struct LoadTarget {
  std::string url = {};  // as of HttpClientOptions; a "/v1" at its end is not needed and taken off
  Endpoint endpoint = Endpoint::kChat;
  std::string model = {};
  std::string api_key = {};
  std::string ca_file = {};
  bool verify_tls = true;
  IgnoreEos ignore_eos = IgnoreEos::kYes;
  std::chrono::milliseconds timeout{600'000};  // of one request, from its beginning to its end
};

// Seconds since it was made.
class RunClock {
 public:
  double Now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// The body that asks for this.
std::string RequestBody(const LoadTarget& target, const PlannedRequest& request);

// As many connections as there are requests at a time, kept open between them. For one thread.
class LoadClient {
 public:
  // Throws Error(kInvalidArgument) if the URL cannot be read.
  LoadClient(asio::io_context& io, LoadTarget target);

  const LoadTarget& target() const { return target_; }
  void SetModel(std::string model) { target_.model = std::move(model); }

  // The first that the server lists. Throws Error(kInvalidArgument) if there is none.
  asio::awaitable<std::string> FirstModel();

  // Whatever happens is in the record, which keeps its index and begin. `clock` must outlive it.
  asio::awaitable<RequestRecord> Send(PlannedRequest request, RequestRecord record,
                                      const RunClock& clock);

  // Ends all that are under way, which stay unfinished, and all that begin later.
  void Stop();

  // About how many tokens came so far, in all answers: the pieces of text that did, each taken to
  // hold as many tokens as those of finished answers.
  double EstimateTokens() const;

 private:
  HttpClientRequest MakeRequest(std::string method, std::string path, std::string body) const;
  std::unique_ptr<HttpClient> TakeConnection();
  asio::awaitable<void> Exchange(HttpClient& http, HttpClientRequest request, LoadAnswer& answer,
                                 const RequestRecord& record, const RunClock& clock);

  asio::io_context& io_;
  LoadTarget target_;
  std::vector<std::unique_ptr<HttpClient>> idle_;
  std::set<asio::steady_timer*> deadlines_;  // of what is under way
  bool is_stopped_ = false;
  int64_t num_deltas_ = 0;
  int64_t finished_deltas_ = 0;  // of whole answers
  int64_t finished_tokens_ = 0;
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_CLIENT_H_
