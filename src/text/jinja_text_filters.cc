#include "text/jinja_text_filters.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_args.h"
#include "text/jinja_print.h"
#include "text/jinja_string_methods.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

// A string that is markup if `model` is.
Value TextLike(Heap& heap, const Value& model, std::string text) {
  const Value made = heap.String(std::move(text));
  return model.is_markup() ? made.AsMarkup() : made;
}

template <std::string (*convert)(std::string_view)>
Value ConvertFilter(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("the filter", args, {});
  heap.Spend(4 * value.weight());
  return TextLike(heap, value, convert(Print(heap, value)));
}

bool SeparatesWords(char32_t code) {
  return IsSpace(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
}

// Unlike str.title(), a word ends only at a space, a dash or an opening bracket.
std::string TitleWords(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t word = 0;  // its bytes
    for (size_t at = 0; at < text.size(); word = at) {
      if (SeparatesWords(NextCodePoint(text, &at))) break;
    }
    size_t first = 0;
    if (word > 0) (void)NextCodePoint(text, &first);
    out += Upper(text.substr(0, first)) + Lower(text.substr(first, word - first));
    text.remove_prefix(word);
    size_t gap = 0;
    if (!text.empty()) (void)NextCodePoint(text, &gap);
    out += text.substr(0, gap);
    text.remove_prefix(gap);
  }
  return out;
}

Value TitleFilter(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("title", args, {});
  heap.Spend(4 * value.weight());
  return heap.String(TitleWords(Print(heap, value)));
}

Value Trim(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("trim", args, {"chars"});
  std::string text = Print(heap, value);
  if (bound.HasValue(0)) {
    heap.Spend(std::ssize(text) * std::ssize(bound.String(0)));
    text = StripLeft(StripRight(text, bound.String(0)), bound.String(0));
  } else {
    text = Strip(text);
  }
  return TextLike(heap, value, std::move(text));
}

Value ReplaceFilter(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("replace", args, {"old", "new", "count"}, 2);
  const Int count = bound.HasValue(2) ? bound.IntOr(2, -1) : -1;
  return heap.String(Replace(heap, Print(heap, value), Print(heap, bound.At(0)),
                             Print(heap, bound.At(1)),
                             static_cast<int64_t>(std::clamp<Int>(count, -1, Int{1} << 40))));
}

Value String(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("string", args, {});
  return value.Is(Kind::kString) ? value : heap.String(Print(heap, value));
}

Value Safe(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("safe", args, {});
  return heap.String(Print(heap, value)).AsMarkup();
}

Value Escape(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("escape", args, {});
  if (value.is_markup()) return value;
  return heap.String(EscapeHtml(heap, Print(heap, value))).AsMarkup();
}

std::string Indentation(Heap& heap, const Value& width) {
  if (width.Is(Kind::kString)) return width.AsString();
  Require(width.IsWhole(), "expected an int or a str as the width, got '{}'", TypeName(width));
  const auto count = static_cast<int64_t>(std::clamp<Int>(width.AsWhole(), 0, Int{1} << 40));
  heap.Spend(count);
  return std::string(static_cast<size_t>(count), ' ');
}

Value Indent(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("indent", args, {"width", "first", "blank"});
  if (value.Is(Kind::kUndefined)) Fail("{}", value.WhyUndefined());
  Require(value.Is(Kind::kString), "indent: expected a str, got '{}'", TypeName(value));
  const std::string indentation = Indentation(heap, bound.ValueOr(0, Value::Integer(4)));
  const bool blank = bound.BoolOr(2, false);
  const std::string text = value.AsString() + "\n";
  std::string out = bound.BoolOr(1, false) ? indentation : "";
  bool is_first = true;
  for (const std::string_view line : SplitLines(text)) {
    heap.Spend(std::ssize(line) + std::ssize(indentation));
    if (!is_first) out += blank || !line.empty() ? "\n" + indentation : "\n";
    out += line;
    is_first = false;
  }
  return TextLike(heap, value, std::move(out));
}

JsonStyle StyleOf(Heap& heap, const BoundArgs& bound) {
  JsonStyle style{.ensure_ascii = bound.BoolOr(0, false), .sort_keys = bound.BoolOr(3, false)};
  if (bound.HasValue(1)) {
    style.indent = Indentation(heap, bound.At(1));
    style.item_separator = ",";
  }
  if (bound.HasValue(2)) {
    const std::vector<Value> separators = Iterate(heap, bound.At(2));
    Require(separators.size() == 2 && separators[0].Is(Kind::kString) &&
                separators[1].Is(Kind::kString),
            "tojson: expected two str as separators");
    style.item_separator = separators[0].AsString();
    style.key_separator = separators[1].AsString();
  }
  return style;
}

Value ToJson(Heap& heap, const Value& value, const Args& args) {
  const BoundArgs bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (value.Is(Kind::kUndefined)) Fail("{}", value.WhyUndefined());
  return heap.String(PrintJson(heap, value, StyleOf(heap, bound)));
}

constexpr Filter kTextFilters[] = {
    {"upper", ConvertFilter<Upper>},
    {"lower", ConvertFilter<Lower>},
    {"capitalize", ConvertFilter<Capitalize>},
    {"title", TitleFilter},
    {"trim", Trim},
    {"replace", ReplaceFilter},
    {"string", String},
    {"safe", Safe},
    {"escape", Escape},
    {"e", Escape},
    {"indent", Indent},
    {"tojson", ToJson},
};

}  // namespace

std::span<const Filter> TextFilters() { return kTextFilters; }

}  // namespace quire::jinja
