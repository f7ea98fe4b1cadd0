// The tokens of a template, read one after the other.
#ifndef QUIRE_TEXT_JINJA_TOKEN_STREAM_H_
#define QUIRE_TEXT_JINJA_TOKEN_STREAM_H_

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_lexer.h"

namespace quire::jinja {

class TokenStream {
 public:
  TokenStream(std::string_view source, std::string_view name);

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }

  Token Take();
  bool Is(TokenKind kind) const { return current().kind == kind; }
  bool IsName(std::string_view name) const { return IsNameToken(current(), name); }
  bool IsOperator(std::string_view text) const { return IsOperatorToken(current(), text); }
  static bool IsNameToken(const Token& token, std::string_view name);
  static bool IsOperatorToken(const Token& token, std::string_view text);

  // Takes the token if it is that one.
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view text);

  // Takes the token, or refuses it.
  Token Expect(TokenKind kind, std::string_view what);
  void ExpectName(std::string_view name);
  void ExpectOperator(std::string_view text);

  [[noreturn]] void Refuse(const std::string& what) const { Refuse(what, line()); }
  [[noreturn]] void Refuse(const std::string& what, int line) const;
  [[noreturn]] void RefuseCurrent(std::string_view expected) const;

 private:
  std::vector<Token> tokens_;
  std::string name_;
  size_t at_ = 0;
};

}  // namespace quire::jinja

#endif  // QUIRE_TEXT_JINJA_TOKEN_STREAM_H_
