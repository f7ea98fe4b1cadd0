#include "text/tool_call_parser.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "text/possible_tag.h"

namespace quire {
namespace {

constexpr std::string_view kToolSpace = " \t\r\n";
constexpr std::string_view kToolNameBytes =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:-";
// Far beyond any, and as much as is kept back for one.
constexpr size_t kMaxNameBytes = 256;

size_t SkipToolSpace(std::string_view text, size_t from) {
  return std::min(text.find_first_not_of(kToolSpace, from), text.size());
}

std::string_view WithoutToolSpace(std::string_view text) {
  text.remove_prefix(SkipToolSpace(text, 0));
  const size_t last = text.find_last_not_of(kToolSpace);
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

// The inside of a JSON string.
std::string JsonStringInside(std::string_view text) {
  const std::string quoted = Dump(OrderedJson(text));
  return quoted.substr(1, quoted.size() - 2);
}

// How many of the last bytes are the beginning of a character that is not whole.
size_t CutCharacterBytes(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

}  // namespace

std::span<const ToolCallParser::Tag> ToolCallParser::TagsOf(ToolFormat format) {
  using enum State;
  using namespace tool_tags;  // NOLINT: all of them, in these tables alone
  static constexpr Tag kDeepseekV3[] = {
      {kContent, kDeepseekCalls, kBetween},      {kBetween, kDeepseekFunction, kName},
      {kBetween, kDeepseekCallsEnd, kContent},   {kName, kDeepseekFence, kArguments},
      {kArguments, kDeepseekFenceEnd, kBetween}, {kArguments, kDeepseekCallEnd, kBetween}};
  static constexpr Tag kDeepseekV31[] = {{kContent, kDeepseekCalls, kBetween},
                                         {kBetween, kDeepseekCall, kName},
                                         {kBetween, kDeepseekCallsEnd, kContent},
                                         {kName, kDeepseekSeparator, kArguments},
                                         {kArguments, kDeepseekCallEnd, kBetween}};
  static constexpr Tag kDeepseekV32[] = {
      {kContent, kDsmlCalls, kBetween},    {kBetween, kDsmlCall, kName},
      {kBetween, kDsmlCallsEnd, kContent}, {kName, "\">", kParameters},
      {kParameters, kDsmlKey, kKey},       {kParameters, kDsmlCallEnd, kBetween},
      {kKey, kDsmlKeyEnd, kTextOrJson},    {kTextOrJson, kDsmlText, kText},
      {kTextOrJson, kDsmlJson, kJson},     {kText, kDsmlValueEnd, kParameters},
      {kJson, kDsmlValueEnd, kParameters}};
  static constexpr Tag kKimiK2[] = {{kContent, kKimiCalls, kBetween},
                                    {kBetween, kKimiCall, kName},
                                    {kBetween, kKimiCallsEnd, kContent},
                                    {kName, kKimiArguments, kArguments},
                                    {kArguments, kKimiCallEnd, kBetween}};
  static constexpr Tag kGlm45[] = {
      {kContent, kGlmCall, kName},          {kName, kGlmKey, kKey},
      {kName, kGlmCallEnd, kContent},       {kParameters, kGlmKey, kKey},
      {kParameters, kGlmCallEnd, kContent}, {kKey, kGlmKeyEnd, kBeforeValue},
      {kBeforeValue, kGlmValue, kText},     {kText, kGlmValueEnd, kParameters},
      {kJson, kGlmValueEnd, kParameters}};
  switch (format) {
    case ToolFormat::kDeepseekV3:
      return kDeepseekV3;
    case ToolFormat::kDeepseekV31:
      return kDeepseekV31;
    case ToolFormat::kDeepseekV32:
      return kDeepseekV32;
    case ToolFormat::kKimiK2:
      return kKimiK2;
    case ToolFormat::kGlm45:
      return kGlm45;
  }
  throw InternalError("a tool format that is not known");
}

ToolCallParser::ToolCallParser(ToolFormat format,
                               std::shared_ptr<const TextParameters> text_parameters)
    : format_(format), tags_(TagsOf(format)), text_parameters_(std::move(text_parameters)) {}

ToolPieces ToolCallParser::Put(std::string_view piece) {
  held_ += piece;
  ToolPieces out;
  Run(out);
  return out;
}

ToolPieces ToolCallParser::Flush() {
  ToolPieces out;
  // What waits for more waits in vain; behind it there may be calls again.
  while (state_ != State::kContent) {
    if (state_ == State::kArguments || state_ == State::kText || state_ == State::kJson) {
      TakeValue(std::exchange(held_, {}), out);
      if (state_ == State::kJson) AddArguments(WithoutToolSpace(collected_), out);
      state_ = State::kContent;
      return out;
    }
    Fail(out);
    Run(out);
  }
  const bool is_rest = num_calls_ > 0 && SkipToolSpace(held_, 0) == held_.size();
  if (!is_rest) out.content += held_;
  held_.clear();
  return out;
}

void ToolCallParser::Run(ToolPieces& out) {
  for (;;) {
    switch (Advance(out)) {
      case Outcome::kMoved:
        break;
      case Outcome::kWaits:
        return;
      case Outcome::kFails:
        Fail(out);
        break;
    }
  }
}

ToolCallParser::Outcome ToolCallParser::Advance(ToolPieces& out) {
  switch (state_) {
    case State::kContent:
      return AdvanceContent(out);
    case State::kName:
      return AdvanceName(out);
    case State::kKey:
      return AdvanceKey();
    case State::kArguments:
    case State::kText:
    case State::kJson:
      return AdvanceValue(out);
    case State::kBetween:
    case State::kParameters:
    case State::kTextOrJson:
    case State::kBeforeValue:
      return TakeTag(out);
  }
  throw InternalError("a state of a tool call that is not known");
}

// White space at its end is given out when more comes that is no call.
ToolCallParser::Outcome ToolCallParser::AdvanceContent(ToolPieces& out) {
  const Tag& tag = tags_.front();
  const size_t found = held_.find(tag.text);
  const bool is_whole = found != std::string::npos;
  const size_t clear = is_whole ? found : held_.size() - PossibleTagBytes(held_, tag.text);
  const size_t last = std::string_view(held_).substr(0, clear).find_last_not_of(kToolSpace);
  const size_t end = last == std::string::npos ? 0 : last + 1;
  out.content += held_.substr(0, end);
  held_.erase(0, end);
  if (!is_whole) return Outcome::kWaits;
  opening_ = at_ = found - end + tag.text.size();
  state_ = tag.to;
  return Outcome::kMoved;
}

// The tag of this state that stands at `from`, behind white space.
ToolCallParser::Outcome ToolCallParser::AdvanceTag(size_t from, const Tag** found) {
  const std::string_view rest = std::string_view(held_).substr(SkipToolSpace(held_, from));
  bool waits = false;
  for (const Tag& tag : tags_) {
    if (tag.from != state_) continue;
    if (rest.starts_with(tag.text)) {
      at_ = held_.size() - rest.size() + tag.text.size();
      *found = &tag;
      return Outcome::kMoved;
    }
    waits = waits || tag.text.starts_with(rest);
  }
  return waits ? Outcome::kWaits : Outcome::kFails;
}

ToolCallParser::Outcome ToolCallParser::TakeTag(ToolPieces& out) {
  const Tag* tag = nullptr;
  const Outcome outcome = AdvanceTag(at_, &tag);
  if (outcome != Outcome::kMoved) return outcome;
  const State from = std::exchange(state_, tag->to);
  if (from == State::kParameters && tag->to != State::kKey) EndCall(out);
  if (from == State::kTextOrJson || from == State::kBeforeValue) BeginValue(out);
  if (from == State::kBetween && tag->to == State::kContent) Commit(at_);
  return Outcome::kMoved;
}

ToolCallParser::Outcome ToolCallParser::AdvanceName(ToolPieces& out) {
  const size_t begin = SkipToolSpace(held_, at_);
  const size_t end = std::min(held_.find_first_not_of(kToolNameBytes, begin), held_.size());
  if (end - begin > kMaxNameBytes) return Outcome::kFails;
  if (end == held_.size()) return Outcome::kWaits;
  const std::string_view id = std::string_view(held_).substr(begin, end - begin);
  if (NameIn(id).empty()) return Outcome::kFails;
  const Tag* tag = nullptr;
  const Outcome outcome = AdvanceTag(end, &tag);
  if (outcome != Outcome::kMoved) return outcome;
  BeginCall(id, out);
  // What is behind the name is content if it breaks off, the tag that was read too.
  Commit(at_ - tag->text.size());
  at_ = tag->text.size();
  state_ = tag->to;
  if (state_ == State::kContent) EndCall(out);
  if (state_ == State::kArguments || state_ == State::kParameters) Commit(at_);
  return Outcome::kMoved;
}

ToolCallParser::Outcome ToolCallParser::AdvanceKey() {
  const auto tag = std::ranges::find(tags_, State::kKey, &Tag::from);
  const size_t end = held_.find(tag->text, at_);
  const bool is_there = end != std::string::npos;
  if (!is_there && held_.size() - at_ < kMaxNameBytes + tag->text.size()) return Outcome::kWaits;
  if (!is_there || end - at_ > kMaxNameBytes) return Outcome::kFails;
  key_ = std::string(WithoutToolSpace(std::string_view(held_).substr(at_, end - at_)));
  at_ = end + tag->text.size();
  state_ = tag->to;
  return Outcome::kMoved;
}

// Up to the first tag that may stand here, or to what could be the beginning of one.
ToolCallParser::Outcome ToolCallParser::AdvanceValue(ToolPieces& out) {
  const Tag* first = nullptr;
  size_t end = held_.size();
  size_t clear = held_.size() - CutCharacterBytes(held_);
  for (const Tag& tag : tags_) {
    if (tag.from != state_) continue;
    const size_t found = held_.find(tag.text);
    if (found < end) {
      end = found;
      first = &tag;
    }
    clear = std::min(clear, held_.size() - PossibleTagBytes(held_, tag.text));
  }
  if (first == nullptr) {
    TakeValue(std::string_view(held_).substr(0, clear), out);
    Commit(clear);
    return Outcome::kWaits;
  }
  TakeValue(std::string_view(held_).substr(0, end), out);
  Commit(end + first->text.size());
  if (state_ == State::kArguments) {
    if (!has_arguments_) AddArguments("{}", out);
    ++num_whole_calls_;
  } else {
    EndValue(out);
  }
  collected_.clear();
  state_ = first->to;
  return Outcome::kMoved;
}

// A tag that turns out to be none is content, and what follows is looked at anew.
void ToolCallParser::Fail(ToolPieces& out) {
  out.content += held_.substr(0, opening_);
  Commit(opening_);
  state_ = State::kContent;
}

void ToolCallParser::Commit(size_t end) {
  held_.erase(0, end);
  at_ = opening_ = 0;
}

void ToolCallParser::TakeValue(std::string_view text, ToolPieces& out) {
  if (state_ == State::kText) return AddArguments(JsonStringInside(text), out);
  collected_ += text;
  if (state_ == State::kJson) return;
  // White space around arguments is none of theirs.
  const size_t begin = has_arguments_ ? 0 : SkipToolSpace(collected_, 0);
  const size_t last = collected_.find_last_not_of(kToolSpace);
  if (last == std::string::npos) return;
  AddArguments(std::string_view(collected_).substr(begin, last + 1 - begin), out);
  collected_.erase(0, last + 1);
}

// Of "functions.NAME:0", which Kimi's are.
std::string_view ToolCallParser::NameIn(std::string_view id) const {
  constexpr std::string_view kPrefix = "functions.";
  if (format_ != ToolFormat::kKimiK2) return id;
  if (id.starts_with(kPrefix)) id.remove_prefix(kPrefix.size());
  return id.substr(0, id.rfind(':'));
}

void ToolCallParser::BeginCall(std::string_view id, ToolPieces& out) {
  name_ = std::string(NameIn(id));
  has_parameters_ = false;
  has_arguments_ = false;
  ToolCallDelta first{.index = num_calls_++, .name = name_};
  if (format_ == ToolFormat::kKimiK2) first.id = std::string(id);
  out.calls.push_back(std::move(first));
}

void ToolCallParser::BeginValue(ToolPieces& out) {
  if (format_ == ToolFormat::kGlm45) {
    const bool is_text = text_parameters_ != nullptr && text_parameters_->contains(name_) &&
                         text_parameters_->at(name_).contains(key_);
    state_ = is_text ? State::kText : State::kJson;
  }
  AddArguments(has_parameters_ ? ", " : "{", out);
  has_parameters_ = true;
  AddArguments(Dump(OrderedJson(key_)) + ": ", out);
  if (state_ == State::kText) AddArguments("\"", out);
  collected_.clear();
  Commit(at_);
}

void ToolCallParser::EndValue(ToolPieces& out) {
  if (state_ == State::kText) return AddArguments("\"", out);
  // JSON, or else a text.
  const std::string_view value = WithoutToolSpace(collected_);
  if (OrderedJson::accept(value)) return AddArguments(value, out);
  AddArguments(Dump(OrderedJson(collected_)), out);
}

void ToolCallParser::EndCall(ToolPieces& out) {
  AddArguments(has_parameters_ ? "}" : "{}", out);
  ++num_whole_calls_;
  Commit(at_);
}

void ToolCallParser::AddArguments(std::string_view text, ToolPieces& out) {
  if (text.empty()) return;
  has_arguments_ = true;
  if (!out.calls.empty() && out.calls.back().index == num_calls_ - 1) {
    out.calls.back().arguments += text;
  } else {
    out.calls.push_back({.index = num_calls_ - 1, .arguments = std::string(text)});
  }
}

}  // namespace quire
