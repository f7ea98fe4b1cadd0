// Tool calls in what a model writes, as the text comes in.
#ifndef QUIRE_TEXT_TOOL_CALL_PARSER_H_
#define QUIRE_TEXT_TOOL_CALL_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tools.h"

namespace quire {

struct ToolPieces {
  std::string content = {};  // what is no call
  std::vector<ToolCallDelta> calls = {};
};

// The results, joined, do not depend on how the text is cut into pieces: what could be the beginning of a
// tag is kept back until that is clear.
//
// No text is an error. What begins like calls and is none is content as it stands. A call is given from
// the moment its name is known; if the text then breaks off, or goes on as no call does, it has the
// arguments so far, and what follows is content. White space before, between and behind calls is none.
class ToolCallParser {
 public:
  // `text_parameters` are read for glm45 only; null: none.
  ToolCallParser(ToolFormat format, std::shared_ptr<const TextParameters> text_parameters);

  ToolPieces Put(std::string_view piece);
  ToolPieces Flush();

  size_t num_calls() const { return num_calls_; }              // that have begun
  size_t num_whole_calls() const { return num_whole_calls_; }  // that have ended as they should

 private:
  enum class State : uint8_t {
    kContent,    // before, and behind, all calls
    kBetween,    // calls of a list
    kName,       // of a call
    kArguments,  // JSON, as it is
    kParameters,
    kKey,  // of a parameter
    kTextOrJson,
    kBeforeValue,
    kText,
    kJson,
  };
  struct Tag {
    State from;
    std::string_view text;
    State to;
  };
  enum class Outcome : uint8_t { kMoved, kWaits, kFails };
  static std::span<const Tag> TagsOf(ToolFormat format);

  void Run(ToolPieces& out);
  Outcome Advance(ToolPieces& out);
  Outcome AdvanceContent(ToolPieces& out);
  Outcome AdvanceName(ToolPieces& out);
  Outcome AdvanceKey();
  Outcome AdvanceValue(ToolPieces& out);
  Outcome AdvanceTag(size_t from, const Tag** found);
  Outcome TakeTag(ToolPieces& out);
  void Fail(ToolPieces& out);
  void Commit(size_t end);
  void TakeValue(std::string_view text, ToolPieces& out);
  std::string_view NameIn(std::string_view id) const;
  void BeginCall(std::string_view id, ToolPieces& out);
  void BeginValue(ToolPieces& out);
  void EndValue(ToolPieces& out);
  void EndCall(ToolPieces& out);
  void AddArguments(std::string_view text, ToolPieces& out);

  const ToolFormat format_;
  const std::span<const Tag> tags_;
  const std::shared_ptr<const TextParameters> text_parameters_;
  State state_ = State::kContent;
  // What has not been given out: up to at_ it is understood, and is content if what follows is not. Its
  // first opening_ bytes are a tag that may have been none.
  std::string held_;
  size_t at_ = 0;
  size_t opening_ = 0;
  std::string collected_;  // of a value that is JSON, or white space of arguments
  size_t num_calls_ = 0;
  size_t num_whole_calls_ = 0;
  std::string name_;  // of the call at hand
  std::string key_;
  bool has_parameters_ = false;  // of the call at hand
  bool has_arguments_ = false;
};

}  // namespace quire

#endif  // QUIRE_TEXT_TOOL_CALL_PARSER_H_
