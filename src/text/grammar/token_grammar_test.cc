#include "text/grammar/token_grammar.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "testing/error_message.h"
#include "testing/sanitized_share.h"
#include "text/grammar/ebnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex_grammar.h"
#include "text/grammar/test_vocabulary.h"

namespace quire {
namespace {

using testing::ByteTrie;
using testing::ErrorMessage;
using testing::IsSet;
using testing::JsonTrie;
using testing::MakeTokenGrammar;
using testing::Matches;

std::shared_ptr<const TokenGrammar> Ebnf(std::string_view text,
                                         std::shared_ptr<const VocabularyTrie> trie = ByteTrie()) {
  return MakeTokenGrammar(ParseEbnf(text, "ebnf"), std::move(trie));
}

Grammar RegexGrammar(std::string_view regex) {
  Grammar grammar;
  const Grammar::Rule root = grammar.AddRule("root");
  grammar.Define(root, AddRegex(grammar, regex, "regex"));
  grammar.SetRoot(root);
  return grammar;
}

bool RegexMatches(std::string_view regex, std::string_view text) {
  return Matches(MakeTokenGrammar(RegexGrammar(regex)), text);
}

std::string RegexError(std::string_view regex) {
  return ErrorMessage([&] { CompileGrammar(RegexGrammar(regex)); });
}

std::string EbnfError(std::string_view text) {
  return ErrorMessage([&] { CompileGrammar(ParseEbnf(text, "ebnf")); });
}

// ---- The trie ----

TEST(VocabularyTrieTest, NodesAreDepthFirstAndTokensOfTheSameBytesShareOne) {
  const std::vector<std::string_view> tokens = {"ab", "", "a", "b", "ab", "abc"};
  const VocabularyTrie trie(tokens);
  ASSERT_EQ(trie.nodes().size(), 5u);  // root, a, ab, abc, b
  EXPECT_EQ(trie.nodes()[0].end, 5);
  EXPECT_EQ(trie.nodes()[1].end, 4);
  EXPECT_EQ(trie.nodes()[4].byte, 'b');
  EXPECT_EQ(std::vector(trie.TokensAt(2).begin(), trie.TokensAt(2).end()),
            (std::vector<int32_t>{0, 4}));
  EXPECT_TRUE(trie.TokensAt(0).empty());
  EXPECT_EQ(trie.Bytes(5), "abc");
  EXPECT_EQ(trie.Bytes(1), "");
  EXPECT_EQ(trie.Bytes(6), "");
}

// ---- Characters ----

TEST(CodePointsTest, Utf8RangesAreThoseOfTheCharactersAndNoOthers) {
  const CodePoints set = {
      {'a', 'c'}, {0x7E, 0x90}, {0x7F0, 0x900}, {0xD000, 0xE100}, {0xFFF0, 0x10010}};
  const auto grammar = [&] {
    Grammar g;
    const Grammar::Rule root = g.AddRule("root");
    g.Define(root, g.Characters(set));
    g.SetRoot(root);
    return MakeTokenGrammar(g);
  }();
  for (char32_t c = 0; c <= 0x11000; c += c < 0x1000 ? 1 : 7) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    if (c < 0x80) {
      text = {static_cast<char>(c)};
    } else if (c < 0x800) {
      text = {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    } else if (c < 0x10000) {
      text = {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
              static_cast<char>(0x80 | (c & 0x3F))};
    } else {
      text = {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
              static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
    }
    ASSERT_EQ(Matches(grammar, text), set.Contains(c)) << static_cast<uint32_t>(c);
  }
  EXPECT_FALSE(Matches(grammar, "\xED\xA0\x80"));  // a surrogate
  EXPECT_EQ(set.Complement().Complement(), set);
}

// ---- Regular expressions ----

TEST(RegexGrammarTest, TextsMatchAsAWhole) {
  struct RegexCase {
    const char* regex;
    std::vector<const char*> matching, other;
  };
  const std::vector<RegexCase> cases = {
      {"abc", {"abc"}, {"ab", "abcd", ""}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"[a-c]+", {"a", "abcabc"}, {"", "d"}},
      {"[^a-c]", {"d", "\xc3\xa9"}, {"a", "dd", "\xc3"}},
      {"\\d{2,3}", {"12", "123"}, {"1", "1234", "a2"}},
      {"\\d{2}", {"12"}, {"1", "123"}},
      {"\\d{2,}", {"12", "123456"}, {"1"}},
      {"(ab)*c", {"c", "ababc"}, {"abab", "abac"}},
      {"(?:x|y(?<n>z))??w", {"w", "xw", "yzw"}, {"yw"}},
      {"^a$|^b$", {"a", "b"}, {"ab"}},
      {".", {"a", "\xf0\x9f\x98\x80"}, {"\n", "aa"}},
      {"\\w\\W\\s\\S\\D", {"a- bc"}, {"aa bc", "a- b1"}},
      {"\\x41\\u0042\\u{1F600}\\.\\n\\-", {"AB\xf0\x9f\x98\x80.\n-"}, {"AB"}},
      {"a{,3}", {"", "aaa"}, {"aaaa"}},
      {"a{b", {"a{b"}, {"ab"}},
      {"[a\\-z]", {"a", "-", "z"}, {"b"}},
      {"[-a]", {"-", "a"}, {"b"}},
      {"[\\d\\s]", {"1", " "}, {"a"}},
      {"[a-]", {"-", "a"}, {"b"}},
  };
  for (const RegexCase& one : cases) {
    for (const char* text : one.matching)
      EXPECT_TRUE(RegexMatches(one.regex, text)) << one.regex << " " << text;
    for (const char* text : one.other)
      EXPECT_FALSE(RegexMatches(one.regex, text)) << one.regex << " " << text;
  }
}

TEST(RegexGrammarTest, WhatIsNotRegularOrNotKnownIsRefusedByName) {
  EXPECT_EQ(RegexError("a(?=b)"),
            "regex: at byte 5: expected no lookahead or lookbehind (not supported)");
  EXPECT_EQ(RegexError("(a)\\1"),
            "regex: at byte 5: expected an escape that is supported, got \\1");
  EXPECT_EQ(RegexError("\\bword"),
            "regex: at byte 2: expected an escape that is supported, got \\b");
  EXPECT_EQ(RegexError("\\p{L}"),
            "regex: at byte 2: expected an escape that is supported, got \\p");
  EXPECT_EQ(RegexError("(?i)a"),
            "regex: at byte 3: expected \"?:\" or a name (flags are not supported)");
  EXPECT_EQ(RegexError("(a"), "regex: at byte 3: expected \")\"");
  EXPECT_EQ(RegexError("a)"), "regex: at byte 2: expected no \")\" without a \"(\"");
  EXPECT_EQ(RegexError("*a"), "regex: at byte 1: expected something to repeat");
  EXPECT_EQ(RegexError("a**"), "regex: at byte 3: expected one quantifier");
  EXPECT_EQ(RegexError("[b-a]"), "regex: at byte 5: expected a range that ascends");
  EXPECT_EQ(RegexError("[a"), "regex: at byte 3: expected \"]\"");
  EXPECT_EQ(RegexError("[]"), "regex: at byte 3: expected a class that has a character");
  EXPECT_EQ(RegexError("a{3,2}"), "regex: at byte 2: expected counts that ascend, up to 100000");
  EXPECT_EQ(
      RegexError("a^b"),
      "regex: at byte 2: expected ^ and $ only where the expression, or an alternative of it, "
      "begins and ends");
  EXPECT_EQ(RegexError("(a{90000}){90000}"), "grammar: expected at most 131072 states, got more");
  EXPECT_EQ(RegexError(std::string(300, '(')),
            "regex: at byte 202: expected groups at most 200 deep");
  EXPECT_EQ(RegexError("\xff"), "regex: at byte 1: expected UTF-8");
}

// ---- EBNF ----

TEST(EbnfTest, RulesCallEachOtherAndThemselves) {
  const auto grammar = Ebnf(R"x(
    # sums
    root ::= term (("+" | "-") term)*
    term ::= [0-9]+ | "(" root ")"   # in brackets
  )x");
  for (const char* text : {"1", "1+22", "(1-(2+3))+4", "((((1))))"}) {
    EXPECT_TRUE(Matches(grammar, text)) << text;
  }
  for (const char* text : {"", "1+", "(1", "1)", "()", "1 + 2"}) {
    EXPECT_FALSE(Matches(grammar, text)) << text;
  }
}

TEST(EbnfTest, LiteralsClassesAndCounts) {
  EXPECT_TRUE(Matches(Ebnf(R"(root ::= "a\"\\\n\x41\u00e9" [^\]\-x]{2,3} . |
                                       "z"{2})"),
                      "a\"\\\nA\xc3\xa9yyq"));
  EXPECT_TRUE(Matches(Ebnf("root ::= \"z\"{2}\nother ::= root"), "zz"));
  EXPECT_TRUE(Matches(Ebnf("root ::= a-b?\na-b ::=\n \"x\"\n"), ""));
}

TEST(EbnfTest, MistakesAreNamedWithTheirLine) {
  EXPECT_EQ(EbnfError("a ::= \"x\""), "ebnf: line 1: expected a rule \"root\"");
  EXPECT_EQ(EbnfError("root ::= b"), "ebnf: rule b: expected a definition, got none");
  EXPECT_EQ(EbnfError("root ::= \"x\"\nroot ::= \"y\""), "ebnf: line 2: expected rule root once");
  EXPECT_EQ(EbnfError("root = \"x\""), "ebnf: line 1: expected \"::=\" behind a rule's name");
  EXPECT_EQ(EbnfError("root ::= (\"x\""), "ebnf: line 1: expected \")\"");
  EXPECT_EQ(EbnfError("root ::= \"x"), "ebnf: line 1: expected the end of a literal or class");
  EXPECT_EQ(EbnfError("root ::= \"\\q\""),
            "ebnf: line 1: expected an escape: one of n r t x u U \\ \" ' [ ] - ^");
  EXPECT_EQ(EbnfError("root ::= [b-a]"), "ebnf: line 1: expected a range that ascends");
  EXPECT_EQ(EbnfError("root ::= \"a\"{3,2}"),
            "ebnf: line 1: expected {m}, {m,} or {m,n}, counts that ascend up to 100000");
  EXPECT_EQ(EbnfError("root ::= %"),
            "ebnf: line 1: expected a literal, a class, a group or a rule's name");
}

TEST(EbnfTest, LeftRecursionAndRulesWithoutATextAreRefused) {
  EXPECT_EQ(
      EbnfError("root ::= root \"a\" | \"b\""),
      "grammar: rule root: expected to read something before it calls itself (left recursion)");
  EXPECT_EQ(EbnfError("root ::= \"\"? a \"x\"\na ::= b\nb ::= \"y\"? a | \"z\""),
            "grammar: rule a: expected to read something before it calls itself (left recursion)");
  EXPECT_EQ(
      EbnfError("root ::= \"a\" root"),
      "grammar: rule root: expected a rule that some text matches, got one that no text does");
  // What leads nowhere is no way to go on.
  const auto grammar = Ebnf("root ::= \"ab\" | \"ac\" never\nnever ::= \"x\" never");
  EXPECT_TRUE(Matches(grammar, "ab"));
  GrammarMatcher matcher(grammar);
  ASSERT_TRUE(matcher.Accept('a'));
  EXPECT_FALSE(matcher.Accept('c'));
}

// Each of the ways is looked at twice, and not all of them for each of them.
TEST(EbnfTest, ManyWaysThatLeadNowhereAreNotLookedAtAgainAndAgain) {
  std::string text = "b ::= \"a\" b\nroot ::= ";
  for (int i = 0; i < 40'000; ++i) text += "b \"x\" | ";
  const auto grammar = Ebnf(text + "\"y\"");
  EXPECT_TRUE(Matches(grammar, "y"));
  GrammarMatcher matcher(grammar);
  EXPECT_FALSE(matcher.Accept('a'));
}

TEST(EbnfTest, AnAmbiguousGrammarEndsAsAnError) {
  const auto grammar = Ebnf("root ::= \"a\" (root | root root | root root root)?");
  GrammarMatcher matcher(grammar);
  const std::string message = ErrorMessage([&] {
    for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(matcher.Accept('a'));
  });
  EXPECT_EQ(message,
            "grammar: expected at most 32768 ways to read a text, got more: it is too ambiguous");
}

// ---- Masks ----

// Hundreds of loops, each of which may read every token.
TEST(TokenGrammarTest, AMaskThatWouldTakeTooLongIsAnError) {
  const auto loops = [](int count) {
    std::string text = "root ::= ";
    for (int i = 0; i < count; ++i) text += ".* ";
    return std::make_shared<const TokenGrammar>(CompileGrammar(ParseEbnf(text + "\"!\"", "ebnf")),
                                                ByteTrie(), 100'000);
  };
  std::vector<uint32_t> mask(8);
  GrammarMatcher many(loops(500));
  ASSERT_TRUE(many.Accept('a'));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(
        ErrorMessage([&] { many.Fill(mask); }),
        "grammar: expected at most 100000 steps to find which tokens may follow, got more: it "
        "is too ambiguous");
  }
  GrammarMatcher few(loops(5));
  ASSERT_TRUE(few.Accept('a'));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(few.Fill(mask));  // what is known costs nothing
}

// Every bit of a mask is whether the token would be accepted, along a way through the grammar.
void ExpectMasksAreWhatIsAccepted(const std::shared_ptr<const TokenGrammar>& grammar,
                                  uint32_t seed) {
  std::mt19937 random(seed);
  const int64_t vocab_size = grammar->trie().vocab_size();
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(vocab_size)), ~0u);
  GrammarMatcher matcher(grammar);
  for (int i = 0; i < 60; ++i) {
    const bool any = matcher.Fill(mask);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocab_size; ++token) {
      const bool accepts = matcher.Accept(token);
      if (accepts) matcher.Rollback(1);
      ASSERT_EQ(IsSet(mask, token), accepts)
          << "seed " << seed << ", token " << token << " at " << matcher.num_accepted();
      if (accepts) allowed.push_back(token);
    }
    ASSERT_EQ(any, !allowed.empty());
    ASSERT_TRUE(any || matcher.is_complete());
    ASSERT_EQ(any, matcher.can_continue());
    if (!any) return;
    // Long ones mostly: they cross from rule to rule.
    int32_t token = allowed[random() % allowed.size()];
    for (int again = 0; again < 3; ++again) {
      const int32_t other = allowed[random() % allowed.size()];
      if (grammar->trie().Bytes(other).size() > grammar->trie().Bytes(token).size()) token = other;
    }
    ASSERT_TRUE(matcher.Accept(token));
  }
}

