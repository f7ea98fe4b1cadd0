#include "text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/test_files.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

// A tokenizer of three letters that is as it should be.
Json Sound() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 4, "content": "<s>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3}, "merges": ["a b"]}})");
}

Json With(const char* pointer, const char* value) {
  Json json = Sound();
  json[Json::json_pointer(pointer)] = Json::parse(value);
  return json;
}

TokenizerParts Parse(const Json& json, const TokenizerConfig& config = {}) {
  return ParseTokenizerJson(JsonRef(json, "t.json"), config);
}

std::string Refusal(const Json& json, const TokenizerConfig& config = {}) {
  return InvalidArgument([&] { (void)Parse(json, config); });
}

std::string Refusal(const char* pointer, const char* value) {
  return Refusal(With(pointer, value));
}

std::string Refused(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options) {
  try {
    (void)tokenizer.Encode(text, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCapacityExceeded);
    return error.what();
  }
  return "no error";
}

TEST(TokenizerJsonTest, EncodingEndsWithTheTokensThatAreAllowed) {
  const Tokenizer tokenizer(Parse(Sound()));
  EXPECT_EQ(tokenizer.Encode("<s>ab c", {.max_tokens = 3}).size(), 3u);
  for (const char* text : {"<s>ab cc", "<s><s><s><s>"}) {
    EXPECT_EQ(Refused(tokenizer, text, {.max_tokens = 3}), "the text has more than 3 tokens");
  }
}

TEST(TokenizerJsonTest, EncodingStopsWhenAskedTo) {
  const Tokenizer tokenizer(Parse(Sound()));
  std::stop_source stop;
  EXPECT_EQ(tokenizer.Encode("ab ab", {.stop = stop.get_token()}).size(), 2u);
  stop.request_stop();
  EXPECT_EQ(Refused(tokenizer, "ab ab", {.stop = stop.get_token()}),
            "nobody waits for the tokens of this text any more");
}

TEST(TokenizerJsonTest, ASoundFileIsRead) {
  const Tokenizer tokenizer(Parse(Sound()));
  EXPECT_EQ(tokenizer.Encode("abc<s>"), (std::vector<int32_t>{3, 2, 4}));
  EXPECT_EQ(tokenizer.vocab_size(), 5);
  EXPECT_EQ(tokenizer.TokenBytes(3), "ab");
  EXPECT_EQ(tokenizer.FindToken("<s>"), 4);
  EXPECT_EQ(tokenizer.FindToken("<t>"), std::nullopt);
}

