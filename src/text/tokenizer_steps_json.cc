#include "text/tokenizer_steps_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/utf8.h"

namespace quire {
namespace {

// Around a text: a model has one or two.
constexpr size_t kMaxFrameTokens = 64;

// The pattern that ByteLevel brings along (GPT-2's).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[noreturn]] void RefuseType(const JsonRef& step, std::string_view known) {
  throw Error(ErrorCode::kInvalidArgument, "{}: expected one of {}, got {}",
              step.At("type").where(), known, QuoteForMessage(step.At("type").String()));
}

// A step by itself, or the steps of a Sequence, or of Sequences in it.
std::vector<JsonRef> Flatten(const JsonRef& step, std::string_view steps_key) {
  if (step.At("type").String() != "Sequence") return {step};
  RequireKnownKeys(step, {"type", steps_key});
  std::vector<JsonRef> flat;
  for (const JsonRef& inner : step.At(steps_key).Array()) {
    for (JsonRef& one : Flatten(inner, steps_key)) flat.push_back(std::move(one));
  }
  return flat;
}

bool BoolOr(const JsonRef& object, std::string_view key, bool value) {
  const std::optional<JsonRef> found = object.Find(key);
  return found ? found->Bool() : value;
}

std::string Character(const JsonRef& ref) {
  std::string text = ref.String();
  Require(!text.empty() && ReadUtf8(text).length == text.size(),
          "{}: expected one character, got {}", ref.where(), QuoteForMessage(text));
  return text;
}

// {"String": "x"} or {"Regex": "x"}
Regex ParsePattern(const JsonRef& pattern) {
  RequireKnownKeys(pattern, {"String", "Regex"});
  if (const std::optional<JsonRef> regex = pattern.Find("Regex")) {
    return Regex(regex->String(), regex->where());
  }
  const JsonRef text = pattern.At("String");
  Require(!text.String().empty(), "{}: expected a string that is not empty, got \"\"",
          text.where());
  return Regex::Literal(text.String(), text.where());
}

ReplaceStep ParseReplace(const JsonRef& step) {
  RequireKnownKeys(step, {"type", "pattern", "content"});
  return {.pattern = ParsePattern(step.At("pattern")), .content = step.At("content").String()};
}

SplitStep::Behavior ParseBehavior(const JsonRef& behavior) {
  const std::string name =
      behavior.OneOf({"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"});
  if (name == "Isolated") return SplitStep::Behavior::kIsolated;
  if (name == "Removed") return SplitStep::Behavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitStep::Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitStep::Behavior::kMergedWithNext;
  return SplitStep::Behavior::kContiguous;
}

SplitStep ParseSplit(const JsonRef& step) {
  RequireKnownKeys(step, {"type", "pattern", "behavior", "invert"});
  return {.pattern = ParsePattern(step.At("pattern")),
          .behavior = ParseBehavior(step.At("behavior")),
          .cut = step.At("invert").Bool() ? SplitStep::Cut::kBetweenMatches
                                          : SplitStep::Cut::kAtMatches};
}

SplitStep ParseDigits(const JsonRef& step) {
  RequireKnownKeys(step, {"type", "individual_digits"});
  return {.pattern = Regex(R"(\p{N})", step.where()),
          .behavior = step.At("individual_digits").Bool() ? SplitStep::Behavior::kIsolated
                                                          : SplitStep::Behavior::kContiguous};
}

MetaspaceStep::Prepend ParsePrependScheme(const JsonRef& step) {
  const std::optional<JsonRef> scheme = step.Find("prepend_scheme");
  const std::string name = scheme ? scheme->OneOf({"always", "first", "never"}) : "always";
  // What prepend_scheme was called before; where both are there, they must agree.
  Require(BoolOr(step, "add_prefix_space", true) || name == "never",
          "{}: expected true, or prepend_scheme \"never\", got false and prepend_scheme \"{}\"",
          fmt::format("{}.add_prefix_space", step.where()), name);
  if (name == "always") return MetaspaceStep::Prepend::kAlways;
  return name == "first" ? MetaspaceStep::Prepend::kFirst : MetaspaceStep::Prepend::kNever;
}

MetaspaceStep ParseMetaspace(const JsonRef& step) {
  RequireKnownKeys(
      step, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string replacement = Character(step.At("replacement"));
  return {.replacement = replacement,
          .prepend = ParsePrependScheme(step),
          .split = BoolOr(step, "split", true),
          .pattern = Regex::Literal(replacement, step.where())};
}

// As a decoder and as a post processor it only has options that do nothing there.
void RequireByteLevelKeys(const JsonRef& step) {
  RequireKnownKeys(step, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

void AppendByteLevel(const JsonRef& step, std::vector<PreTokenizer::Step>& steps) {
  RequireByteLevelKeys(step);
  if (step.At("add_prefix_space").Bool()) steps.emplace_back(PrefixSpaceStep{});
  if (BoolOr(step, "use_regex", true)) {
    steps.emplace_back(SplitStep{.pattern = Regex(kByteLevelPattern, step.where())});
  }
}

// The ids that a template's special token stands for.
std::vector<int32_t> ParseTemplateToken(const JsonRef& name, const JsonRef& special_tokens) {
  std::vector<int32_t> ids;
  for (const JsonRef& id : special_tokens.At(name.String()).At("ids").Array()) {
    ids.push_back(static_cast<int32_t>(id.Int(0, kMaxVocabSize - 1)));
  }
  return ids;
}

TokenFrame ParseTemplate(const JsonRef& step) {
  RequireKnownKeys(step, {"type", "single", "pair", "special_tokens"});  // one text is never a pair
  TokenFrame frame;
  bool has_text = false;
  for (const JsonRef& piece : step.At("single").Array()) {
    RequireKnownKeys(piece, {"SpecialToken", "Sequence"});
    if (const std::optional<JsonRef> token = piece.Find("SpecialToken")) {
      std::vector<int32_t>& side = has_text ? frame.behind : frame.before;
      for (const int32_t id : ParseTemplateToken(token->At("id"), step.At("special_tokens"))) {
        side.push_back(id);
      }
    } else {
      piece.At("Sequence").At("id").OneOf({"A"});
      Require(!has_text, "{}: expected the sequence A once, got it twice",
              step.At("single").where());
      has_text = true;
    }
  }
  Require(has_text, "{}: expected the sequence A once, got it never", step.At("single").where());
  return frame;
}

// Puts the second frame around the first.
TokenFrame Around(TokenFrame inner, TokenFrame outer) {
  outer.before.insert(outer.before.end(), inner.before.begin(), inner.before.end());
  inner.behind.insert(inner.behind.end(), outer.behind.begin(), outer.behind.end());
  return {.before = std::move(outer.before), .behind = std::move(inner.behind)};
}

// The decoders that stand in a Sequence like Llama's: Replace..., ByteFallback, Fuse, Strip, each of
// the last three once or not at all.
class DecoderSteps {
 public:
  DecodeRules Parse(std::span<const JsonRef> steps) {
    rules_.joining = DecodeRules::Joining::kText;
    for (const JsonRef& step : steps) Add(step);
    return std::move(rules_);
  }

 private:
  enum class Stage { kReplace, kByteFallback, kFuse, kStrip };

  void Add(const JsonRef& step) {
    const std::string type = step.At("type").String();
    if (type == "Replace") {
      Enter(step, Stage::kReplace);
      rules_.replacements.push_back(ParseReplace(step));
    } else if (type == "ByteFallback") {
      Enter(step, Stage::kByteFallback);
      RequireKnownKeys(step, {"type"});
      rules_.joining = DecodeRules::Joining::kByteTokens;
    } else if (type == "Fuse") {
      Enter(step, Stage::kFuse);
      RequireKnownKeys(step, {"type"});
    } else if (type == "Strip") {
      AddStrip(step);
    } else {
      RefuseType(step, R"("Replace", "ByteFallback", "Fuse", "Strip"; or "ByteLevel" or )"
                       R"("Metaspace" alone)");
    }
  }

  void AddStrip(const JsonRef& step) {
    // On every token by itself it would mean something else.
    Require(stage_ == Stage::kFuse, "{}: expected Strip directly behind Fuse", step.where());
    Enter(step, Stage::kStrip);
    RequireKnownKeys(step, {"type", "content", "start", "stop"});
    rules_.strip_character = Character(step.At("content"));
    rules_.strip_count = step.At("start").Int(0, std::numeric_limits<int32_t>::max());
    (void)step.At("stop").Int(0, 0);  // of a stream the end is not known
  }

  void Enter(const JsonRef& step, Stage stage) {
    Require(stage > stage_ || (stage == stage_ && stage == Stage::kReplace),
            "{}: expected the order Replace, ByteFallback, Fuse, Strip, got {} too late",
            step.where(), step.At("type").String());
    stage_ = stage;
  }

  Stage stage_ = Stage::kReplace;
  DecodeRules rules_ = {};
};

DecodeRules ParseMetaspaceDecoder(const JsonRef& step) {
  const MetaspaceStep metaspace = ParseMetaspace(step);
  return {.joining = DecodeRules::Joining::kText,
          .metaspace = metaspace.replacement,
          .first_token_without_metaspace = metaspace.prepend != MetaspaceStep::Prepend::kNever};
}

}  // namespace

void RequireKnownKeys(const JsonRef& object, std::initializer_list<std::string_view> known) {
  const std::vector<std::string> unknown = object.UnknownKeys({known.begin(), known.size()});
  Require(unknown.empty(), "{}: expected no keys but \"{}\", got {}", object.where(),
          fmt::join(known, "\", \""), unknown.empty() ? "" : QuoteForMessage(unknown.front()));
}

Normalizer ParseNormalizer(const std::optional<JsonRef>& normalizer) {
  if (!normalizer) return {};
  std::vector<Normalizer::Step> steps;
  for (const JsonRef& step : Flatten(*normalizer, "normalizers")) {
    const std::string type = step.At("type").String();
    if (type == "Prepend") {
      RequireKnownKeys(step, {"type", "prepend"});
      steps.emplace_back(PrependStep{step.At("prepend").String()});
    } else if (type == "Replace") {
      steps.emplace_back(ParseReplace(step));
    } else {
      RefuseType(step, R"("Sequence", "Prepend", "Replace")");
    }
  }
  return Normalizer(std::move(steps));
}

ParsedPreTokenizer ParsePreTokenizer(const std::optional<JsonRef>& pre_tokenizer) {
  if (!pre_tokenizer) return {};
  BpeSpec::Unit unit = BpeSpec::Unit::kCharacter;
  std::vector<PreTokenizer::Step> steps;
  for (const JsonRef& step : Flatten(*pre_tokenizer, "pretokenizers")) {
    Require(unit == BpeSpec::Unit::kCharacter, "{}: expected nothing behind ByteLevel, got {}",
            step.where(), step.At("type").String());
    const std::string type = step.At("type").String();
    if (type == "Split") {
      steps.emplace_back(ParseSplit(step));
    } else if (type == "Digits") {
      steps.emplace_back(ParseDigits(step));
    } else if (type == "Metaspace") {
      steps.emplace_back(ParseMetaspace(step));
    } else if (type == "ByteLevel") {
      AppendByteLevel(step, steps);
      unit = BpeSpec::Unit::kByte;
    } else {
      RefuseType(step, R"("Sequence", "Split", "Digits", "Metaspace", "ByteLevel")");
    }
  }
  return {PreTokenizer(std::move(steps)), unit};
}

TokenFrame ParsePostProcessor(const std::optional<JsonRef>& post_processor) {
  TokenFrame frame;
  if (!post_processor) return frame;
  for (const JsonRef& step : Flatten(*post_processor, "processors")) {
    const std::string type = step.At("type").String();
    if (type == "ByteLevel") {
      RequireByteLevelKeys(step);
    } else if (type == "TemplateProcessing") {
      frame = Around(std::move(frame), ParseTemplate(step));
      Require(frame.before.size() + frame.behind.size() <= kMaxFrameTokens,
              "{}: expected at most {} tokens around a text, got {}", step.where(), kMaxFrameTokens,
              frame.before.size() + frame.behind.size());
    } else {
      RefuseType(step, R"("Sequence", "ByteLevel", "TemplateProcessing")");
    }
  }
  return frame;
}

DecodeRules ParseDecoder(const JsonRef& decoder) {
  const std::vector<JsonRef> steps = Flatten(decoder, "decoders");
  const std::string type = steps.size() == 1 ? steps[0].At("type").String() : "";
  if (type == "ByteLevel") {
    RequireByteLevelKeys(steps[0]);
    return {.joining = DecodeRules::Joining::kBytes};
  }
  if (type == "Metaspace") return ParseMetaspaceDecoder(steps[0]);
  return DecoderSteps().Parse(steps);
}

}  // namespace quire
