// Sampling draws tokens from logits.
//
// It applies, in this order: the mask, bias, repetition penalty, frequency and presence penalties,
// temperature, top-k, top-p, min-p, then one draw. Candidates are ordered by logit descending (bias
// and penalties included), then token ascending, everywhere: the draw u takes the first at which the
// running probability of those kept reaches u. A draw is a function of (seed, sample number,
// position) and the logits: the same whatever the batch.
//
// Everything here is serial, allocates nothing and keeps nothing: rows can be sampled on as many
// threads as there are workspaces. Exponentials are our own and the sum over a row has one order,
// so neither the maths library nor the width of vectors decides a draw.
#ifndef QUIRE_DECODE_SAMPLING_H_
#define QUIRE_DECODE_SAMPLING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.h"
#include "step/sampling_params.h"
#include "step/step.h"

namespace quire {

// Throws Error(kInvalidArgument) naming the first of the tokens that the vocabulary does not have.
void RequireTokens(const char* what, std::span<const int32_t> tokens, int64_t vocab_size);

// Scratch that one thread needs to sample from a vocabulary.
ByteOffset SamplerWorkspace(int64_t vocab_size);

struct SampleArgs {
  std::span<const float> logits = {};  // [vocab]
  SamplingParams params = {};
  std::span<const uint32_t> mask = {};  // of tokens that may be drawn, MaskWords(vocab); empty: all
  std::span<const int32_t> prompt = {};  // read only with penalties
  std::span<const int32_t> output = {};
  std::span<const int32_t> path = {};  // more of the output
  TokenCount position = {};            // of the token to draw
  int32_t sample = 0;
  std::span<std::byte> workspace = {};  // SamplerWorkspace(vocab), aligned to 16
};

// The token drawn. Throws Error(kInvalidArgument) if the parameters are not valid for the
// vocabulary, every logit that may be drawn is -inf, or one is NaN (naming its token). +inf counts as
// the largest finite number; what has less than e^-87 of the highest probability is never drawn.
int32_t Sample(const SampleArgs& args);

// Uniform in [0, 1), a multiple of 2^-53, from its three arguments alone: each is mixed in by a
// round of splitmix64, so that neighbours in any of them are unrelated.
double UniformDraw(uint64_t seed, int32_t sample, TokenCount position);

// The log of the softmax's denominator: logprob of token t is Logprob(logits[t], this). NaN if a
// logit is, -inf if all are; +inf counts as the largest finite number. Error below 2^-23 +
// 2^-24 ln(vocab), and half an ulp of the result.
float LogSumExp(std::span<const float> logits);

// logit - log_sum_exp, and what that should be where a logit is infinite: -inf gives -inf, +inf
// counts as the largest finite number.
float Logprob(float logit, float log_sum_exp);

// The top.size() most likely tokens, highest first, ties to the lower token; NaN ranks with -inf.
// Throws Error(kInvalidArgument) if top is longer than kMaxTopLogprobs or the vocabulary.
void TopLogprobs(std::span<const float> logits, float log_sum_exp, std::span<TokenLogprob> top);

}  // namespace quire

#endif  // QUIRE_DECODE_SAMPLING_H_
