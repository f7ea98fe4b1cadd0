// A batch and its result as messages, between the process that has an engine and one that has a runner.
#ifndef QUIRE_RUNNER_BATCH_MESSAGE_H_
#define QUIRE_RUNNER_BATCH_MESSAGE_H_

#include <cstddef>
#include <vector>

#include "runner/step_message.h"
#include "step/step.h"

namespace quire {

// For a BatchReader. Masks are not among it, since they may be written until a step is collected; the text of
// a sequence only where a runner looks at it, for penalties or a lookahead.
void WriteBatch(const StepBatch& batch, MessageWriter& message);
// Those of all sequences, for BatchReader::ReadMasks.
void WriteMasks(const StepBatch& batch, MessageWriter& message);

// Reads batches. The last one lies here, in memory that grows to the largest and stays.
class BatchReader {
 public:
  // Valid until the next call.
  StepBatch Read(MessageReader& message);
  // Writes the masks of the last batch.
  void ReadMasks(MessageReader& message);

 private:
  std::vector<StepSlotMove> moves_;
  std::vector<StepPageCopy> copies_;
  std::vector<StepSequence> sequences_;
  // What their spans refer to: all of one kind, one sequence behind the other.
  std::vector<int32_t> numbers_;
  std::vector<PageId> pages_;
  std::vector<LogitBias> biases_;
  std::vector<uint32_t> masks_;
};

void WriteResult(const StepResult& result, MessageWriter& message);

// The same for results.
class ResultReader {
 public:
  const StepResult& Read(MessageReader& message);

 private:
  std::vector<StepSequenceResult> sequences_;
  std::vector<StepAnswer> answers_;
  std::vector<StepToken> tokens_;
  std::vector<TokenLogprob> tops_;
  StepResult result_;
};

}  // namespace quire

#endif  // QUIRE_RUNNER_BATCH_MESSAGE_H_
