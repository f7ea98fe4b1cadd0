#include "text/jinja_eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "text/jinja_access.h"
#include "text/jinja_filters.h"
#include "text/jinja_methods.h"
#include "text/jinja_objects.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_tests.h"

namespace quire::jinja {
namespace {

// Expressions, blocks and macros in one another. A level takes up to 1 KB of stack (several with
// sanitizers).
constexpr int kMaxEvalDepth = 500;
constexpr int64_t kStepWork = 16;
constexpr int64_t kScopeWork = 128;

class DepthGuard {
 public:
  explicit DepthGuard(int* depth) : depth_(depth) {
    Require(*depth_ < kMaxEvalDepth, "nested deeper than {}", kMaxEvalDepth);
    ++*depth_;
  }
  ~DepthGuard() { --*depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int* depth_;
};

}  // namespace

// Ends the scopes that were made during its life, unless a macro was made that may refer to one.
class Renderer::ScopeGuard {
 public:
  explicit ScopeGuard(Renderer& renderer)
      : renderer_(renderer),
        num_scopes_(renderer.scopes_.size()),
        num_macros_(renderer.num_macros_) {}
  ~ScopeGuard() {
    if (renderer_.num_macros_ != num_macros_) return;
    while (renderer_.scopes_.size() > num_scopes_) renderer_.scopes_.pop_back();
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Renderer& renderer_;
  size_t num_scopes_;
  size_t num_macros_;
};

// A macro with the scope in which it was defined; also the caller of a call block.
class Macro final : public Object {
 public:
  Macro(Renderer& renderer, const Stmt& stmt, const Scope& closure)
      : renderer_(renderer), stmt_(stmt), closure_(closure) {}

  std::string_view TypeName() const override { return "Macro"; }
  bool IsCallable() const override { return true; }

  Value Call(const Args& args) override {
    const Renderer::ScopeGuard guard(renderer_);
    Scope& scope = renderer_.NewScope(closure_);
    Bind(args, scope);
    return renderer_.heap_.String(renderer_.Capture(stmt_.body, scope));
  }

 private:
  void Bind(const Args& args, Scope& scope) {
    const std::vector<Parameter>& parameters = stmt_.parameters;
    Require(args.positional.size() <= parameters.size(),
            "the macro '{}' takes at most {} arguments, got {}", stmt_.text, parameters.size(),
            args.positional.size());
    size_t num_named = 0;
    std::vector<const Parameter*> absent;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const bool is_given = i < args.positional.size();
      const Value* named = is_given ? nullptr : Find(args, parameters[i].name);
      if (named != nullptr) ++num_named;
      if (!is_given && named == nullptr) absent.push_back(&parameters[i]);
      scope.Set(parameters[i].name, is_given           ? args.positional[i]
                                    : named != nullptr ? *named
                                                       : NotProvided(parameters[i]));
    }
    if (stmt_.uses_caller) num_named += BindCaller(args, scope);
    Require(num_named == args.named.size(), "the macro '{}' has no such named argument",
            stmt_.text);
    // Last: a default may use the other parameters.
    for (const Parameter* parameter : absent) {
      if (parameter->otherwise == nullptr) continue;
      scope.Set(parameter->name, renderer_.Eval(*parameter->otherwise, scope));
    }
  }

  // How many named arguments it took.
  static size_t BindCaller(const Args& args, Scope& scope) {
    const Value* caller = Find(args, "caller");
    scope.Set("caller", caller != nullptr ? *caller : Value::Undefined("there is no caller"));
    return caller != nullptr ? 1 : 0;
  }

  static Value NotProvided(const Parameter& parameter) {
    return Value::Undefined(fmt::format("parameter '{}' was not provided", parameter.name));
  }

  static const Value* Find(const Args& args, std::string_view name) {
    for (const auto& [key, value] : args.named) {
      if (key == name) return &value;
    }
    return nullptr;
  }

