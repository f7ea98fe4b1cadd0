#include "serve/request_fields.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/suggest.h"
#include "io/json.h"

namespace quire {
namespace {

// More than twice what any request has. Names are looked up one by one, so a million of them would
// cost more than their bytes.
constexpr size_t kMaxFields = 128;

bool IsPlainName(std::string_view name) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  constexpr size_t kMaxBytes = 64;
  return !name.empty() && name.size() <= kMaxBytes &&
         name.find_first_not_of(kPlain) == std::string_view::npos;
}

}  // namespace

OrderedJson ParseRequestBody(std::string_view body, const RequestLimits& limits) {
  OrderedJson value;
  try {
    value = ParseOrderedJson(body, "body",
                             {.max_bytes = limits.max_bytes,
                              .max_depth = limits.max_depth,
                              .max_values = limits.max_values});
  } catch (const Error& error) {
    throw BadField("", error.what());
  }
  if (!value.is_object()) {
    throw BadField("",
                   fmt::format("body: expected a JSON object, got {}", DescribeForMessage(value)));
  }
  return value;
}

int64_t RequestField::Int(int64_t min, int64_t max) const {
  const auto in_range = [&](auto number) {
    return std::cmp_greater_equal(number, min) && std::cmp_less_equal(number, max);
  };
  const bool fits = value_->is_number_unsigned()  ? in_range(value_->get<uint64_t>())
                    : value_->is_number_integer() ? in_range(value_->get<int64_t>())
                                                  : false;
  if (!fits) {
    Refuse(max < std::numeric_limits<int64_t>::max() ? fmt::format("an integer {}..{}", min, max)
           : min > std::numeric_limits<int64_t>::min()
               ? fmt::format("an integer of {} or more", min)
               : "an integer of 64 bits");
  }
  return value_->get<int64_t>();
}

int32_t RequestField::Token() const {
  return static_cast<int32_t>(Int(0, std::numeric_limits<int32_t>::max()));
}

double RequestField::Number(double min, double max) const {
  const double number = value_->is_number() ? value_->get<double>() : max + 1;
  if (!(number >= min && number <= max)) Refuse(fmt::format("a number {}..{}", min, max));
  return number;
}

bool RequestField::Bool() const {
  if (!value_->is_boolean()) Refuse("true or false");
  return value_->get<bool>();
}

std::string RequestField::String() const {
  if (!value_->is_string()) Refuse("a string");
  return value_->get<std::string>();
}

std::string RequestField::String(size_t min_bytes, size_t max_bytes) const {
  std::string text = String();
  if (text.size() < min_bytes) Refuse("a string that is not empty");
  if (text.size() > max_bytes) {
    throw BadField(path_, fmt::format("{}: expected a string of at most {} bytes, got {} bytes",
                                      path_, max_bytes, text.size()));
  }
  return text;
}

std::vector<RequestField> RequestField::Array() const {
  if (!value_->is_array()) Refuse("an array");
  std::vector<RequestField> elements;
  elements.reserve(value_->size());
  for (const OrderedJson& element : *value_) {
    elements.emplace_back(element, fmt::format("{}[{}]", path_, elements.size()), ignore_);
  }
  return elements;
}

// Not by Array: there may be a million, and only a refusal needs a path.
std::vector<int32_t> RequestField::Tokens() const {
  if (!value_->is_array()) Refuse("an array of token ids");
  std::vector<int32_t> tokens;
  tokens.reserve(value_->size());
  for (const OrderedJson& element : *value_) {
    const bool fits = element.is_number_unsigned() &&
                      element.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
    tokens.push_back(
        fits ? element.get<int32_t>()
             : RequestField(element, fmt::format("{}[{}]", path_, tokens.size())).Token());
  }
  return tokens;
}

RequestFields RequestField::Object() const {
  if (!value_->is_object()) Refuse("an object");
  return {*value_, path_, ignore_};
}

void RequestField::Refuse(std::string_view expected) const {
  throw BadField(
      path_, fmt::format("{}: expected {}, got {}", path_, expected, DescribeForMessage(*value_)));
}

RequestFields::RequestFields(const OrderedJson& object, std::string path,
                             const OnUnknownField* ignore)
    : object_(&object), path_(std::move(path)), ignore_(ignore) {
  if (object.size() > kMaxFields) {
    throw BadField(path_, fmt::format("{}: expected at most {} fields, got {}",
                                      path_.empty() ? "body" : path_, kMaxFields, object.size()));
  }
}

std::optional<RequestField> RequestFields::Find(std::string_view name) {
  known_.emplace_back(name);
  const auto member = object_->find(name);
  if (member == object_->end() || member->is_null()) return std::nullopt;
  return RequestField(*member, PathOf(name), ignore_);
}

RequestField RequestFields::At(std::string_view name) {
  const std::optional<RequestField> field = Find(name);
  if (!field) throw BadField(PathOf(name), fmt::format("{}: missing", PathOf(name)));
  return *field;
}

bool RequestFields::Bool(std::string_view name, bool absent) {
  const std::optional<RequestField> field = Find(name);
  return field ? field->Bool() : absent;
}

int64_t RequestFields::Int(std::string_view name, int64_t min, int64_t max, int64_t absent) {
  const std::optional<RequestField> field = Find(name);
  return field ? field->Int(min, max) : absent;
}

double RequestFields::Number(std::string_view name, double min, double max, double absent) {
  const std::optional<RequestField> field = Find(name);
  return field ? field->Number(min, max) : absent;
}

void RequestFields::RefuseUnknown() const {
  for (const auto& [name, value] : object_->items()) {
    if (std::ranges::find(known_, name) != known_.end()) continue;
    if (ignore_ != nullptr && *ignore_) {
      (*ignore_)(PathOf(name));
    } else {
      throw BadField(PathOf(name),
                     fmt::format("{}: unknown field{}", PathOf(name), DidYouMean(name, known_)));
    }
  }
}

std::string RequestFields::PathOf(std::string_view name) const {
  const std::string step = IsPlainName(name) ? std::string(name) : QuoteForMessage(name);
  return path_.empty() ? step : fmt::format("{}.{}", path_, step);
}

}  // namespace quire
