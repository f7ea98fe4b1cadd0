// What is wanted of rows of logits, and what comes back: plain data, the same for every backend.
//
// A SamplePacker fills the inputs, item by item; SampleRows (decode/sample_rows.h) or cuda::Sample
// reads them and writes the results. The rules are those of decode/sampling.h.
#ifndef QUIRE_DECODE_SAMPLE_ITEMS_H_
#define QUIRE_DECODE_SAMPLE_ITEMS_H_

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/units.h"
#include "device/arena.h"
#include "step/sampling_params.h"
#include "step/step.h"

namespace quire {

struct SampleCapacity {
  int64_t vocab_size = 0;
  int32_t rows = 0;      // of logits
  int32_t items = 0;     // results wanted
  int32_t adjusted = 0;  // of them, with bias, penalties or a mask
  int64_t biases = 0;    // of all items together
  int64_t text = 0;      // tokens that penalties read: prompts and outputs of sequences, and paths
  int32_t masks = 0;     // of tokens that may be drawn
};

enum class SampleKind : int32_t {
  kGiven,    // the log-probability of a token given, or none
  kHighest,  // the highest logit
  kDraw,
};

// One result wanted. Plain data: made by the host, read by whatever samples.
struct SampleItem {
  int32_t row = 0;
  SampleKind kind = SampleKind::kGiven;
  int32_t given = kNoToken;
  int32_t num_top = 0;  // alternatives: 0..kMaxTopLogprobs
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  int32_t adjusted = -1;   // which of the adjusted rows is this item's; -1: as it is
  int32_t mask = -1;       // in SampleInputs::masks; -1: all tokens
  int32_t first_bias = 0;  // in SampleInputs::biases
  int32_t num_biases = 0;
  int32_t first_text = 0;  // in SampleInputs::text: the prompt, then the output
  int32_t num_prompt = 0;
  int32_t num_output = 0;
  int32_t first_path = 0;  // in SampleInputs::text: more of the output, of this item alone
  int32_t num_path = 0;
  int32_t sample = 0;
  uint64_t seed = 0;
  int64_t position = 0;  // of the token to draw
};
static_assert(std::is_trivially_copyable_v<SampleItem>);

struct SampleCounts {
  int32_t num_rows = 0;
  int32_t num_items = 0;
};

// What the host fills and a sampler reads. Laid out alike on a device, in one piece of memory: one
// copy brings a step's.
struct SampleInputs {
  std::span<SampleCounts> counts = {};  // [1]
  std::span<SampleItem> items = {};
  std::span<LogitBias> biases = {};
  std::span<int32_t> text = {};
  std::span<uint32_t> masks = {};  // [masks, MaskWords(vocab)]
};

// What comes back, in one piece of memory. `top` is written as far as an item wants it. Of a row that
// has NaN, and of one that has nothing above -inf (that its mask allows) where a token is to be chosen,
// the log-probability is NaN, and a token to be chosen is kNoToken: that is the row's fault alone, and
// nothing is thrown.
struct SampleResults {
  std::span<TokenLogprob> chosen = {};  // [items]
  std::span<TokenLogprob> top = {};     // [items, kMaxTopLogprobs], highest first
};

// Throws Error(kInvalidArgument) naming the field.
void Validate(const SampleCapacity& capacity);
SampleInputs LayOutSampleInputs(const SampleCapacity& capacity, Carver& carver);
SampleResults LayOutSampleResults(const SampleCapacity& capacity, Carver& carver);

// Fills the host's side of the inputs, item by item. Item i's result is chosen[i].
class SamplePacker {
 public:
  // `inputs` is of LayOutSampleInputs, of host memory, and outlives this.
  SamplePacker(const SampleCapacity& capacity, const SampleInputs& inputs);

  // Forgets all items. `num_rows` rows of logits will be there: 0..capacity.rows.
  void Begin(int32_t num_rows);
  // The log-probability of `given` (kNoToken: only alternatives) in a row.
  void AddScore(int32_t row, int32_t given, int32_t num_top);
  // `num_samples` tokens of a row, numbered from `first_sample`. The text is read, and takes room,
  // only with penalties; rows that follow each other and have one prompt and output share it.
  struct Samples {
    int32_t row = 0;
    SamplingParams params = {};
    std::span<const int32_t> prompt = {};
    std::span<const int32_t> output = {};
    std::span<const int32_t> path = {};  // more of the output, behind it
    TokenCount position = {};
    int32_t first_sample = 0;
    int32_t num_samples = 1;
    bool masked = false;  // only tokens of a mask, which is to be in Mask() when they are drawn
  };
  void Add(const Samples& samples);
  // All throw Error(kInvalidArgument) for what cannot be, and Error(kCapacityExceeded), naming the
  // part, for what does not fit; then nothing was added.

  // The masks of what was added with one, in that order: a row of words for each.
  std::span<uint32_t> Mask(int32_t number) const;
  int32_t num_masks() const { return num_masks_; }

  const SampleInputs& inputs() const { return inputs_; }
  int32_t num_rows() const { return inputs_.counts[0].num_rows; }
  int32_t num_items() const { return inputs_.counts[0].num_items; }
  // Whether an item needs more than the highest or a given token: if not, one pass over the logits
  // will do.
  bool needs_search() const { return needs_search_; }

 private:
  SampleItem& Next(int32_t row);

  SampleCapacity capacity_;
  SampleInputs inputs_;
  std::span<const LogitBias> last_biases_ = {};  // of the last item added
  // Of the last item added that has penalties, and where they are.
  std::span<const int32_t> last_prompt_ = {}, last_output_ = {};
  int64_t first_text_ = 0;
  int64_t num_biases_ = 0;
  int64_t num_text_ = 0;
  int32_t num_adjusted_ = 0;
  int32_t num_masks_ = 0;
  bool needs_search_ = false;
};

}  // namespace quire

#endif  // QUIRE_DECODE_SAMPLE_ITEMS_H_
