// JSON whose objects keep the order of their keys.
//
// Chat templates print parts of a request (tools, arguments of calls) as they came, and a model
// sees a different prompt if the keys are sorted; the Json of io/json.h sorts them.
#ifndef QUIRE_TEXT_ORDERED_JSON_H_
#define QUIRE_TEXT_ORDERED_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "io/json.h"

namespace quire {

using OrderedJson = nlohmann::ordered_json;

// As ParseJson: one value, within the limits, refused with source, line and column.
OrderedJson ParseOrderedJson(std::string_view text, std::string_view source,
                             const JsonLimits& limits = {});

// On one line, with U+FFFD for what is not UTF-8.
std::string Dump(const OrderedJson& json);

}  // namespace quire

#endif  // QUIRE_TEXT_ORDERED_JSON_H_
