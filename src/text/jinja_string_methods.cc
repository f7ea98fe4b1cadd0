#include "text/jinja_string_methods.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "text/jinja_args.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

int64_t Clamp64(Int value) {
  return static_cast<int64_t>(std::clamp<Int>(value, std::numeric_limits<int64_t>::min(),
                                              std::numeric_limits<int64_t>::max()));
}

// The part of a string that the arguments `start` and `end` at `index` leave to search in, and
// where it begins, in code points. Absent bounds are the whole.
struct Window {
  std::string_view text;
  int64_t begin = 0;
  bool is_valid = true;  // false: begins behind the end, where not even "" is found
};

Window WindowOf(const std::string& text, const BoundArgs& bound, size_t index) {
  if (!bound.HasValue(index) && !bound.HasValue(index + 1)) return {.text = text};
  const Int length = CountCodePoints(text);
  const auto place = [&](size_t i, Int otherwise) {
    if (!bound.HasValue(i)) return otherwise;
    const Int at = bound.IntOr(i, 0);
    return std::clamp<Int>(at < 0 ? at + length : at, 0, length + 1);
  };
  const Int begin = place(index, 0);
  const Int end = std::min(place(index + 1, length), length);
  if (begin > end) return {.text = {}, .begin = static_cast<int64_t>(begin), .is_valid = false};
  size_t first = 0;
  for (Int i = 0; i < begin; ++i) (void)NextCodePoint(text, &first);
  size_t last = first;
  for (Int i = begin; i < end; ++i) (void)NextCodePoint(text, &last);
  return {.text = std::string_view(text).substr(first, last - first),
          .begin = static_cast<int64_t>(begin)};
}

using StripFn = std::string_view (*)(std::string_view);
using StripCharsFn = std::string_view (*)(std::string_view, std::string_view);

Value StripWith(Heap& heap, const Value& self, const Args& args, StripFn strip,
                StripCharsFn strip_chars) {
  const BoundArgs bound("strip", args, {"chars"});
  const std::string& text = self.AsString();
  if (!bound.HasValue(0)) return heap.String(std::string(strip(text)));
  heap.Spend(std::ssize(text) * std::ssize(bound.String(0)));
  return heap.String(std::string(strip_chars(text, bound.String(0))));
}

Value StripMethod(Heap& heap, const Value& self, const Args& args) {
  return StripWith(heap, self, args, Strip, [](std::string_view text, std::string_view chars) {
    return StripLeft(StripRight(text, chars), chars);
  });
}
Value LeftStrip(Heap& heap, const Value& self, const Args& args) {
  return StripWith(heap, self, args, StripLeft, StripLeft);
}
Value RightStrip(Heap& heap, const Value& self, const Args& args) {
  return StripWith(heap, self, args, StripRight, StripRight);
}

