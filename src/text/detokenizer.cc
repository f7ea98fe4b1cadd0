#include "text/detokenizer.h"

namespace quire {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, const DecodeOptions& options)
    : stream_(tokenizer.decoder(), options) {}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, std::span<const int32_t> before,
                         const DecodeOptions& options)
    : Detokenizer(tokenizer, options) {
  stream_.Continue(before);
}

std::string Detokenizer::Put(int32_t id) { return stream_.Put(id); }

std::string Detokenizer::Flush() { return stream_.Flush(); }

}  // namespace quire
