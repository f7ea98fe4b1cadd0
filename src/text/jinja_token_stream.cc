#include "text/jinja_token_stream.h"

#include <fmt/format.h>

#include <utility>

#include "io/json.h"

namespace quire::jinja {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "text";
    case TokenKind::kPrintBegin:
      return "{{";
    case TokenKind::kPrintEnd:
      return "}}";
    case TokenKind::kBlockBegin:
      return "{%";
    case TokenKind::kBlockEnd:
      return "%}";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return QuoteForMessage(token.text);
  }
}

}  // namespace

TokenStream::TokenStream(std::string_view source, std::string_view name)
    : tokens_(Tokenize(source, name)), name_(name) {}

Token TokenStream::Take() {
  const Token token = current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::IsNameToken(const Token& token, std::string_view name) {
  return token.kind == TokenKind::kName && token.text == name;
}

bool TokenStream::IsOperatorToken(const Token& token, std::string_view text) {
  return token.kind == TokenKind::kOperator && token.text == text;
}

bool TokenStream::SkipName(std::string_view name) {
  const bool is_it = IsName(name);
  if (is_it) ++at_;
  return is_it;
}

bool TokenStream::SkipOperator(std::string_view text) {
  const bool is_it = IsOperator(text);
  if (is_it) ++at_;
  return is_it;
}

Token TokenStream::Expect(TokenKind kind, std::string_view what) {
  if (!Is(kind)) RefuseCurrent(what);
  return Take();
}

void TokenStream::ExpectName(std::string_view name) {
  if (!SkipName(name)) RefuseCurrent(name);
}

void TokenStream::ExpectOperator(std::string_view text) {
  if (!SkipOperator(text)) RefuseCurrent(text);
}

void TokenStream::Refuse(const std::string& what, int line) const {
  throw Error(ErrorCode::kInvalidArgument, "{}: line {}: {}", name_, line, what);
}

void TokenStream::RefuseCurrent(std::string_view expected) const {
  Refuse(fmt::format("expected {}, got {}", expected, Describe(current())));
}

}  // namespace quire::jinja
