#include "textgen/text_constraint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "io/json.h"
#include "text/grammar/ebnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex_grammar.h"

namespace quire {
namespace {

constexpr std::string_view kReasoningBegin = "<think>";
constexpr std::string_view kReasoningEnd = "</think>";

// nullopt: the vocabulary has none.
std::optional<int32_t> FindReasoningToken(const Tokenizer& tokenizer) {
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (token.content == kReasoningBegin) return token.id;
  }
  return std::nullopt;
}

Grammar OneRule(const std::function<Grammar::Expr(Grammar&)>& write) {
  Grammar grammar;
  const Grammar::Rule root = grammar.AddRule("root");
  grammar.Define(root, write(grammar));
  grammar.SetRoot(root);
  return grammar;
}

Grammar::Expr AddChoice(Grammar& grammar, const TextConstraint& constraint) {
  std::vector<Grammar::Expr> texts;
  for (const std::string& text : constraint.texts) texts.push_back(grammar.Literal(text));
  return grammar.Choice(std::move(texts));
}

// What tells two constraints apart: texts with their lengths.
std::string ConstraintKey(const TextConstraint& constraint) {
  std::string key = std::to_string(static_cast<int>(constraint.kind));
  for (const std::string& text : constraint.texts) {
    key += fmt::format(":{}:", text.size());
    key += text;
  }
  return key;
}

class AnswerConstraint : public TokenConstraint {
 public:
  AnswerConstraint(std::shared_ptr<const TokenGrammar> grammar, const Tokenizer& tokenizer,
                   AnswerConstraintOptions options)
      : matcher_(std::move(grammar)),
        tokenizer_(tokenizer),
        end_tokens_(std::move(options.end_tokens)),
        thinks_(options.start == ReasoningStart::kReasoning) {
    if (options.start == ReasoningStart::kEither) begins_thinking_ = FindReasoningToken(tokenizer);
  }

  bool Fill(std::span<uint32_t> mask) override {
    if (thinks_) {
      std::ranges::fill(mask, ~0u);
      for (const int32_t token : end_tokens_) WordOf(mask, token) &= ~BitOf(token);
      return true;
    }
    bool any = matcher_.Fill(mask);
    if (may_think()) {
      WordOf(mask, *begins_thinking_) |= BitOf(*begins_thinking_);
      any = true;
    }
    if (!matcher_.is_complete()) return any;
    for (const int32_t token : end_tokens_) {
      WordOf(mask, token) |= BitOf(token);
      any = true;
    }
    return any;
  }

  bool Accept(int32_t token) override {
    if (thinks_) {
      if (IsEnd(token)) return false;
      std::string tail = tails_.empty() ? "" : tails_.back();
      tail += tokenizer_.TokenBytes(token);
      thinks_ = tail.find(kReasoningEnd) == std::string::npos;
      // As much as a tag that goes on in the next token needs.
      tails_.push_back(tail.size() < kReasoningEnd.size()
                           ? tail
                           : tail.substr(tail.size() - kReasoningEnd.size()));
      return true;
    }
    if (may_think() && token == *begins_thinking_) {
      matcher_.Rollback(matcher_.num_accepted());  // the text begins behind the reasoning
      tails_.emplace_back();
      thinks_ = true;
      return true;
    }
    const bool is_space = may_think() && IsSpace(tokenizer_.TokenBytes(token));
    if (num_ends_ == 0 && matcher_.Accept(token)) {
      if (is_space) spaces_.push_back(token);
      return true;
    }
    const bool ends = matcher_.is_complete() && IsEnd(token);
    if (ends) ++num_ends_;
    return ends;
  }

  void Rollback(int64_t num_tokens) override {
    const auto take = [&](int64_t most) {
      const int64_t taken = std::min(num_tokens, most);
      num_tokens -= taken;
      return taken;
    };
    num_ends_ -= take(num_ends_);
    matcher_.Rollback(take(matcher_.num_accepted()));
    if (const int64_t thoughts = take(std::ssize(tails_)); thoughts > 0) {
      tails_.resize(tails_.size() - static_cast<size_t>(thoughts));
      thinks_ = true;  // the token that ended it is gone
      if (tails_.empty() && begins_thinking_) StopThinking();
    }
    matcher_.Rollback(take(matcher_.num_accepted()));
    QUIRE_CHECK(num_tokens == 0, "{} tokens more than were accepted", num_tokens);
    if (tails_.empty() && std::ssize(spaces_) > matcher_.num_accepted()) {
      spaces_.resize(static_cast<size_t>(matcher_.num_accepted()));
    }
  }

  bool IsFinished() const override {
    if (thinks_) return false;
    return num_ends_ > 0 || (matcher_.is_complete() && !matcher_.can_continue());
  }

 private:
  static uint32_t& WordOf(std::span<uint32_t> mask, int32_t token) {
    return mask[static_cast<size_t>(token / 32)];
  }
  static uint32_t BitOf(int32_t token) { return 1u << (token % 32); }
  bool IsEnd(int32_t token) const {
    return std::ranges::find(end_tokens_, token) != end_tokens_.end();
  }

