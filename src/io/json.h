// JSON from files and requests: parsed within limits, read with messages that say what is where.
//
// Json is nlohmann::json, and OrderedJson keeps the order of the keys of objects; this header only
// declares them. A source that parses or looks into one includes <nlohmann/json.hpp>; one that is
// handed a JsonRef need not.
#ifndef QUIRE_IO_JSON_H_
#define QUIRE_IO_JSON_H_

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"

namespace quire {

using Json = nlohmann::json;
// Chat templates print parts of a request (tools, arguments of calls) as they came, and a model
// sees a different prompt if the keys are sorted.
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  ByteOffset max_bytes{int64_t{128} << 20};  // the largest tokenizers have about 40 MB
  int max_depth = 64;                        // of objects and arrays in one another
  // Of numbers, texts, objects ... together: each takes 16 bytes or more, however short its text.
  int64_t max_values = std::numeric_limits<int64_t>::max();
};

// One JSON value, UTF-8, and nothing after it. `source` names the text in messages. Throws
// Error(kInvalidArgument) with source, line and column (in bytes, from 1) if the text is not that,
// exceeds a limit, or has a key twice in one object.
Json ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits = {});
OrderedJson ParseOrderedJson(std::string_view text, std::string_view source,
                             const JsonLimits& limits = {});
Json ReadJsonFile(const std::filesystem::path& path, const JsonLimits& limits = {});

// On one line, with U+FFFD for what is not UTF-8.
std::string Dump(const OrderedJson& json);

// A string in JSON's quotes, with escapes, cut if long: fit for a message, whatever it contains.
std::string QuoteForMessage(std::string_view text);
// "an object", "an array of 3", a quoted string, or the value itself.
std::string DescribeForMessage(const OrderedJson& value);

// A value together with where it stands: a borrowed Json and, for example, "config.json:
// rope_scaling.factor". Everything that a value does not fit throws Error(kInvalidArgument) with
// where, the expected and the actual. A null counts as absent for Find, not for At.
class JsonRef {
 public:
  // The outermost value of `source`. `value` must outlive the reference.
  JsonRef(const Json& value, std::string_view source);

  const Json& value() const { return *value_; }
  const std::string& where() const { return where_; }

  int64_t Int(int64_t min, int64_t max) const;  // 1.0 is not an integer
  double Number() const;
  bool Bool() const;
  std::string String() const;
  std::string OneOf(std::initializer_list<std::string_view> allowed) const;
  std::vector<JsonRef> Array() const;

  // Of an object:
  JsonRef At(std::string_view key) const;
  std::optional<JsonRef> Find(std::string_view key) const;
  std::vector<std::pair<std::string, JsonRef>> Members() const;  // by key
  std::vector<std::string> UnknownKeys(std::span<const std::string_view> known) const;

 private:
  enum class Place { kRoot, kInside };
  JsonRef(const Json& value, std::string where, Place place)
      : value_(&value), where_(std::move(where)), place_(place) {}

  JsonRef Member(std::string_view key, const Json& value) const;
  void RequireObject() const;
  [[noreturn]] void Refuse(std::string_view expected) const;

  const Json* value_;
  std::string where_;
  Place place_ = Place::kRoot;
};

}  // namespace quire

#endif  // QUIRE_IO_JSON_H_