TEST(TokenGrammarTest, AMaskHasTheTokensThatAreAcceptedAndNoOthers) {
  const std::vector<std::string> schemas = {
      R"({"type": "object"})",
      R"({"type": "array", "items": {"type": "array", "items": {"type": "string"}}})",
      R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
          "name": {"type": ["string", "null"]}}, "required": ["a"], "additionalProperties": true})",
      R"({"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 5}})",
      R"({"$defs": {"t": {"type": "object", "properties": {"a": {"type": "array", "items":
          {"$ref": "#/$defs/t"}}}, "required": ["a"]}}, "$ref": "#/$defs/t"})"};
  for (const std::string& schema : schemas) {
    const auto grammar =
        MakeTokenGrammar(JsonSchemaGrammar(OrderedJson::parse(schema), "schema"), JsonTrie());
    for (uint32_t seed = 0; seed < 20; ++seed) ExpectMasksAreWhatIsAccepted(grammar, seed);
  }
  for (const char* text :
       {"root ::= \"a\" root \"}\" | \"1\"", "root ::= x x x x\nx ::= \"a\"? \"1\"? \",\"?",
        "root ::= (\"1\" | \"12\" | \"1,\")+ \"}\"?",
        "root ::= [a-z]* \" \"? root2?\nroot2 ::= \"1\" root"}) {
    const auto grammar = Ebnf(text, JsonTrie());
    for (uint32_t seed = 0; seed < 20; ++seed) ExpectMasksAreWhatIsAccepted(grammar, seed);
  }
}