  Renderer& renderer_;
  const Stmt& stmt_;
  const Scope& closure_;
};

Renderer::Renderer(const Template& parsed, Heap& heap, const Scope& globals,
                   int64_t max_output_bytes)
    : parsed_(parsed),
      heap_(heap),
      globals_(globals),
      max_output_bytes_(max_output_bytes),
      out_(nullptr) {}

std::string Renderer::Run() { return Capture(parsed_.body, NewScope(globals_)); }

std::string Renderer::Capture(const Block& block, Scope& scope) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  Exec(block, scope);
  out_ = outer;
  return text;
}

void Renderer::Write(std::string_view text) {
  heap_.Spend(std::ssize(text));
  if (std::ssize(*out_) + std::ssize(text) > max_output_bytes_) {
    throw Error(ErrorCode::kCapacityExceeded, "more than {} bytes of output", max_output_bytes_);
  }
  *out_ += text;
}

Scope& Renderer::NewScope(const Scope& outer) {
  heap_.Spend(kScopeWork);
  return scopes_.emplace_back(&outer);
}

void Renderer::Assign(const Target& target, const Value& value, Scope& scope) {
  if (target.is_tuple) {
    const std::vector<Value> items = Iterate(heap_, value);
    Require(items.size() == target.parts.size(), "expected {} values to unpack, got {}",
            target.parts.size(), items.size());
    for (size_t i = 0; i < items.size(); ++i) Assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.attribute.empty()) return scope.Set(target.name, value);
  const Value* object = scope.Find(target.name);
  auto* const space = object != nullptr && object->Is(Kind::kObject)
                          ? dynamic_cast<Namespace*>(object->AsObject())
                          : nullptr;
  Require(space != nullptr, "'{}' is not a namespace, so its attributes cannot be set",
          target.name);
  space->Set(target.attribute, value);
}

Renderer::Flow Renderer::Exec(const Block& block, Scope& scope) {
  const DepthGuard guard(&depth_);
  for (const Stmt& stmt : block) {
    heap_.Spend(kStepWork);
    line_ = stmt.line;
    const Flow flow = Exec(stmt, scope);
    if (flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

Renderer::Flow Renderer::Exec(const Stmt& stmt, Scope& scope) {
  switch (stmt.kind) {
    case StmtKind::kText:
      Write(stmt.text);
      break;
    case StmtKind::kPrint:
      Write(Print(heap_, Eval(*stmt.expr, scope)));
      break;
    case StmtKind::kSet:
      Assign(stmt.target, Eval(*stmt.expr, scope), scope);
      break;
    case StmtKind::kSetBlock:
      ExecSetBlock(stmt, scope);
      break;
    case StmtKind::kMacro:
      scope.Set(stmt.text, MakeMacro(stmt, scope));
      break;
    case StmtKind::kCall:
      ExecCall(stmt, scope);
      break;
    case StmtKind::kFilter: {
      const Value text = heap_.String(Capture(stmt.body, NewScope(scope)));
      Write(Print(heap_, EvalFilter(*stmt.expr, scope, &text)));
      break;
    }
    case StmtKind::kGeneration:
      Write(Capture(stmt.body, NewScope(scope)));
      break;
    case StmtKind::kIf:
      return ExecIf(stmt, scope);
    case StmtKind::kFor:
      return ExecFor(stmt, scope);
    case StmtKind::kWith:
      return ExecWith(stmt, scope);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

Renderer::Flow Renderer::ExecIf(const Stmt& stmt, Scope& scope) {
  for (const Branch& branch : stmt.branches) {
    if (IsTrue(Eval(*branch.condition, scope))) return Exec(branch.body, scope);
  }
  return Exec(stmt.otherwise, scope);
}

std::vector<Value> Renderer::LoopItems(const Stmt& stmt, Scope& scope) {
  std::vector<Value> items = Iterate(heap_, Eval(*stmt.expr, scope));
  if (stmt.condition == nullptr) return items;
  std::erase_if(items, [&](const Value& item) {
    const ScopeGuard guard(*this);
    Scope& inner = NewScope(scope);
    Assign(stmt.target, item, inner);
    return !IsTrue(Eval(*stmt.condition, inner));
  });
  return items;
}

Renderer::Flow Renderer::ExecFor(const Stmt& stmt, Scope& scope) {
  auto* const loop = heap_.Own(std::make_unique<Loop>(LoopItems(stmt, scope)));
  // Jinja runs the else unless one round came to its end: also after a break in the first.
  bool any_finished = false;
  for (size_t i = 0; i < loop->items().size(); ++i) {
    const ScopeGuard guard(*this);
    Scope& inner = NewScope(scope);
    loop->MoveTo(i);
    inner.Set("loop", Value::Of(loop));
    Assign(stmt.target, loop->items()[i], inner);
    const Flow flow = Exec(stmt.body, inner);
    if (flow == Flow::kBreak) break;
    any_finished = any_finished || flow == Flow::kOn;
  }
  loop->End();
  if (any_finished || stmt.otherwise.empty()) return Flow::kOn;
  return Exec(stmt.otherwise, NewScope(scope));
}

// Values are evaluated outside of the block's scope.
Renderer::Flow Renderer::ExecWith(const Stmt& stmt, Scope& scope) {
  Scope& inner = NewScope(scope);
  for (const auto& [target, expr] : stmt.assignments) Assign(target, Eval(*expr, scope), inner);
  return Exec(stmt.body, inner);
}

void Renderer::ExecSetBlock(const Stmt& stmt, Scope& scope) {
  Value text = heap_.String(Capture(stmt.body, NewScope(scope)));
  if (stmt.expr != nullptr) text = EvalFilter(*stmt.expr, scope, &text);
  Assign(stmt.target, text, scope);
}

Value Renderer::MakeMacro(const Stmt& stmt, const Scope& scope) {
  ++num_macros_;
  return Value::Of(heap_.Own(std::make_unique<Macro>(*this, stmt, scope)));
}

void Renderer::ExecCall(const Stmt& stmt, Scope& scope) {
  const Value caller = MakeMacro(stmt, scope);
  Write(Print(heap_, EvalCall(*stmt.expr, scope, &caller)));
}

Value Renderer::Eval(const Expr& expr, Scope& scope) {
  const DepthGuard guard(&depth_);
  heap_.Spend(kStepWork);
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::kList:
      return heap_.List(EvalAll(expr, scope));
    case ExprKind::kTuple:
      return heap_.Tuple(EvalAll(expr, scope));
    case ExprKind::kDict:
      return EvalDict(expr, scope);
    case ExprKind::kSlice:
      return EvalSlice(expr, scope);
    case ExprKind::kCall:
      return EvalCall(expr, scope, nullptr);
    case ExprKind::kFilter:
      return EvalFilter(expr, scope, nullptr);
    case ExprKind::kConcat:
      return EvalConcat(expr, scope);
    case ExprKind::kCompare:
      return EvalCompare(expr, scope);
    case ExprKind::kConditional:
      return EvalConditional(expr, scope);
    default:
      return EvalSmall(expr, scope);
  }
}

// The kinds that are one line each.
Value Renderer::EvalSmall(const Expr& expr, Scope& scope) {
  const auto operand = [&](size_t i) { return Eval(*expr.operands[i], scope); };
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.literal;
    case ExprKind::kName:
      return EvalName(expr, scope);
    case ExprKind::kAttribute:
      return GetAttribute(heap_, operand(0), expr.name);
    case ExprKind::kItem: {
      const Value object = operand(0);
      return GetItem(heap_, object, operand(1));
    }
    case ExprKind::kTest: {
      const Value value = operand(0);
      return Value::Bool(ApplyTest(heap_, expr.name, value, EvalArguments(expr, scope)));
    }
    case ExprKind::kNot:
      return Value::Bool(!IsTrue(operand(0)));
    case ExprKind::kNegative:
      return Negate(operand(0));
    case ExprKind::kPositive:
      return Positive(operand(0));
    case ExprKind::kBinary: {
      const Value left = operand(0);
      return Apply(heap_, expr.binary, left, operand(1));
    }
    case ExprKind::kAnd: {
      const Value left = operand(0);
      return IsTrue(left) ? operand(1) : left;
    }
    case ExprKind::kOr: {
      const Value left = operand(0);
      return IsTrue(left) ? left : operand(1);
    }
    default:
      break;
  }
  QUIRE_CHECK(false, "kind {}", static_cast<int>(expr.kind));
  return {};
}

Value Renderer::EvalName(const Expr& expr, Scope& scope) {
  const Value* value = scope.Find(expr.name);
  if (value != nullptr) return *value;
  return Value::Undefined(fmt::format("'{}' is undefined", expr.name));
}

std::vector<Value> Renderer::EvalAll(const Expr& expr, Scope& scope) {
  std::vector<Value> values;
  for (const ExprPtr& operand : expr.operands) values.push_back(Eval(*operand, scope));
  return values;
}

Value Renderer::EvalDict(const Expr& expr, Scope& scope) {
  std::vector<std::pair<Value, Value>> members;
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    const Value key = Eval(*expr.operands[i], scope);
    const Value value = Eval(*expr.operands[i + 1], scope);
    Require(key.IsHashable(), "'{}' cannot be a key", TypeName(key));
    const auto old = std::find_if(members.begin(), members.end(), [&](const auto& member) {
      return Equal(heap_, member.first, key);
    });
    if (old != members.end()) {
      old->second = value;
    } else {
      members.emplace_back(key, value);
    }
  }
  return heap_.DictOf(std::move(members));
}

Value Renderer::EvalSlice(const Expr& expr, Scope& scope) {
  const Value object = Eval(*expr.operands[0], scope);
  const auto bound = [&](size_t i) -> std::optional<Int> {
    if (expr.operands[i] == nullptr) return std::nullopt;
    const Value value = Eval(*expr.operands[i], scope);
    if (value.Is(Kind::kNone)) return std::nullopt;
    Require(value.IsWhole(), "expected an int in a slice, got '{}'", TypeName(value));
    return value.AsWhole();
  };
  const std::optional<Int> first = bound(1);
  const std::optional<Int> last = bound(2);
  return Slice(heap_, object, {.first = first, .last = last, .step = bound(3)});
}

// All but the first operand.
Args Renderer::EvalArguments(const Expr& expr, Scope& scope) {
  Args args;
  for (size_t i = 1; i < expr.operands.size(); ++i) {
    args.positional.push_back(Eval(*expr.operands[i], scope));
  }
  for (const auto& [name, value] : expr.named) args.named.emplace_back(name, Eval(*value, scope));
  return args;
}

Value Renderer::EvalCall(const Expr& expr, Scope& scope, const Value* caller) {
  const Value callee = Eval(*expr.operands[0], scope);
  Args args = EvalArguments(expr, scope);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  line_ = expr.line;
  return Call(callee, args);
}

Value Renderer::Call(const Value& callee, const Args& args) {
  if (callee.Is(Kind::kMethod)) return CallMethod(heap_, callee.AsMethod(), args);
  if (callee.Is(Kind::kObject)) return callee.AsObject()->Call(args);
  if (callee.Is(Kind::kUndefined)) Fail("{}", callee.WhyUndefined());
  Fail("'{}' cannot be called", TypeName(callee));
}

// `input` is what goes into the first of the filters of a block; null elsewhere.
Value Renderer::EvalFilter(const Expr& expr, Scope& scope, const Value* input) {
  const Expr* const before = expr.operands[0].get();
  const Value value = before == nullptr  ? *input
                      : input != nullptr ? EvalFilter(*before, scope, input)
                                         : Eval(*before, scope);
  const Args args = EvalArguments(expr, scope);
  line_ = expr.line;
  return ApplyFilter(heap_, expr.name, value, args);
}

Value Renderer::EvalConcat(const Expr& expr, Scope& scope) {
  std::string text;
  for (const ExprPtr& operand : expr.operands) text += Print(heap_, Eval(*operand, scope));
  return heap_.String(std::move(text));
}

// a < b < c: as far as needed.
Value Renderer::EvalCompare(const Expr& expr, Scope& scope) {
  Value left = Eval(*expr.operands[0], scope);
  for (size_t i = 0; i < expr.compares.size(); ++i) {
    Value right = Eval(*expr.operands[i + 1], scope);
    if (!Compare(heap_, expr.compares[i], left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Renderer::EvalConditional(const Expr& expr, Scope& scope) {
  if (IsTrue(Eval(*expr.operands[1], scope))) return Eval(*expr.operands[0], scope);
  if (expr.operands[2] != nullptr) return Eval(*expr.operands[2], scope);
  return Value::Undefined("an inline if without an else was false");
}

}  // namespace quire::jinja
