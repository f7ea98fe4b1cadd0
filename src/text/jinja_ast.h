// A parsed template.
#ifndef QUIRE_TEXT_JINJA_AST_H_
#define QUIRE_TEXT_JINJA_AST_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_operators.h"
#include "text/jinja_value.h"

namespace quire::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<Stmt>;

enum class ExprKind {  // operands
  kLiteral,            // none; `literal`
  kName,               // none; `name`
  kList,               // the elements
  kTuple,              // the elements
  kDict,               // key, value, key, value ...
  kAttribute,          // the object; `name`
  kItem,               // the object, the key
  kSlice,              // the object, first, last, step; an absent one is null
  kCall,               // what is called, then the arguments; `named`
  kFilter,       // the value, then the arguments; `name`, `named`. In a filter block, a null value
  kTest,         // the value, then the arguments; `name`, `named`
  kNot,          // one
  kNegative,     // one
  kPositive,     // one
  kBinary,       // two; `binary`
  kConcat,       // two or more, printed one after the other
  kCompare,      // one more than `compares`, which stand between them
  kAnd,          // two
  kOr,           // two
  kConditional,  // then, if, else; an absent else is null
};

struct Expr {
  ExprKind kind = ExprKind::kLiteral;
  int line = 1;
  int depth = 1;  // of this and the expressions in it
  std::string name;
  Value literal;
  BinaryOp binary = BinaryOp::kAdd;
  std::vector<CompareOp> compares;
  std::vector<ExprPtr> operands;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

// What is assigned to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  std::string name;
  std::string attribute;  // empty: the name itself
  std::vector<Target> parts;
  bool is_tuple = false;
};

// Of a macro or a call block. An absent default is null.
struct Parameter {
  std::string name;
  ExprPtr otherwise;
};

struct Branch {
  ExprPtr condition;
  Block body;
};

enum class StmtKind {
  kText,        // `text`
  kPrint,       // `expr`
  kIf,          // `branches`, `otherwise`
  kFor,         // `target` in `expr` if `condition`; `body`, `otherwise`
  kSet,         // `target`, `expr`
  kSetBlock,    // `target`, `body`; `expr`: the filters, or null
  kMacro,       // `text` is the name; `parameters`, `body`
  kCall,        // `expr` is the call; `parameters` and `body` of the caller
  kFilter,      // `expr`: the filters; `body`
  kWith,        // `assignments`, `body`
  kGeneration,  // `body`
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 1;
  std::string text;
  ExprPtr expr;
  ExprPtr condition;
  Target target;
  std::vector<Branch> branches;
  std::vector<Parameter> parameters;
  std::vector<std::pair<Target, ExprPtr>> assignments;
  Block body;
  Block otherwise;
  bool uses_caller = false;  // of a macro
};

struct Template {
  Block body;
};

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_AST_H_
