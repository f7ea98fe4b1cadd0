// Runs a parsed template.
#ifndef QUIRE_TEXT_JINJA_EVAL_H_
#define QUIRE_TEXT_JINJA_EVAL_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "text/jinja_ast.h"
#include "text/jinja_scope.h"
#include "text/jinja_value.h"

namespace quire::jinja {

// One rendering. Throws Error without name and line: line() is where it happened.
class Renderer {
 public:
  // `globals` are the outermost variables. All must outlive the renderer.
  Renderer(const Template& parsed, Heap& heap, const Scope& globals, int64_t max_output_bytes);

  std::string Run();
  int line() const { return line_; }

 private:
  friend class Macro;
  enum class Flow { kOn, kBreak, kContinue };

  Flow Exec(const Block& block, Scope& scope);
  Flow Exec(const Stmt& stmt, Scope& scope);
  Flow ExecIf(const Stmt& stmt, Scope& scope);
  Flow ExecFor(const Stmt& stmt, Scope& scope);
  Flow ExecWith(const Stmt& stmt, Scope& scope);
  void ExecSetBlock(const Stmt& stmt, Scope& scope);
  Value MakeMacro(const Stmt& stmt, const Scope& scope);
  void ExecCall(const Stmt& stmt, Scope& scope);
  std::vector<Value> LoopItems(const Stmt& stmt, Scope& scope);

  // What a block of its own scope writes.
  std::string Capture(const Block& block, Scope& scope);
  void Write(std::string_view text);
  void Assign(const Target& target, const Value& value, Scope& scope);
  Scope& NewScope(const Scope& outer);
  class ScopeGuard;

  Value Eval(const Expr& expr, Scope& scope);
  Value EvalSmall(const Expr& expr, Scope& scope);
  Value EvalName(const Expr& expr, Scope& scope);
  Value EvalDict(const Expr& expr, Scope& scope);
  Value EvalSlice(const Expr& expr, Scope& scope);
  Value EvalCall(const Expr& expr, Scope& scope, const Value* caller);
  Value EvalFilter(const Expr& expr, Scope& scope, const Value* input);
  Value EvalConcat(const Expr& expr, Scope& scope);
  Value EvalCompare(const Expr& expr, Scope& scope);
  Value EvalConditional(const Expr& expr, Scope& scope);
  std::vector<Value> EvalAll(const Expr& expr, Scope& scope);
  Args EvalArguments(const Expr& expr, Scope& scope);
  Value Call(const Value& callee, const Args& args);

  const Template& parsed_;
  Heap& heap_;
  const Scope& globals_;
  int64_t max_output_bytes_;
  int line_ = 1;
  int depth_ = 0;             // of expressions, blocks and macros in one another
  std::string* out_;          // what is being written: the prompt, or a captured block
  std::deque<Scope> scopes_;  // that are open, and those that a macro may refer to
  size_t num_macros_ = 0;     // that were made
};

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_EVAL_H_
