#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "cli/parse.h"

namespace quire::cli {
namespace {

// "--page-size" -> "QUIRE_PAGE_SIZE".
std::string TwinName(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string twin = "QUIRE_" + std::string(name);
  std::transform(twin.begin(), twin.end(), twin.begin(), [](char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  });
  return twin;
}

bool ParseSwitch(const std::string& where, const std::string& text) {
  return ParseChoice<bool>(where, text,
                           {{"true", true}, {"1", true}, {"false", false}, {"0", false}});
}

}  // namespace

const Flag& Flag::Group(const char* heading) const {
  option_->group(heading);
  return *this;
}

const Flag& Flag::Twin() const {
  option_->envname(TwinName(option_->get_name()));
  return *this;
}

CLI::Option& FlagReader::AddOption(const FlagText& text) {
  CLI::Option* option = app_.add_option(text.name, CLI::callback_t(), text.help);
  return *option->type_name(text.value)->default_str(text.otherwise);
}

Flag FlagReader::AddList(const FlagText& text, std::vector<std::string>& target) {
  CLI::Option& option = *AddOption(text).take_all();
  readers_.push_back([&option, &target] { target = option.results(); });
  return Flag(option);
}

Flag FlagReader::AddSwitch(const char* name, bool& target, const char* help) {
  CLI::Option& option = *app_.add_flag(name, std::as_const(help));
  ReadLater(option, target, ParseSwitch);
  return Flag(option);
}

void FlagReader::Read() const {
  for (const auto& read : readers_) read();
}

std::vector<FlagReader::TypedFlag> FlagReader::Typed() const {
  std::vector<TypedFlag> flags;
  for (const CLI::Option* option : app_.parse_order()) {
    flags.push_back({.name = option->get_name(), .group = option->get_group()});
  }
  return flags;
}

// What was typed is in the order of parsing; what came from the environment is not.
std::optional<FlagReader::Given> FlagReader::Find(const CLI::Option& option) const {
  if (option.count() == 0) return std::nullopt;
  const bool was_typed = std::ranges::count(app_.parse_order(), &option) > 0;
  return Given{.where = was_typed ? option.get_name() : option.get_envname(),
               .text = option.as<std::string>()};
}

CLI::App& AddSubcommand(CLI::App& quire, const CommandText& text) {
  return *quire.add_subcommand(text.name, text.help)->footer(text.footer);
}

void RunAtEnd(CLI::App& subcommand, std::function<void()> run) {
  subcommand.final_callback(std::move(run));
}

void RefuseEmptyValues(std::span<char* const> args) {
  for (const std::string_view arg : args) {
    if (arg == "--") return;  // what follows is no flag
    if (!arg.starts_with("--") || !arg.ends_with('=')) continue;
    const std::string_view name = arg.substr(0, arg.size() - 1);
    const bool is_name = name.size() > 2 && std::ranges::all_of(name, [](char c) {
                           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
                         });
    Require(!is_name, "{}: expected a value behind the =, got none", name);
  }
}

}  // namespace quire::cli
