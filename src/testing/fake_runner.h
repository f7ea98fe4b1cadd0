// A runner without a model that notices every mistake with pages.
//
// The cache is one token and its position per slot. A step copies pages, writes its tokens to their
// slots, and reads every sequence back through its page list: the next token is a hash of what was
// read. So the right answer follows from the tokens alone, and a wrong, stale, shared or forgotten
// page gives another one, or an InternalError that says which. A sequence with a lookahead gets from
// one token to lookahead + 1, by the same hash, and all but the last are written behind its own.
#ifndef QUIRE_TESTING_FAKE_RUNNER_H_
#define QUIRE_TESTING_FAKE_RUNNER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "step/step.h"

namespace quire::testing {

// Tokens whose biases add up to this or less are not drawn, nor are those that a mask leaves out.
inline constexpr float kFakeLowBias = -100.0f;

// What a FakeRunner draws behind `tokens` as sample number `sample`. Tokens in `held` are those
// with a low bias; not all of the vocabulary.
int32_t ExpectedToken(std::span<const int32_t> tokens, int32_t sample, int64_t vocab_size,
                      std::span<const int32_t> held = {});
// What it says of `token` behind `tokens`.
float ExpectedLogprob(std::span<const int32_t> tokens, int32_t token);

// Not for two threads at once.
class FakeRunner : public Runner {
 public:
  explicit FakeRunner(const RunnerLimits& limits);

  const RunnerLimits& limits() const override { return limits_; }
  // Throws Error as CpuRunner does, and InternalError if two sequences write to one slot, or one
  // writes where one before it reads.
  void Submit(const StepBatch& batch) override;
  // Computes here and not in Submit, so that whatever happened to the batch in between shows.
  const StepResult& Collect() override;

  // The `number`-th step from the first, counted from 0, throws InternalError(message) instead, and
  // everything in the cache is lost.
  void FailStep(int64_t number, std::string message);
  // Behind this token logits are not finite from now on.
  void PoisonToken(int32_t token) { poison_ = token; }

  int64_t num_steps() const { return num_steps_; }
  int64_t num_tokens() const { return num_tokens_; }  // computed
  int64_t num_copies() const { return num_copies_; }
  int64_t num_new_pages() const { return num_new_pages_; }  // listed, and not kept

 private:
  struct Row {
    int32_t token = kNoToken;
    TokenCount position{-1};
  };
  // Who touches a slot in the step at hand. Steps are numbered from 1, so 0 is nobody.
  struct Touch {
    int64_t written_in = 0, copied_in = 0;
    size_t writer = 0;
  };

  void CheckBatch(const StepBatch& batch) const;
  void CheckCopy(const StepPageCopy& copy) const;
  void CheckSequence(size_t index, const StepSequence& seq) const;
  void CheckKept(size_t index, const StepSequence& seq) const;
  void MarkTouched(const StepBatch& batch);
  void CheckReads(size_t index, const StepSequence& seq) const;

  void CopyPages(std::span<const StepPageCopy> copies);
  void Write(const StepSequence& seq);
  void Answer(size_t index, const StepSequence& seq);
  void AddAnswer(const StepSequence& seq, uint64_t hash, int32_t sample);
  void AddToken(uint64_t hash, int32_t token, int32_t num_top);

  size_t SlotIndex(const StepSequence& seq, TokenCount position) const;

  const RunnerLimits limits_;
  std::vector<Row> rows_;       // [slots]
  std::vector<Touch> touched_;  // [slots]
  std::optional<StepBatch> batch_;
  uint64_t batch_digest_ = 0;

  std::optional<int64_t> failing_step_;
  std::string failure_;
  std::optional<int32_t> poison_;
  std::map<uint64_t, std::vector<PageId>> kept_;  // by id, of its last step that went well
  int64_t num_steps_ = 0, num_tokens_ = 0, num_copies_ = 0, num_new_pages_ = 0;

  // The result: counts first, spans when nothing moves any more.
  std::vector<TokenLogprob> top_;
  std::vector<StepToken> tokens_;
  std::vector<StepAnswer> answers_;
  std::vector<StepSequenceResult> sequences_;
  StepResult result_;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_FAKE_RUNNER_H_
