#include "serve/openapi.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

OrderedJson Content(const char* type, OrderedJson schema) {
  return {{type, {{"schema", std::move(schema)}}}};
}

OrderedJson ErrorSchema() {
  const OrderedJson text_or_null = {{"type", {"string", "null"}}};
  return {{"type", "object"},
          {"properties",
           {{"error",
             {{"type", "object"},
              {"properties",
               {{"message", {{"type", "string"}}},
                {"type", {{"type", "string"}}},
                {"param", text_or_null},
                {"code", text_or_null}}},
              {"required", {"message", "type", "param", "code"}}}}}},
          {"required", {"error"}}};
}

OrderedJson MessagesErrorSchema() {
  return {{"type", "object"},
          {"properties",
           {{"type", {{"const", "error"}}},
            {"error",
             {{"type", "object"},
              {"properties", {{"type", {{"type", "string"}}}, {"message", {{"type", "string"}}}}},
              {"required", {"type", "message"}}}}}},
          {"required", {"type", "error"}}};
}

OrderedJson Responses(const ApiPath& path) {
  OrderedJson content = Content("application/json", {{"type", {"object", "array"}}});
  if (path.path == "/metrics") content = Content("text/plain", {{"type", "string"}});
  const bool streams = path.path == "/generate" || path.path.ends_with("completions") ||
                       path.path == "/v1/messages" || path.path == "/v1/responses";
  // Of an event of the stream: {"data", "event"}.
  if (streams) content.update(Content("text/event-stream", {{"type", "object"}}));
  OrderedJson responses = {{"200", {{"description", "The answer"}, {"content", content}}}};
  if (path.path == "/health") {
    responses["503"] = {{"description", "Requests are not taken"}, {"content", content}};
  }
  responses["default"] = {
      {"description", "An error"},
      {"content", Content("application/json", {{"$ref", path.errors == ErrorForm::kAnthropic
                                                            ? "#/components/schemas/MessagesError"
                                                            : "#/components/schemas/Error"}})}};
  return responses;
}

OrderedJson Operation(const ApiPath& path) {
  OrderedJson operation = {{"summary", path.summary}, {"responses", Responses(path)}};
  if (!path.body.is_null()) {
    operation["requestBody"] = {{"required", true},
                                {"content", Content("application/json", path.body)}};
  }
  const size_t open = path.path.find('{');
  if (open != std::string_view::npos) {
    operation["parameters"] =
        OrderedJson::array({{{"name", path.path.substr(open + 1, path.path.find('}') - open - 1)},
                             {"in", "path"},
                             {"required", true},
                             {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
  if (path.needs_key) operation["security"] = OrderedJson::array({{{"key", OrderedJson::array()}}});
  return operation;
}

}  // namespace

std::string OpenApiJson(std::span<const ApiPath> paths, std::string_view version) {
  OrderedJson listed = OrderedJson::object();
  for (const ApiPath& path : paths) {
    std::string method(path.method);
    std::ranges::transform(method, method.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    listed[std::string(path.path)][method] = Operation(path);
  }
  return Dump({{"openapi", "3.1.0"},
               {"info", {{"title", "quire"}, {"version", version}}},
               {"paths", std::move(listed)},
               {"components",
                {{"schemas", {{"Error", ErrorSchema()}, {"MessagesError", MessagesErrorSchema()}}},
                 {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}});
}

}  // namespace quire
