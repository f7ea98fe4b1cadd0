#include "serve/text_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/token_decoder.h"
#include "text/utf8.h"

namespace quire {
namespace {

std::optional<std::string> ReadModel(RequestFields& fields) {
  const auto model = fields.Find("model");
  return model ? std::optional(model->String()) : std::nullopt;
}

// A text as JSON has it, without the quotes.
std::string Escaped(std::string_view text) {
  const std::string quoted = Dump(std::string(text));
  return quoted.substr(1, quoted.size() - 2);
}

void AppendPiece(std::string_view bytes, std::string& out) {
  if (IsUtf8(bytes)) {
    out += Dump(std::string(bytes));
    return;
  }
  fmt::format_to(std::back_inserter(out), "[{}]",
                 fmt::join(std::vector<uint8_t>(bytes.begin(), bytes.end()), ","));
}

void AppendToken(int32_t token, const Tokenizer& tokenizer, bool with_piece, std::string& out) {
  if (!with_piece) {
    fmt::format_to(std::back_inserter(out), "{}", token);
    return;
  }
  fmt::format_to(std::back_inserter(out), "{{\"id\":{},\"piece\":", token);
  AppendPiece(tokenizer.TokenBytes(token), out);
  out += '}';
}

}  // namespace

TokenizeRequest ParseTokenizeRequest(std::string_view body, const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  TokenizeRequest request;
  const auto content = fields.Find("content");
  const auto prompt = fields.Find("prompt");
  const auto messages = fields.Find("messages");
  if (content && prompt) prompt->Refuse("null beside \"content\"");
  if (messages && (content || prompt)) messages->Refuse("null beside a text");
  if (messages) {
    request.conversation = ReadConversation(fields);
    request.conversation->tools = ToolsForTemplate(ReadToolList(fields));
  } else if (content || prompt) {
    request.text = (content ? content : prompt)->String();
    for (const char* name :
         {"chat_template_kwargs", "add_generation_prompt", "continue_final_message", "tools"}) {
      if (const auto field = fields.Find(name)) field->Refuse("null without \"messages\"");
    }
  } else {
    throw BadField("content", "content: missing, and so are prompt and messages");
  }
  const auto add = fields.Find("add_special_tokens");
  const auto add_short = fields.Find("add_special");
  if (add && add_short) add_short->Refuse("null beside \"add_special_tokens\"");
  request.options.add_special_tokens = add         ? add->Bool()
                                       : add_short ? add_short->Bool()
                                                   : prompt.has_value();
  request.options.max_tokens = static_cast<size_t>(limits.max_text_tokens);
  request.options.parse_special_tokens = fields.Bool("parse_special", true);
  request.with_pieces = fields.Bool("with_pieces", false);
  request.model = ReadModel(fields);
  fields.RefuseUnknown();
  return request;
}

ReplyPieces TokenizeReply(std::vector<int32_t> tokens, const Tokenizer& tokenizer, bool with_pieces,
                          int64_t context) {
  return [tokens = std::move(tokens), &tokenizer, with_pieces, context, done = size_t{0},
          ended = false]() mutable {
    std::string out;
    if (ended) return out;
    if (done == 0) out = R"({"tokens":[)";
    for (; done < tokens.size() && out.size() < kPieceBytes; ++done) {
      if (done > 0) out += ',';
      AppendToken(tokens[done], tokenizer, with_pieces, out);
    }
    if (done == tokens.size()) {
      ended = true;
      out += fmt::format(R"(],"count":{},"max_model_len":{}}})", tokens.size(), context);
    }
    return out;
  };
}

DetokenizeRequest ParseDetokenizeRequest(std::string_view body, const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  DetokenizeRequest request;
  const RequestField tokens = fields.At("tokens");
  if (std::cmp_greater(tokens.value().size(), limits.max_text_tokens)) {
    tokens.Refuse(fmt::format("at most {} token ids", limits.max_text_tokens));
  }
  request.tokens = tokens.Tokens();
  request.options.skip_special_tokens = fields.Bool("skip_special_tokens", false);
  request.model = ReadModel(fields);
  fields.RefuseUnknown();
  return request;
}

ReplyPieces DetokenizeReply(std::vector<int32_t> tokens, const DecodeOptions& options,
                            const Tokenizer& tokenizer) {
  return [tokens = std::move(tokens), text = TokenDecoder::Stream(tokenizer.decoder(), options),
          name = size_t{0}, done = size_t{0}]() mutable {
    // Decoded once for each name: the text may be far longer than its tokens.
    static constexpr const char* kNames[] = {"content", "prompt", "text"};
    std::string out;
    while (name < std::size(kNames) && out.size() < kPieceBytes) {
      if (done == 0) out += fmt::format(R"({}"{}":")", name == 0 ? '{' : ',', kNames[name]);
      for (; done < tokens.size() && out.size() < kPieceBytes; ++done) {
        out += Escaped(text.Put(tokens[done]));
      }
      if (done < tokens.size()) break;
      out += Escaped(text.Flush()) + '"';
      done = 0;
      if (++name == std::size(kNames)) out += '}';
    }
    return out;
  };
}

ApplyTemplateRequest ParseApplyTemplateRequest(std::string_view body, const RequestLimits& limits) {
  const OrderedJson json = ParseRequestBody(body, limits);
  RequestFields fields(json, "", &limits.ignore_unknown);
  ApplyTemplateRequest request;
  request.conversation = ReadConversation(fields);
  request.conversation.tools = ToolsForTemplate(ReadToolList(fields));
  request.model = ReadModel(fields);
  fields.RefuseUnknown();
  return request;
}

ReplyPieces ApplyTemplateReply(std::string prompt) {
  return [prompt = std::move(prompt), done = size_t{0}, ended = false]() mutable {
    std::string out;
    if (ended) return out;
    if (done == 0) out = R"({"prompt":")";
    size_t end = std::min(prompt.size(), done + kPieceBytes);
    // Not inside a character.
    while (end < prompt.size() && (static_cast<uint8_t>(prompt[end]) & 0xC0) == 0x80) ++end;
    out += Escaped(std::string_view(prompt).substr(done, end - done));
    done = end;
    if (done == prompt.size()) {
      ended = true;
      out += "\"}";
    }
    return out;
  };
}

