#include "text/jinja_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "text/jinja_operators.h"
#include "text/python_text.h"

namespace quire::jinja {
namespace {

std::string ReprItems(Heap& heap, const std::vector<Value>& items) {
  std::string text;
  for (const Value& item : items) {
    if (!text.empty()) text += ", ";
    text += Repr(heap, item);
  }
  return text;
}

std::string ReprDict(Heap& heap, const Dict& dict) {
  std::string text;
  for (const auto& [key, value] : dict.members) {
    if (!text.empty()) text += ", ";
    text += Repr(heap, key) + ": " + Repr(heap, value);
  }
  return "{" + text + "}";
}

class JsonPrinter {
 public:
  JsonPrinter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  std::string Take() { return std::move(out_); }

  void Put(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.AsBool() ? "true" : "false";
        break;
      case Kind::kInt:
        out_ += fmt::to_string(value.AsWhole());
        break;
      case Kind::kFloat:
        out_ += Float(value.AsFloat());
        break;
      case Kind::kString:
        PutString(value.AsString());
        break;
      case Kind::kList:
      case Kind::kTuple:
        PutItems(value.Items());
        break;
      case Kind::kDict:
        PutMembers(value.AsDict());
        break;
      default:
        Fail("'{}' cannot be written as JSON", TypeName(value));
    }
  }

 private:
  static std::string Float(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return PrintFloat(number);
  }

  void PutString(const std::string& text) {
    heap_.Spend(std::ssize(text));
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t code = NextCodePoint(text, &at);
      if (!PutEscape(code)) out_ += text.substr(begin, at - begin);
    }
    out_ += '"';
  }

  // True if the character has to be written as an escape, and then it is.
  bool PutEscape(char32_t code) {
    switch (code) {
      case '"':
        out_ += "\\\"";
        return true;
      case '\\':
        out_ += "\\\\";
        return true;
      case '\n':
        out_ += "\\n";
        return true;
      case '\r':
        out_ += "\\r";
        return true;
      case '\t':
        out_ += "\\t";
        return true;
      case '\f':
        out_ += "\\f";
        return true;
      case '\b':
        out_ += "\\b";
        return true;
      default:
        break;
    }
    if (code >= 0x20 && (!style_.ensure_ascii || code < 0x7f)) return false;
    const auto number = static_cast<uint32_t>(code);
    if (code < 0x10000) {
      out_ += fmt::format("\\u{:04x}", number);
    } else {
      const uint32_t above = number - 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (above >> 10), 0xdc00 + (above & 0x3ff));
    }
    return true;
  }

  void PutItems(const std::vector<Value>& items) {
    out_ += '[';
    ++level_;
    for (const Value& item : items) {
      PutBreak(&item == items.data());
      Put(item);
    }
    Close(']', items.empty());
  }

  void PutMembers(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> members;
    for (const auto& member : dict.members) members.push_back(&member);
    if (style_.sort_keys) {
      std::stable_sort(members.begin(), members.end(), [&](const auto* a, const auto* b) {
        return Less(heap_, a->first, b->first);
      });
    }
    out_ += '{';
    ++level_;
    for (const auto* member : members) {
      PutBreak(member == members.front());
      PutString(KeyText(member->first));
      out_ += style_.key_separator;
      Put(member->second);
    }
    Close('}', members.empty());
  }

  std::string KeyText(const Value& key) {
    if (key.Is(Kind::kString)) return key.AsString();
    Require(key.IsNumber() || key.Is(Kind::kNone), "'{}' cannot be a key in JSON", TypeName(key));
    JsonPrinter printer(heap_, style_);
    printer.Put(key);
    return printer.Take();
  }

  // What stands before an element.
  void PutBreak(bool is_first) {
    if (!is_first) out_ += style_.item_separator;
    PutNewLine();
    heap_.Spend(std::ssize(style_.item_separator) + std::ssize(style_.key_separator));
  }

  void PutNewLine() {
    if (!style_.indent) return;
    out_ += '\n';
    heap_.Spend(level_ * std::ssize(*style_.indent));
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  void Close(char bracket, bool is_empty) {
    --level_;
    if (!is_empty) PutNewLine();
    out_ += bracket;
  }

  Heap& heap_;
  const JsonStyle& style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

std::string Print(Heap& heap, const Value& value) {
  if (value.Is(Kind::kUndefined)) return "";
  if (value.Is(Kind::kString)) return value.AsString();
  return Repr(heap, value);
}

std::string Repr(Heap& heap, const Value& value) {
  heap.Spend(value.weight());
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.AsBool() ? "True" : "False";
    case Kind::kInt:
      return fmt::to_string(value.AsWhole());
    case Kind::kFloat:
      return PrintFloat(value.AsFloat());
    case Kind::kString:
      return value.is_markup() ? "Markup(" + Quote(value.AsString()) + ")"
                               : Quote(value.AsString());
    case Kind::kList:
      return "[" + ReprItems(heap, value.Items()) + "]";
    case Kind::kTuple:
      return "(" + ReprItems(heap, value.Items()) + (value.Items().size() == 1 ? ",)" : ")");
    case Kind::kDict:
      return ReprDict(heap, value.AsDict());
    case Kind::kView:
      return value.Label() + "([" + ReprItems(heap, value.Items()) + "])";
    case Kind::kRange:
      return value.Label();
    default:
      Fail("'{}' cannot be printed", TypeName(value));
  }
}

std::string PrintJson(Heap& heap, const Value& value, const JsonStyle& style) {
  heap.Spend(value.weight());
  JsonPrinter printer(heap, style);
  printer.Put(value);
  return printer.Take();
}

std::string EscapeHtml(Heap& heap, std::string_view text) {
  heap.Spend(std::ssize(text));
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace quire::jinja
