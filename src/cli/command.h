// How subcommands and their flags are declared. CLI11 parses them; its header takes ten seconds to
// compile, so only command.cc and program.cc include it.
#ifndef QUIRE_CLI_COMMAND_H_
#define QUIRE_CLI_COMMAND_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace quire::cli {

// Thrown by a command that has said why it ends, and ends the program with `code`.
struct Exit {
  int code;
};

// How a flag looks in --help.
struct FlagText {
  const char* name;       // "--page-size"
  const char* value;      // what to write for its value: "TOKENS"
  std::string otherwise;  // what holds if it is not given; may be empty
  const char* help;
};

// A flag that has been added.
class Flag {
 public:
  explicit Flag(CLI::Option& option) : option_(&option) {}

  // Puts it under a heading of --help.
  const Flag& Group(const char* heading) const;
  // Gives it the environment twin QUIRE_NAME.
  const Flag& Twin() const;

 private:
  CLI::Option* option_;
};

// Flags of one subcommand. CLI11 collects what was typed; Read converts it, once all is parsed, so
// that --help works whatever the environment holds, and a message can say where a value came from.
class FlagReader {
 public:
  explicit FlagReader(CLI::App& app) : app_(app) {}

  // `parse` is called with where the text stands, the flag or its variable, and the text.
  template <class Target, class Parse>
  Flag Add(const FlagText& text, Target& target, Parse parse) {
    CLI::Option& option = AddOption(text);
    ReadLater(option, target, parse);
    return Flag(option);
  }
  // A flag that may be given several times: its values in order.
  Flag AddList(const FlagText& text, std::vector<std::string>& target);
  Flag AddSwitch(const char* name, bool& target, const char* help);

  // Sets the targets of all that was given. Throws Error(kInvalidArgument).
  void Read() const;

  // What was typed, and not taken from the environment; in order.
  struct TypedFlag {
    std::string name;
    std::string group;
  };
  std::vector<TypedFlag> Typed() const;

 private:
  struct Given {
    std::string where;
    std::string text;
  };

  CLI::Option& AddOption(const FlagText& text);
  template <class Target, class Parse>
  void ReadLater(CLI::Option& option, Target& target, Parse parse) {
    readers_.push_back([this, &option, &target, parse] {
      if (const std::optional<Given> given = Find(option)) {
        target = parse(given->where, given->text);
      }
    });
  }
  std::optional<Given> Find(const CLI::Option& option) const;

  CLI::App& app_;
  std::vector<std::function<void()>> readers_;
};

struct CommandText {
  const char* name;
  const char* help;
  std::string footer;  // behind the flags in --help: examples, and what else there is to know
};

// A subcommand without flags, and what happens at the end of parsing if it was named.
CLI::App& AddSubcommand(CLI::App& quire, const CommandText& text);
void RunAtEnd(CLI::App& subcommand, std::function<void()> run);

// A subcommand that runs at the end of parsing: run(flags), or run(flags, reader) if it wants to
// know what was typed.
template <class Flags, class Run>
void AddCommand(CLI::App& quire, const CommandText& text, void (*add_flags)(FlagReader&, Flags&),
                Run run) {
  struct Command {
    FlagReader reader;
    Flags flags;
  };
  CLI::App& subcommand = AddSubcommand(quire, text);
  const std::shared_ptr<Command> command(new Command{FlagReader(subcommand), Flags()});
  add_flags(command->reader, command->flags);
  RunAtEnd(subcommand, [command, run] {
    command->reader.Read();
    if constexpr (std::is_invocable_v<Run, const Flags&, const FlagReader&>) {
      run(command->flags, command->reader);
    } else {
      run(command->flags);
    }
  });
}

// Throws Error(kInvalidArgument) for "--flag=" without a value, for which CLI11 would take the next
// argument. `args` are those of main, with the program's name.
void RefuseEmptyValues(std::span<char* const> args);

}  // namespace quire::cli

#endif  // QUIRE_CLI_COMMAND_H_
