// A TokenConstraint says which tokens may come next in one answer: of a grammar, a schema, a list.
//
// Who steps fills a mask before every token is drawn, and tells what was drawn. Not for two threads at
// once.
#ifndef QUIRE_STEP_TOKEN_CONSTRAINT_H_
#define QUIRE_STEP_TOKEN_CONSTRAINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace quire {

// Words of a mask over a vocabulary: bit i % 32 of word i / 32 is token i's.
constexpr int64_t MaskWords(int64_t vocab_size) { return (vocab_size + 31) / 32; }

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Writes all of `mask`, of MaskWords of the vocabulary: the bits of tokens that may follow, and of
  // those that may end the answer here. Returns whether there is any. Throws Error if it cannot be
  // told; then the answer is to end.
  virtual bool Fill(std::span<uint32_t> mask) = 0;
  // Takes a token that Fill allowed; false, and nothing has changed, for another.
  virtual bool Accept(int32_t token) = 0;
  // Forgets the last tokens that were accepted.
  virtual void Rollback(int64_t num_tokens) = 0;
  // Whether the answer has to end here: nothing more can follow.
  virtual bool IsFinished() const = 0;
};

// One for every answer of a request, all at the beginning.
using ConstraintFactory = std::function<std::unique_ptr<TokenConstraint>()>;

}  // namespace quire

#endif  // QUIRE_STEP_TOKEN_CONSTRAINT_H_
