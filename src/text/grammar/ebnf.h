// Grammars as text, in the form that llama.cpp calls GBNF and that SGLang and vLLM call EBNF:
//
//   root ::= "yes" | "no" reason?      # the answer is a text of the rule "root"
//   reason ::= " because " [a-z ]{1,40} ("." | "!")
//
// Literals in double quotes and classes in brackets have the escapes \n \r \t \\ \" \' \] \[ \- \^ \xHH
// \uHHHH \UHHHHHHHH; "." is any character. A rule ends where the next one begins.
#ifndef QUIRE_TEXT_GRAMMAR_EBNF_H_
#define QUIRE_TEXT_GRAMMAR_EBNF_H_

#include <string_view>

#include "text/grammar/grammar.h"

namespace quire {

// Throws Error(kInvalidArgument), with `source`, the line, and what was expected there.
Grammar ParseEbnf(std::string_view text, std::string_view source);

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_EBNF_H_
