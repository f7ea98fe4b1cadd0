// The sizes of step that a runner is prepared for.
#ifndef QUIRE_RUNNER_BUCKET_H_
#define QUIRE_RUNNER_BUCKET_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "runner/runner_options.h"

namespace quire {

// A step of this bucket has exactly num_seqs rows and num_tokens query tokens, padding included.
struct BucketSize {
  int32_t num_seqs = 1;
  TokenCount num_tokens{1};
  bool is_decode = false;  // for steps of one token per sequence alone
  // The step's first tokens, that can attend in latent form; others are of sequences that attend in
  // multi-head form (attn/expansion.h). num_tokens where there are none of those.
  TokenCount num_latent = num_tokens;

  bool expands() const { return num_latent < num_tokens; }
  friend bool operator==(const BucketSize&, const BucketSize&) = default;
};

// kEager: the one largest step. kGraph: for steps of one token per sequence, as many rows as
// tokens, 1, 2, 4, 8, 12, 16, then every 8; for others 4, 8, 16, 32, 64, 128 tokens, then every 128 to 1024
// and every 256 to 4096, then a sixteenth more each, to max_step_tokens, with a row more than max_seqs for the padding tokens.
// With `expands` every large bucket comes twice, first as one that expands.
std::vector<BucketSize> MakeBuckets(StepMode mode, int32_t max_seqs, TokenCount max_step_tokens,
                                    bool expands = false);

// What a step has: num_seqs sequences with num_tokens tokens together, of which the first num_latent are to
// attend in latent form.
struct StepSize {
  int32_t num_seqs = 0;
  TokenCount num_tokens{0};
  TokenCount num_latent{0};
};

// Whether a step of a bucket may be this one.
bool HasRoom(const BucketSize& bucket, const StepSize& step);

// The smallest bucket with room for a step; it is in the list if the step keeps the limits the list was made
// with. One that does not expand takes steps that have no room in one that does.
size_t ChooseBucket(std::span<const BucketSize> buckets, const StepSize& step);

// Steps of several ranks that are all to be of one bucket: each says which have no room for its own, a bit for
// each bucket, and of all bits together FirstWithRoom is the bucket.
size_t RefusalWords(size_t num_buckets);
void Refuse(std::span<const BucketSize> buckets, const StepSize& step, std::span<uint32_t> words);
size_t FirstWithRoom(std::span<const BucketSize> buckets, std::span<const uint32_t> words);

}  // namespace quire

#endif  // QUIRE_RUNNER_BUCKET_H_
