#include "serve/generate_response.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace quire {

OrderedJson GeneratedTextJson(const AnswerShape& shape, const GeneratedText& generated) {
  OrderedJson finish = nullptr;
  if (generated.finish_reason == "length") {
    finish = {{"type", "length"}, {"length", generated.usage.completion_tokens}};
  } else if (generated.finish_reason) {
    finish = {{"type", *generated.finish_reason}, {"matched", nullptr}};
    if (generated.stopped_by) finish["matched"] = *generated.stopped_by;
  }
  OrderedJson answer = {{"text", generated.text},
                        {"meta_info",
                         {{"id", shape.id},
                          {"finish_reason", std::move(finish)},
                          {"prompt_tokens", generated.usage.prompt_tokens},
                          {"completion_tokens", generated.usage.completion_tokens},
                          {"cached_tokens", generated.usage.cached_tokens}}}};
  if (shape.is_list) answer["index"] = generated.index;
  return answer;
}

}  // namespace quire
