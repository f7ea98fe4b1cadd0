#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/error.h"
#include "io/json.h"
#include "text/regex_dialect.h"
#include "text/utf8.h"

namespace quire {
namespace {

// A match may backtrack over a run of characters a few times, so the steps it may take grow with the
// text. The constant part is PCRE2's own default, tenfold less.
constexpr uint64_t kStepsPerMatch = 1'000'000;
constexpr uint64_t kStepsPerByte = 32;
// The longest pattern in use has about 1 kB.
constexpr size_t kMaxPatternBytes = 1 << 16;

template <class T, void (*Free)(T*)>
struct Freer {
  void operator()(T* pointer) const { Free(pointer); }
};
template <class T, void (*Free)(T*)>
using Owned = std::unique_ptr<T, Freer<T, Free>>;

using Code = Owned<pcre2_code, pcre2_code_free>;
using CompileContext = Owned<pcre2_compile_context, pcre2_compile_context_free>;
using MatchData = Owned<pcre2_match_data, pcre2_match_data_free>;
using MatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;

std::string Pcre2Message(int code) {
  std::array<PCRE2_UCHAR, 256> message = {};
  pcre2_get_error_message(code, message.data(), message.size());
  return reinterpret_cast<const char*>(message.data());
}

CompileContext MakeCompileContext() {
  CompileContext context(pcre2_compile_context_create(nullptr));
  QUIRE_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), kMaxPatternBytes);
  return context;
}

Code Compile(std::string_view pattern, uint32_t options, std::string_view where) {
  const CompileContext context = MakeCompileContext();
  int error = 0;
  PCRE2_SIZE at = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options,
                          &error, &at, context.get()));
  Require(code != nullptr, "{}: expected a regular expression, got {} ({}, at byte {})", where,
          QuoteForMessage(pattern), Pcre2Message(error), at);
  // Without it (an architecture that has none) the same matches are found, only slower.
  (void)pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

size_t CharacterLength(std::string_view text, size_t at) {
  return at < text.size() ? ReadUtf8(text.substr(at)).length : 1;
}

}  // namespace

struct Regex::Compiled {
  std::string pattern;  // as it was given
  Code code;
};

Regex::Regex(std::unique_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Regex::Regex(std::string_view pattern, std::string_view where)
    : compiled_(
          new Compiled{std::string(pattern),
                       Compile(TranslateRegex(pattern, where),
                               PCRE2_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, where)}) {}

Regex Regex::Literal(std::string_view text, std::string_view where) {
  return Regex(std::unique_ptr<const Compiled>(
      new Compiled{std::string(text), Compile(text, PCRE2_UTF | PCRE2_LITERAL, where)}));
}

struct RegexScan::Matching {
  MatchData data{pcre2_match_data_create(1, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
};

RegexScan::RegexScan(const Regex& regex)
    : regex_(*regex.compiled_), matching_(std::make_unique<Matching>()) {
  QUIRE_CHECK(matching_->data != nullptr && matching_->context != nullptr);
}
RegexScan::~RegexScan() = default;

void RegexScan::Start(std::string_view text) {
  text_ = text;
  from_ = 0;
  last_end_.reset();
  const uint64_t steps = kStepsPerMatch + kStepsPerByte * text.size();
  pcre2_set_match_limit(matching_->context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
}

std::optional<TextSpan> RegexScan::Search(size_t from) {
  const auto match = [&](uint32_t options) {
    return pcre2_match(regex_.code.get(), reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(),
                       from, PCRE2_NO_UTF_CHECK | options, matching_->data.get(),
                       matching_->context.get());
  };
  int result = match(0);
  // Compiled code has a small stack; the interpreter takes memory as it needs it.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw Error(ErrorCode::kCapacityExceeded,
                "the pattern {} cannot be matched against a text of {} bytes, from byte {}: {}",
                QuoteForMessage(regex_.pattern), text_.size(), from, Pcre2Message(result));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(matching_->data.get());
  return TextSpan{ends[0], ends[1]};
}

std::optional<TextSpan> RegexScan::Next() {
  while (from_ <= text_.size()) {
    const std::optional<TextSpan> match = Search(from_);
    if (!match) return std::nullopt;
    if (match->size() > 0 || match->end != last_end_) {
      from_ = match->end;
      last_end_ = match->end;
      return match;
    }
    from_ += CharacterLength(text_, from_);
  }
  return std::nullopt;
}

}  // namespace quire