TEST(TokenGrammarTest, CountedRepetitionsAreCountedInsideTokensToo) {
  const auto num_seeds = testing::SanitizedShare(uint32_t{20});
  for (const std::string schema :
       {R"({"type": "string", "maxLength": 9})", R"({"type": "string", "minLength": 12})",
        R"({"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 20}})",
        R"({"type": "string", "pattern": "^[a-c]{4,30}$"})",
        R"({"type": "array", "minItems": 9, "maxItems": 11, "items": {"type": "integer"}})"}) {
    const auto grammar =
        MakeTokenGrammar(JsonSchemaGrammar(OrderedJson::parse(schema), "schema"), JsonTrie());
    for (uint32_t seed = 0; seed < num_seeds; ++seed) ExpectMasksAreWhatIsAccepted(grammar, seed);
  }
  // Read in several ways, empty or not, one repetition directly behind another or in it, at the end of a
  // rule, and of what no text matches.
  for (const char* text :
       {"root ::= (\"1\" | \"12\" | \"1,\"){8,12} \"}\"?",
        "root ::= (\"a\"? \"b\"?){9} [a-c]{0,10} \"}\"",
        "root ::= x{8} \",\" | \"ab\"\nx ::= \"a\" | \"}\" | \"\"",
        "root ::= ([abc]{8,} \"1\"?){8,} \"}\"", "root ::= \"[\" x \"]\" root?\nx ::= [a-c]{3,9}",
        "root ::= \"a\" (x{0,9} | [ ]{9,})\nx ::= \"b\" x"}) {
    const auto grammar = Ebnf(text, JsonTrie());
    for (uint32_t seed = 0; seed < num_seeds; ++seed) ExpectMasksAreWhatIsAccepted(grammar, seed);
  }
  const auto grammar = Ebnf("root ::= [a-c]{10,500} \"1\"");
  EXPECT_FALSE(Matches(grammar, std::string(9, 'a') + "1"));
  EXPECT_TRUE(Matches(grammar, std::string(10, 'b') + "1"));
  EXPECT_TRUE(Matches(grammar, std::string(500, 'c') + "1"));
  EXPECT_FALSE(Matches(grammar, std::string(501, 'c') + "1"));
}

