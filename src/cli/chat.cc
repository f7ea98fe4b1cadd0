#include "cli/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/answer.h"
#include "cli/answer_flags.h"
#include "cli/colour.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/line_reader.h"
#include "cli/local_model.h"
#include "cli/model_name.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/suggest_path.h"

namespace quire::cli {
namespace {

constexpr const char* kHelp =
    "/help         this list\n"
    "/reset        forget the conversation; the system prompt stays\n"
    "/system TEXT  what the model is told before the conversation; no TEXT: nothing\n"
    "/stats        what has been computed so far\n"
    "/exit         leave; so does ctrl-D\n"
    "arrow keys    edit the line, and fetch earlier ones back; ctrl-R searches them\n"
    "ctrl-C        while an answer comes, stops it: what came stays in the conversation;\n"
    "              at the prompt, clears the line, and twice in a row leaves\n"
    "A message that begins with / is written with // in front.\n";

constexpr const char* kPrompt = "> ";

struct ChatFlags {
  ModelFlags model = {};
  AnswerFlags answer = {};
};

// What is said besides answers: those alone are on stdout.
template <class... Args>
void Say(fmt::format_string<Args...> text, Args&&... args) {
  fmt::print(stderr, text, std::forward<Args>(args)...);
}

class Chat {
 public:
  Chat(const ChatFlags& flags, const LocalModel& model)
      : flags_(flags.answer),
        model_(model),
        is_terminal_(isatty(STDIN_FILENO) == 1),
        system_(flags.answer.system),
        variables_(TemplateVariables(flags.answer)) {
    if (LineEditor::CanEdit()) editor_.emplace(kPrompt);
  }

  // Until the user leaves.
  void Run();

 private:
  enum class Next { kGoOn, kLeave };

  LineReader::Outcome ReadLine(std::string& line);
  Next TakeInterrupt();
  Next TakeLine(std::string_view line);
  Next TakeCommand(std::string_view line);
  void Ask(std::string_view text);
  TextRequest MakePrompt() const;
  void Answer();
  void SayStats() const;

