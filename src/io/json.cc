#include "io/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "io/mapped_file.h"

namespace quire {
namespace {

constexpr size_t kMaxQuotedBytes = 120;
constexpr size_t kMaxReasonBytes = 200;

// Walks the text and counts what was read: the parser does not tell its handler where it is.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* num_read) : at_(at), num_read_(num_read) {}

  const char& operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*num_read_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  size_t* num_read_;
};

// "line 3, column 7": where the last of the first num_read characters stands.
std::string LineAndColumn(std::string_view text, size_t num_read) {
  const std::string_view before =
      text.substr(0, std::min(text.size(), std::max<size_t>(num_read, 1) - 1));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // 0 on the first line: npos + 1
  return fmt::format("line {}, column {}", line, before.size() - line_begin + 1);
}

// The library's message without its own prefix and position, in printable ASCII: it quotes what it
// read, which may be long and anything.
std::string Reason(std::string_view what) {
  what.remove_prefix(std::min(what.size(), what.find("] ") + 2));
  if (what.starts_with("parse error")) what.remove_prefix(what.find(": ") + 2);
  std::string reason(what.substr(0, kMaxReasonBytes));
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return reason + (what.size() > kMaxReasonBytes ? "..." : "");
}

// What is read, and how to refuse it.
struct Source {
  std::string_view text;
  std::string_view name;

  [[noreturn]] void Refuse(size_t num_read, const std::string& reason) const {
    throw Error(ErrorCode::kInvalidArgument, "{}: {}: {}", name, LineAndColumn(text, num_read),
                reason);
  }
};

// Builds the value from the parser's events, as the library's own builder does, but refuses a key
// that comes twice (the library keeps the last) and too much depth.
template <class Value>
class Builder final : public nlohmann::json_sax<Value> {
 public:
  Builder(const Source& source, const JsonLimits& limits)
      : source_(source), max_depth_(limits.max_depth), values_left_(limits.max_values) {}

  Value Build() {
    const char* begin = source_.text.data();
    Value::sax_parse(CountingIterator(begin, &num_read_),
                     CountingIterator(begin + source_.text.size(), &num_read_), this);
    return std::move(root_);
  }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(typename Value::binary_t&) override { return false; }  // not in text

  bool start_object(size_t) override { return Open(Value::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Value::array()); }
  bool end_array() override { return Close(); }

  bool key(std::string& key) override {
    member_ = AddMember(open_.back()->template get_ref<typename Value::object_t&>(), key);
    if (member_ == nullptr) {
      source_.Refuse(num_read_, fmt::format("duplicate key {}", QuoteForMessage(key)));
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    source_.Refuse(position, Reason(error.what()));
  }

 private:
  // The value of a new key, or null if it has come before.
  Json* AddMember(Json::object_t& object, const std::string& key) {
    const auto [member, is_new] = object.emplace(key, nullptr);
    return is_new ? &member->second : nullptr;
  }
  OrderedJson* AddMember(OrderedJson::object_t& object, const std::string& key) {
    if (!keys_.back().insert(key).second) return nullptr;
    // Without the search through all others that the library would do.
    return &static_cast<OrderedJson::object_t::Container&>(object)
                .emplace_back(key, nullptr)
                .second;
  }

  // Puts the value where it belongs, at the end of the open array or behind the last key.
  Value* Put(Value value) {
    if (values_left_-- == 0) source_.Refuse(num_read_, "more values than are allowed");
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*member_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  bool Add(Value value) {
    Put(std::move(value));
    return true;
  }
  bool Open(Value container) {
    if (std::cmp_greater_equal(open_.size(), max_depth_)) {
      source_.Refuse(num_read_, fmt::format("nested deeper than {}", max_depth_));
    }
    open_.push_back(Put(std::move(container)));
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  Source source_;
  int max_depth_;
  int64_t values_left_;
  size_t num_read_ = 0;
  Value root_;
  std::vector<Value*> open_;  // the containers around the next value, outermost first
  std::vector<std::unordered_set<std::string>> keys_;  // theirs, if they are ordered
  Value* member_ = nullptr;                            // the value of the last key
};

template <class Value>
Value Parse(std::string_view text, std::string_view source, const JsonLimits& limits) {
  Require(std::cmp_less_equal(text.size(), limits.max_bytes.raw()),
          "{}: expected at most {} bytes, got {}", source, limits.max_bytes, text.size());
  Require(!text.empty(), "{}: line 1, column 1: expected a JSON value, got an empty text", source);
  return Builder<Value>({.text = text, .name = source}, limits).Build();
}

template <class Value>
std::string Describe(const Value& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_string()) return QuoteForMessage(value.template get_ref<const std::string&>());
  return value.dump();
}

bool IsPlainKey(std::string_view key) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !key.empty() && key.find_first_not_of(kPlain) == std::string_view::npos;
}

}  // namespace

Json ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits) {
  return Parse<Json>(text, source, limits);
}

