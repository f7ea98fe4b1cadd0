#include "text/grammar/grammar.h"

#include <utility>

#include "base/error.h"

namespace quire {

Grammar::Expr Grammar::Add(Node node) {
  Require(std::ssize(nodes_) < kMaxGrammarExpressions,
          "grammar: expected at most {} expressions, got more", kMaxGrammarExpressions);
  nodes_.push_back(std::move(node));
  return static_cast<Expr>(nodes_.size() - 1);
}

Grammar::Expr Grammar::Empty() { return Add({.kind = Kind::kEmpty}); }

Grammar::Expr Grammar::Literal(std::string_view bytes) {
  if (bytes.empty()) return Empty();
  return Add({.kind = Kind::kLiteral, .literal = std::string(bytes)});
}

Grammar::Expr Grammar::Characters(CodePoints set) {
  return Add({.kind = Kind::kCharacters, .set = std::move(set)});
}

Grammar::Expr Grammar::Sequence(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return Add({.kind = Kind::kSequence, .parts = std::move(parts)});
}

Grammar::Expr Grammar::Choice(std::vector<Expr> parts) {
  if (parts.size() == 1) return parts[0];
  return Add({.kind = Kind::kChoice, .parts = std::move(parts)});
}

Grammar::Expr Grammar::Repeat(Expr part, int64_t min, std::optional<int64_t> max) {
  QUIRE_CHECK(min >= 0 && (!max || *max >= min), "a part {} to {} times", min, max.value_or(-1));
  return Add({.kind = Kind::kRepeat, .parts = {part}, .min = min, .max = max});
}

Grammar::Expr Grammar::Call(Rule rule) { return Add({.kind = Kind::kCall, .rule = rule}); }

Grammar::Expr Grammar::AddGrammar(const Grammar& other) {
  const size_t first_node = nodes_.size();
  const size_t first_rule = rules_.size();
  const auto moved = [&](Expr expr) {
    return static_cast<Expr>(static_cast<size_t>(expr) + first_node);
  };
  for (const RuleText& rule : other.rules_) {
    const Rule added = AddRule(rule.name);
    if (rule.expr) Define(added, moved(*rule.expr));
  }
  for (Node node : other.nodes_) {
    for (Expr& part : node.parts) part = moved(part);
    node.rule = static_cast<Rule>(static_cast<size_t>(node.rule) + first_rule);
    Add(std::move(node));
  }
  return Call(static_cast<Rule>(static_cast<size_t>(other.root_) + first_rule));
}

Grammar::Rule Grammar::AddRule(std::string name) {
  Require(std::ssize(rules_) < kMaxGrammarExpressions, "grammar: expected at most {} rules",
          kMaxGrammarExpressions);
  rules_.push_back({.name = std::move(name), .expr = std::nullopt});
  return static_cast<Rule>(rules_.size() - 1);
}

void Grammar::Define(Rule rule, Expr expr) {
  RuleText& text = rules_[static_cast<size_t>(rule)];
  QUIRE_CHECK(!text.expr, "rule {} is defined twice", text.name);
  text.expr = expr;
}

}  // namespace quire
