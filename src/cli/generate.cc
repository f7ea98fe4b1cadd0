#include "cli/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "cli/answer.h"
#include "cli/answer_flags.h"
#include "cli/flags.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/local_model.h"
#include "cli/model_name.h"
#include "cli/output.h"
#include "cli/ranks.h"

namespace quire::cli {
namespace {

struct GenerateFlags {
  ModelFlags model = {};
  AnswerFlags answer = {};
  std::optional<std::string> prompt = {};
  std::string prompt_file = {};
  bool chat = false;
  bool json = false;
};

// ---- The prompt ----

// One text alone, as in "quire generate hi", stands where MODEL does, and is a prompt unless it
// looks like a model and there is no other.
void TakeModelForPrompt(GenerateFlags& flags) {
  ModelFlags& model = flags.model;
  if (model.model.empty() || flags.prompt || !flags.prompt_file.empty()) return;
  const bool has_other = model.named && model.named->where == "--model";
  if (!has_other && LooksLikeModel(model.model)) return;
  flags.prompt = std::exchange(model.model, {});
}

std::string ReadPrompt(const GenerateFlags& flags) {
  Require(!flags.prompt || flags.prompt_file.empty(),
          "PROMPT, --prompt-file: expected one of them, got both");
  if (flags.prompt && flags.prompt != "-") return *flags.prompt;
  Require(flags.prompt || !flags.prompt_file.empty() || isatty(STDIN_FILENO) == 0,
          "PROMPT: expected a text, --prompt-file FILE, or a prompt on stdin, got none");
  std::string text = flags.prompt_file.empty()
                         ? ReadFileOrStdin("PROMPT", "-")
                         : ReadFileOrStdin("--prompt-file", flags.prompt_file);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

TextRequest MakePrompt(const GenerateFlags& flags, const TextModel& model,
                       const std::string& prompt) {
  TextRequest request = MakeRequest(flags.answer, model.generation);
  if (!flags.chat) {
    request.tokens.prompt = EncodePrompt(model, prompt);
    return request;
  }
  OrderedJson messages = FirstMessages(flags.answer.system);
  messages.push_back(MakeMessage("user", prompt));
  const OrderedJson variables = TemplateVariables(flags.answer);
  ChatPrompt chat = MakeChatPrompt(model, {.messages = &messages, .variables = &variables});
  request.tokens.prompt = std::move(chat.tokens);
  request.reasoning = chat.reasoning;
  return request;
}

// ---- The answer ----

std::string ToJson(const ShownAnswer& answer, uint64_t seed) {
  OrderedJson json;
  json["text"] = answer.text.content;
  json["reasoning"] = answer.text.reasoning;
  json["finish_reason"] = FinishReasonName(answer.finish);
  json["stop"] = answer.stopped_by ? OrderedJson(*answer.stopped_by) : OrderedJson();
  json["seed"] = seed;
  json["usage"] = {{"prompt_tokens", answer.prompt_tokens},
                   {"completion_tokens", answer.output_tokens},
                   {"total_tokens", answer.prompt_tokens + answer.output_tokens},
                   {"prompt_tokens_details", {{"cached_tokens", answer.cached_tokens}}}};
  json["timings"] = {{"first_token_seconds", answer.first_token_seconds},
                     {"decode_seconds", answer.decode_seconds},
                     {"tokens_per_second", answer.TokensPerSecond()}};
  return json.dump() + "\n";
}

void RunGenerate(GenerateFlags flags) {
  TakeModelForPrompt(flags);
  JoinRanks(flags.model);
  Require(flags.chat || (flags.answer.system.empty() && flags.answer.template_kwargs.empty()),
          "--system, --chat-template-kwargs: expected --chat with them");
  // A reader that went away ends us without a word, whatever our parent made of the signal.
  std::signal(SIGPIPE, SIG_DFL);
  const std::string prompt = ReadPrompt(flags);
  const bool quiet = flags.answer.quiet;
  TextRequest request;
  LocalModelOptions options{.messages = quiet ? LoadMessages::kHidden : LoadMessages::kShown};
  options.check = [&](const BeforeLoading& before) {
    request = MakePrompt(flags, before.text, prompt);
    RequireRoom(before.config, before.context, std::ssize(request.tokens.prompt));
  };
  const LocalModel model = LoadLocalModel(flags.model, options);
  const uint64_t seed = request.tokens.sampling.seed;
  AnswerPrinter printer(quiet || flags.json ? AnswerPrinter::Reasoning::kHidden
                                            : AnswerPrinter::Reasoning::kShown);
  const Interrupt interrupt(Interrupt::Times::kOnce);
  const ShownAnswer answer =
      ShowAnswer(*model.answers, std::move(request), interrupt, [&](const ReasoningPieces& pieces) {
        if (!flags.json) printer.Show(pieces);
      });
  printer.Finish();
  WriteResult(flags.json ? ToJson(answer, seed) : "\n");
  if (!quiet) PrintDimmed(Describe(answer) + "\n");
  if (answer.finish == FinishReason::kCancelled) throw Exit{kInterruptedCode};
}

void AddGenerateFlags(FlagReader& reader, GenerateFlags& flags) {
  const auto text = [](const std::string&, const std::string& value) { return value; };
  AddModelFlags(reader, flags.model);
  reader.Add({"PROMPT", "", "", "The text to continue; -, or none, reads it from stdin"},
             flags.prompt, text);
  reader.Add({"--prompt-file", "FILE", "", "The prompt from a file, - for stdin"},
             flags.prompt_file, text);
  reader.AddSwitch("--chat", flags.chat,
                   "The prompt is a message of a user, in the model's chat template");
  reader.AddSwitch("--json", flags.json,
                   "Print JSON at the end: text, reasoning, finish_reason, usage, timings");
  AddAnswerFlags(reader, flags.answer);
}

}  // namespace

void AddGenerate(CLI::App& quire) {
  AddCommand(
      quire,
      {"generate", "Continue a text, or answer one message",
       "Examples:\n"
       "  quire generate 'Once upon a time'\n"
       "  quire generate models/DeepSeek-V2-Lite 'The capital of France is' --max-tokens 20\n"
       "  quire generate models/DeepSeek-V2-Lite --chat --prompt-file question.txt\n"
       "  git diff | quire generate models/DeepSeek-V2-Lite --chat --system 'Review this change.'\n"
       "\n"
       "stdout gets the answer as it comes and a newline behind it, and nothing else; reasoning "
       "and\n"
       "statistics go to stderr.\n"
       "One text alone is the prompt, and the bundled model runs, unless a folder of this name "
       "exists.\n"
       "Of a file or stdin the last newline is left out. The context is the model's own, or 32768\n"
       "tokens if that is less, unless --context-length says more. Ctrl-C stops the answer, and "
       "the\n"
       "exit code is 130.\n"},
      AddGenerateFlags, RunGenerate);
}

}  // namespace quire::cli
