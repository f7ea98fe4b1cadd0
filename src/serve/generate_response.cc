#include "serve/generate_response.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "io/json.h"
#include "text/utf8.h"

namespace quire {
namespace {

// Up to the end of meta_info: "}}" is missing.
std::string Begin(const AnswerShape& shape, const GeneratedText& generated) {
  OrderedJson finish = nullptr;
  if (generated.finish_reason == "length") {
    finish = {{"type", "length"}, {"length", generated.usage.completion_tokens}};
  } else if (generated.finish_reason) {
    finish = {{"type", *generated.finish_reason}, {"matched", nullptr}};
    if (generated.stopped_by) finish["matched"] = *generated.stopped_by;
  }
  std::string meta = Dump({{"id", shape.id},
                           {"finish_reason", std::move(finish)},
                           {"prompt_tokens", generated.usage.prompt_tokens},
                           {"completion_tokens", generated.usage.completion_tokens},
                           {"cached_tokens", generated.usage.cached_tokens}});
  meta.pop_back();
  std::string out =
      fmt::format(R"({{"text":{},"output_ids":[{}])", Dump(generated.text), generated.output_ids);
  if (shape.is_list) out += fmt::format(R"(,"index":{})", generated.index);
  return out + R"(,"meta_info":)" + meta;
}

constexpr const char* kEnd = "}}";

OrderedJson TokenJson(const AnswerShape& shape, const TokenLogprob& token) {
  OrderedJson entry = {FiniteLogprob(token.logprob), token.token, nullptr};
  if (shape.text_in_logprobs) {
    entry[2] = ReplaceIllFormed(shape.tokenizer->TokenBytes(token.token));
  }
  return entry;
}

OrderedJson TopJson(const AnswerShape& shape, const TokenScore& score) {
  OrderedJson top = OrderedJson::array();
  for (const TokenLogprob& token : score.top) top.push_back(TokenJson(shape, token));
  return top;
}

// Writes an answer token by token: its log-probabilities may be a kilobyte of each.
class Writer {
 public:
  Writer(const AnswerShape& shape, const GeneratedText& generated)
      : shape_(&shape), tokens_(generated.tokens), begin_(Begin(shape, generated)) {}

  std::string Next() {
    std::string out = std::exchange(begin_, {});
    while (out.size() < kPieceBytes && !ended_) Step(out);
    return out;
  }

 private:
  void Step(std::string& out) {
    if (list_ == num_lists()) {
      ended_ = true;
      out += kEnd;
      return;
    }
    if (next_ == 0) BeginList(out);
    if (next_ < tokens_.size()) {
      const TokenScore& score = tokens_[next_].score;
      if (next_ > 0) out += ',';
      out += Dump(list_ == 0 ? TokenJson(*shape_, score.chosen) : TopJson(*shape_, score));
      ++next_;
      return;
    }
    out += ']';
    ++list_;
    next_ = 0;
  }

  void BeginList(std::string& out) const {
    if (list_ == 1) {
      out += R"(,"input_top_logprobs":[],"output_top_logprobs":[)";
      return;
    }
    out += fmt::format(
        R"(,"input_token_logprobs":[],"output_token_logprobs_length":{},"output_token_logprobs":[)",
        tokens_.size());
  }

  int num_lists() const { return !shape_->logprobs ? 0 : shape_->top_logprobs > 0 ? 2 : 1; }

  const AnswerShape* shape_;
  std::span<const ScoredToken> tokens_;
  std::string begin_;
  int list_ = 0;
  size_t next_ = 0;
  bool ended_ = false;
};

}  // namespace

std::string GeneratedTextJson(const AnswerShape& shape, const GeneratedText& generated) {
  return Begin(shape, generated) + kEnd;
}

ReplyPieces GeneratedTextPieces(const AnswerShape& shape, const GeneratedText& generated) {
  return [writer = Writer(shape, generated)]() mutable { return writer.Next(); };
}

}  // namespace quire
