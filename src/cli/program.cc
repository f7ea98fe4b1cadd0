#include "cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/bench.h"
#include "cli/chat.h"
#include "cli/command.h"
#include "cli/doctor/doctor.h"
#include "cli/eval/eval.h"
#include "cli/generate.h"
#include "cli/inspect.h"
#include "cli/ranks.h"
#include "cli/score.h"
#include "cli/serve.h"
#include "io/json.h"

namespace quire::cli {
namespace {

std::vector<std::string> NamesOf(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> NamesOf(const std::vector<const CLI::Option*>& flags) {
  std::vector<std::string> names;
  for (const CLI::Option* flag : flags) {
    for (const std::string& name : flag->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What helps with an argument that `command` does not take.
std::string HintFor(const CLI::App& command, const std::string& argument) {
  if (argument.starts_with('-')) {
    const std::vector<std::string> flags = NamesOf(command.get_options());
    return DidYouMean(argument.substr(0, argument.find('=')), flags);
  }
  return command.get_name() == "generate" ? "; a prompt of several words goes in quotes" : "";
}

// Of a command line without a subcommand.
std::string DescribeMissing(const CLI::App& app, const std::vector<std::string>& unknown) {
  const std::vector<std::string> commands =
      NamesOf(app.get_subcommands([](const CLI::App*) { return true; }));
  const std::string expected =
      fmt::format("expected a subcommand, one of {}", fmt::join(commands, ", "));
  if (unknown.empty()) return expected + ", got none";
  const bool is_flag = unknown[0].starts_with('-');
  return fmt::format("{}, got {}{}", expected, QuoteForMessage(unknown[0]),
                     DidYouMean(unknown[0], is_flag ? NamesOf(app.get_options()) : commands));
}

std::string Describe(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  if (app.get_subcommands().empty()) return DescribeMissing(app, unknown);
  if (unknown.empty()) return error.what();
  const CLI::App& command = *app.get_subcommands()[0];
  return fmt::format("expected MODEL and flags of quire {}, got {}{}", command.get_name(),
                     QuoteForMessage(unknown[0]), HintFor(command, unknown[0]));
}

// Parses, and runs what was asked for.
int Run(int argc, char** argv) {
  CLI::App app("Quire runs language models with latent attention (the DeepSeek family).", "quire");
  app.set_version_flag("--version", "quire " QUIRE_VERSION, "Print the version");
  app.set_help_flag("-h,--help", "Print this help; also after a subcommand");
  app.footer(
      "Examples:\n"
      "  quire generate 'Once upon a time'\n"
      "  quire generate models/DeepSeek-V2-Lite 'The capital of France is' --max-tokens 20\n"
      "  quire chat models/DeepSeek-V2-Lite\n"
      "  quire serve models/DeepSeek-V2-Lite\n"
      "  quire inspect models/DeepSeek-V2-Lite\n"
      "  quire score models/DeepSeek-V2-Lite --tokens 100000,549,6077,280 --top 5\n"
      "  quire bench models/DeepSeek-V2-Lite --batch 1,16\n"
      "  quire bench --url http://127.0.0.1:8080 --concurrency 1,16\n"
      "  quire doctor\n"
      "\n"
      "`quire SUBCOMMAND --help` lists the flags. Where it says (Env:QUIRE_...), that environment\n"
      "variable does the same; a flag wins over its variable.\n");
  app.require_subcommand(1);
  AddGenerate(app);
  AddChat(app);
  AddServe(app);
  AddEval(app);
  AddInspect(app);
  AddScore(app);
  AddBench(app, fmt::format("{}", fmt::join(std::span(argv, static_cast<size_t>(argc)), " ")));
  AddDoctor(app);
  RefuseEmptyValues(std::span(argv, static_cast<size_t>(argc)));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorCode::kInvalidArgument, "{}; --help explains", Describe(app, error));
  }
  return 0;
}

int Fail(const std::exception& error, int code) {
  // Whoever read stderr may have gone, which is no error of its own.
  std::fputs(fmt::format("{} {}\n", ErrorPrefix(), error.what()).c_str(), stderr);
  return code;
}

// A path that the system cannot follow is a wrong value like any other.
bool IsWrongPath(const std::error_code& code) {
  for (const std::errc wrong :
       {std::errc::no_such_file_or_directory, std::errc::not_a_directory,
        std::errc::permission_denied, std::errc::too_many_symbolic_link_levels,
        std::errc::filename_too_long, std::errc::is_a_directory}) {
    if (code == wrong) return true;
  }
  return false;
}

}  // namespace

int RunProgram(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const Error& error) {
    return Fail(error, error.code() == ErrorCode::kInvalidArgument ? 2 : 1);
  } catch (const std::filesystem::filesystem_error& error) {
    if (!IsWrongPath(error.code())) return Fail(error, 1);
    return Fail(Error(ErrorCode::kInvalidArgument, "{}: {}",
                      QuoteForMessage(error.path1().string()), error.code().message()),
                2);
  } catch (const std::exception& error) {
    return Fail(error, 1);
  }
}

}  // namespace quire::cli