TEST(TokenizerJsonTest, MergesAreSpelledInTwoWays) {
  EXPECT_EQ(Tokenizer(Parse(With("/model/merges", R"([["a", "b"]])"))).Encode("ab"),
            (std::vector<int32_t>{3}));
  EXPECT_EQ(Refusal("/model/merges", R"(["a b", "ab"])"),
            R"(t.json: model.merges[1]: expected two tokens, "a b" or ["a", "b"], got "\"ab\"")");
  EXPECT_EQ(Refusal("/model/merges", R"([["a", "b", "c"]])"),
            R"(t.json: model.merges[0]: expected two tokens, "a b" or ["a", "b"], got )"
            R"("[\"a\",\"b\",\"c\"]")");
  EXPECT_EQ(Refusal("/model/merges", R"(["a x"])"),
            R"(t.json: model.merges[0]: expected tokens of the vocabulary, got "x")");
  EXPECT_EQ(Refusal("/model/merges", R"(["b c"])"),
            R"(t.json: model.merges[0]: expected tokens of the vocabulary, got "bc")");
  EXPECT_EQ(Refusal("/model/merges", "7"), "t.json: model.merges: expected an array, got 7");
}

TEST(TokenizerJsonTest, VocabulariesThatCannotBeAreRefused) {
  EXPECT_EQ(Refusal("/model/vocab", R"({"a": 0, "b": 0})"),
            "t.json: model.vocab.b: expected every id once, got 0 again");
  EXPECT_EQ(Refusal("/model/vocab", R"({"a": -1})"),
            "t.json: model.vocab.a: expected an integer in 0..2097151, got -1");
  EXPECT_EQ(Refusal("/model/vocab", R"({"a": 0, "b": 1, "ab": 2, "c": 100000})"),
            "t.json: expected ids below 65556 with 5 tokens, got 100000 for \"c\"");
  EXPECT_EQ(Refusal("/model/vocab", "[]"),
            "t.json: model.vocab: expected an object, got an array of 0");
}

TEST(TokenizerJsonTest, WhatTheModelAsksForAndWeDoNotDoIsRefused) {
  EXPECT_EQ(Refusal("/model/type", R"("Unigram")"),
            R"(t.json: model.type: expected one of "BPE", got "Unigram")");
  EXPECT_EQ(Refusal("/model/dropout", "0.1"), "t.json: model.dropout: expected null, got 0.1");
  EXPECT_EQ(Refusal("/model/end_of_word_suffix", R"("</w>")"),
            R"(t.json: model.end_of_word_suffix: expected null or "", got "</w>")");
  EXPECT_EQ(Refusal("/model/continuing_subword_prefix", R"("##")"),
            R"(t.json: model.continuing_subword_prefix: expected null or "", got "##")");
  EXPECT_EQ(Refusal("/model/unk_token", R"("?")"),
            R"(t.json: model.unk_token: expected null or a token of the vocabulary, got "?")");
  EXPECT_EQ(Refusal("/model/byte_fallback", "true"),
            "t.json: model.byte_fallback: expected false with a ByteLevel pre_tokenizer, got true");
  EXPECT_EQ(Refusal("/version", R"("2.0")"),
            R"(t.json: version: expected one of "1.0", got "2.0")");
}

TEST(TokenizerJsonTest, UnknownKeysAreRefused) {
  EXPECT_EQ(Refusal("/extra", "1"),
            R"(t.json: expected no keys but "version", "truncation", "padding", "added_tokens", )"
            R"("normalizer", "pre_tokenizer", "post_processor", "decoder", "model", got "extra")");
  EXPECT_EQ(Refusal("/pre_tokenizer/mode", "1"),
            R"(t.json: pre_tokenizer: expected no keys but "type", "add_prefix_space", )"
            R"("trim_offsets", "use_regex", got "mode")");
}

TEST(TokenizerJsonTest, StepsWeDoNotDoAreRefusedByName) {
  EXPECT_EQ(
      Refusal("/normalizer", R"({"type": "NFC"})"),
      R"(t.json: normalizer.type: expected one of "Sequence", "Prepend", "Replace", got "NFC")");
  EXPECT_EQ(Refusal("/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [
              {"type": "Digits", "individual_digits": true}, {"type": "Whitespace"}]})"),
            R"(t.json: pre_tokenizer.pretokenizers[1].type: expected one of "Sequence", "Split", )"
            R"("Digits", "Metaspace", "ByteLevel", got "Whitespace")");
  EXPECT_EQ(Refusal("/post_processor", R"({"type": "BertProcessing"})"),
            R"(t.json: post_processor.type: expected one of "Sequence", "ByteLevel", )"
            R"("TemplateProcessing", got "BertProcessing")");
  EXPECT_EQ(Refusal("/decoder", R"({"type": "WordPiece"})"),
            R"(t.json: decoder.type: expected one of "Replace", "ByteFallback", "Fuse", "Strip"; )"
            R"(or "ByteLevel" or "Metaspace" alone, got "WordPiece")");
  EXPECT_EQ(Refusal("/decoder", "null"), "t.json: decoder: expected an object, got null");
}

TEST(TokenizerJsonTest, PatternsThatCannotBeMatchedAreRefused) {
  EXPECT_EQ(Refusal("/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "\\b"},
                                         "behavior": "Isolated", "invert": false})"),
            R"(t.json: pre_tokenizer.pattern.Regex: "\\b" at byte 0 of the pattern "\\b" is not )"
            "supported");
  EXPECT_EQ(Refusal("/pre_tokenizer", R"({"type": "Split", "pattern": {"String": ""},
                                         "behavior": "Isolated", "invert": false})"),
            "t.json: pre_tokenizer.pattern.String: expected a string that is not empty, got \"\"");
  EXPECT_EQ(Refusal("/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "a"},
                                         "behavior": "Glued", "invert": false})"),
            R"(t.json: pre_tokenizer.behavior: expected one of "Isolated", "Removed", )"
            R"("MergedWithPrevious", "MergedWithNext", "Contiguous", got "Glued")");
}

