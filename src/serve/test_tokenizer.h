// A tokenizer of few tokens, for tests.
#ifndef QUIRE_SERVE_TEST_TOKENIZER_H_
#define QUIRE_SERVE_TEST_TOKENIZER_H_

#include <memory>

#include "io/test_files.h"
#include "text/tokenizer.h"

namespace quire {

// 0 "H", 1 "i", 2 " ", 3 "!", 4 5 6 the three bytes of "€", 7 "Hi"; special: 8 "<s>", which is put
// before every text, and 9 "</s>".
inline std::unique_ptr<const Tokenizer> SmallTokenizer() {
  const TempDir folder;
  folder.Write("tokenizer.json", R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [
      {"id": 8, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true},
      {"id": 9, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
       "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": false},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [8], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
      "vocab": {"H": 0, "i": 1, "Ġ": 2, "!": 3, "â": 4, "Ĥ": 5, "¬": 6, "Hi": 7},
      "merges": [["H", "i"]]}})");
  return OpenTokenizer(folder.path());
}

}  // namespace quire

#endif  // QUIRE_SERVE_TEST_TOKENIZER_H_
