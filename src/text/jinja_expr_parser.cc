#include "text/jinja_expr_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "text/jinja_filters.h"
#include "text/jinja_methods.h"
#include "text/jinja_tests.h"

namespace quire::jinja {
namespace {

// Of brackets and blocks in one another. The grammar takes some twelve calls for a level.
constexpr int kMaxParseDepth = 100;
// Of expressions in one another: evaluation recurses as deep. a + b + c has depth 3.
constexpr int kMaxExprDepth = 150;
constexpr size_t kMaxArguments = 64;

// Names that Jinja defines and this does not.
constexpr std::array<std::string_view, 4> kUnsupportedNames = {"lipsum", "cycler", "joiner",
                                                               "self"};

std::vector<ExprPtr> Operands(ExprPtr first, ExprPtr second = nullptr) {
  std::vector<ExprPtr> operands;
  operands.push_back(std::move(first));
  if (second != nullptr) operands.push_back(std::move(second));
  return operands;
}

std::optional<BinaryOp> FindOp(const TokenStream& tokens,
                               std::initializer_list<std::pair<std::string_view, BinaryOp>> ops) {
  for (const auto& [text, op] : ops) {
    if (tokens.IsOperator(text)) return op;
  }
  return std::nullopt;
}

}  // namespace

ParseDepth::ParseDepth(TokenStream& tokens, int* depth) : depth_(depth) {
  if (*depth_ >= kMaxParseDepth)
    tokens.Refuse(fmt::format("nested deeper than {}", kMaxParseDepth));
  ++*depth_;
}

ExprPtr ExprParser::Make(ExprKind kind, int line, std::vector<ExprPtr> operands) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  for (ExprPtr& operand : operands) Add(expr.get(), std::move(operand));
  return expr;
}

ExprPtr ExprParser::MakeBinary(BinaryOp op, int line, ExprPtr left, ExprPtr right) {
  ExprPtr expr = Make(ExprKind::kBinary, line, Operands(std::move(left), std::move(right)));
  expr->binary = op;
  return expr;
}

void ExprParser::Add(Expr* parent, ExprPtr operand) {
  if (operand != nullptr) parent->depth = std::max(parent->depth, operand->depth + 1);
  if (parent->depth > kMaxExprDepth) {
    tokens_.Refuse(fmt::format("an expression deeper than {}", kMaxExprDepth));
  }
  parent->operands.push_back(std::move(operand));
}

ExprPtr ExprParser::ParseExpression(CondExpr cond) {
  const ParseDepth guard(tokens_, &depth_);
  int line = tokens_.line();
  ExprPtr value = ParseOr();
  while (cond == CondExpr::kAllowed && tokens_.SkipName("if")) {
    ExprPtr expr = Make(ExprKind::kConditional, line, Operands(std::move(value), ParseOr()));
    Add(expr.get(), tokens_.SkipName("else") ? ParseExpression() : nullptr);
    value = std::move(expr);
    line = tokens_.line();
  }
  return value;
}

ExprPtr ExprParser::ParseTuple(CondExpr cond) {
  const int line = tokens_.line();
  ExprPtr first = ParseExpression(cond);
  if (!tokens_.IsOperator(",")) return first;
  ExprPtr tuple = Make(ExprKind::kTuple, line, Operands(std::move(first)));
  while (tokens_.SkipOperator(",")) {
    const bool ends = tokens_.Is(TokenKind::kPrintEnd) || tokens_.Is(TokenKind::kBlockEnd) ||
                      tokens_.IsOperator(")");
    if (ends) break;
    Add(tuple.get(), ParseExpression(cond));
  }
  return tuple;
}

ExprPtr ExprParser::ParseOr() {
  ExprPtr left = ParseAnd();
  for (int line = tokens_.line(); tokens_.SkipName("or");) {
    left = Make(ExprKind::kOr, line, Operands(std::move(left), ParseAnd()));
  }
  return left;
}

ExprPtr ExprParser::ParseAnd() {
  ExprPtr left = ParseNot();
  for (int line = tokens_.line(); tokens_.SkipName("and");) {
    left = Make(ExprKind::kAnd, line, Operands(std::move(left), ParseNot()));
  }
  return left;
}

ExprPtr ExprParser::ParseNot() {
  const ParseDepth guard(tokens_, &depth_);
  const int line = tokens_.line();
  if (!tokens_.SkipName("not")) return ParseCompare();
  return Make(ExprKind::kNot, line, Operands(ParseNot()));
}

