// The flags of subcommands: how they are declared, and those that all of them share.
#ifndef QUIRE_CLI_FLAGS_H_
#define QUIRE_CLI_FLAGS_H_

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/kv_layout.h"
#include "base/units.h"
#include "cli/backend.h"
#include "device/thread_pool.h"
#include "runner/runner_options.h"

namespace quire::cli {

// How a flag looks in --help.
struct FlagText {
  const char* name;       // "--page-size"
  const char* value;      // what to write for its value: "TOKENS"
  std::string otherwise;  // what holds if it is not given; may be empty
  const char* help;
};

// Flags of one subcommand. CLI11 collects what was typed; Read converts it, once all is parsed, so
// that --help works whatever the environment holds, and a message can say where a value came from.
class FlagReader {
 public:
  explicit FlagReader(CLI::App& app) : app_(app) {}

  // `parse` is called with where the text stands, the flag or its variable, and the text.
  template <class Target, class Parse>
  CLI::Option* Add(const FlagText& text, Target& target, Parse parse) {
    CLI::Option* option = app_.add_option(text.name, CLI::callback_t(), text.help);
    option->type_name(text.value)->default_str(text.otherwise);
    ReadLater(option, target, parse);
    return option;
  }
  // A flag that may be given several times: its values in order.
  CLI::Option* AddList(const FlagText& text, std::vector<std::string>& target);
  CLI::Option* AddSwitch(const char* name, bool& target, const char* help);

  // Gives an option the environment twin QUIRE_NAME.
  static void AddTwin(CLI::Option* option);

  // Sets the targets of all that was given. Throws Error(kInvalidArgument).
  void Read() const;

 private:
  template <class Target, class Parse>
  void ReadLater(CLI::Option* option, Target& target, Parse parse) {
    readers_.push_back([this, option, &target, parse] {
      if (option->count() > 0) target = parse(Where(option), option->as<std::string>());
    });
  }
  std::string Where(CLI::Option* option) const;

  CLI::App& app_;
  std::vector<std::function<void()>> readers_;
};

// Gives a subcommand its flags, and runs it with them at the end of parsing.
template <class Flags, class Run>
void SetCommand(CLI::App& app, void (*add_flags)(FlagReader&, Flags&), Run run) {
  struct Command {
    FlagReader reader;
    Flags flags;
  };
  const std::shared_ptr<Command> command(new Command{FlagReader(app), Flags()});
  add_flags(command->reader, command->flags);
  app.final_callback([command, run] {
    command->reader.Read();
    run(command->flags);
  });
}

// Throws Error(kInvalidArgument) for "--flag=" without a value, for which CLI11 would take the next
// argument. `args` are those of main, with the program's name.
void RefuseEmptyValues(std::span<char* const> args);

enum class LoadFormat { kAuto, kSafetensors, kDummy };

// Which model to run, and how. What is not set is for the subcommand to choose.
struct ModelFlags {
  std::filesystem::path model = {};
  LoadFormat load_format = LoadFormat::kAuto;
  PageSize page_size{64};
  std::optional<TokenCount> context_length = {};
  std::optional<int32_t> max_running_requests = {};
  std::optional<TokenCount> chunked_prefill_size = {};
  std::optional<TokenCount> max_total_tokens = {};
  KvFormat kv_cache_dtype = KvFormat::kLatentBf16;
  double mem_fraction_static = 0.85;
  DeviceKind device = DeviceKind::kCpu;
  bool deterministic = false;
  bool check = false;
  int32_t threads = ThreadPool::DefaultThreads();
  std::optional<StepMode> step_mode = {};
  bool disable_cuda_graph = false;
};

// A flag's "cpu" or "cuda".
DeviceKind ParseDevice(const std::string& where, const std::string& text);

// `flags` must outlive the reader.
void AddModelFlags(FlagReader& reader, ModelFlags& flags);

// The options that the flags ask for, and those of `defaults` where they leave it open; the memory
// limit is a part of what the machine has available now, or of what the GPU has. Throws
// Error(kInvalidArgument) if flags contradict each other, or the device cannot be used.
RunnerOptions MakeOptions(const ModelFlags& flags, RunnerOptions defaults);

// The same for a command that needs the context, the sequences and the KV tokens of `room`: throws
// Error(kInvalidArgument) if flags ask for less.
RunnerOptions MakeRoom(const ModelFlags& flags, const RunnerOptions& room);

}  // namespace quire::cli

#endif  // QUIRE_CLI_FLAGS_H_