TEST(TokenGrammarTest, RollbackBringsTheMaskBack) {
  const auto grammar = MakeTokenGrammar(JsonObjectGrammar(), JsonTrie());
  std::mt19937 random(3);
  GrammarMatcher matcher(grammar);
  std::vector<std::vector<uint32_t>> masks;
  const auto fill = [&] {
    std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(grammar->trie().vocab_size())));
    matcher.Fill(mask);
    return mask;
  };
  for (int i = 0; i < 300; ++i) {
    masks.resize(static_cast<size_t>(matcher.num_accepted()));
    masks.push_back(fill());
    if (matcher.num_accepted() > 3 && random() % 4 == 0) {
      const auto back = static_cast<int64_t>(1 + random() % 3);
      matcher.Rollback(back);
      EXPECT_EQ(fill(), masks[static_cast<size_t>(matcher.num_accepted())]);
      continue;
    }
    const auto token = static_cast<int32_t>(random() % grammar->trie().vocab_size());
    matcher.Accept(token);
  }
}

TEST(TokenGrammarTest, DeepNestingKeepsItsPlaceAndTheCacheItsBound) {
  const auto grammar = MakeTokenGrammar(JsonObjectGrammar(), JsonTrie());
  GrammarMatcher matcher(grammar);
  std::mt19937 random(5);
  std::string closing;
  const auto accept = [&](std::string_view text) {
    for (const char c : text) ASSERT_TRUE(matcher.Accept(static_cast<uint8_t>(c))) << text;
  };
  std::vector<uint32_t> mask(static_cast<size_t>(TokenMaskWords(grammar->trie().vocab_size())));
  accept("{\"a\":");
  closing = "}";
  for (int depth = 0; depth < 3000; ++depth) {
    const bool is_array = random() % 2 == 0;
    accept(is_array ? "[" : "{\"k\":");
    closing.insert(0, is_array ? "]" : "}");
    ASSERT_TRUE(matcher.Fill(mask));
  }
  accept("1");
  ASSERT_TRUE(matcher.Fill(mask));
  EXPECT_EQ(IsSet(mask, ']'), closing[0] == ']');
  EXPECT_EQ(IsSet(mask, '}'), closing[0] == '}');
  EXPECT_FALSE(matcher.is_complete());
  accept(closing);
  EXPECT_TRUE(matcher.is_complete());
  EXPECT_FALSE(matcher.can_continue());
  EXPECT_LE(grammar->cache_bytes(), TokenGrammar::kMaxCacheBytes + (int64_t{1} << 20));
}

}  // namespace
}  // namespace quire
