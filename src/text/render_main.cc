// Renders templates for tools/check_template.py: JSON on stdin, JSON on stdout. Test only.
//
//   in   {"template": text, "cases": [{"messages": [...], "tools": null or [...],
//        "add_generation_prompt": true, "variables": {...}}, ...]}
//   out  {"refused": message}, or {"results": [{"text": ...} or {"raised": message} or
//        {"error": message}, ...]}
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "text/chat_template.h"

namespace quire {
namespace {

OrderedJson RenderCase(const ChatTemplate& chat, const OrderedJson& item) {
  ChatOptions options{.add_generation_prompt = item.at("add_generation_prompt").get<bool>()};
  if (!item.at("tools").is_null()) options.tools = &item.at("tools");
  options.variables = &item.at("variables");
  try {
    return {{"text", chat.Render(item.at("messages"), options)}};
  } catch (const TemplateRaised& raised) {
    return {{"raised", raised.what()}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

OrderedJson RenderAll(const OrderedJson& input) {
  try {
    const auto chat = ChatTemplate::Parse(input.at("template").get<std::string>(), "template");
    OrderedJson results = OrderedJson::array();
    for (const OrderedJson& item : input.at("cases")) results.push_back(RenderCase(chat, item));
    return {{"results", results}};
  } catch (const Error& error) {
    return {{"refused", error.what()}};
  }
}

}  // namespace
}  // namespace quire

int main() {
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  try {
    std::cout << quire::RenderAll(quire::ParseOrderedJson(text, "stdin")).dump() << "\n";
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
