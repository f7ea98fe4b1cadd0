#include "io/json.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/test_files.h"

namespace quire {
namespace {

std::string Refusal(std::string_view text, const JsonLimits& limits = {}) {
  return InvalidArgument([&] { (void)ParseJson(text, "x.json", limits); });
}

TEST(JsonTest, EveryKindOfValueIsBuiltAsTheLibraryBuildsIt) {
  for (const char* text :
       {"null", "true", "-5", "18446744073709551615", "1.5e3", R"("a\u00e9\n")", "[]", "{}",
        R"( {"a": [1, {"b": null, "c": [[], {}]}, "x"], "": -0.0, "z": {"a": false}} )"}) {
    EXPECT_EQ(ParseJson(text, "x.json"), Json::parse(text)) << text;
  }
}

TEST(JsonTest, SyntaxErrorsNameSourceLineAndColumn) {
  EXPECT_EQ(Refusal(""), "x.json: line 1, column 1: expected a JSON value, got an empty text");
  EXPECT_EQ(Refusal("{\"a\": 1,\n \"b\": oops}"),
            "x.json: line 2, column 7: syntax error while parsing value - invalid literal; last "
            "read: '\"b\": o'");
  EXPECT_EQ(Refusal("[1] 2"),
            "x.json: line 1, column 5: syntax error while parsing value - unexpected number "
            "literal; expected end of input");
  EXPECT_EQ(Refusal("[1,"),
            "x.json: line 1, column 4: syntax error while parsing value - unexpected end of "
            "input; expected '[', '{', or a literal");
  EXPECT_EQ(Refusal("[1e999]"), "x.json: line 1, column 6: number overflow parsing '1e999'");
}

TEST(JsonTest, MessagesAreShortAndPrintableWhateverTheText) {
  EXPECT_EQ(Refusal("\"\xff\""),
            "x.json: line 1, column 2: syntax error while parsing value - invalid string: "
            "ill-formed UTF-8 byte; last read: '\"?'");
  const std::string message = Refusal("\"" + std::string(5000, 'a'));
  EXPECT_LT(message.size(), 260);
  EXPECT_TRUE(message.ends_with("aaa...")) << message;
}

TEST(JsonTest, AKeyThatComesTwiceIsRefused) {
  EXPECT_EQ(Refusal("{\"a\": 1,\n \"b\": {\"a\": 2},\n \"a\": 1}"),
            "x.json: line 3, column 4: duplicate key \"a\"");
  EXPECT_EQ(Refusal(R"([{"x":{"k":1,"\u006b":1}}])"),
            "x.json: line 1, column 21: duplicate key \"k\"");
}

TEST(JsonTest, DepthIsLimited) {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += i % 2 == 0 ? "[" : "{\"a\":";
    text += "1";
    for (int i = depth - 1; i >= 0; --i) text += i % 2 == 0 ? "]" : "}";
    return text;
  };
  EXPECT_NO_THROW((void)ParseJson(nested(64), "x.json"));
  EXPECT_EQ(Refusal(nested(65)), "x.json: line 1, column 193: nested deeper than 64");
  EXPECT_EQ(Refusal("[[[1]]]", {.max_depth = 2}), "x.json: line 1, column 3: nested deeper than 2");
  EXPECT_EQ(Refusal("[1, {}, 3]", {.max_values = 3}),
            "x.json: line 1, column 10: more values than are allowed");
  EXPECT_EQ(ParseJson("[1, {}, 3]", "x.json", {.max_values = 4}).size(), 3u);
  EXPECT_NO_THROW((void)ParseJson("1", "x.json", {.max_depth = 0}));
  // Far past any stack, were the parser recursive.
  EXPECT_EQ(Refusal(std::string(1'000'000, '[')),
            "x.json: line 1, column 65: nested deeper than 64");
}

TEST(JsonTest, SizeIsLimited) {
  EXPECT_NO_THROW((void)ParseJson("[1]", "x.json", {.max_bytes = ByteOffset(3)}));
  EXPECT_EQ(Refusal("[1]", {.max_bytes = ByteOffset(2)}),
            "x.json: expected at most 2 bytes, got 3");
}

TEST(JsonTest, FilesAreReadAndNamed) {
  const TempDir dir;
  EXPECT_EQ(ReadJsonFile(dir.Write("good.json", "[1, 2]")), Json({1, 2}));
  const auto refusal = [&](const std::filesystem::path& path, const JsonLimits& limits) {
    return InvalidArgument([&] { (void)ReadJsonFile(path, limits); }, dir.path());
  };
  EXPECT_EQ(refusal(dir.Write("bad.json", "[1,\n2}"), {}),
            "DIR/bad.json: line 2, column 2: syntax error while parsing array - unexpected '}'; "
            "expected ']'");
  EXPECT_EQ(refusal(dir.Write("empty.json", ""), {}),
            "DIR/empty.json: line 1, column 1: expected a JSON value, got an empty text");
  EXPECT_EQ(refusal(dir.path() / "good.json", {.max_bytes = ByteOffset(5)}),
            "DIR/good.json: expected at most 5 bytes, got 6");
  EXPECT_EQ(refusal(dir.path() / "absent.json", {}),
            "DIR/absent.json: cannot open: No such file or directory");
}

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

class JsonRefTest : public testing::Test {
 protected:
  const Json json_ = ParseJson(R"({
    "int": 7, "negative": -7, "huge": 18446744073709551615, "real": 0.5, "whole": 7.0,
    "yes": true, "text": "yarn", "nothing": null, "list": [1, -2, "x"],
    "rope": {"type": "yarn", "deep": {"a.b": 1}}})",
                               "config.json");
  const JsonRef config_{json_, "config.json"};

  template <class Fn>
  std::string Refusal(Fn fn) const {
    return InvalidArgument([&] { (void)fn(config_); });
  }
};

