#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "io/test_files.h"

namespace quire {
namespace {

std::string RenderText(std::string_view source, const ChatOptions& options = {},
                       const TemplateLimits& limits = {}) {
  const OrderedJson messages = {{{"role", "user"}, {"content", "Hi"}}};
  return ChatTemplate::Parse(source, "t", limits).Render(messages, options);
}

std::string ParseRefusal(std::string_view source) {
  return InvalidArgument([&] { (void)ChatTemplate::Parse(source, "t"); });
}

std::string RenderRefusal(std::string_view source) {
  return InvalidArgument([&] { (void)RenderText(source); });
}

TEST(ChatTemplateTest, WhatIsNotSupportedIsRefusedByLineAndConstruct) {
  EXPECT_EQ(ParseRefusal("\n\n{{ x | pprint }}"),
            "t: line 3: the filter 'pprint' is not supported");
  EXPECT_EQ(ParseRefusal("{{ x is\nescaped }}"), "t: line 2: the test 'escaped' is not supported");
  EXPECT_EQ(ParseRefusal("a\n{% include 'x' %}"),
            "t: line 2: the tag 'include' is not supported here");
  EXPECT_EQ(ParseRefusal("{{ x.encode() }}"), "t: line 1: the method 'encode' is not supported");
  EXPECT_EQ(ParseRefusal("{{ lipsum() }}"), "t: line 1: the function 'lipsum' is not supported");
  EXPECT_EQ(ParseRefusal("{% for x in y recursive %}{% endfor %}"),
            "t: line 1: recursive loops are not supported");
  EXPECT_EQ(ParseRefusal("{{ f(*x) }}"), "t: line 1: arguments by * and ** are not supported");
  EXPECT_EQ(ParseRefusal("{{ x | map('wordwrap') }}"),
            "t: line 1: the filter 'wordwrap' is not supported");
  EXPECT_EQ(ParseRefusal("{{ x | selectattr('a', 'filter') }}"),
            "t: line 1: the test 'filter' is not supported");
  EXPECT_EQ(ParseRefusal("{% macro f() %}{{ varargs }}{% endmacro %}"),
            "t: line 1: 'varargs' of a macro is not supported");
  EXPECT_EQ(ParseRefusal("{{ x[1, 2] }}"), "t: line 1: several subscripts are not supported");
}

TEST(ChatTemplateTest, WhatIsNotJinjaIsRefusedByLine) {
  EXPECT_EQ(ParseRefusal("a\n{% if x %}\nb"),
            "t: line 3: expected {% endif %}, got the end of the template");
  EXPECT_EQ(ParseRefusal("\n{{ 1 + }}"), "t: line 2: expected an expression, got }}");
  EXPECT_EQ(ParseRefusal("{% endfor %}"), "t: line 1: the tag 'endfor' is not supported here");
  EXPECT_EQ(ParseRefusal("{{ 'open }}"), "t: line 1: a string that does not end");
  EXPECT_EQ(ParseRefusal("\n{# open"), "t: line 2: a comment that does not end");
  EXPECT_EQ(ParseRefusal("{% raw %}x"), "t: line 1: a raw block that does not end");
  EXPECT_EQ(ParseRefusal("{{ (1] }}"), "t: line 1: unexpected ']'");
  EXPECT_EQ(ParseRefusal("{{ a\n$ }}"), "t: line 2: unexpected \"$\"");
  EXPECT_EQ(ParseRefusal("{{ x"), "t: line 1: a tag that does not end with }}");
  EXPECT_EQ(ParseRefusal("{% break %}"), "t: line 1: 'break' outside of a loop");
  EXPECT_EQ(ParseRefusal("{% set true = 1 %}"), "t: line 1: cannot assign to 'true'");
  EXPECT_EQ(ParseRefusal("{{ 99999999999999999999 }}"),
            "t: line 1: an integer has more than 64 bits");
  EXPECT_EQ(ParseRefusal("{{ '\\ud800' }}"),
            "t: line 1: a string with an escape that is no character");
  EXPECT_EQ(ParseRefusal("\xff"), "t: not UTF-8");
}

TEST(ChatTemplateTest, FailuresOfRenderingNameTheLine) {
  EXPECT_EQ(RenderRefusal("a\n{{ missing.attribute }}"), "t: line 2: 'missing' is undefined");
  EXPECT_EQ(RenderRefusal("{{ messages[0].nope.x }}"), "t: line 1: 'dict' has no attribute 'nope'");
  EXPECT_EQ(RenderRefusal("{{ 1 + 'a' }}"), "t: line 1: 'int' and 'str' cannot be combined by +");
  EXPECT_EQ(RenderRefusal("\n\n{{ messages.append(1) }}"),
            "t: line 3: a template must not call 'append' of 'list'");
  EXPECT_EQ(RenderRefusal("{{ messages[0].pop('role') }}"),
            "t: line 1: a template must not call 'pop' of 'dict'");
  EXPECT_EQ(RenderRefusal("{{ 1 // 0 }}"), "t: line 1: division by zero");
  EXPECT_EQ(RenderRefusal("{% for x in 1 %}{% endfor %}"),
            "t: line 1: 'int' cannot be iterated over");
  EXPECT_EQ(RenderRefusal("{% set a, b = [1] %}"), "t: line 1: expected 2 values to unpack, got 1");
  EXPECT_EQ(RenderRefusal("{{ missing() }}"), "t: line 1: 'missing' is undefined");
  EXPECT_EQ(RenderRefusal("{% set ns = namespace(_a=1) %}"),
            "t: line 1: a namespace cannot have the attribute '_a'");
  EXPECT_EQ(RenderRefusal("{{ 'ß' | upper }}"),
            "t: line 1: the case of U+00DF is not changed one to one");
}

TEST(ChatTemplateTest, WhatATemplateRaisesComesAsItIs) {
  try {
    (void)RenderText("\n{{ raise_exception('No: ' ~ messages[0].role) }}");
    FAIL();
  } catch (const TemplateRaised& raised) {
    EXPECT_STREQ(raised.what(), "No: user");
    EXPECT_EQ(raised.code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ChatTemplateTest, OptionsAreVariables) {
  const OrderedJson tools = {{{"b", 1}, {"a", 2}}};
  const OrderedJson variables = {{"thinking", true}};
  const ChatOptions options{.add_generation_prompt = false,
                            .tools = &tools,
                            .bos_token = "<s>",
                            .eos_token = {},
                            .variables = &variables};
  EXPECT_EQ(RenderText("{{ bos_token }}{{ eos_token is defined }}{{ add_generation_prompt }}"
                       "{{ thinking }}{{ tools | tojson }}",
                       options),
            "<s>FalseFalseTrue[{\"b\": 1, \"a\": 2}]");
  EXPECT_EQ(RenderText("{{ tools is none }}{{ bos_token is defined }}{{ add_generation_prompt }}"),
            "TrueFalseTrue");
}

TEST(ChatTemplateTest, ReasoningIsSeenUnderBothOfItsNames) {
  const auto chat = ChatTemplate::Parse("{{ messages[0] | tojson }}", "t");
  const auto render = [&](const OrderedJson& message) {
    return chat.Render(OrderedJson::array({message}), {});
  };
  EXPECT_EQ(render({{"role", "a"}, {"reasoning", "r"}}),
            R"({"thinking": "r", "role": "a", "reasoning": "r", "reasoning_content": "r"})");
  EXPECT_EQ(render({{"reasoning_content", "r"}, {"thinking", "t"}}),
            R"({"thinking": "t", "reasoning_content": "r"})");
  EXPECT_EQ(render({{"reasoning_content", nullptr}}), R"({"reasoning_content": null})");
}

TEST(ChatTemplateTest, TheTimeIsTheOneThatIsGiven) {
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 1;
  now.tm_mday = 3;
  EXPECT_EQ(RenderText("{{ strftime_now('%d %b %Y') }}", {.now = now}), "03 Feb 2026");
  EXPECT_EQ(RenderText("{{ strftime_now('%Y') | length }}"), "4");
}

TEST(ChatTemplateTest, MessagesMustBeObjects) {
  const auto chat = ChatTemplate::Parse("x", "t");
  EXPECT_EQ(InvalidArgument([&] { (void)chat.Render(OrderedJson{"a"}, {}); }),
            "t: line 1: messages[0]: expected an object");
  EXPECT_EQ(InvalidArgument([&] { (void)chat.Render(OrderedJson::object(), {}); }),
            "t: line 1: messages: expected an array");
}

TEST(ChatTemplateTest, OneTemplateRendersInManyThreads) {
  const auto chat = ChatTemplate::Parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
      "{{ m.content }}{% endfor %}{{ ns.n }}",
      "t");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&chat, i] {
      const std::string content(100, static_cast<char>('a' + i));
      const OrderedJson messages = {{{"content", content}}};
      for (int round = 0; round < 200; ++round) {
        EXPECT_EQ(chat.Render(messages, {}), content + "1");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class TemplateLimitsTest : public testing::TestWithParam<const char*> {};

// Each would take very long, or all memory, or all of the stack.
TEST_P(TemplateLimitsTest, HostileTemplatesEnd) {
  const TemplateLimits limits{.max_output_bytes = 1 << 20, .max_work = 1 << 24};
  EXPECT_THROW((void)RenderText(GetParam(), {}, limits), Error) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(
    All, TemplateLimitsTest,
    testing::Values(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 99999999999 }}", "{{ [0] * 99999999999 }}", "{{ '' ~ ('x' * 2000000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}",
        "{% set ns = namespace(x=1) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% "
        "endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=1) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% "
        "endfor %}{{ ns.x == [ns.x] }}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=(1,)) %}{% for i in range(90) %}{% set ns.x = (ns.x, ns.x) %}{% "
        "endfor %}{{ {ns.x: 1} }}",
        "{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
        "{{ [[1]] | tojson(indent=99999999999) }}", "{{ 'a\nb' | indent(99999999999) }}",
        "{{ ('x' * 100000).replace('', 'y' * 10000) }}", "{{ range(100001) }}",
        "{{ ('y' * 9999).join('x' * 99999) }}", "{{ 2 ** 99999999 }}",
        "{% for i in range(99999) %}{{ ('x' * 99999) == ('x' * 99998 ~ 'y') }}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(500) %}{% set ns.x = [ns.x] | "
        "map('list') %}{% endfor %}"));

TEST(ChatTemplateTest, DepthOfTheSourceIsLimited) {
  const auto nested = [](std::string_view open, std::string_view close) {
    std::string text;
    for (int i = 0; i < 20'000; ++i) text += open;
    text += "1";
    for (int i = 0; i < 20'000; ++i) text += close;
    return text;
  };
  EXPECT_EQ(ParseRefusal("{{ " + nested("(", ")") + " }}"), "t: line 1: nested deeper than 100");
  EXPECT_EQ(ParseRefusal("{{ " + nested("not ", "") + " }}"), "t: line 1: nested deeper than 100");
  EXPECT_EQ(ParseRefusal("{{ " + nested("-", "") + " }}"), "t: line 1: nested deeper than 100");
  EXPECT_EQ(ParseRefusal("{{ " + nested("", "+1") + " }}"),
            "t: line 1: an expression deeper than 150");
  EXPECT_EQ(ParseRefusal("{{ x" + nested(".a", "") + " }}"),
            "t: line 1: an expression deeper than 150");
  EXPECT_EQ(ParseRefusal("{{ " + nested("1 if 1 else ", "") + " }}"),
            "t: line 1: nested deeper than 100");
  EXPECT_EQ(ParseRefusal(nested("{% if 1 %}", "{% endif %}")), "t: line 1: nested deeper than 100");
}

TEST(ChatTemplateTest, SizeOfTheSourceIsLimited) {
  EXPECT_EQ(
      InvalidArgument([] { (void)ChatTemplate::Parse("12345", "t", {.max_source_bytes = 4}); }),
      "t: expected at most 4 bytes, got 5");
}

}  // namespace
}  // namespace quire
