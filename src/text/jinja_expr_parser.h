// Parses the expressions of a template.
#ifndef QUIRE_TEXT_JINJA_EXPR_PARSER_H_
#define QUIRE_TEXT_JINJA_EXPR_PARSER_H_

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_token_stream.h"

namespace quire::jinja {

// Counts how deep the parser has recursed, and refuses what would overflow its stack.
class ParseDepth {
 public:
  ParseDepth(TokenStream& tokens, int* depth);
  ~ParseDepth() { --*depth_; }
  ParseDepth(const ParseDepth&) = delete;
  ParseDepth& operator=(const ParseDepth&) = delete;

 private:
  int* depth_;
};

enum class CondExpr { kAllowed, kNot };  // whether `a if b else c` may stand there

// Precedence is as in Jinja's grammar, which is not Python's: ** groups to the left, and - binds
// closer than a filter.
class ExprParser {
 public:
  explicit ExprParser(TokenStream& tokens) : tokens_(tokens) {}

  ExprPtr ParseExpression(CondExpr cond = CondExpr::kAllowed);
  // One expression, or a tuple without brackets.
  ExprPtr ParseTuple(CondExpr cond = CondExpr::kAllowed);
  // | filter | filter ... behind `value`, which may be null.
  ExprPtr ParseFilters(ExprPtr value);
  // filter | filter ...: the first without its |.
  ExprPtr ParseFiltersFrom();

  // The names that expressions have used since they were last taken.
  using Names = std::set<std::string>;
  Names TakeNames() { return std::exchange(names_, {}); }
  void AddNames(const Names& names) { names_.insert(names.begin(), names.end()); }

  int* depth() { return &depth_; }  // for a ParseDepth of blocks around the expressions

 private:
  ExprPtr ParseOr();
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  ExprPtr ParseCompare();
  ExprPtr ParseSum();
  ExprPtr ParseConcat();
  ExprPtr ParseProduct();
  ExprPtr ParsePower();
  enum class Filters { kAllowed, kNot };
  ExprPtr ParseUnary(Filters filters);
  ExprPtr ParsePrimary();
  ExprPtr ParseName();
  ExprPtr ParseLiteral();
  ExprPtr ParseBrackets();
  ExprPtr ParseList();
  ExprPtr ParseDict();
  ExprPtr ParsePostfix(ExprPtr value);
  ExprPtr ParseFiltersAndTests(ExprPtr value);
  ExprPtr ParseAttribute(ExprPtr value);
  ExprPtr ParseSubscript(ExprPtr value);
  ExprPtr ParseSliceFrom(ExprPtr value, ExprPtr first);
  ExprPtr ParseCall(ExprPtr callee);
  ExprPtr ParseFilter(ExprPtr value);
  ExprPtr ParseTest(ExprPtr value);
  void ParseArguments(Expr* call);
  void ParseArgument(Expr* call);
  bool SeesTestArgument() const;
  void RequireKnownCallee(const Expr& callee) const;
  void RequireKnownNames(const Expr& filter) const;

  ExprPtr Make(ExprKind kind, int line, std::vector<ExprPtr> operands = {});
  ExprPtr MakeBinary(BinaryOp op, int line, ExprPtr left, ExprPtr right);
  void Add(Expr* parent, ExprPtr operand);

  TokenStream& tokens_;
  int depth_ = 0;
  Names names_;
};

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_EXPR_PARSER_H_