  static bool IsSpace(std::string_view bytes) {
    return bytes.find_first_not_of(" \t\r\n") == std::string_view::npos;
  }
  bool may_think() const {
    return begins_thinking_ && tails_.empty() && num_ends_ == 0 &&
           matcher_.num_accepted() == std::ssize(spaces_);
  }
  // "<think>" was taken back: what stood before it is text again.
  void StopThinking() {
    thinks_ = false;
    for (const int32_t token : spaces_) QUIRE_CHECK(matcher_.Accept(token));
  }

  GrammarMatcher matcher_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> end_tokens_;
  std::optional<int32_t> begins_thinking_;  // the token that may, at the beginning
  std::vector<int32_t> spaces_;             // tokens at the beginning that are white space
  bool thinks_;
  std::vector<std::string> tails_;  // of the text, behind every token of the reasoning
  int64_t num_ends_ = 0;            // end tokens that did not end the answer
};

}  // namespace

Grammar MakeGrammar(const TextConstraint& constraint) {
  using Kind = TextConstraint::Kind;
  const std::string first = constraint.texts.empty() ? "" : constraint.texts.front();
  switch (constraint.kind) {
    case Kind::kJsonObject:
      return JsonObjectGrammar();
    case Kind::kJsonSchema:
      return JsonSchemaGrammar(ParseOrderedJson(first, constraint.source), constraint.source);
    case Kind::kRegex:
      return OneRule([&](Grammar& grammar) { return AddRegex(grammar, first, constraint.source); });
    case Kind::kChoice:
      return OneRule([&](Grammar& grammar) { return AddChoice(grammar, constraint); });
    case Kind::kEbnf:
      return ParseEbnf(first, constraint.source);
  }
  throw InternalError("a constraint of an unknown kind");
}

std::shared_ptr<const VocabularyTrie> ConstraintCompiler::Trie(
    const std::vector<std::string>& marks) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const VocabularyTrie>& trie = tries_[marks];
  if (!trie) {
    trie =
        std::make_shared<const VocabularyTrie>(MakeVocabularyTrie(tokenizer_, vocab_size_, marks));
  }
  return trie;
}

std::shared_ptr<const TokenGrammar> ConstraintCompiler::Compile(const TextConstraint& constraint) {
  return Keep(ConstraintKey(constraint), [&] {
    return std::make_shared<const TokenGrammar>(CompileGrammar(MakeGrammar(constraint)), Trie());
  });
}

std::shared_ptr<const TokenGrammar> ConstraintCompiler::CompileCalls(
    ToolGrammarOptions calls, const std::optional<TextConstraint>& otherwise) {
  calls.marks = FindToolMarks(calls.format, tokenizer_);
  std::string strict;
  for (const ToolDefinition& tool : calls.tools) strict += tool.strict ? 's' : '-';
  const std::string key =
      fmt::format("calls:{}:{}:{}:{}:{}:{}:{}", ToolFormatName(calls.format), calls.parallel,
                  calls.in_text, strict, calls.name.value_or(""),
                  Dump(ToolsForTemplate(calls.tools)), otherwise ? ConstraintKey(*otherwise) : "");
  return Keep(key, [&] {
    const Grammar grammar = OneRule([&](Grammar& both) {
      std::vector<Grammar::Expr> ways = {AddToolCalls(both, calls)};
      if (otherwise) ways.push_back(both.AddGrammar(MakeGrammar(*otherwise)));
      return both.Choice(std::move(ways));
    });
    return std::make_shared<const TokenGrammar>(CompileGrammar(grammar), Trie(calls.marks));
  });
}

std::shared_ptr<const TokenGrammar> ConstraintCompiler::Keep(
    const std::string& key, const std::function<std::shared_ptr<const TokenGrammar>()>& make) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      kept_.splice(kept_.begin(), kept_, found->second);
      ForgetTheOldest();  // grammars grow while they are used
      return kept_.front().second;
    }
  }
  // Outside the lock: two threads that compile the same both do it.
  std::shared_ptr<const TokenGrammar> grammar = make();
  const std::lock_guard lock(mutex_);
  if (by_key_.contains(key)) return by_key_.at(key)->second;
  kept_.emplace_front(key, grammar);
  by_key_.emplace(key, kept_.begin());
  ForgetTheOldest();
  return grammar;
}

int64_t ConstraintCompiler::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return KeptBytes();
}

int64_t ConstraintCompiler::KeptBytes() const {
  int64_t bytes = 0;
  for (const auto& [key, grammar] : kept_)
    bytes += 2 * std::ssize(key) + grammar->bytes();  // the list and the map have a key each
  return bytes;
}

void ConstraintCompiler::ForgetTheOldest() {
  while (kept_.size() > 1 && (kept_.size() > kMaxKept || KeptBytes() > max_kept_bytes_)) {
    by_key_.erase(kept_.back().first);
    kept_.pop_back();
  }
}

std::unique_ptr<TokenConstraint> MakeAnswerConstraint(std::shared_ptr<const TokenGrammar> grammar,
                                                      const Tokenizer& tokenizer,
                                                      AnswerConstraintOptions options) {
  return std::make_unique<AnswerConstraint>(std::move(grammar), tokenizer, std::move(options));
}

}  // namespace quire
