#include "cli/answer_flags.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "cli/parse.h"
#include "text/utf8.h"

namespace quire::cli {
namespace {

constexpr const char* kSamplingGroup = "Sampling";
constexpr const char* kEndGroup = "When an answer ends";
constexpr const char* kChatGroup = "Conversation";
constexpr const char* kFromModel = "the model's, of generation_config.json";
constexpr double kHottest = 100;  // far beyond it all tokens are equally likely

auto NumberIn(double min, double max) {
  return [min, max](const std::string& where, const std::string& text) {
    return static_cast<float>(ParseNumber(where, text, min, max));
  };
}

auto IntFrom(int64_t min) {
  return [min](const std::string& where, const std::string& text) {
    return ParseInt(where, text, min);
  };
}

int32_t ParseTopK(const std::string& where, const std::string& text) {
  return static_cast<int32_t>(ParseInt(where, text, 0, std::numeric_limits<int32_t>::max()));
}

void AddSampling(FlagReader& reader, AnswerFlags& flags) {
  const auto add = [&](const FlagText& text, auto& target, auto parse) {
    reader.Add(text, target, parse).Group(kSamplingGroup);
  };
  add({"--temperature", "T", kFromModel, "0: always the most likely token; 1: as the model says"},
      flags.temperature, NumberIn(0, kHottest));
  add({"--top-p", "P", kFromModel, "Draw from the fewest tokens with this probability together"},
      flags.top_p, [](const std::string& where, const std::string& text) {
        return static_cast<float>(ParseFraction(where, text));
      });
  add({"--top-k", "K", kFromModel, "Draw from the K most likely tokens; 0: from all"}, flags.top_k,
      ParseTopK);
  add({"--min-p", "P", kFromModel,
       "Draw from tokens with at least this part of the highest probability"},
      flags.min_p, NumberIn(0, 1));
  add({"--seed", "N", "a new one each time", "The same seed draws the same answer"}, flags.seed,
      IntFrom(0));
}

void AddEnds(FlagReader& reader, AnswerFlags& flags) {
  reader
      .Add({"--max-tokens", "N", "up to the context length", "The longest answer"},
           flags.max_tokens, IntFrom(1))
      .Group(kEndGroup);
  reader
      .Add({"--min-tokens", "N", "0", "Before so many tokens nothing ends an answer"},
           flags.min_tokens, IntFrom(0))
      .Group(kEndGroup);
  reader
      .AddList(
          {"--stop", "TEXT", "", "An answer ends before this text; may be given several times"},
          flags.stop)
      .Group(kEndGroup);
  reader.AddSwitch("--ignore-eos", flags.ignore_eos, "The model's end token does not end an answer")
      .Group(kEndGroup);
}

template <class T>
void Override(T& value, const std::optional<T>& flag) {
  if (flag) value = *flag;
}

// Of 32 bits: short enough to be typed again.
uint64_t AnySeed() { return std::random_device()(); }

}  // namespace

void AddAnswerFlags(FlagReader& reader, AnswerFlags& flags) {
  const auto text = [](const std::string&, const std::string& value) { return value; };
  reader
      .Add({"--system", "TEXT", "", "What the model is told before the conversation"}, flags.system,
           text)
      .Group(kChatGroup);
  reader
      .Add({"--chat-template-kwargs", "JSON", "",
            "Variables of the chat template, such as '{\"enable_thinking\": true}'"},
           flags.template_kwargs, text)
      .Group(kChatGroup);
  AddSampling(reader, flags);
  AddEnds(reader, flags);
  reader.AddSwitch("--quiet", flags.quiet, "Nothing on stderr but errors");
}

TextRequest MakeRequest(const AnswerFlags& flags, const GenerationConfig& defaults) {
  TextRequest request;
  Request& tokens = request.tokens;
  tokens.sampling = defaults.sampling;
  Override(tokens.sampling.temperature, flags.temperature);
  Override(tokens.sampling.top_p, flags.top_p);
  Override(tokens.sampling.top_k, flags.top_k);
  Override(tokens.sampling.min_p, flags.min_p);
  tokens.sampling.seed = flags.seed ? *flags.seed : AnySeed();
  Override(tokens.max_tokens, flags.max_tokens);
  Require(flags.min_tokens <= tokens.max_tokens,
          "--min-tokens: expected up to {}, as --max-tokens says, got {}", tokens.max_tokens,
          flags.min_tokens);
  tokens.min_tokens = flags.min_tokens;
  request.ignore_eos = flags.ignore_eos;
  for (const std::string& stop : flags.stop) {
    Require(!stop.empty(), "--stop: expected a text, got an empty one");
  }
  request.stop = flags.stop;
  return request;
}

OrderedJson MakeMessage(const char* role, std::string_view content) {
  return {{"role", role}, {"content", ReplaceIllFormed(content)}};
}

OrderedJson FirstMessages(const std::string& system) {
  OrderedJson messages = OrderedJson::array();
  if (!system.empty()) messages.push_back(MakeMessage("system", system));
  return messages;
}

OrderedJson TemplateVariables(const AnswerFlags& flags) {
  if (flags.template_kwargs.empty()) return OrderedJson::object();
  OrderedJson variables = ParseOrderedJson(flags.template_kwargs, "--chat-template-kwargs");
  Require(variables.is_object(), "--chat-template-kwargs: expected a JSON object, got {}",
          QuoteForMessage(flags.template_kwargs));
  return variables;
}

}  // namespace quire::cli