TEST_F(JsonRefTest, ValuesThatFitAreReturned) {
  EXPECT_EQ(config_.At("int").Int(7, 7), 7);
  EXPECT_EQ(config_.At("negative").Int(-7, 0), -7);
  EXPECT_EQ(config_.At("real").Number(), 0.5);
  EXPECT_EQ(config_.At("int").Number(), 7.0);
  EXPECT_TRUE(config_.At("yes").Bool());
  EXPECT_EQ(config_.At("text").String(), "yarn");
  EXPECT_EQ(config_.At("text").OneOf({"linear", "yarn"}), "yarn");
  EXPECT_EQ(config_.At("list").Array()[1].Int(-2, 2), -2);
  EXPECT_EQ(config_.At("rope").At("type").String(), "yarn");
  EXPECT_TRUE(config_.At("nothing").value().is_null());
}

TEST_F(JsonRefTest, WhatIsAbsentOrNullIsNotFound) {
  EXPECT_FALSE(config_.Find("absent").has_value());
  EXPECT_FALSE(config_.Find("nothing").has_value());
  EXPECT_EQ(config_.Find("int")->Int(0, 9), 7);
}

TEST_F(JsonRefTest, MembersComeByKeyWithTheirPlaces) {
  std::vector<std::string> places;
  for (const auto& [key, value] : config_.At("rope").Members()) places.push_back(value.where());
  EXPECT_EQ(places, (std::vector<std::string>{"config.json: rope.deep", "config.json: rope.type"}));
}

TEST_F(JsonRefTest, UnknownKeysAreListed) {
  constexpr std::array<std::string_view, 2> kKnown = {"type", "factor"};
  EXPECT_EQ(config_.At("rope").UnknownKeys(kKnown), std::vector<std::string>{"deep"});
}

TEST_F(JsonRefTest, RefusalsNameThePlaceTheExpectedAndTheActual) {
  EXPECT_EQ(Refusal([](auto& c) { return c.At("int").Int(8, 9); }),
            "config.json: int: expected an integer in 8..9, got 7");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("negative").Int(0, kMax); }),
            "config.json: negative: expected an integer of 0 or more, got -7");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("huge").Int(0, kMax); }),
            "config.json: huge: expected an integer of 0 or more, got 18446744073709551615");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("whole").Int(0, 9); }),
            "config.json: whole: expected an integer in 0..9, got 7.0");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("nothing").Int(0, 9); }),
            "config.json: nothing: expected an integer in 0..9, got null");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("text").Number(); }),
            "config.json: text: expected a number, got \"yarn\"");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("int").Bool(); }),
            "config.json: int: expected true or false, got 7");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("list").String(); }),
            "config.json: list: expected a string, got an array of 3");
  EXPECT_EQ(Refusal([](auto& c) {
              return c.At("rope").At("type").OneOf({"linear", "none"});
            }),
            "config.json: rope.type: expected one of \"linear\", \"none\", got \"yarn\"");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("int").OneOf({"linear"}); }),
            "config.json: int: expected one of \"linear\", got 7");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("rope").Array(); }),
            "config.json: rope: expected an array, got an object");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("list").Array()[2].Int(0, 9); }),
            "config.json: list[2]: expected an integer in 0..9, got \"x\"");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("absent"); }), "config.json: absent: missing");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("rope").At("factor"); }),
            "config.json: rope.factor: missing");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("rope").At("deep").At("a.b").Bool(); }),
            "config.json: rope.deep.\"a.b\": expected true or false, got 1");
  EXPECT_EQ(Refusal([](auto& c) { return c.At("text").Find("x"); }),
            "config.json: text: expected an object, got \"yarn\"");
  const Json number = 3;
  EXPECT_EQ(InvalidArgument([&] { (void)JsonRef(number, "config.json").At("x"); }),
            "config.json: expected an object, got 3");
}

TEST(OrderedJsonTest, KeysStayInTheirOrderAndRefusalsAreThoseOfJson) {
  EXPECT_EQ(ParseOrderedJson(R"({"b": [1, {"z": null, "y": 2.5}], "a": "x"})", "x.json").dump(),
            R"({"b":[1,{"z":null,"y":2.5}],"a":"x"})");
  EXPECT_EQ(InvalidArgument([] { (void)ParseOrderedJson(R"({"a": 1, "a": 2})", "x.json"); }),
            "x.json: line 1, column 12: duplicate key \"a\"");
}

TEST(QuoteForMessageTest, AnythingBecomesPrintable) {
  EXPECT_EQ(QuoteForMessage("a\"\n"), R"("a\"\n")");
  EXPECT_EQ(QuoteForMessage("\xff"), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(QuoteForMessage(std::string(121, 'a')), "\"" + std::string(120, 'a') + "\"...");
}

}  // namespace
}  // namespace quire