// At stretches of whitespace, from the left; what is left after `count` splits is the last part.
std::vector<std::string_view> SplitWords(std::string_view text, int64_t count) {
  std::vector<std::string_view> words;
  for (text = StripLeft(text); !text.empty(); text = StripLeft(text)) {
    if (count-- == 0) {
      words.push_back(StripRight(text));
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      size_t next = end;
      if (IsSpace(NextCodePoint(text, &next))) break;
      end = next;
    }
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t count) {
  std::vector<std::string_view> parts;
  while (count-- != 0) {
    const size_t at = text.find(separator);
    if (at == kNone) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

// The same from the right.
std::vector<std::string_view> SplitLastAt(std::string_view text, std::string_view separator,
                                          int64_t count) {
  std::vector<std::string_view> parts;
  while (count-- != 0) {
    const size_t at = text.rfind(separator);
    if (at == kNone) break;
    parts.push_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value ListOf(Heap& heap, const std::vector<std::string_view>& parts) {
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(heap.String(std::string(part)));
  return heap.List(std::move(items));
}

Value Split(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("split", args, {"sep", "maxsplit"});
  const int64_t count = Clamp64(bound.IntOr(1, -1));
  heap.Spend(16 * self.weight());
  if (!bound.HasValue(0)) return ListOf(heap, SplitWords(self.AsString(), count));
  Require(!bound.String(0).empty(), "split: the separator is empty");
  return ListOf(heap, SplitAt(self.AsString(), bound.String(0), count));
}

Value RightSplit(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("rsplit", args, {"sep", "maxsplit"});
  const int64_t count = Clamp64(bound.IntOr(1, -1));
  heap.Spend(16 * self.weight());
  Require(bound.HasValue(0) || count < 0, "rsplit: maxsplit without a separator is not supported");
  if (!bound.HasValue(0)) return ListOf(heap, SplitWords(self.AsString(), count));
  Require(!bound.String(0).empty(), "rsplit: the separator is empty");
  return ListOf(heap, SplitLastAt(self.AsString(), bound.String(0), count));
}

Value SplitLinesMethod(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("splitlines", args, {"keepends"});
  Require(!bound.BoolOr(0, false), "splitlines: keepends is not supported");
  heap.Spend(16 * self.weight());
  return ListOf(heap, SplitLines(self.AsString()));
}

Value Parted(Heap& heap, std::string_view a, std::string_view b, std::string_view c) {
  return heap.Tuple(
      {heap.String(std::string(a)), heap.String(std::string(b)), heap.String(std::string(c))});
}

Value Partition(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("partition", args, {"sep"}, 1);
  const std::string_view text = self.AsString();
  const std::string& separator = bound.String(0);
  Require(!separator.empty(), "partition: the separator is empty");
  const size_t at = text.find(separator);
  if (at == kNone) return Parted(heap, text, "", "");
  return Parted(heap, text.substr(0, at), separator, text.substr(at + separator.size()));
}

// startswith and endswith: with one string, or any of a tuple.
template <class Fn>
Value MatchesAny(Heap& heap, std::string_view callee, const Value& self, const Args& args,
                 Fn matches) {
  const BoundArgs bound(callee, args, {"prefix", "start", "end"}, 1);
  const Window window = WindowOf(self.AsString(), bound, 1);
  if (!bound.At(0).Is(Kind::kTuple)) {
    return Value::Bool(window.is_valid && matches(window.text, bound.String(0)));
  }
  heap.Spend(bound.At(0).weight());
  bool found = false;
  for (const Value& item : bound.At(0).Items()) {
    Require(item.Is(Kind::kString), "{}: expected a tuple of str", callee);
    found = found || (window.is_valid && matches(window.text, item.AsString()));
  }
  return Value::Bool(found);
}

Value StartsWith(Heap& heap, const Value& self, const Args& args) {
  return MatchesAny(
      heap, "startswith", self, args,
      [](std::string_view text, std::string_view part) { return text.starts_with(part); });
}

Value EndsWith(Heap& heap, const Value& self, const Args& args) {
  return MatchesAny(heap, "endswith", self, args, [](std::string_view text, std::string_view part) {
    return text.ends_with(part);
  });
}

enum class Side { kLeft, kRight };

// In code points; -1 if there is none.
Int FindIn(std::string_view callee, const Value& self, const Args& args, Side side) {
  const BoundArgs bound(callee, args, {"sub", "start", "end"}, 1);
  const Window window = WindowOf(self.AsString(), bound, 1);
  const std::string& part = bound.String(0);
  const size_t at = side == Side::kLeft ? window.text.find(part) : window.text.rfind(part);
  if (!window.is_valid || at == kNone) return -1;
  return window.begin + CountCodePoints(window.text.substr(0, at));
}

Value FindMethod(Heap&, const Value& self, const Args& args) {
  return Value::Integer(FindIn("find", self, args, Side::kLeft));
}
Value RightFind(Heap&, const Value& self, const Args& args) {
  return Value::Integer(FindIn("rfind", self, args, Side::kRight));
}
Value IndexMethod(Heap&, const Value& self, const Args& args) {
  const Int at = FindIn("index", self, args, Side::kLeft);
  Require(at >= 0, "index: the text is not in the str");
  return Value::Integer(at);
}

int64_t CountIn(std::string_view text, std::string_view part) {
  if (part.empty()) return CountCodePoints(text) + 1;
  int64_t count = 0;
  for (size_t at = text.find(part); at != kNone; at = text.find(part, at + part.size())) ++count;
  return count;
}

Value CountMethod(Heap&, const Value& self, const Args& args) {
  const BoundArgs bound("count", args, {"sub", "start", "end"}, 1);
  const Window window = WindowOf(self.AsString(), bound, 1);
  const std::string& part = bound.String(0);
  return Value::Integer(window.is_valid ? CountIn(window.text, part) : 0);
}

Value ReplaceMethod(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("replace", args, {"old", "new", "count"}, 2);
  return heap.String(Replace(heap, self.AsString(), bound.String(0), bound.String(1),
                             Clamp64(bound.IntOr(2, -1))));
}

Value Join(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("join", args, {"iterable"}, 1);
  std::string joined;
  bool is_first = true;
  for (const Value& item : Iterate(heap, bound.At(0))) {
    Require(item.Is(Kind::kString), "join: expected str elements, got '{}'", TypeName(item));
    heap.Spend(self.weight() + item.weight());
    if (!is_first) joined += self.AsString();
    joined += item.AsString();
    is_first = false;
  }
  return heap.String(std::move(joined));
}

template <std::string (*convert)(std::string_view)>
Value ConvertMethod(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("the method", args, {});
  heap.Spend(4 * self.weight());
  return heap.String(convert(self.AsString()));
}

template <bool (*holds)(std::string_view)>
Value Tested(Heap& heap, const Value& self, const Args& args) {
  const BoundArgs bound("the method", args, {});
  heap.Spend(4 * self.weight());
  return Value::Bool(holds(self.AsString()));
}

bool IsAllSpace(std::string_view text) { return !text.empty() && StripLeft(text).empty(); }

bool IsAllDigits(std::string_view text) {
  Require(std::all_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x80; }),
          "isdigit: only ASCII is supported");
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// str.format(), with {}, {0} and {name} and nothing inside but that.
class Formatter {
 public:
  Formatter(Heap& heap, const Args& args) : heap_(heap), args_(args) {}

  std::string Format(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      const size_t plain = std::min(text.find_first_of("{}"), text.size());
      out += text.substr(0, plain);
      text.remove_prefix(plain);
      if (text.empty()) break;
      if (text.starts_with("{{") || text.starts_with("}}")) {
        out += text[0];
        text.remove_prefix(2);
        continue;
      }
      const size_t end = text.find('}');
      Require(text[0] == '{' && end != kNone, "format: a single {}", text.substr(0, 1));
      out += Field(text.substr(1, end - 1));
      text.remove_prefix(end + 1);
    }
    return out;
  }

 private:
  std::string Field(std::string_view field) {
    const std::string text = Print(heap_, Find(field));
    heap_.Spend(std::ssize(text));
    return text;
  }

  const Value& Find(std::string_view field) {
    const bool is_digits =
        std::all_of(field.begin(), field.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (is_digits) return Positional(field);
    Require(field.find_first_of("!:.[{") == kNone, "format: '{}' is not supported", field);
    for (const auto& [name, value] : args_.named) {
      if (name == field) return value;
    }
    Fail("format: no argument '{}'", field);
  }

  const Value& Positional(std::string_view digits) {
    Require(digits.size() < 6, "format: no argument {}", digits);
    Require(!(digits.empty() ? numbered_ : next_ > 0), "format: both {{}} and {{0}}");
    numbered_ = !digits.empty();
    const size_t index =
        digits.empty() ? next_++ : static_cast<size_t>(std::stoi(std::string(digits)));
    Require(index < args_.positional.size(), "format: no argument {}", index);
    return args_.positional[index];
  }

  Heap& heap_;
  const Args& args_;
  size_t next_ = 0;        // the argument of the next {}
  bool numbered_ = false;  // a {0} has come
};

Value FormatMethod(Heap& heap, const Value& self, const Args& args) {
  return heap.String(Formatter(heap, args).Format(self.AsString()));
}

struct StringMethod {
  std::string_view name;
  Value (*function)(Heap&, const Value& self, const Args&);
};

constexpr StringMethod kMethods[] = {
    {"strip", StripMethod},
    {"lstrip", LeftStrip},
    {"rstrip", RightStrip},
    {"split", Split},
    {"rsplit", RightSplit},
    {"splitlines", SplitLinesMethod},
    {"partition", Partition},
    {"startswith", StartsWith},
    {"endswith", EndsWith},
    {"find", FindMethod},
    {"rfind", RightFind},
    {"index", IndexMethod},
    {"count", CountMethod},
    {"replace", ReplaceMethod},
    {"join", Join},
    {"upper", ConvertMethod<Upper>},
    {"lower", ConvertMethod<Lower>},
    {"title", ConvertMethod<Title>},
    {"capitalize", ConvertMethod<Capitalize>},
    {"isspace", Tested<IsAllSpace>},
    {"isdigit", Tested<IsAllDigits>},
    {"format", FormatMethod},
};

const StringMethod* FindStringMethod(std::string_view name) {
  const auto* entry = std::find_if(std::begin(kMethods), std::end(kMethods),
                                   [name](const StringMethod& e) { return e.name == name; });
  return entry == std::end(kMethods) ? nullptr : entry;
}

}  // namespace

bool IsStringMethod(std::string_view name) { return FindStringMethod(name) != nullptr; }

Value CallStringMethod(Heap& heap, const Value& self, const std::string& name, const Args& args) {
  Require(!self.is_markup(), "'{}' of text that |safe or |escape has made is not supported", name);
  const StringMethod* entry = FindStringMethod(name);
  QUIRE_CHECK(entry != nullptr, "{}", name);
  return entry->function(heap, self, args);
}

std::string Replace(Heap& heap, std::string_view text, std::string_view from, std::string_view to,
                    int64_t count) {
  const int64_t found = CountIn(text, from);
  int64_t left = count < 0 ? found : std::min(found, count);
  heap.Spend(std::ssize(text) + left * (1 + std::ssize(to)));
  std::string out;
  for (; left > 0; --left) {
    size_t at = text.find(from);
    if (from.empty() && !out.empty()) {  // behind the next character
      at = 0;
      (void)NextCodePoint(text, &at);
    }
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

}  // namespace quire::jinja
