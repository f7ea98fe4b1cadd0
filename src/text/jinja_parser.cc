#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "text/jinja_expr_parser.h"
#include "text/jinja_token_stream.h"

namespace quire::jinja {
namespace {

constexpr std::array<std::string_view, 7> kReserved = {"true", "True", "false", "False",
                                                       "none", "None", "loop"};

bool IsAssignable(std::string_view name) {
  return std::find(kReserved.begin(), kReserved.end(), name) == kReserved.end();
}

Stmt MakeStmt(StmtKind kind, int line) {
  Stmt stmt;
  stmt.kind = kind;
  stmt.line = line;
  return stmt;
}

class Parser {
 public:
  Parser(std::string_view source, std::string_view name)
      : tokens_(source, name), expressions_(tokens_) {}

  Template Run() { return {.body = ParseBlock({})}; }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Up to a tag that is one of `ends`, of which {% is taken; up to the end if there are none.
  Block ParseBlock(Ends ends) {
    const ParseDepth guard(tokens_, expressions_.depth());
    Block block;
    while (!tokens_.Is(TokenKind::kEnd)) {
      const int line = tokens_.line();
      if (tokens_.Is(TokenKind::kData)) {
        block.push_back(MakeStmt(StmtKind::kText, line));
        block.back().text = tokens_.Take().text;
      } else if (tokens_.Is(TokenKind::kPrintBegin)) {
        block.push_back(ParsePrint());
      } else {
        tokens_.Expect(TokenKind::kBlockBegin, "a tag");
        if (SeesOneOf(ends)) return block;
        block.push_back(ParseStatement());
        tokens_.Expect(TokenKind::kBlockEnd, "%}");
      }
    }
    if (ends.size() > 0) tokens_.RefuseCurrent(fmt::format("{{% {} %}}", *std::prev(ends.end())));
    return block;
  }

  bool SeesOneOf(Ends ends) const {
    return std::any_of(ends.begin(), ends.end(),
                       [&](std::string_view end) { return tokens_.IsName(end); });
  }

  // The rest of an opening tag and all up to one of `ends`.
  Block ParseBody(Ends ends) {
    tokens_.SkipOperator(":");
    tokens_.Expect(TokenKind::kBlockEnd, "%}");
    return ParseBlock(ends);
  }

  // The same up to `end`, which is taken. Loops around it cannot be left from inside.
  Block ParseClosedBody(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = ParseBody({end});
    tokens_.ExpectName(end);
    loops_ = loops;
    return body;
  }

  Stmt ParsePrint() {
    const int line = tokens_.Take().line;
    Stmt print = MakeStmt(StmtKind::kPrint, line);
    print.expr = expressions_.ParseTuple();
    tokens_.Expect(TokenKind::kPrintEnd, "}}");
    return print;
  }

  Stmt ParseStatement() {
    const Token tag = tokens_.Expect(TokenKind::kName, "the name of a tag");
    if (tag.text == "if") return ParseIf(tag.line);
    if (tag.text == "for") return ParseFor(tag.line);
    if (tag.text == "set") return ParseSet(tag.line);
    if (tag.text == "macro") return ParseMacro(tag.line);
    if (tag.text == "call") return ParseCall(tag.line);
    if (tag.text == "filter") return ParseFilter(tag.line);
    if (tag.text == "with") return ParseWith(tag.line);
    if (tag.text == "generation") return ParseGeneration(tag.line);
    if (tag.text == "break") return ParseJump(StmtKind::kBreak, tag);
    if (tag.text == "continue") return ParseJump(StmtKind::kContinue, tag);
    tokens_.Refuse(fmt::format("the tag '{}' is not supported here", tag.text), tag.line);
  }

  Stmt ParseIf(int line) {
    Stmt stmt = MakeStmt(StmtKind::kIf, line);
    do {
      ExprPtr condition = expressions_.ParseTuple(CondExpr::kNot);
      stmt.branches.push_back(
          {.condition = std::move(condition), .body = ParseBody({"elif", "else", "endif"})});
    } while (tokens_.SkipName("elif"));
    if (tokens_.SkipName("else")) stmt.otherwise = ParseBody({"endif"});
    tokens_.ExpectName("endif");
    return stmt;
  }

  Stmt ParseFor(int line) {
    Stmt stmt = MakeStmt(StmtKind::kFor, line);
    stmt.target = ParseTarget(Attributes::kNot);
    tokens_.ExpectName("in");
    stmt.expr = expressions_.ParseTuple(CondExpr::kNot);
    if (tokens_.SkipName("if")) stmt.condition = expressions_.ParseExpression();
    if (tokens_.IsName("recursive")) tokens_.Refuse("recursive loops are not supported");
    ++loops_;
    stmt.body = ParseBody({"else", "endfor"});
    --loops_;
    if (tokens_.SkipName("else")) stmt.otherwise = ParseBody({"endfor"});
    tokens_.ExpectName("endfor");
    return stmt;
  }

  Stmt ParseSet(int line) {
    Stmt stmt = MakeStmt(StmtKind::kSet, line);
    stmt.target = ParseTarget(Attributes::kAllowed);
    if (tokens_.SkipOperator("=")) {
      stmt.expr = expressions_.ParseTuple();
      return stmt;
    }
    stmt.kind = StmtKind::kSetBlock;
    stmt.expr = expressions_.ParseFilters(nullptr);
    stmt.body = ParseClosedBody("endset");
    return stmt;
  }

  enum class Attributes { kAllowed, kNot };

  // a; a, b; (a, b); with attributes, also a.b.
  Target ParseTarget(Attributes attributes) {
    Target first = ParseTargetPart(attributes);
    if (!tokens_.IsOperator(",")) return first;
    Target tuple;
    tuple.is_tuple = true;
    tuple.parts.push_back(std::move(first));
    while (tokens_.SkipOperator(",")) {
      const bool ends = tokens_.IsName("in") || tokens_.IsOperator("=") ||
                        tokens_.IsOperator(")") || tokens_.Is(TokenKind::kBlockEnd);
      if (ends) break;
      tuple.parts.push_back(ParseTargetPart(attributes));
    }
    return tuple;
  }

  Target ParseTargetPart(Attributes attributes) {
    const ParseDepth guard(tokens_, expressions_.depth());
    if (tokens_.SkipOperator("(")) {
      Target inner = ParseTarget(attributes);
      tokens_.ExpectOperator(")");
      return inner;
    }
    Target target;
    target.name = ParseAssignedName();
    if (attributes == Attributes::kAllowed && tokens_.SkipOperator(".")) {
      target.attribute = tokens_.Expect(TokenKind::kName, "the name of an attribute").text;
    }
    return target;
  }

  std::string ParseAssignedName() {
    const Token token = tokens_.Expect(TokenKind::kName, "a name");
    if (!IsAssignable(token.text)) {
      tokens_.Refuse(fmt::format("cannot assign to '{}'", token.text), token.line);
    }
    return token.text;
  }

  std::vector<Parameter> ParseParameters() {
    std::vector<Parameter> parameters;
    tokens_.ExpectOperator("(");
    while (!tokens_.SkipOperator(")")) {
      if (!parameters.empty()) tokens_.ExpectOperator(",");
      parameters.push_back(ParseParameter());
      const bool misses_default = parameters.size() > 1 && parameters.back().otherwise == nullptr &&
                                  parameters[parameters.size() - 2].otherwise != nullptr;
      if (misses_default) tokens_.Refuse("a parameter without a default behind one with a default");
    }
    return parameters;
  }

  Parameter ParseParameter() {
    Parameter parameter{.name = ParseAssignedName(), .otherwise = nullptr};
    if (parameter.name == "caller") tokens_.Refuse("a parameter 'caller' is not supported");
    if (tokens_.SkipOperator("=")) parameter.otherwise = expressions_.ParseExpression();
    return parameter;
  }

  Stmt ParseMacro(int line) {
    Stmt stmt = MakeStmt(StmtKind::kMacro, line);
    stmt.text = ParseAssignedName();
    stmt.parameters = ParseParameters();
    const ExprParser::Names outer = expressions_.TakeNames();
    stmt.body = ParseClosedBody("endmacro");
    const ExprParser::Names used = expressions_.TakeNames();
    expressions_.AddNames(outer);
    expressions_.AddNames(used);
    for (const char* name : {"varargs", "kwargs"}) {
      if (used.contains(name)) {
        tokens_.Refuse(fmt::format("'{}' of a macro is not supported", name), line);
      }
    }
    stmt.uses_caller = used.contains("caller");
    return stmt;
  }

  Stmt ParseCall(int line) {
    Stmt stmt = MakeStmt(StmtKind::kCall, line);
    if (tokens_.IsOperator("(")) stmt.parameters = ParseParameters();
    stmt.expr = expressions_.ParseExpression();
    if (stmt.expr->kind != ExprKind::kCall) tokens_.Refuse("expected a call", line);
    stmt.body = ParseClosedBody("endcall");
    return stmt;
  }

  Stmt ParseFilter(int line) {
    Stmt stmt = MakeStmt(StmtKind::kFilter, line);
    stmt.expr = expressions_.ParseFiltersFrom();
    stmt.body = ParseClosedBody("endfilter");
    return stmt;
  }

  Stmt ParseWith(int line) {
    Stmt stmt = MakeStmt(StmtKind::kWith, line);
    while (!tokens_.Is(TokenKind::kBlockEnd)) {
      if (!stmt.assignments.empty()) tokens_.ExpectOperator(",");
      Target target = ParseTargetPart(Attributes::kNot);
      tokens_.ExpectOperator("=");
      stmt.assignments.emplace_back(std::move(target), expressions_.ParseExpression());
    }
    stmt.body = ParseBody({"endwith"});
    tokens_.ExpectName("endwith");
    return stmt;
  }

  Stmt ParseGeneration(int line) {
    Stmt stmt = MakeStmt(StmtKind::kGeneration, line);
    stmt.body = ParseClosedBody("endgeneration");
    return stmt;
  }

  Stmt ParseJump(StmtKind kind, const Token& tag) {
    if (loops_ == 0) tokens_.Refuse(fmt::format("'{}' outside of a loop", tag.text), tag.line);
    return MakeStmt(kind, tag.line);
  }

  TokenStream tokens_;
  ExprParser expressions_;
  int loops_ = 0;  // around the current statement, that it could leave
};

}  // namespace

Template ParseTemplate(std::string_view source, std::string_view name) {
  return Parser(source, name).Run();
}

}  // namespace quire::jinja
