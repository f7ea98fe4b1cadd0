// A request's body, read field by field: every value knows its path, and every refusal is an
// ApiError of status 400 with the path as param and "path: expected X, got Y" as message.
#ifndef QUIRE_SERVE_REQUEST_FIELDS_H_
#define QUIRE_SERVE_REQUEST_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.h"
#include "io/json.h"
#include "serve/api_error.h"

namespace quire {

// Is told of a field that nobody knows, by its path, from any thread.
using OnUnknownField = std::function<void(const std::string& path)>;

struct RequestLimits {
  ByteOffset max_bytes{int64_t{16} << 20};
  int max_depth = 64;
  int64_t max_values = int64_t{1} << 21;       // of the body's JSON
  int64_t max_text_tokens = int64_t{1} << 20;  // of one /tokenize or /detokenize
  int32_t max_n = 128;
  int64_t max_prompts = 256;  // of one /v1/completions
  // More is refused; where nothing is asked for, the most there is.
  std::optional<int64_t> max_output_tokens = {};
  OnUnknownField ignore_unknown = {};  // empty: unknown fields are refused
};

// The body of a request: one JSON object. Throws ApiError without a param.
OrderedJson ParseRequestBody(std::string_view body, const RequestLimits& limits);

class RequestFields;

// A borrowed value.
class RequestField {
 public:
  RequestField(const OrderedJson& value, std::string path, const OnUnknownField* ignore = nullptr)
      : value_(&value), path_(std::move(path)), ignore_(ignore) {}

  const OrderedJson& value() const { return *value_; }
  const std::string& path() const { return path_; }

  int64_t Int(int64_t min, int64_t max) const;  // 1.0 is not an integer
  int32_t Token() const;                        // 0..2^31 - 1: whether the model has it, it says
  double Number(double min, double max) const;
  bool Bool() const;
  std::string String() const;
  std::string String(size_t min_bytes, size_t max_bytes) const;
  std::vector<RequestField> Array() const;
  std::vector<int32_t> Tokens() const;
  RequestFields Object() const;

  [[noreturn]] void Refuse(std::string_view expected) const;

 private:
  const OrderedJson* value_;
  std::string path_;
  const OnUnknownField* ignore_;
};

// A borrowed object. It remembers the names that were asked for.
class RequestFields {
 public:
  // The body itself has the path "". Refuses more fields than any request has. `ignore` is borrowed, by
  // the fields too; null, or empty: unknown fields are refused.
  RequestFields(const OrderedJson& object, std::string path,
                const OnUnknownField* ignore = nullptr);

  // nullopt: absent, or null.
  std::optional<RequestField> Find(std::string_view name);
  RequestField At(std::string_view name);  // refused if it is not there

  // The value if there is one; otherwise `absent`.
  bool Bool(std::string_view name, bool absent);
  int64_t Int(std::string_view name, int64_t min, int64_t max, int64_t absent);
  double Number(std::string_view name, double min, double max, double absent);

  // Refuses the first field whose name nobody asked for, null or not; or tells of all of them.
  void RefuseUnknown() const;

 private:
  std::string PathOf(std::string_view name) const;

  const OrderedJson* object_;
  std::string path_;
  const OnUnknownField* ignore_;
  std::vector<std::string> known_;
};

}  // namespace quire

#endif  // QUIRE_SERVE_REQUEST_FIELDS_H_
