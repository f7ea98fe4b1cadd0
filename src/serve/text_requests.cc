#include "serve/text_requests.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "text/utf8.h"

namespace quire {
namespace {

std::optional<std::string> ReadModel(RequestFields& fields) {
  const auto model = fields.Find("model");
  return model ? std::optional(model->String()) : std::nullopt;
}

OrderedJson PieceJson(std::string_view bytes) {
  if (IsUtf8(bytes)) return std::string(bytes);
  OrderedJson list = OrderedJson::array();
  for (const char byte : bytes) list.push_back(static_cast<uint8_t>(byte));
  return list;
}

}  // namespace

TokenizeRequest ParseTokenizeRequest(std::string_view body, const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "");
  TokenizeRequest request;
  const auto content = fields.Find("content");
  const auto prompt = fields.Find("prompt");
  if (content && prompt) prompt->Refuse("null beside \"content\"");
  if (!content && !prompt) throw BadField("content", "content: missing, and so is prompt");
  request.text = (content ? content : prompt)->String();
  const auto add = fields.Find("add_special_tokens");
  const auto add_short = fields.Find("add_special");
  if (add && add_short) add_short->Refuse("null beside \"add_special_tokens\"");
  request.options.add_special_tokens = add         ? add->Bool()
                                       : add_short ? add_short->Bool()
                                                   : prompt.has_value();
  request.options.parse_special_tokens = fields.Bool("parse_special", true);
  request.with_pieces = fields.Bool("with_pieces", false);
  request.model = ReadModel(fields);
  fields.RefuseUnknown();
  return request;
}

std::string TokenizeJson(std::span<const int32_t> tokens, const Tokenizer& tokenizer,
                         bool with_pieces) {
  OrderedJson list = OrderedJson::array();
  for (const int32_t token : tokens) {
    if (with_pieces) {
      list.push_back({{"id", token}, {"piece", PieceJson(tokenizer.TokenBytes(token))}});
    } else {
      list.push_back(token);
    }
  }
  return Dump({{"tokens", std::move(list)}, {"count", tokens.size()}});
}

DetokenizeRequest ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "");
  DetokenizeRequest request;
  request.tokens = fields.At("tokens").Tokens();
  request.options.skip_special_tokens = fields.Bool("skip_special_tokens", false);
  request.model = ReadModel(fields);
  fields.RefuseUnknown();
  return request;
}

std::string DetokenizeJson(std::string_view text) { return Dump({{"content", text}}); }

ApplyTemplateRequest ParseApplyTemplateRequest(std::string_view body, const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "");
  ApplyTemplateRequest request;
  request.conversation = ReadConversation(fields);
  request.model = ReadModel(fields);
  fields.RefuseUnknown();
  return request;
}

std::string ApplyTemplateJson(std::string_view prompt) { return Dump({{"prompt", prompt}}); }

}  // namespace quire
