#include "cli/serve.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/local_model.h"
#include "cli/log_writer.h"
#include "cli/model_name.h"
#include "cli/parse.h"
#include "cli/ranks.h"
#include "io/json.h"
#include "serve/server.h"

namespace quire::cli {
namespace {

using Milliseconds = std::chrono::milliseconds;

enum class AccessLog { kText, kJson, kOff };

struct ServeFlags {
  ModelFlags model = {};
  HttpServerOptions http = {};
  CompletionsOptions completions = {};
  std::string served_model_name = {};
  std::vector<std::string> api_keys = {};
  std::string api_key_file = {};
  OriginRules origins = {};
  Milliseconds step_timeout = ServiceOptions().step_timeout;
  int64_t max_queued_requests = SchedulerOptions().max_waiting;
  int32_t max_priority = SchedulerOptions().max_priority;
  bool disable_radix_cache = false;
  bool ignore_unknown_fields = false;
  Milliseconds drain_timeout = ServerOptions().drain_timeout;
  AccessLog access_log = AccessLog::kText;
};

// ---- Flags ----

std::string ParseText(const std::string&, const std::string& text) { return text; }

void AddListening(FlagReader& reader, ServeFlags& flags) {
  const auto add = [&](const FlagText& text, auto& target, auto parse) {
    reader.Add(text, target, parse).Group("Where to listen").Twin();
  };
  flags.http.port = 8080;
  add({"--host", "ADDRESS", flags.http.address,
       "The address to listen on; 0.0.0.0 for all of this machine"},
      flags.http.address, ParseText);
  add({"--port", "PORT", "8080", "The port; 0 takes a free one and says which"}, flags.http.port,
      [](const std::string& where, const std::string& text) {
        return static_cast<int>(ParseInt(where, text, 0, 65535));
      });
  add({"--unix-socket", "PATH", "", "Listen on a unix socket and on no port"},
      flags.http.unix_socket, ParseText);
  add({"--tls-cert-file", "FILE", "", "Certificate chain (PEM): serve https; with --tls-key-file"},
      flags.http.tls_certificate_file, ParseText);
  add({"--tls-key-file", "FILE", "", "Private key (PEM)"}, flags.http.tls_key_file, ParseText);
}

// As a browser writes it, since the header is compared with it: no path, no slash at the end.
std::string ParseOrigin(const std::string& where, const std::string& text) {
  const size_t scheme = text.find("://");
  const size_t host = scheme == std::string::npos ? text.size() : scheme + 3;
  const bool is_origin =
      scheme != 0 && host < text.size() && text.find_first_of("/?#@ \t", host) == std::string::npos;
  Require(is_origin || text == "*" || text == "null",
          "{}: expected scheme://host[:port] without a path, or *, got {}", where,
          QuoteForMessage(text));
  return text;
}

void AddAccess(FlagReader& reader, ServeFlags& flags) {
  const auto add = [&](const FlagText& text, auto& target, auto parse) {
    reader.Add(text, target, parse).Group("Who may ask").Twin();
  };
  reader
      .AddList(
          {"--api-key", "KEY", "", "A key that clients must send; may be given more than once"},
          flags.api_keys)
      .Group("Who may ask")
      .Twin();
  add({"--api-key-file", "FILE", "", "More keys, one a line; lines that begin with # are comments"},
      flags.api_key_file, ParseText);
  add({"--cors-origin", "ORIGIN", "", "Let pages of this origin ask; * for all"},
      flags.origins.cors_origin, ParseOrigin);
  reader
      .AddList(
          {"--allowed-host", "NAME", "",
           "A name that clients may call this server by, besides addresses and localhost; others "
           "are refused if it is given, or if only this machine can ask; * for all"},
          flags.origins.allowed_hosts)
      .Group("Who may ask")
      .Twin();
}

void AddLimits(FlagReader& reader, ServeFlags& flags) {
  const auto add = [&](const FlagText& text, auto& target, auto parse) {
    reader.Add(text, target, parse).Group("Limits").Twin();
  };
  const auto seconds = [](Milliseconds time) {
    return fmt::format("{}", std::chrono::duration<double>(time).count());
  };
  add({"--max-queued-requests", "N", std::to_string(flags.max_queued_requests),
       "Requests that may wait; more are answered 429"},
      flags.max_queued_requests,
      [](const std::string& where, const std::string& text) { return ParseInt(where, text, 1); });
  add({"--max-priority", "N", std::to_string(flags.max_priority),
       "Requests may have a \"priority\" of -N to N; others are refused"},
      flags.max_priority, [](const std::string& where, const std::string& text) {
        return static_cast<int32_t>(ParseInt(where, text, 0, 1'000'000));
      });
  add({"--max-output-tokens", "N", "", "The most tokens of one answer"},
      flags.completions.limits.max_output_tokens,
      [](const std::string& where, const std::string& text) { return ParseInt(where, text, 1); });
  add({"--max-text-tokens", "N", std::to_string(flags.completions.limits.max_text_tokens),
       "The most tokens of one /tokenize or /detokenize"},
      flags.completions.limits.max_text_tokens,
      [](const std::string& where, const std::string& text) { return ParseInt(where, text, 1); });
  add({"--max-body-bytes", "BYTES", std::to_string(flags.http.max_body_bytes),
       "The largest request; more is answered 413"},
      flags.http.max_body_bytes, [](const std::string& where, const std::string& text) {
        return static_cast<size_t>(ParseInt(where, text, 1, int64_t{1} << 32));
      });
  add({"--max-total-body-bytes", "BYTES", std::to_string(flags.http.max_total_body_bytes),
       "The bodies of all open requests together; one that does not fit is answered 503"},
      flags.http.max_total_body_bytes, [](const std::string& where, const std::string& text) {
        return static_cast<size_t>(ParseInt(where, text, 1, int64_t{1} << 40));
      });
  add({"--max-connections", "N", std::to_string(flags.http.max_connections), "Open connections"},
      flags.http.max_connections, [](const std::string& where, const std::string& text) {
        return static_cast<int>(ParseInt(where, text, 1, 100'000));
      });
  add({"--request-timeout", "SECONDS", "",
       "Answers 408 what takes longer; a request's own \"timeout\" may be less"},
      flags.completions.request_timeout, ParseSeconds);
  add({"--idle-timeout", "SECONDS", seconds(flags.http.idle_timeout),
       "Closes a connection on which nothing is asked"},
      flags.http.idle_timeout, ParseSeconds);
  add({"--body-timeout", "SECONDS", seconds(flags.http.body_timeout),
       "Answers 408 a request whose body takes longer to come"},
      flags.http.body_timeout, ParseSeconds);
  add({"--write-timeout", "SECONDS", seconds(flags.http.write_timeout),
       "Closes a connection whose client takes nothing of its answer"},
      flags.http.write_timeout, ParseSeconds);
  add({"--ping-interval", "SECONDS", seconds(flags.completions.ping_interval),
       "A stream that waits sends a comment, so that proxies keep it open"},
      flags.completions.ping_interval, ParseSeconds);
  add({"--step-timeout", "SECONDS", seconds(flags.step_timeout),
       "/health answers 503 while a step takes longer: it hangs"},
      flags.step_timeout, ParseSeconds);
  add({"--drain-timeout", "SECONDS", seconds(flags.drain_timeout),
       "How long open requests may go on after SIGTERM"},
      flags.drain_timeout, ParseSeconds);
}

// Names are listed, and the nearest is offered.
template <class T>
T ParseNamed(std::string_view where, std::string_view text,
             std::initializer_list<Choice<T>> choices) {
  std::vector<std::string> names;
  for (const Choice<T>& choice : choices) names.emplace_back(choice.name);
  try {
    return ParseChoice<T>(where, text, choices);
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, "{}{}", error.what(), DidYouMean(text, names));
  }
}

void AddParsers(FlagReader& reader, ServeFlags& flags) {
  reader
      .Add(
          {"--tool-call-parser", "NAME", "auto",
           "How the model writes calls of tools: deepseek_v3, deepseek_v31, deepseek_v32, kimi_k2, "
           "glm45 or glm47; auto: as its chat template does"},
          flags.completions.tool_format,
          [](const std::string& where, const std::string& text) {
            return ParseNamed<std::optional<ToolFormat>>(
                where, text,
                {{"auto", std::nullopt},
                 {"deepseek_v3", ToolFormat::kDeepseekV3},
                 {"deepseek_v31", ToolFormat::kDeepseekV31},
                 {"deepseek_v32", ToolFormat::kDeepseekV32},
                 {"kimi_k2", ToolFormat::kKimiK2},
                 {"glm45", ToolFormat::kGlm45},
                 {"glm47", ToolFormat::kGlm45}});
          })
      .Twin();
  reader
      .Add({"--reasoning-parser", "NAME", "auto",
            "What is reasoning and no content: think (between <think> and </think>) or none; auto: "
            "think, from where the chat template's prompt ends"},
           flags.completions.splits_reasoning,
           [](const std::string& where, const std::string& text) {
             return ParseNamed<bool>(where, text,
                                     {{"auto", true}, {"think", true}, {"none", false}});
           })
      .Twin();
}

void AddServeFlags(FlagReader& reader, ServeFlags& flags) {
  AddModelFlags(reader, flags.model);
  reader
      .Add({"--served-model-name", "NAME", "the model's name", "What clients call the model"},
           flags.served_model_name, ParseText)
      .Twin();
  reader
      .AddSwitch("--disable-radix-cache", flags.disable_radix_cache,
                 "Forget every prompt once it is answered")
      .Twin();
  reader
      .AddSwitch("--ignore-unknown-fields", flags.ignore_unknown_fields,
                 "Take requests with fields that nobody knows; each name is logged once")
      .Twin();
  AddParsers(reader, flags);
  AddListening(reader, flags);
  AddAccess(reader, flags);
  AddLimits(reader, flags);
  reader
      .Add(
          {"--access-log", "FORMAT", "text",
           "A line on stderr for every request: text, json or off"},
          flags.access_log,
          [](const std::string& where, const std::string& text) {
            return ParseChoice<AccessLog>(
                where, text,
                {{"text", AccessLog::kText}, {"json", AccessLog::kJson}, {"off", AccessLog::kOff}});
          })
      .Twin();
}

// ---- Options from flags ----

// Every request is compared with every key.
constexpr int64_t kMaxKeyFileBytes = int64_t{1} << 20;

std::vector<std::string> ReadKeys(const ServeFlags& flags) {
  std::vector<std::string> keys = flags.api_keys;
  if (!flags.api_key_file.empty()) {
    std::istringstream in(ReadFile("--api-key-file", flags.api_key_file, kMaxKeyFileBytes));
    for (std::string line; std::getline(in, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty() && line.front() != '#') keys.push_back(line);
    }
    Require(!keys.empty(), "--api-key-file: {}: expected a key on a line, got none",
            QuoteForMessage(flags.api_key_file));
  }
  for (const std::string& key : keys) {
    Require(!key.empty(), "--api-key: expected a key, got an empty text");
  }
  return keys;
}

std::string LogLine(const AccessRecord& record, AccessLog format) {
  const std::string time = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
  const double seconds = std::chrono::duration<double>(record.duration).count();
  if (format == AccessLog::kText) {
    // What is no HTTP has no method, path or id; columns stay where they are.
    const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text.c_str(); };
    std::string line =
        fmt::format("{} {} {} {} {} {} {:.3f}s {}B {}", time, record.remote, or_dash(record.method),
                    or_dash(record.path), record.status, HttpOutcomeName(record.outcome), seconds,
                    record.response_bytes, or_dash(record.note));
    for (const auto& [name, value] : record.values) line += fmt::format(" {}={:.6g}", name, value);
    if (!record.error.empty()) line += " " + record.error;
    return line;
  }
  nlohmann::ordered_json line{{"time", time},
                              {"remote", record.remote},
                              {"method", record.method},
                              {"path", record.path},
                              {"status", record.status},
                              {"outcome", HttpOutcomeName(record.outcome)},
                              {"seconds", seconds},
                              {"request_bytes", record.request_bytes},
                              {"response_bytes", record.response_bytes},
                              {"request_id", record.note},
                              {"error", record.error}};
  for (const auto& [name, value] : record.values) line[name] = value;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ServerOptions MakeServerOptions(const ServeFlags& flags, const NamedFolder& model, LogWriter& log) {
  ServerOptions options{.http = flags.http, .drain_timeout = flags.drain_timeout};
  Require(flags.http.max_total_body_bytes >= flags.http.max_body_bytes,
          "--max-total-body-bytes: expected {} or more, as --max-body-bytes is, got {}",
          flags.http.max_body_bytes, flags.http.max_total_body_bytes);
  options.service.version = QUIRE_VERSION;
  options.service.api_keys = ReadKeys(flags);
  options.service.origins = flags.origins;
  options.service.step_timeout = flags.step_timeout;
  options.service.completions = flags.completions;
  options.service.completions.model_name =
      flags.served_model_name.empty() ? model.name : flags.served_model_name;
  options.service.completions.system_fingerprint = "quire-" QUIRE_VERSION;
  options.service.completions.limits.max_bytes =
      ByteOffset(static_cast<int64_t>(flags.http.max_body_bytes));
  if (flags.access_log != AccessLog::kOff) {
    options.http.on_access = [&log, format = flags.access_log](const AccessRecord& record) {
      log.Put(LogLine(record, format));
    };
  }
  options.ignore_unknown_fields = flags.ignore_unknown_fields;
  if (flags.access_log == AccessLog::kOff) options.status_interval = Milliseconds(0);
  options.on_message = [&log](std::string_view message) {
    log.Put(fmt::format("quire: {}", message));
  };
  return options;
}

// ---- Serving ----

// For many at once: sequences of the model's own context, as many tokens as the memory has room for.
RunnerOptions OptionsForMany(const ModelConfig&) { return {.max_seqs = 64}; }

// Of all groups.
ByteOffset MemoryOfRunners(const LocalModel& model) {
  ByteOffset bytes{0};
  for (const auto& runner : model.runners) bytes += runner->memory_plan().total();
  return bytes;
}

std::string DescribeModel(const LocalModel& model, const ServeFlags& flags) {
  const nlohmann::ordered_json info{
      {"folder", model.folder.filename().string()},
      {"dummy_weights", flags.model.load_format == LoadFormat::kDummy},
      {"memory_bytes", MemoryOfRunners(model).raw()},
      {"prefix_cache", !flags.disable_radix_cache},
      {"device", DeviceKindName(flags.model.device)},
      {"threads", flags.model.threads}};
  return info.dump();
}

// A lost device comes back to a new process only: whoever looks after this one is to start it again.
// So does a rank, which may be lost while no step runs.
void StopWithoutDevice(const Engine& engine, const Collective* ranks, Server& server,
                       LogWriter& log, const std::stop_token& stop) {
  constexpr Milliseconds kLook{100};
  constexpr Milliseconds kTold{500};  // so long /health says it to whoever asks
  const auto loss = [&]() -> std::optional<std::string> {
    if (engine.lost_device()) return engine.failure();
    try {
      if (ranks != nullptr) ranks->ThrowIfFailed();
    } catch (const DeviceError& error) {
      return error.what();
    }
    return std::nullopt;
  };
  std::optional<std::string> lost;
  while (!stop.stop_requested() && !(lost = loss())) std::this_thread::sleep_for(kLook);
  if (!lost) return;
  log.Put(fmt::format("quire: the device is lost: {}", *lost));
  std::this_thread::sleep_for(kTold);
  server.Stop();
}

void RunServe(ServeFlags flags) {
  JoinRanks(flags.model);
  std::signal(SIGPIPE, SIG_IGN);  // whoever read the log may go
  const NamedFolder named = FindModel(flags.model);
  LogWriter log(STDERR_FILENO);  // all that is said from here on goes through it
  const SayLine say = [&log](const std::string& text) { log.Put(text); };
  Server server(MakeServerOptions(flags, named, log));
  say(fmt::format("quire: listening on {}; loading the model", server.endpoint()));
  LocalModelOptions local{.defaults = OptionsForMany, .say = say};
  local.scheduler.max_waiting = flags.max_queued_requests;
  local.scheduler.max_priority = flags.max_priority;
  if (flags.disable_radix_cache) local.scheduler.prefix_cache = PrefixCache::kOff;
  const LocalModel model = LoadLocalModel(flags.model, local);
  if (flags.model.load_format == LoadFormat::kDummy) {
    say("quire: the weights are made up, and so are the answers");
  }
  if (!model.text->chat) say("quire: no chat: " + model.text->no_chat);
  server.StopOnSignals();  // before /health says that it is ready: who has read that may send one
  server.SetReady(*model.answers, DescribeModel(model, flags));
  const std::shared_ptr<Collective> ranks = RanksOf(flags.model);
  const std::jthread watch([&](const std::stop_token& stop) {
    StopWithoutDevice(*model.engine, ranks.get(), server, log, stop);
  });
  say(fmt::format("quire: ready: {}", server.endpoint()));
  server.Wait();
  log.Put("quire: all requests have ended");
  if (const auto failure = model.answers->engine().failure()) {
    throw InternalError("the engine has failed: " + *failure);
  }
  if (ranks != nullptr) ranks->ThrowIfFailed();
}

}  // namespace

void AddServe(CLI::App& quire) {
  AddCommand(
      quire,
      {"serve", "Serve a model to OpenAI's clients",
       "Examples:\n"
       "  quire serve models/DeepSeek-V2-Lite\n"
       "  quire serve deepseek-ai/DeepSeek-V2-Lite\n"
       "  quire serve models/DeepSeek-V2-Lite --host 0.0.0.0 --api-key-file keys.txt\n"
       "\n"
       "  curl http://127.0.0.1:8080/v1/chat/completions \\\n"
       "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n"
       "\n"
       "A page to chat with, and to see the engine at work, is at http://127.0.0.1:8080/.\n"
       "SIGTERM and ctrl-C let open requests end, no longer than --drain-timeout; a second one "
       "ends\n"
       "at once. The exit code is then 0.\n"},
      AddServeFlags, RunServe);
}

}  // namespace quire::cli
