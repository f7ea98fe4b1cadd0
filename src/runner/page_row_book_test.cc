#include "runner/page_row_book.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace quire {
namespace {

std::vector<PageId> Pages(std::initializer_list<int> ids) {
  std::vector<PageId> pages;
  for (const int id : ids) pages.emplace_back(id);
  return pages;
}

class PageRowBookTest : public ::testing::Test {
 protected:
  // A step of sequences with these ids and pages, of which each has kept the first `kept`; what the
  // rows hold is what was asked for then.
  std::vector<RowUse> Step(const std::vector<uint64_t>& ids,
                           const std::vector<std::vector<PageId>>& pages,
                           const std::vector<int>& kept = {}) {
    std::vector<StepSequence> batch;
    std::vector<SequenceStep> seqs;
    for (size_t i = 0; i < ids.size(); ++i) {
      batch.push_back({.id = ids[i],
                       .pages = pages[i],
                       .kept_pages = PageCount(i < kept.size() ? kept[i] : 0)});
      seqs.push_back({.pages = pages[i]});
    }
    std::vector<RowUse> uses(ids.size());
    book_.Assign(batch, seqs, uses);
    for (size_t i = 0; i < ids.size(); ++i) {
      book_.Set(uses[i].row, uses[i].unchanged, pages[i]);
    }
    return uses;
  }

  PageRowBook book_{3, PageCount(4)};
};

TEST_F(PageRowBookTest, ASequenceKeepsItsRowAndBringsWhatIsNew) {
  const auto first = Step({7, 9}, {Pages({1, 2}), Pages({3})});
  EXPECT_NE(first[0].row, first[1].row);
  EXPECT_EQ(first[0].unchanged, PageCount(0));
  const auto second = Step({9, 7}, {Pages({3, 4}), Pages({1, 2, 5})}, {1, 2});
  EXPECT_EQ(second[0].row, first[1].row);
  EXPECT_EQ(second[0].unchanged, PageCount(1));
  EXPECT_EQ(second[1].row, first[0].row);
  EXPECT_EQ(second[1].unchanged, PageCount(2));
}

TEST_F(PageRowBookTest, PagesThatWereNotKeptOrThatTheRowHasNotAreNew) {
  Step({7}, {Pages({1, 2, 3})});
  EXPECT_EQ(Step({7}, {Pages({1, 4, 3})}, {1})[0].unchanged, PageCount(1));
  EXPECT_EQ(Step({7}, {Pages({1})}, {1})[0].unchanged, PageCount(1));
  // A list may be kept whole of which a step needed a part only.
  EXPECT_EQ(Step({7}, {Pages({1, 4})}, {2})[0].unchanged, PageCount(1));
  EXPECT_EQ(Step({7}, {Pages({1, 4})})[0].unchanged, PageCount(0));
  book_.ForgetPages();
  EXPECT_EQ(Step({7}, {Pages({1, 4})}, {2})[0].unchanged, PageCount(0));
}

#ifdef QUIRE_DCHECKS
TEST_F(PageRowBookTest, PagesThatAreSaidToBeKeptAndAreOthersAreFound) {
  Step({7}, {Pages({1, 2, 3})});
  EXPECT_THROW(Step({7}, {Pages({1, 4, 3})}, {2}), InternalError);
}
#endif

TEST_F(PageRowBookTest, TheRowThatWasUnusedForTheLongestTimeIsTakenOver) {
  const auto first = Step({1, 2, 3}, {Pages({1}), Pages({2}), Pages({3})});
  Step({1, 3}, {Pages({1}), Pages({3})}, {1, 1});
  const auto next = Step({4, 1}, {Pages({9}), Pages({1})}, {0, 1});
  EXPECT_EQ(next[0].row, first[1].row);
  EXPECT_EQ(next[1].row, first[0].row);
  EXPECT_EQ(next[1].unchanged, PageCount(1));
  const auto back = Step({2}, {Pages({2})}, {1});  // has lost its row, and takes that of 3
  EXPECT_EQ(back[0].row, first[2].row);
  EXPECT_EQ(back[0].unchanged, PageCount(0));
}

TEST_F(PageRowBookTest, SequencesWithoutAnIdHaveRowsOfTheirOwn) {
  const auto uses = Step({0, 0, 5}, {Pages({1}), Pages({1}), Pages({1})});
  EXPECT_NE(uses[0].row, uses[1].row);
  EXPECT_NE(uses[0].row, uses[2].row);
  EXPECT_NE(uses[1].row, uses[2].row);
  const auto twice = Step({5, 5}, {Pages({1}), Pages({2})});  // nobody should, and nothing breaks
  EXPECT_NE(twice[0].row, twice[1].row);
}

}  // namespace
}  // namespace quire