OrderedJson ParseOrderedJson(std::string_view text, std::string_view source,
                             const JsonLimits& limits) {
  return Parse<OrderedJson>(text, source, limits);
}

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Json ReadJsonFile(const std::filesystem::path& path, const JsonLimits& limits) {
  const MappedFile file(path);
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  return ParseJson({text, file.bytes().size()}, path.string(), limits);
}

std::string QuoteForMessage(std::string_view text) {
  const std::string quoted =
      Json(text.substr(0, kMaxQuotedBytes)).dump(-1, ' ', false, Json::error_handler_t::replace);
  return quoted + (text.size() > kMaxQuotedBytes ? "..." : "");
}

std::string DescribeForMessage(const OrderedJson& value) { return Describe(value); }

JsonRef::JsonRef(const Json& value, std::string_view source) : value_(&value), where_(source) {}

int64_t JsonRef::Int(int64_t min, int64_t max) const {
  const auto in_range = [&](auto number) {
    return std::cmp_greater_equal(number, min) && std::cmp_less_equal(number, max);
  };
  const bool fits = value_->is_number_unsigned()  ? in_range(value_->get<uint64_t>())
                    : value_->is_number_integer() ? in_range(value_->get<int64_t>())
                                                  : false;
  if (!fits) {
    Refuse(max == std::numeric_limits<int64_t>::max()
               ? fmt::format("an integer of {} or more", min)
               : fmt::format("an integer in {}..{}", min, max));
  }
  return value_->get<int64_t>();
}

double JsonRef::Number() const {
  if (!value_->is_number()) Refuse("a number");
  return value_->get<double>();
}

bool JsonRef::Bool() const {
  if (!value_->is_boolean()) Refuse("true or false");
  return value_->get<bool>();
}

std::string JsonRef::String() const {
  if (!value_->is_string()) Refuse("a string");
  return value_->get<std::string>();
}

std::string JsonRef::OneOf(std::initializer_list<std::string_view> allowed) const {
  const auto* text = value_->get_ptr<const std::string*>();
  if (text == nullptr || std::find(allowed.begin(), allowed.end(), *text) == allowed.end()) {
    Refuse(fmt::format("one of \"{}\"", fmt::join(allowed, "\", \"")));
  }
  return *text;
}

std::vector<JsonRef> JsonRef::Array() const {
  if (!value_->is_array()) Refuse("an array");
  std::vector<JsonRef> elements;
  elements.reserve(value_->size());
  for (const Json& element : *value_) {
    elements.push_back(
        JsonRef(element, fmt::format("{}[{}]", where_, elements.size()), Place::kInside));
  }
  return elements;
}

JsonRef JsonRef::At(std::string_view key) const {
  RequireObject();
  const auto member = value_->find(key);
  if (member == value_->end()) {
    throw Error(ErrorCode::kInvalidArgument, "{}: missing", Member(key, *value_).where());
  }
  return Member(key, *member);
}

std::optional<JsonRef> JsonRef::Find(std::string_view key) const {
  RequireObject();
  const auto member = value_->find(key);
  if (member == value_->end() || member->is_null()) return std::nullopt;
  return Member(key, *member);
}

std::vector<std::pair<std::string, JsonRef>> JsonRef::Members() const {
  RequireObject();
  std::vector<std::pair<std::string, JsonRef>> members;
  members.reserve(value_->size());
  for (const auto& [key, value] : value_->items()) members.emplace_back(key, Member(key, value));
  return members;
}

std::vector<std::string> JsonRef::UnknownKeys(std::span<const std::string_view> known) const {
  RequireObject();
  std::vector<std::string> unknown;
  for (const auto& [key, value] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) unknown.push_back(key);
  }
  return unknown;
}

JsonRef JsonRef::Member(std::string_view key, const Json& value) const {
  return {value,
          fmt::format("{}{}{}", where_, place_ == Place::kRoot ? ": " : ".",
                      IsPlainKey(key) ? std::string(key) : QuoteForMessage(key)),
          Place::kInside};
}

void JsonRef::RequireObject() const {
  if (!value_->is_object()) Refuse("an object");
}

void JsonRef::Refuse(std::string_view expected) const {
  throw Error(ErrorCode::kInvalidArgument, "{}: expected {}, got {}", where_, expected,
              Describe(*value_));
}

}  // namespace quire