TEST(TokenizerJsonTest, StepsInAnOrderThatMeansSomethingElseAreRefused) {
  EXPECT_EQ(
      Refusal("/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [
              {"type": "ByteLevel", "add_prefix_space": false},
              {"type": "Digits", "individual_digits": true}]})"),
      "t.json: pre_tokenizer.pretokenizers[1]: expected nothing behind ByteLevel, got Digits");
  EXPECT_EQ(Refusal("/decoder", R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})"),
            "t.json: decoder: expected Strip directly behind Fuse");
  EXPECT_EQ(Refusal("/decoder", R"({"type": "Sequence", "decoders": [
              {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "a"}, "content": ""}]})"),
            "t.json: decoder.decoders[1]: expected the order Replace, ByteFallback, Fuse, Strip, "
            "got Replace too late");
  EXPECT_EQ(Refusal("/decoder", R"({"type": "Sequence", "decoders": [
              {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]})"),
            "t.json: decoder.decoders[1].stop: expected an integer in 0..0, got 1");
  EXPECT_EQ(Refusal("/pre_tokenizer", R"({"type": "Metaspace", "replacement": "__"})"),
            R"(t.json: pre_tokenizer.replacement: expected one character, got "__")");
  EXPECT_EQ(Refusal("/pre_tokenizer", R"({"type": "Metaspace", "replacement": "_",
                                         "add_prefix_space": false})"),
            "t.json: pre_tokenizer.add_prefix_space: expected true, or prepend_scheme \"never\", "
            "got false and prepend_scheme \"always\"");
}

TEST(TokenizerJsonTest, AddedTokensThatContradictAreRefused) {
  EXPECT_EQ(Refusal("/added_tokens/0/content", R"("a")"),
            "t.json: added_tokens[0]: expected id 0, as in model.vocab, got 4");
  EXPECT_EQ(Refusal("/added_tokens/0/id", "2"),
            R"(t.json: added_tokens: expected "c" for id 2, as in model.vocab, got "<s>")");
  EXPECT_EQ(Refusal("/added_tokens/0/content", R"("")"),
            "t.json: added_tokens[0].content: expected a string that is not empty, got \"\"");
  EXPECT_EQ(Refusal("/added_tokens/0/special", "1"),
            "t.json: added_tokens[0].special: expected true or false, got 1");
  Json twice = Sound();
  twice["added_tokens"].push_back(twice["added_tokens"][0]);
  twice["added_tokens"][1]["content"] = "<t>";
  EXPECT_EQ(Refusal(twice),
            R"(t.json: added_tokens[1]: expected one id for one content, got 4 and "<t>" again)");
}

TEST(TokenizerJsonTest, TokensThatAreTheSameWhenNormalizedAreRefused) {
  Json json = With("/normalizer", R"({"type": "Replace", "pattern": {"String": "t"},
                                      "content": "s"})");
  json["added_tokens"].push_back(json["added_tokens"][0]);
  json["added_tokens"][1]["content"] = "<t>";
  json["added_tokens"][1]["id"] = 5;
  EXPECT_NO_THROW((void)Parse(json));
  for (Json& token : json["added_tokens"]) token["normalized"] = true;
  EXPECT_EQ(Refusal(json),
            "t.json: added_tokens: expected tokens that differ when normalized, got \"<s>\" again");
}

