// An answer as the blocks that it is made of, for the APIs that give it so: what was thought, text,
// and calls of tools.
#ifndef QUIRE_SERVE_ANSWER_BLOCKS_H_
#define QUIRE_SERVE_ANSWER_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http/sse.h"
#include "serve/api_error.h"
#include "serve/openai_response.h"
#include "serve/reply_pieces.h"
#include "serve/response_choices.h"
#include "textgen/text_engine.h"

namespace quire {

enum class BlockKind { kReasoning, kText, kCall };

struct AnswerBlock {
  BlockKind kind = BlockKind::kText;
  std::string text = {};  // so far; of a call its arguments
  std::string call_id = {};
  std::string tool_name = {};
};

// What happens to the last block.
struct BlockStep {
  enum class What { kOpen, kGrow, kClose };
  What what = What::kOpen;
  size_t block = 0;
  std::string added = {};  // kGrow
};

// A block ends where one of another kind, or another call, begins, and the last with the answer. Only a
// call may be empty.
class AnswerBlocks {
 public:
  std::vector<BlockStep> Take(const internal::ChoicePiece& piece);
  const std::vector<AnswerBlock>& all() const { return blocks_; }

 private:
  void Add(BlockKind kind, const std::string& text, std::vector<BlockStep>& steps);
  void Open(AnswerBlock block, std::vector<BlockStep>& steps);
  void Grow(const std::string& text, std::vector<BlockStep>& steps);
  void Close(std::vector<BlockStep>& steps);

  std::vector<AnswerBlock> blocks_;
  bool is_open_ = false;  // the last of them
};

enum class Delivery { kWhole, kStream };

// The answer to one prompt, as its events come. Used by one thread at a time.
class BlockAnswer {
 public:
  virtual ~BlockAnswer() = default;

  // The events that this one makes; of a whole answer none.
  std::vector<SseEvent> Take(size_t prompt, const TextEvent& event);

  bool done() const { return choices_.done(); }
  const std::optional<ApiError>& error() const { return choices_.error(); }
  Usage usage() const { return choices_.usage(); }

  // Requires done() and no error(). Borrows from this.
  ReplyPieces Json() const;
  // Behind all events of a stream. Requires done() or error().
  std::string Ending();

 protected:
  BlockAnswer(AnswerShape shape, Delivery delivery);

  struct End {
    std::string finish_reason = {};
    std::optional<std::string> stopped_by = {};
  };

  const AnswerShape& shape() const { return choices_.shape(); }
  const std::vector<AnswerBlock>& blocks() const { return blocks_.all(); }
  const std::optional<End>& end() const { return end_; }
  // Tokens up to the last that had a part in what was thought.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  virtual std::string WholeJson() const = 0;
  virtual void AddBeginning(std::vector<SseEvent>& events) = 0;
  // The step has been made: its block has what was added, and end() is there if this is the last.
  virtual void AddStep(const BlockStep& step, std::vector<SseEvent>& events) = 0;
  virtual void AddEnd(std::vector<SseEvent>& events) = 0;
  virtual void AddFailure(std::vector<SseEvent>& events) = 0;

  const Delivery delivery_;
  internal::Choices choices_;
  AnswerBlocks blocks_;
  std::optional<End> end_;
  int64_t reasoning_tokens_ = 0;
};

// Of shape.endpoint, which is kMessages (messages_answer.h) or kResponses (responses_answer.h).
std::unique_ptr<BlockAnswer> MakeBlockAnswer(AnswerShape shape, Delivery delivery);

}  // namespace quire

#endif  // QUIRE_SERVE_ANSWER_BLOCKS_H_
