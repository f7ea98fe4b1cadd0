// What a Scheduler knows of a request and of its answers. For its own files alone.
#ifndef QUIRE_ENGINE_SCHEDULER_SEQUENCE_H_
#define QUIRE_ENGINE_SCHEDULER_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/scheduler.h"

namespace quire {

// A request and its answers.
struct Scheduler::Task {
  RequestId id = 0;
  Request request;
  std::vector<LogitBias> bias_before_min;          // the request's, and stop tokens held down
  int64_t order = 0;                               // lower goes first
  std::vector<std::unique_ptr<Sequence>> answers;  // [num_samples], by number
  int64_t num_finished = 0;
  bool admitted = false;
  bool begun = false;  // has been part of a step that was committed
  bool given = false;  // by another scheduler, and not given away again
  TokenCount cached_tokens;
  std::vector<TokenEvent::PromptToken> prompt_scores;
};

// One answer on its way.
struct Scheduler::Sequence {
  Sequence(Task& of, uint64_t its_id, int32_t number, PageSize page_size)
      : task(&of), id(its_id), sample(number), pages(page_size) {}

  TokenCount length() const { return TokenCount(tokens.size()); }
  TokenCount prompt_length() const { return TokenCount(task->request.prompt.size()); }
  int64_t num_output() const { return (length() - prompt_length()).raw(); }
  // Tokens still to be computed, the last one among them.
  TokenCount ToCompute() const { return length() - pages.computed; }
  // A stream that goes on, unlike one that has yet to begin or to be computed again.
  bool IsDecoding() const { return ToCompute() == TokenCount(1) && num_output() > 0; }
  // Sample 0 stands for all answers until it has its first token, and is then forked.
  bool IsBeforeFork() const { return sample == 0 && num_output() == 0; }
  // Whether the next step, if not the last of the prompt, is to score the prompt's tokens.
  bool WantsScores() const { return task->request.score_prompt && IsBeforeFork(); }
  // Tokens that the step which computes the last token is to draw.
  int32_t SamplesToDraw() const { return IsBeforeFork() ? task->request.num_samples : 1; }

  Task* task;
  uint64_t id;  // of this answer alone, as runners know it
  int32_t sample;
  std::vector<int32_t> tokens;  // prompt and output
  SequencePages pages;
  bool running = false;
  bool in_batch = false;
  bool finished = false;
  bool reported = false;  // an event has been sent
  bool stopped = false;   // ends with the next Schedule
  bool alone = false;     // shares nothing that is not computed yet: that came to a fault
  std::unique_ptr<TokenConstraint> constraint;
  std::vector<uint32_t> mask;               // of the constraint, while it runs; else empty
  std::optional<std::string> mask_failure;  // why there is no mask for the step at hand
};

}  // namespace quire

#endif  // QUIRE_ENGINE_SCHEDULER_SEQUENCE_H_