ExprPtr ExprParser::ParseCompare() {
  constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEqual},  {"!=", CompareOp::kNotEqual},
      {"<", CompareOp::kLess},    {"<=", CompareOp::kLessEqual},
      {">", CompareOp::kGreater}, {">=", CompareOp::kGreaterEqual}};
  const auto take_op = [&]() -> std::optional<CompareOp> {
    for (const auto& [text, op] : kOps) {
      if (tokens_.SkipOperator(text)) return op;
    }
    if (tokens_.SkipName("in")) return CompareOp::kIn;
    if (!tokens_.IsName("not") || !TokenStream::IsNameToken(tokens_.next(), "in")) return {};
    tokens_.Take();
    tokens_.Take();
    return CompareOp::kNotIn;
  };
  const int line = tokens_.line();
  ExprPtr first = ParseSum();
  std::optional<CompareOp> op = take_op();
  if (!op) return first;
  ExprPtr compare = Make(ExprKind::kCompare, line, Operands(std::move(first)));
  for (; op; op = take_op()) {
    compare->compares.push_back(*op);
    Add(compare.get(), ParseSum());
  }
  return compare;
}

ExprPtr ExprParser::ParseSum() {
  ExprPtr left = ParseConcat();
  while (const auto op = FindOp(tokens_, {{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSubtract}})) {
    const int line = tokens_.Take().line;
    left = MakeBinary(*op, line, std::move(left), ParseConcat());
  }
  return left;
}

ExprPtr ExprParser::ParseConcat() {
  const int line = tokens_.line();
  ExprPtr first = ParseProduct();
  if (!tokens_.IsOperator("~")) return first;
  ExprPtr concat = Make(ExprKind::kConcat, line, Operands(std::move(first)));
  while (tokens_.SkipOperator("~")) Add(concat.get(), ParseProduct());
  return concat;
}

ExprPtr ExprParser::ParseProduct() {
  ExprPtr left = ParsePower();
  while (const auto op = FindOp(tokens_, {{"*", BinaryOp::kMultiply},
                                          {"/", BinaryOp::kDivide},
                                          {"//", BinaryOp::kFloorDivide},
                                          {"%", BinaryOp::kModulo}})) {
    const int line = tokens_.Take().line;
    left = MakeBinary(*op, line, std::move(left), ParsePower());
  }
  return left;
}

ExprPtr ExprParser::ParsePower() {
  ExprPtr left = ParseUnary(Filters::kAllowed);
  for (int line = tokens_.line(); tokens_.SkipOperator("**");) {
    left = MakeBinary(BinaryOp::kPower, line, std::move(left), ParseUnary(Filters::kAllowed));
  }
  return left;
}

ExprPtr ExprParser::ParseUnary(Filters filters) {
  const ParseDepth guard(tokens_, &depth_);
  const int line = tokens_.line();
  ExprPtr value;
  if (tokens_.SkipOperator("-")) {
    value = Make(ExprKind::kNegative, line, Operands(ParseUnary(Filters::kNot)));
  } else if (tokens_.SkipOperator("+")) {
    value = Make(ExprKind::kPositive, line, Operands(ParseUnary(Filters::kNot)));
  } else {
    value = ParsePrimary();
  }
  value = ParsePostfix(std::move(value));
  return filters == Filters::kAllowed ? ParseFiltersAndTests(std::move(value)) : std::move(value);
}

ExprPtr ExprParser::ParsePrimary() {
  if (tokens_.Is(TokenKind::kName)) return ParseName();
  if (tokens_.Is(TokenKind::kLiteral)) return ParseLiteral();
  if (tokens_.IsOperator("(")) return ParseBrackets();
  if (tokens_.IsOperator("[")) return ParseList();
  if (tokens_.IsOperator("{")) return ParseDict();
  tokens_.RefuseCurrent("an expression");
}

ExprPtr ExprParser::ParseName() {
  const Token token = tokens_.Take();
  const bool is_true = token.text == "true" || token.text == "True";
  ExprPtr expr = Make(ExprKind::kLiteral, token.line);
  if (is_true || token.text == "false" || token.text == "False") {
    expr->literal = Value::Bool(is_true);
  } else if (token.text == "none" || token.text == "None") {
    expr->literal = Value::None();
  } else {
    expr->kind = ExprKind::kName;
    expr->name = token.text;
    names_.insert(token.text);
  }
  return expr;
}

// Strings one after the other are one.
ExprPtr ExprParser::ParseLiteral() {
  const Token token = tokens_.Take();
  ExprPtr expr = Make(ExprKind::kLiteral, token.line);
  expr->literal = token.literal;
  if (!token.literal.Is(Kind::kString)) return expr;
  std::string text = token.literal.AsString();
  while (tokens_.Is(TokenKind::kLiteral) && tokens_.current().literal.Is(Kind::kString)) {
    text += tokens_.Take().literal.AsString();
  }
  expr->literal = Value::Literal(std::move(text));
  return expr;
}

