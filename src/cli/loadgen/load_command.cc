#include "cli/loadgen/load_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_future.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/loadgen/load_report.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/result_file.h"
#include "device/cpu_model.h"
#include "device/thread_pool.h"

namespace quire::cli {
namespace {

constexpr uint32_t kWarmupRun = 1'000'000;  // no run has this number
constexpr double kLineSeconds = 10;         // between two lines of progress, off a terminal

// A bar on a terminal; elsewhere a line now and then, and at the end of a run.
class RunBar {
 public:
  RunBar(const LoadShape& shape, const LoadClient& client, const RunClock& clock)
      : shape_(shape), client_(client), clock_(clock), tokens_before_(client.EstimateTokens()) {}

  void Update(const LoadProgress& progress) {
    if (line_.is_terminal()) return line_.Show(Text(progress));
    if (clock_.Now() < next_line_) return;
    next_line_ = clock_.Now() + kLineSeconds;
    fmt::print(stderr, "{}\n", Text(progress));
  }
  void Finish(const LoadProgress& progress) {
    line_.Clear();
    fmt::print(stderr, "{}\n", Text(progress));
  }

 private:
  std::string Text(const LoadProgress& progress) const {
    const double seconds = std::max(clock_.Now(), 1e-9);
    const double tokens = std::max(0.0, client_.EstimateTokens() - tokens_before_);
    const bool by_time = std::isfinite(shape_.max_seconds);
    const double part =
        std::max(by_time ? seconds / shape_.max_seconds : 0,
                 static_cast<double>(progress.num_done) / static_cast<double>(shape_.max_requests));
    const std::string total = shape_.max_requests == LoadShape().max_requests
                                  ? ""
                                  : fmt::format("/{}", shape_.max_requests);
    return fmt::format("{}: {} {}{} requests, {} failed, {:.1f} s, about {:.1f} tokens/s",
                       ShapeName(shape_), Bar(part), progress.num_done, total, progress.num_failed,
                       seconds, tokens / seconds);
  }

  StatusLine line_;
  const LoadShape& shape_;
  const LoadClient& client_;
  const RunClock& clock_;
  double tokens_before_;
  double next_line_ = kLineSeconds;
};

// One run after another, against one server.
class Loader {
 public:
  Loader(asio::io_context& io, const LoadFlags& flags)
      : io_(io), flags_(flags), client_(io, flags.target) {}

  const LoadTarget& target() const { return client_.target(); }
  bool was_interrupted() const { return interrupt_.raised(); }

  // Asks the server which model it has, if none was named.
  void ChooseModel() {
    if (!client_.target().model.empty()) return;
    io_.restart();
    auto model = asio::co_spawn(io_, client_.FirstModel(), asio::use_future);
    io_.run();
    try {
      client_.SetModel(model.get());
    } catch (const Error& error) {  // not the fault of a flag
      throw std::runtime_error(
          fmt::format("cannot ask the server for its models: {}", error.what()));
    }
  }

  LoadResult Run(const LoadShape& shape, uint32_t number) {
    Workload workload(flags_.workload, number);
    Random arrivals = MakeRandom(flags_.workload.seed, number, kArrivals);
    const RunClock clock;
    RunBar bar(shape, client_, clock);
    LoadProgress last;
    LoadHooks hooks;
    hooks.send = [&](RequestRecord record) {
      return client_.Send(workload.Next(), std::move(record), clock);
    };
    hooks.next_gap = [&] { return DrawGap(shape.rate, arrivals); };
    hooks.stop = [&] { client_.Stop(); };
    hooks.on_tick = [&](const LoadProgress& progress) {
      bar.Update(last = progress);
      return interrupt_.raised();
    };
    LoadResult result = RunLoad(io_, shape, clock, hooks);
    bar.Finish(last);
    return result;
  }

 private:
  Interrupt interrupt_{Interrupt::Times::kOnce};
  asio::io_context& io_;
  const LoadFlags& flags_;
  LoadClient client_;
};

// A server that fails here fails in the runs too, and is reported there.
void WarmUp(Loader& loader, const LoadFlags& flags, const LoadShape& first) {
  if (flags.warmup == 0) return;
  const int64_t at_a_time = std::max<int64_t>(1, first.concurrency);
  fmt::print(stderr, "warm-up\n");
  loader.Run({.concurrency = std::min(at_a_time, flags.warmup), .max_requests = flags.warmup},
             kWarmupRun);
}

LoadReport Load(const LoadFlags& flags, const std::vector<LoadShape>& shapes,
                const std::string& command_line) {
  asio::io_context io(1);
  Loader loader(io, flags);
  loader.ChooseModel();
  WarmUp(loader, flags, shapes[0]);
  LoadReport report{.command_line = WithoutKey(command_line, flags.target.api_key),
                    .cpu = CpuModel(),
                    .num_threads = ThreadPool::DefaultThreads(),
                    .target = loader.target(),
                    .workload = flags.workload,
                    .warmup = flags.warmup};
  for (size_t i = 0; i < shapes.size() && !loader.was_interrupted(); ++i) {
    report.runs.push_back(loader.Run(shapes[i], static_cast<uint32_t>(i)));
    report.summaries.push_back(Summarise(report.runs.back()));
  }
  return report;
}

}  // namespace

std::string WithoutKey(std::string command_line, const std::string& api_key) {
  if (api_key.empty()) return command_line;
  for (const char* flag : {"--api-key ", "--api-key="}) {
    const std::string typed = flag + api_key;
    for (size_t at = 0; (at = command_line.find(typed, at)) != std::string::npos;) {
      command_line.replace(at, typed.size(), std::string(flag) + "***");
    }
  }
  return command_line;
}

void LoadServer(LoadFlags flags, const std::string& json, const std::string& command_line) {
  flags.target.ignore_eos = flags.no_ignore_eos ? IgnoreEos::kNo : IgnoreEos::kYes;
  flags.target.verify_tls = !flags.insecure;
  const std::vector<LoadShape> shapes = MakeShapes(flags);
  ResultFile json_file("--json", json);
  ResultFile plot_file("--plot", flags.plot);
  const LoadReport report = Load(flags, shapes, command_line);
  // What a server wrote need not be UTF-8.
  const std::string text =
      ToJson(report).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  WriteResult(json == "-" ? text : ToTables(report));
  json_file.Write(text);
  plot_file.Write(ToSvg(ToPlot(report)));
  if (report.was_stopped() || report.runs.empty()) throw Exit{kInterruptedCode};
  if (report.all_failed()) {
    fmt::print(stderr, "quire: error: every request failed\n");
    throw Exit{1};
  }
}

}  // namespace quire::cli