TEST(TokenizerJsonTest, ReplacementsThatGrowWithoutBoundAreAnError) {
  Json json = With("/normalizer", R"({"type": "Sequence", "normalizers": []})");
  for (int i = 0; i < 20; ++i) {
    json["normalizer"]["normalizers"].push_back(
        Json::parse(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"})"));
  }
  json["added_tokens"] = Json::array();
  const Tokenizer tokenizer(Parse(json));
  EXPECT_EQ(tokenizer.Encode("bc"), (std::vector<int32_t>{1, 2}));
  EXPECT_THROW((void)tokenizer.Encode("a"), Error);
}

TEST(TokenizerJsonTest, ATemplatePutsTokensAroundAText) {
  const Json json = With("/post_processor", R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "e", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]},
                                   "e": {"id": "e", "ids": [2, 2], "tokens": ["c", "c"]}}})");
  const Tokenizer tokenizer(Parse(json));
  EXPECT_EQ(tokenizer.Encode("ab", {.add_special_tokens = true}),
            (std::vector<int32_t>{4, 3, 2, 2}));
  EXPECT_EQ(tokenizer.Encode("ab"), (std::vector<int32_t>{3}));

  Json none = json;
  none["post_processor"]["single"].erase(1);
  EXPECT_EQ(Refusal(none),
            "t.json: post_processor.single: expected the sequence A once, got it never");
}

TokenizerConfig Config(const char* text) {
  const Json json = Json::parse(text);
  return ParseTokenizerConfig(JsonRef(json, "c.json"));
}

TEST(TokenizerJsonTest, TheConfigNamesRolesAndWhatIsPutAroundAText) {
  const Tokenizer tokenizer(Parse(
      Sound(), Config(R"({"bos_token": {"content": "<s>"}, "eos_token": "c", "pad_token": null,
                          "add_bos_token": true, "add_eos_token": true})")));
  EXPECT_EQ(tokenizer.bos(), 4);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_EQ(tokenizer.pad(), std::nullopt);
  EXPECT_EQ(tokenizer.Encode("b", {.add_special_tokens = true}), (std::vector<int32_t>{4, 1, 2}));
  EXPECT_EQ(Refusal(Sound(), Config(R"({"bos_token": "<t>"})")),
            R"(c.json: bos_token: expected a token of the vocabulary, got "<t>")");
}

TEST(TokenizerJsonTest, TheConfigMayAddTokensAndChangeThem) {
  const char* const flags =
      R"("lstrip": true, "rstrip": false, "normalized": false, "single_word": false,
         "special": false)";
  const Tokenizer tokenizer(Parse(Sound(), Config(fmt::format(R"({{"added_tokens_decoder": {{
                        "4": {{"content": "<s>", {0}}}, "9": {{"content": "<t>", {0}}}}}}})",
                                                              flags)
                                                      .c_str())));
  EXPECT_EQ(tokenizer.Encode("a <s><t>"), (std::vector<int32_t>{0, 4, 9}));
  EXPECT_FALSE(tokenizer.IsSpecial(4));
  EXPECT_EQ(tokenizer.vocab_size(), 10);
  EXPECT_EQ(InvalidArgument([&] {
              (void)Config(fmt::format(R"({{"added_tokens_decoder": {{
                             "x": {{"content": "<s>", {0}}}}}}})",
                                       flags)
                               .c_str());
            }),
            "c.json: added_tokens_decoder.x: expected a key that is a token id below 2097152, got "
            "\"x\"");
}

TEST(TokenizerJsonTest, AFolderWithoutATokenizerIsRefused) {
  const TempDir folder;
  EXPECT_EQ(InvalidArgument([&] { (void)OpenTokenizer(folder.path()); }, folder.path()),
            "DIR: expected tokenizer.json or tiktoken.model, found neither");
  folder.Write("tokenizer.json", "{}");
  EXPECT_EQ(InvalidArgument([&] { (void)OpenTokenizer(folder.path()); }, folder.path()),
            "DIR/tokenizer.json: version: missing");
}

}  // namespace
}  // namespace quire
