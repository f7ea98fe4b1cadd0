#include "cli/progress.h"

#include <gtest/gtest.h>

#include <chrono>

namespace quire::cli {
namespace {

TEST(LoadingBarTest, ItTimesTheWeightsAndNotWhatIsDoneBehindThem) {
  LoadingBar::Clock::time_point now;
  LoadingBar bar(ByteOffset(2'000'000'000), 1, [&] { return now; });
  now += std::chrono::seconds(1);
  bar.Update(ByteOffset(1'000'000'000));
  now += std::chrono::seconds(1);
  bar.Update(ByteOffset(2'000'000'000));
  now += std::chrono::seconds(100);
  EXPECT_EQ(bar.Finish(), "loaded 1.86 GiB of weights in 2.0 s, 1.00 GB/s");
}

TEST(LoadingBarTest, ASlowLoadHasARateToSee) {
  LoadingBar::Clock::time_point now;
  LoadingBar bar(ByteOffset(19'000'000), 1, [&] { return now; });
  now += std::chrono::seconds(4);
  bar.Update(ByteOffset(19'000'000));
  EXPECT_EQ(bar.Finish(), "loaded 18.12 MiB of weights in 4.0 s, 4.8 MB/s");
}

TEST(LoadingBarTest, ItSaysWhoseWeightsTheyAre) {
  LoadingBar::Clock::time_point now;
  LoadingBar bar(ByteOffset(1'000'000'000), 8, [&] { return now; });
  now += std::chrono::seconds(2);
  bar.Update(ByteOffset(1'000'000'000));
  EXPECT_EQ(bar.Finish(), "loaded 953.67 MiB of weights on each of 8 ranks in 2.0 s");
}

}  // namespace
}  // namespace quire::cli
