// quire_grammar_bench: what a constraint costs a token of one answer, on one core: filling its mask over
// a vocabulary of 100,000 tokens, and taking the token that was drawn.
//
// Answers are drawn before anything is timed, each token that a mask allows being as likely as any
// other, so that the timed ones find what earlier answers of the same grammar have left. The first answer
// of a grammar finds nothing: the rows "first" time it, compilation apart, per token.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "text/grammar/automaton.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/token_grammar.h"
#include "text/grammar/vocabulary_trie.h"

namespace quire::bench {
namespace {

constexpr size_t kVocabSize = 100'000;

// Bytes, words with and without a space before them, numbers, runs of spaces, and punctuation as JSON
// and code have it: the mixture of the tokenizers that models of this kind have.
std::shared_ptr<const VocabularyTrie> Vocabulary() {
  std::mt19937 random(7);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  std::set<std::string> seen;
  std::vector<std::string> tokens;
  const auto add = [&](std::string token) {
    if (seen.insert(token).second) tokens.push_back(std::move(token));
  };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  for (size_t n = 2; n < 80; ++n) add(std::string(n, ' '));
  for (int n = 0; n < 1000; ++n) add(std::to_string(n));
  constexpr std::string_view kPunctuation = "\"'{}[]():,.;!?-_=+*/\\<>#@&|%$\n\t ";
  while (tokens.size() < kVocabSize) {
    std::string token;
    const uint32_t kind = below(20);
    if (kind == 0) {
      for (uint32_t i = 2 + below(4); i > 0; --i) token += kPunctuation[below(kPunctuation.size())];
    } else if (kind == 1) {
      for (uint32_t i = 1 + below(3); i > 0; --i) {
        token += static_cast<char>(0xE4 + below(5));
        token += static_cast<char>(0x80 + below(0x40));
        token += static_cast<char>(0x80 + below(0x40));
      }
    } else {
      if (below(2) == 0) token = " ";
      for (uint32_t i = 2 + below(9); i > 0; --i)
        token += "etaoinshrdlucmfwypvbgkjqxz"[below(below(26) + 1)];
      if (below(10) == 0) token[token.size() - 1] = kPunctuation[below(kPunctuation.size())];
    }
    add(std::move(token));
  }
  return std::make_shared<const VocabularyTrie>(
      std::vector<std::string_view>(tokens.begin(), tokens.end()));
}

struct Shape {
  const char* name;
  const char* schema;
};
constexpr Shape kShapes[] = {
    {"any_object", R"({"type": "object"})"},
    {"record",
     R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
       "email": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "address":
       {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip":
       {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["street", "city"]}, "state": {"enum":
       ["open", "closed", "unknown"]}}, "required": ["name", "age", "tags", "address", "state"]})"},
    {"tree",
     R"({"$defs": {"node": {"type": "object", "properties": {"label": {"type": "string"}, "children":
       {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["label", "children"]}}, "$ref":
       "#/$defs/node"})"},
    {"bounded_strings",
     R"({"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 20})"},
};

using Answer = std::vector<int32_t>;

Answer Draw(const std::shared_ptr<const TokenGrammar>& grammar, uint32_t seed) {
  constexpr size_t kMaxTokens = 256;
  std::mt19937 random(seed);
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(grammar->trie().vocab_size())));
  Answer answer;
  while (answer.size() < kMaxTokens && matcher.can_continue() && matcher.Fill(mask)) {
    // One allowed token, from a random place on; often a byte, which is what ends strings.
    auto token = static_cast<int32_t>(random() % (random() % 8 == 0 ? 256 : kVocabSize));
    while (!matcher.Accept(token)) token = static_cast<int32_t>((token + 1) % kVocabSize);
    answer.push_back(token);
  }
  return answer;
}

void Replay(const std::shared_ptr<const TokenGrammar>& grammar, const Answer& answer,
            std::vector<uint32_t>& mask) {
  GrammarMatcher matcher(grammar);
  for (const int32_t token : answer) {
    benchmark::DoNotOptimize(matcher.Fill(mask));
    benchmark::DoNotOptimize(matcher.Accept(token));
  }
}

enum class Cache { kFirst, kKept };

void Run(const Shape& shape, Cache cache, const std::shared_ptr<const VocabularyTrie>& trie,
         benchmark::State& state) {
  const OrderedJson schema = OrderedJson::parse(shape.schema);
  const auto compile = [&] {
    return std::make_shared<const TokenGrammar>(
        CompileGrammar(JsonSchemaGrammar(schema, shape.name)), trie);
  };
  auto grammar = compile();
  std::vector<Answer> answers;
  for (uint32_t seed = 0; seed < 16; ++seed) answers.push_back(Draw(grammar, seed));
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(trie->vocab_size())));
  int64_t tokens = 0;
  size_t next = 0;
  for (auto _ : state) {
    if (cache == Cache::kFirst) {
      state.PauseTiming();
      grammar = compile();
      state.ResumeTiming();
    }
    const Answer& answer = answers[next++ % answers.size()];
    Replay(grammar, answer, mask);
    tokens += std::ssize(answer);
  }
  // Seconds for a million are microseconds for one.
  state.counters["per_million_tokens"] =
      benchmark::Counter(static_cast<double>(tokens) * 1e-6,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["cache_MB"] = static_cast<double>(grammar->cache_bytes()) * 1e-6;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  using namespace quire::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto trie = Vocabulary();
  for (const Shape& shape : kShapes) {
    for (const Cache cache : {Cache::kKept, Cache::kFirst}) {
      const std::string name =
          std::string("mask/") + shape.name + (cache == Cache::kKept ? "/kept" : "/first");
      benchmark::RegisterBenchmark(name.c_str(), [&shape, cache, trie](benchmark::State& state) {
        Run(shape, cache, trie, state);
      })->Unit(benchmark::kMicrosecond);
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
