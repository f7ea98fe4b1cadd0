// The OpenAPI document of a server.
#ifndef QUIRE_SERVE_OPENAPI_H_
#define QUIRE_SERVE_OPENAPI_H_

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "io/json.h"
#include "serve/api_error.h"

namespace quire {

struct ApiPath {
  std::string_view method = {};
  std::string_view path = {};  // "{name}" is a parameter
  std::string_view summary = {};
  ErrorForm errors = ErrorForm::kOpenAi;
  bool needs_key = false;
  OrderedJson body = nullptr;  // JSON Schema; null: none
};

// OpenAPI 3.1.
std::string OpenApiJson(std::span<const ApiPath> paths, std::string_view version);

}  // namespace quire

#endif  // QUIRE_SERVE_OPENAPI_H_
