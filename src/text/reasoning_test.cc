#include "text/reasoning.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "testing/sanitized_share.h"

namespace quire {
namespace {

void Append(const ReasoningPieces& pieces, ReasoningPieces* all) {
  all->reasoning += pieces.reasoning;
  all->content += pieces.content;
}

ReasoningPieces SplitWhole(ReasoningStart start, const std::vector<std::string_view>& pieces) {
  ReasoningSplitter splitter(start);
  ReasoningPieces all;
  for (const std::string_view piece : pieces) Append(splitter.Put(piece), &all);
  Append(splitter.Flush(), &all);
  return all;
}

// What the splitter is for, on a text that is there as a whole.
ReasoningPieces Model(ReasoningStart start, std::string_view text) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  if (start == ReasoningStart::kContent) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos || !text.substr(begin).starts_with(kOpen)) {
      return {.reasoning = "", .content = std::string(text)};
    }
    text.remove_prefix(begin + kOpen.size());
  }
  const size_t close = text.find(kClose);
  if (close == std::string_view::npos) return {.reasoning = std::string(text), .content = ""};
  return {.reasoning = std::string(text.substr(0, close)),
          .content = std::string(text.substr(close + kClose.size()))};
}

void ExpectEqual(const ReasoningPieces& actual, const ReasoningPieces& expected,
                 std::string_view text) {
  EXPECT_EQ(actual.reasoning, expected.reasoning) << text;
  EXPECT_EQ(actual.content, expected.content) << text;
}

std::string RandomText(std::mt19937& random) {
  constexpr std::string_view kParts[] = {"<think>", "</think>", "<", "</", "think>", "a",
                                         " ",       "\n",       "é", "<<", "</thin", "/think>"};
  std::string text;
  for (size_t i = random() % 7; i > 0; --i) text += kParts[random() % std::size(kParts)];
  return text;
}

// White space before the text is kept back however long it is. A look at all of it with every piece
// would take hours here.
TEST(ReasoningTest, MuchWhiteSpaceIsLookedAtOnce) {
  constexpr size_t kMuch = testing::SampledShare(size_t{3} << 20);
  ReasoningSplitter splitter(ReasoningStart::kContent);
  ReasoningPieces all;
  for (size_t i = 0; i < kMuch; ++i) Append(splitter.Put("\n"), &all);
  EXPECT_EQ(all.content + all.reasoning, "");
  for (const char* piece : {"<th", "ink", ">why</think>", "so"}) Append(splitter.Put(piece), &all);
  Append(splitter.Flush(), &all);
  ExpectEqual(all, {"why", "so"}, "");
}

TEST(ReasoningTest, ReasoningAndAnswerAreToldApart) {
  using enum ReasoningStart;
  ExpectEqual(SplitWhole(kContent, {"<think>why</think>because"}), {"why", "because"}, "");
  ExpectEqual(SplitWhole(kReasoning, {"why</think>because"}), {"why", "because"}, "");
  ExpectEqual(SplitWhole(kContent, {"\n <think>why</think>\n"}), {"why", "\n"}, "");
  ExpectEqual(SplitWhole(kContent, {" no <think>x</think>"}), {"", " no <think>x</think>"}, "");
  ExpectEqual(SplitWhole(kReasoning, {"a<think>b</think>c</think>"}), {"a<think>b", "c</think>"},
              "");
  ExpectEqual(SplitWhole(kContent, {}), {"", ""}, "");
}

TEST(ReasoningTest, HalfATagIsKeptBackUntilItIsClear) {
  ReasoningSplitter splitter(ReasoningStart::kReasoning);
  EXPECT_EQ(splitter.Put("why </th").reasoning, "why ");
  EXPECT_EQ(splitter.Put("ere <").reasoning, "</there ");
  EXPECT_EQ(splitter.Put("/think").reasoning, "");
  const ReasoningPieces pieces = splitter.Put(">so");
  EXPECT_EQ(pieces.reasoning, "");
  EXPECT_EQ(pieces.content, "so");
}

TEST(ReasoningTest, TextThatIsClearComesAtOnce) {
  ReasoningSplitter splitter(ReasoningStart::kContent);
  EXPECT_EQ(splitter.Put("\n").content, "");
  EXPECT_EQ(splitter.Put("<thi").content, "");
  EXPECT_EQ(splitter.Put("s").content, "\n<this");
  EXPECT_EQ(splitter.Put("<think").content, "<think");
}

TEST(ReasoningTest, FlushGivesOutWhatWasKeptBack) {
  ReasoningSplitter reasoning(ReasoningStart::kReasoning);
  EXPECT_EQ(reasoning.Put("a</thi").reasoning, "a");
  EXPECT_EQ(reasoning.Flush().reasoning, "</thi");
  ReasoningSplitter content(ReasoningStart::kContent);
  EXPECT_EQ(content.Put(" <th").content, "");
  EXPECT_EQ(content.Flush().content, " <th");
}

TEST(ReasoningTest, EveryCutOfRandomTextGivesTheSame) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::string text = RandomText(random);
    for (const auto start : {ReasoningStart::kContent, ReasoningStart::kReasoning}) {
      const ReasoningPieces expected = Model(start, text);
      for (size_t cut = 0; cut <= text.size(); ++cut) {
        const std::string_view whole = text;
        ExpectEqual(SplitWhole(start, {whole.substr(0, cut), whole.substr(cut)}), expected, text);
      }
      std::vector<std::string_view> bytes;
      for (size_t i = 0; i < text.size(); ++i) bytes.push_back(std::string_view(text).substr(i, 1));
      ExpectEqual(SplitWhole(start, bytes), expected, text);
    }
  }
}

}  // namespace
}  // namespace quire