  const AnswerFlags& flags_;
  const LocalModel& model_;
  const bool is_terminal_;
  Interrupt interrupt_{Interrupt::Times::kAlways};
  LineReader reader_{STDIN_FILENO};
  std::optional<LineEditor> editor_ = {};  // at a terminal, in the place of reader_
  std::string system_;
  const OrderedJson variables_;
  OrderedJson turns_ = OrderedJson::array();  // messages of user and assistant, in turn
  bool interrupted_before_ = false;  // the last thing that happened was ctrl-C at the prompt
  bool all_answered_ = true;
};

void Chat::Run() {
  if (is_terminal_ && !flags_.quiet) {
    Say("{}, context of {} tokens; /help lists the commands\n", model_.folder.string(),
        model_.engine->limits().context);
  }
  Next next = Next::kGoOn;
  while (next == Next::kGoOn) {
    std::string line;
    switch (ReadLine(line)) {
      case LineReader::Outcome::kLine:
        interrupted_before_ = false;
        next = TakeLine(line);
        break;
      case LineReader::Outcome::kInterrupted:
        next = TakeInterrupt();
        break;
      case LineReader::Outcome::kEnd:
        if (is_terminal_) Say("\n");
        next = Next::kLeave;
        break;
    }
  }
  if (!is_terminal_ && !all_answered_) throw Exit{1};
}

LineReader::Outcome Chat::ReadLine(std::string& line) {
  if (editor_) return editor_->Next(interrupt_, line);
  if (is_terminal_) Say("{}", kPrompt);
  return reader_.Next(interrupt_, line);
}

Chat::Next Chat::TakeInterrupt() {
  if (!is_terminal_) throw Exit{kInterruptedCode};
  interrupt_.Clear();
  Say("\n");
  if (std::exchange(interrupted_before_, true)) return Next::kLeave;
  Say("ctrl-C once more, ctrl-D or /exit leaves\n");
  return Next::kGoOn;
}

Chat::Next Chat::TakeLine(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.find_first_not_of(" \t") == std::string_view::npos) return Next::kGoOn;
  if (line.starts_with('/') && !line.starts_with("//")) return TakeCommand(line);
  Ask(line.starts_with("//") ? line.substr(1) : line);
  return Next::kGoOn;
}

Chat::Next Chat::TakeCommand(std::string_view line) {
  const std::string_view name = line.substr(0, line.find(' '));
  std::string_view rest = line.substr(name.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  if (name == "/system") {
    system_ = rest;
    return Next::kGoOn;
  }
  if (!rest.empty()) {
    Say("{}: expected nothing behind it, got {}\n", name, QuoteForMessage(rest));
  } else if (name == "/exit") {
    return Next::kLeave;
  } else if (name == "/reset") {
    turns_.clear();
  } else if (name == "/help") {
    Say("{}", kHelp);
  } else if (name == "/stats") {
    SayStats();
  } else {
    const std::vector<std::string> names{"/help", "/reset", "/system", "/stats", "/exit"};
    Say("unknown command {}{}; /help lists those that there are\n", QuoteForMessage(name),
        DidYouMean(name, names));
  }
  return Next::kGoOn;
}

void Chat::Ask(std::string_view text) {
  turns_.push_back(MakeMessage("user", text));
  try {
    Answer();
  } catch (const Error& error) {
    turns_.erase(turns_.size() - 1);
    all_answered_ = false;
    Say("{} {}{}\n", Red("quire: error:"), error.what(),
        turns_.empty() ? "" : "; /reset begins a new conversation");
  }
}

TextRequest Chat::MakePrompt() const {
  OrderedJson messages = FirstMessages(system_);
  messages.insert(messages.end(), turns_.begin(), turns_.end());
  ChatPrompt prompt =
      MakeChatPrompt(*model_.text, {.messages = &messages, .variables = &variables_});
  RequireRoom(*model_.config, model_.engine->limits().context, std::ssize(prompt.tokens));
  TextRequest request = MakeRequest(flags_, model_.text->generation);
  request.tokens.prompt = std::move(prompt.tokens);
  request.reasoning = prompt.reasoning;
  return request;
}

void Chat::Answer() {
  AnswerPrinter printer(flags_.quiet ? AnswerPrinter::Reasoning::kHidden
                                     : AnswerPrinter::Reasoning::kShown);
  const ShownAnswer answer =
      ShowAnswer(*model_.answers, MakePrompt(), interrupt_,
                 [&](const ReasoningPieces& pieces) { printer.Show(pieces); });
  printer.Finish();
  WriteResult("\n");
  if (!flags_.quiet) PrintDimmed(Describe(answer) + "\n");
  OrderedJson turn = MakeMessage("assistant", answer.text.content);
  if (answer.finish == FinishReason::kCancelled) {
    if (!is_terminal_) throw Exit{kInterruptedCode};
    interrupt_.Clear();
  } else if (!answer.text.reasoning.empty()) {
    // For templates that want it; half a thought is left out.
    turn["reasoning_content"] = answer.text.reasoning;
  }
  turns_.push_back(std::move(turn));
}

void Chat::SayStats() const {
  const SchedulerCounters counters = model_.engine->counters();
  Say("{} answers, {} prompt tokens ({} cached), {} output tokens, {} steps\n",
      counters.answers_finished, counters.prompt_tokens, counters.cached_tokens,
      counters.output_tokens, counters.steps);
  Say("{} messages in the conversation, {} of {} pages of the cache in use\n", turns_.size(),
      counters.pages_total - counters.pages_free, counters.pages_total);
}

void RunChat(ChatFlags flags) {
  JoinRanks(flags.model);
  // A reader that went away ends us without a word, whatever our parent made of the signal.
  std::signal(SIGPIPE, SIG_DFL);
  const std::string& model_text = flags.model.model;
  Require(model_text.empty() || LooksLikeModel(model_text),
          "MODEL: expected a folder with config.json, got {}, which does not exist{}; messages are "
          "typed once quire chat runs, and quire generate --chat answers one",
          QuoteForMessage(model_text), DidYouMeanPath(model_text));
  LocalModelOptions options{.messages =
                                flags.answer.quiet ? LoadMessages::kHidden : LoadMessages::kShown};
  options.check = [&](const BeforeLoading& before) {
    RequireChat(before.text);
    MakeRequest(flags.answer, before.text.generation);
    TemplateVariables(flags.answer);
  };
  const LocalModel model = LoadLocalModel(flags.model, options);
  Chat(flags, model).Run();
}

void AddChatFlags(FlagReader& reader, ChatFlags& flags) {
  AddModelFlags(reader, flags.model);
  AddAnswerFlags(reader, flags.answer);
}

}  // namespace

void AddChat(CLI::App& quire) {
  AddCommand(
      quire,
      {"chat", "Talk to a model",
       fmt::format(
           "Examples:\n"
           "  quire chat models/DeepSeek-V2-Lite\n"
           "  quire chat models/DeepSeek-V2-Lite --system 'Be brief.' < questions.txt\n"
           "\n"
           "At a terminal:\n{}"
           "\n"
           "If stdin is no terminal, every line is a message, and stdout gets the answers.\n"
           "Reasoning and statistics go to stderr. The context is the model's own, or {} tokens\n"
           "if that is less, unless --context-length says more.\n",
           kHelp, kMostContextForOne)},
      AddChatFlags, RunChat);
}

}  // namespace quire::cli
