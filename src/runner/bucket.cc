#include "runner/bucket.h"

#include <algorithm>

#include "base/error.h"
#include "base/maths.h"

namespace quire {
namespace {

int32_t NextDecodeRows(int32_t rows) {
  return rows < 8 ? rows * 2 : rows < 16 ? rows + 4 : rows + 8;
}

// What the least mixed bucket holds: a draft of three guesses and what it follows.
constexpr int64_t kLeastMixedTokens = 4;

// Padding is computed like tokens: powers of two would make 1087 tokens cost as much as 2048. From 4096
// tokens on steps grow by a sixteenth, so that very large ones do not need thousands of buckets.
int64_t NextMixedTokens(int64_t tokens) {
  if (tokens < 128) return tokens * 2;
  if (tokens < 1024) return tokens + 128;
  return tokens + std::max<int64_t>(256, RoundUp(tokens / 16, int64_t{256}));
}

constexpr size_t kWordBits = 32;

// The smallest bucket that expands: below it prompts are short, and what latent form does beside costs
// too much of a step.
constexpr int64_t kLeastExpandedTokens = 512;

// Of buckets that expand: a token of every sequence, in whole tiles of a product.
TokenCount LatentTokens(int32_t max_seqs) { return TokenCount(RoundUp<int64_t>(max_seqs, 64)); }

}  // namespace

std::vector<BucketSize> MakeBuckets(StepMode mode, int32_t max_seqs, TokenCount max_step_tokens,
                                    bool expands) {
  if (mode == StepMode::kEager) return {{.num_seqs = max_seqs, .num_tokens = max_step_tokens}};
  std::vector<BucketSize> buckets;
  const auto max_rows = static_cast<int32_t>(std::min<int64_t>(max_seqs, max_step_tokens.raw()));
  for (int32_t rows = 1; rows < max_rows; rows = NextDecodeRows(rows)) {
    buckets.push_back({.num_seqs = rows, .num_tokens = TokenCount(rows), .is_decode = true});
  }
  buckets.push_back({.num_seqs = max_rows, .num_tokens = TokenCount(max_rows), .is_decode = true});
  const TokenCount latent = LatentTokens(max_seqs);
  const auto add_mixed = [&](TokenCount tokens) {
    const BucketSize size{.num_seqs = max_seqs + 1, .num_tokens = tokens};
    if (expands && tokens >= Max(latent * 2, TokenCount(kLeastExpandedTokens))) {
      buckets.push_back(size);
      buckets.back().num_latent = latent;
    }
    buckets.push_back(size);
  };
  for (int64_t tokens = kLeastMixedTokens; tokens < max_step_tokens.raw();
       tokens = NextMixedTokens(tokens)) {
    add_mixed(TokenCount(tokens));
  }
  add_mixed(max_step_tokens);
  return buckets;
}

bool HasRoom(const BucketSize& bucket, const StepSize& step) {
  const bool one_token_each = step.num_tokens == TokenCount(step.num_seqs);
  return (one_token_each || !bucket.is_decode) && bucket.num_latent >= step.num_latent &&
         bucket.num_seqs >= step.num_seqs && bucket.num_tokens >= step.num_tokens;
}

size_t ChooseBucket(std::span<const BucketSize> buckets, const StepSize& step) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (HasRoom(buckets[i], step)) return i;
  }
  QUIRE_CHECK(false, "no bucket for {} sequences of {} tokens", step.num_seqs, step.num_tokens);
}

size_t RefusalWords(size_t num_buckets) { return CeilDiv(num_buckets, kWordBits); }

void Refuse(std::span<const BucketSize> buckets, const StepSize& step, std::span<uint32_t> words) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!HasRoom(buckets[i], step)) words[i / kWordBits] |= uint32_t{1} << i % kWordBits;
  }
}

size_t FirstWithRoom(std::span<const BucketSize> buckets, std::span<const uint32_t> words) {
  for (size_t i = 0; i < buckets.size(); ++i) {
    if ((words[i / kWordBits] >> i % kWordBits & 1) == 0) return i;
  }
  QUIRE_CHECK(false, "no bucket of {} has room for the steps of all ranks", buckets.size());
}

}  // namespace quire
