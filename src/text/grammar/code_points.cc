#include "text/grammar/code_points.h"

#include <algorithm>
#include <string>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr char32_t kFirstSurrogate = 0xD800;
constexpr char32_t kLastSurrogate = 0xDFFF;

// Both have as many bytes. Splits the range until every byte but one first part is a full range.
void AddUtf8(char32_t first, char32_t last, std::vector<Utf8Range>& out) {
  std::string low, high;
  AppendUtf8(first, low);
  AppendUtf8(last, high);
  const int length = static_cast<int>(low.size());
  for (int rest = length - 1; rest >= 1; --rest) {  // so many bytes are behind the one that is cut
    const char32_t mask = (char32_t{1} << (6 * rest)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      AddUtf8(first, first | mask, out);
      AddUtf8((first | mask) + 1, last, out);
      return;
    }
    if ((last & mask) != mask) {
      AddUtf8(first, (last & ~mask) - 1, out);
      AddUtf8(last & ~mask, last, out);
      return;
    }
  }
  Utf8Range range{.length = length};
  for (int i = 0; i < length; ++i) {
    range.bytes[i] = {.first = static_cast<uint8_t>(low[static_cast<size_t>(i)]),
                      .last = static_cast<uint8_t>(high[static_cast<size_t>(i)])};
  }
  out.push_back(range);
}

}  // namespace

CodePoints::CodePoints(std::initializer_list<CodePointRange> ranges) {
  Add(std::span(ranges.begin(), ranges.size()));
}

CodePoints CodePoints::All() { return {{0, kLastCodePoint}}; }

void CodePoints::Add(char32_t first, char32_t last) {
  const CodePointRange range{first, last};
  Add(std::span(&range, 1));
}

void CodePoints::Add(std::span<const CodePointRange> ranges) {
  for (const CodePointRange& range : ranges) Append(range.first, range.last);
  Normalize();
}

void CodePoints::Append(char32_t first, char32_t last) {
  last = std::min(last, kLastCodePoint);
  if (first < kFirstSurrogate)
    ranges_.push_back({first, std::min<char32_t>(last, kFirstSurrogate - 1)});
  if (last > kLastSurrogate)
    ranges_.push_back({std::max<char32_t>(first, kLastSurrogate + 1), last});
}

void CodePoints::Normalize() {
  std::ranges::sort(ranges_, {}, &CodePointRange::first);
  std::vector<CodePointRange> joined;
  for (const CodePointRange& range : ranges_) {
    if (range.first > range.last) continue;
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  ranges_ = std::move(joined);
}

CodePoints CodePoints::Complement() const {
  CodePoints out;
  char32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) out.Append(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) out.Append(next, kLastCodePoint);
  out.Normalize();
  return out;
}

CodePoints CodePoints::Without(const CodePoints& other) const {
  CodePoints outside = Complement();
  outside.Add(other);
  return outside.Complement();
}

bool CodePoints::Contains(char32_t character) const {
  return std::ranges::any_of(ranges_, [&](const CodePointRange& range) {
    return character >= range.first && character <= range.last;
  });
}

std::vector<Utf8Range> Utf8Ranges(const CodePoints& set) {
  constexpr CodePointRange kLengths[] = {
      {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kLastCodePoint}};
  std::vector<Utf8Range> out;
  for (const CodePointRange& range : set.ranges()) {
    for (const CodePointRange& length : kLengths) {
      const char32_t first = std::max(range.first, length.first);
      const char32_t last = std::min(range.last, length.last);
      if (first <= last) AddUtf8(first, last, out);
    }
  }
  return out;
}

}  // namespace quire
