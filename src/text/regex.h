// The regular expressions of tokenizer files, matched by PCRE2.
//
// Unicode's tables are PCRE2's own (14.0 in 10.42): a character that was assigned later is no letter,
// digit or mark here, though it may be one for a newer library.
#ifndef QUIRE_TEXT_REGEX_H_
#define QUIRE_TEXT_REGEX_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace quire {

// Bytes of a text: [begin, end).
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  std::string_view In(std::string_view text) const { return text.substr(begin, end - begin); }
  bool operator==(const TextSpan&) const = default;
};

// Immutable: any number of threads may match at once.
class Regex {
 public:
  // `pattern` is in the dialect of tokenizer files (text/regex_dialect.h). Throws
  // Error(kInvalidArgument) that begins with `where` if it is none, or has parts that are refused.
  Regex(std::string_view pattern, std::string_view where);
  // Finds `text` itself.
  static Regex Literal(std::string_view text, std::string_view where);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

 private:
  friend class RegexScan;
  struct Compiled;
  explicit Regex(std::unique_ptr<const Compiled> compiled);

  std::unique_ptr<const Compiled> compiled_;
};

// The matches of a Regex in a text, from left to right, none overlapping another. An empty match
// directly behind a match does not count.
class RegexScan {
 public:
  explicit RegexScan(const Regex& regex);  // which must outlive this
  ~RegexScan();
  RegexScan(const RegexScan&) = delete;
  RegexScan& operator=(const RegexScan&) = delete;

  // Begins with a text, which is UTF-8 and must live until the last Next.
  void Start(std::string_view text);

  // Throws Error(kCapacityExceeded) if a match takes more steps than a text of this length may need.
  std::optional<TextSpan> Next();

 private:
  struct Matching;

  std::optional<TextSpan> Search(size_t from);

  const Regex::Compiled& regex_;
  std::unique_ptr<Matching> matching_;
  std::string_view text_ = {};
  size_t from_ = 0;
  std::optional<size_t> last_end_ = {};
};

}  // namespace quire

#endif  // QUIRE_TEXT_REGEX_H_