// ---- The same, as JSON Schema ----

namespace {

OrderedJson ObjectSchema(OrderedJson properties, OrderedJson required,
                         const RequestLimits& limits) {
  properties["model"] = {{"type", {"string", "null"}}};
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", static_cast<bool>(limits.ignore_unknown)}};
}

const OrderedJson& Switch() {
  static const OrderedJson& schema = *new OrderedJson{{"type", {"boolean", "null"}}};
  return schema;
}

}  // namespace

namespace {

OrderedJson TemplateSchemas(const RequestLimits& limits) {
  OrderedJson schemas = ConversationSchemas(limits);
  schemas["tools"] = {{"anyOf", {ToolSchemas(limits)["tools"], {{"type", "null"}}}}};
  return schemas;
}

}  // namespace

OrderedJson TokenizeSchema(const RequestLimits& limits) {
  const OrderedJson common = {{"add_special_tokens", Switch()},
                              {"add_special", Switch()},
                              {"parse_special", Switch()},
                              {"with_pieces", Switch()}};
  const OrderedJson conversation = TemplateSchemas(limits);
  // Each form has one of the three, and the others are null.
  OrderedJson forms = OrderedJson::array();
  for (const char* form : {"content", "prompt", "messages"}) {
    OrderedJson properties = common;
    const bool is_chat = std::string_view(form) == "messages";
    for (const auto& [name, schema] : conversation.items()) {
      properties[name] = is_chat ? schema : OrderedJson{{"type", "null"}};
    }
    for (const char* name : {"content", "prompt"}) properties[name] = {{"type", "null"}};
    if (!is_chat) properties[form] = {{"type", "string"}};
    forms.push_back(ObjectSchema(std::move(properties), {form}, limits));
  }
  return {{"anyOf", std::move(forms)}};
}

OrderedJson DetokenizeSchema(const RequestLimits& limits) {
  return ObjectSchema(
      {{"tokens",
        {{"type", "array"},
         {"items",
          {{"type", "integer"}, {"minimum", 0}, {"maximum", std::numeric_limits<int32_t>::max()}}},
         {"maxItems", limits.max_text_tokens}}},
       {"skip_special_tokens", Switch()}},
      {"tokens"}, limits);
}

OrderedJson ApplyTemplateSchema(const RequestLimits& limits) {
  return ObjectSchema(TemplateSchemas(limits), {"messages"}, limits);
}

}  // namespace quire