ExprPtr ExprParser::ParseBrackets() {
  const int line = tokens_.Take().line;
  if (tokens_.SkipOperator(")")) return Make(ExprKind::kTuple, line);
  ExprPtr value = ParseTuple();
  tokens_.ExpectOperator(")");
  return value;
}

ExprPtr ExprParser::ParseList() {
  ExprPtr list = Make(ExprKind::kList, tokens_.Take().line);
  while (!tokens_.SkipOperator("]")) {
    if (!list->operands.empty()) {
      tokens_.ExpectOperator(",");
      if (tokens_.SkipOperator("]")) break;
    }
    Add(list.get(), ParseExpression());
  }
  return list;
}

ExprPtr ExprParser::ParseDict() {
  ExprPtr dict = Make(ExprKind::kDict, tokens_.Take().line);
  while (!tokens_.SkipOperator("}")) {
    if (!dict->operands.empty()) {
      tokens_.ExpectOperator(",");
      if (tokens_.SkipOperator("}")) break;
    }
    Add(dict.get(), ParseExpression());
    tokens_.ExpectOperator(":");
    Add(dict.get(), ParseExpression());
  }
  return dict;
}

ExprPtr ExprParser::ParsePostfix(ExprPtr value) {
  while (true) {
    if (tokens_.IsOperator(".")) {
      value = ParseAttribute(std::move(value));
    } else if (tokens_.IsOperator("[")) {
      value = ParseSubscript(std::move(value));
    } else if (tokens_.IsOperator("(")) {
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExprParser::ParseFiltersAndTests(ExprPtr value) {
  while (true) {
    if (tokens_.SkipOperator("|")) {
      value = ParseFilter(std::move(value));
    } else if (tokens_.SkipName("is")) {
      value = ParseTest(std::move(value));
    } else if (tokens_.IsOperator("(")) {
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

// value.name, or value.0 for value[0].
ExprPtr ExprParser::ParseAttribute(ExprPtr value) {
  const int line = tokens_.Take().line;
  if (tokens_.Is(TokenKind::kLiteral) && tokens_.current().literal.Is(Kind::kInt)) {
    ExprPtr key = Make(ExprKind::kLiteral, line);
    key->literal = tokens_.Take().literal;
    return Make(ExprKind::kItem, line, Operands(std::move(value), std::move(key)));
  }
  ExprPtr attribute = Make(ExprKind::kAttribute, line, Operands(std::move(value)));
  attribute->name = tokens_.Expect(TokenKind::kName, "a name or a number").text;
  return attribute;
}

ExprPtr ExprParser::ParseSubscript(ExprPtr value) {
  const int line = tokens_.Take().line;
  if (tokens_.IsOperator(":")) return ParseSliceFrom(std::move(value), nullptr);
  ExprPtr key = ParseExpression();
  if (tokens_.IsOperator(":")) return ParseSliceFrom(std::move(value), std::move(key));
  if (tokens_.IsOperator(",")) tokens_.Refuse("several subscripts are not supported");
  tokens_.ExpectOperator("]");
  return Make(ExprKind::kItem, line, Operands(std::move(value), std::move(key)));
}

// The current token is the first colon.
ExprPtr ExprParser::ParseSliceFrom(ExprPtr value, ExprPtr first) {
  ExprPtr slice = Make(ExprKind::kSlice, tokens_.line(), Operands(std::move(value)));
  Add(slice.get(), std::move(first));
  while (slice->operands.size() < 4) {
    const bool has_colon = tokens_.SkipOperator(":");
    const bool is_absent = !has_colon || tokens_.IsOperator(":") || tokens_.IsOperator("]");
    Add(slice.get(), is_absent ? nullptr : ParseExpression());
  }
  tokens_.ExpectOperator("]");
  return slice;
}

ExprPtr ExprParser::ParseCall(ExprPtr callee) {
  RequireKnownCallee(*callee);
  ExprPtr call = Make(ExprKind::kCall, tokens_.line(), Operands(std::move(callee)));
  ParseArguments(call.get());
  return call;
}

void ExprParser::RequireKnownCallee(const Expr& callee) const {
  if (callee.kind == ExprKind::kAttribute && !IsKnownMethod(callee.name)) {
    tokens_.Refuse(fmt::format("the method '{}' is not supported", callee.name), callee.line);
  }
  const bool is_unsupported = callee.kind == ExprKind::kName &&
                              std::find(kUnsupportedNames.begin(), kUnsupportedNames.end(),
                                        callee.name) != kUnsupportedNames.end();
  if (is_unsupported) {
    tokens_.Refuse(fmt::format("the function '{}' is not supported", callee.name), callee.line);
  }
}

// Onto the operands of `call` and its named ones.
void ExprParser::ParseArguments(Expr* call) {
  tokens_.ExpectOperator("(");
  bool is_first = true;
  while (!tokens_.SkipOperator(")")) {
    if (!is_first) {
      tokens_.ExpectOperator(",");
      if (tokens_.SkipOperator(")")) break;
    }
    is_first = false;
    ParseArgument(call);
  }
}

void ExprParser::ParseArgument(Expr* call) {
  if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
    tokens_.Refuse("arguments by * and ** are not supported");
  }
  if (call->operands.size() + call->named.size() > kMaxArguments) {
    tokens_.Refuse(fmt::format("more than {} arguments", kMaxArguments));
  }
  const bool is_named =
      tokens_.Is(TokenKind::kName) && TokenStream::IsOperatorToken(tokens_.next(), "=");
  if (!is_named) {
    if (!call->named.empty()) tokens_.Refuse("an argument without a name behind one with a name");
    return Add(call, ParseExpression());
  }
  const std::string name = tokens_.Take().text;
  tokens_.ExpectOperator("=");
  ExprPtr value = ParseExpression();
  call->depth = std::max(call->depth, value->depth + 1);
  for (const auto& [other, expr] : call->named) {
    if (other == name) tokens_.Refuse(fmt::format("the argument '{}' comes twice", name));
  }
  call->named.emplace_back(name, std::move(value));
}

ExprPtr ExprParser::ParseFilters(ExprPtr value) {
  while (tokens_.SkipOperator("|")) value = ParseFilter(std::move(value));
  return value;
}

ExprPtr ExprParser::ParseFiltersFrom() { return ParseFilters(ParseFilter(nullptr)); }

// The name of the filter is the current token.
ExprPtr ExprParser::ParseFilter(ExprPtr value) {
  const Token token = tokens_.Expect(TokenKind::kName, "the name of a filter");
  if (!IsFilter(token.text)) {
    tokens_.Refuse(fmt::format("the filter '{}' is not supported", token.text), token.line);
  }
  ExprPtr filter = Make(ExprKind::kFilter, token.line);
  filter->name = token.text;
  Add(filter.get(), std::move(value));
  if (tokens_.IsOperator("(")) ParseArguments(filter.get());
  RequireKnownNames(*filter);
  return filter;
}

// The filter of map("...") and the test of select("...") are known early if they are literals.
void ExprParser::RequireKnownNames(const Expr& filter) const {
  const bool by_attribute = filter.name == "selectattr" || filter.name == "rejectattr";
  const bool by_test = by_attribute || filter.name == "select" || filter.name == "reject";
  if (!by_test && filter.name != "map") return;
  const size_t index = by_attribute ? 2 : 1;  // the value is operand 0
  if (filter.operands.size() <= index) return;
  const Value& name = filter.operands[index]->literal;
  if (!name.Is(Kind::kString)) return;
  const bool is_known = by_test ? IsTest(name.AsString()) : IsFilter(name.AsString());
  if (is_known) return;
  tokens_.Refuse(
      fmt::format("the {} '{}' is not supported", by_test ? "test" : "filter", name.AsString()),
      filter.line);
}

// `is` has been taken.
ExprPtr ExprParser::ParseTest(ExprPtr value) {
  const bool is_negated = tokens_.SkipName("not");
  const Token token = tokens_.Expect(TokenKind::kName, "the name of a test");
  if (!IsTest(token.text)) {
    tokens_.Refuse(fmt::format("the test '{}' is not supported", token.text), token.line);
  }
  ExprPtr test = Make(ExprKind::kTest, token.line, Operands(std::move(value)));
  test->name = token.text;
  if (tokens_.IsOperator("(")) {
    ParseArguments(test.get());
  } else if (SeesTestArgument()) {
    if (tokens_.IsName("is")) tokens_.Refuse("a test behind a test");
    Add(test.get(), ParsePostfix(ParsePrimary()));
  }
  if (!is_negated) return test;
  return Make(ExprKind::kNot, token.line, Operands(std::move(test)));
}

// Whether an argument without brackets follows: x is divisibleby 3.
bool ExprParser::SeesTestArgument() const {
  if (tokens_.IsName("else") || tokens_.IsName("or") || tokens_.IsName("and")) return false;
  return tokens_.Is(TokenKind::kName) || tokens_.Is(TokenKind::kLiteral) ||
         tokens_.IsOperator("[") || tokens_.IsOperator("{");
}

}  // namespace quire::jinja
