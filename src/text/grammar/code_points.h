// CodePoints is a set of Unicode characters, as regular expressions and grammars name them.
#ifndef QUIRE_TEXT_GRAMMAR_CODE_POINTS_H_
#define QUIRE_TEXT_GRAMMAR_CODE_POINTS_H_

#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

namespace quire {

struct CodePointRange {
  char32_t first = 0;
  char32_t last = 0;  // included
  bool operator==(const CodePointRange&) const = default;
};

inline constexpr char32_t kLastCodePoint = 0x10FFFF;

// Invariant: ranges ascend, do not touch, and hold no surrogate.
class CodePoints {
 public:
  CodePoints() = default;
  CodePoints(std::initializer_list<CodePointRange> ranges);
  static CodePoints All();

  void Add(char32_t first, char32_t last);  // surrogates among them are left out
  void Add(std::span<const CodePointRange> ranges);
  void Add(const CodePoints& other) { Add(other.ranges()); }
  CodePoints Complement() const;
  CodePoints Without(const CodePoints& other) const;

  bool Contains(char32_t character) const;
  bool empty() const { return ranges_.empty(); }
  std::span<const CodePointRange> ranges() const { return ranges_; }
  bool operator==(const CodePoints&) const = default;

 private:
  void Append(char32_t first, char32_t last);
  void Normalize();

  std::vector<CodePointRange> ranges_;
};

// The bytes that the characters of a range have in UTF-8: a character matches if each of its bytes is
// within the range at its place.
struct Utf8Range {
  struct Bytes {
    uint8_t first = 0;
    uint8_t last = 0;
  };
  Bytes bytes[4] = {};
  int length = 0;
};
std::vector<Utf8Range> Utf8Ranges(const CodePoints& set);

}  // namespace quire

#endif  // QUIRE_TEXT_GRAMMAR_CODE_POINTS_H_
