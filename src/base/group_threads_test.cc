#include "base/group_threads.h"

#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <thread>
#include <vector>

namespace quire {
namespace {

TEST(GroupThreads, RunAllGroupsAtOnceAndEachOnceEveryTime) {
  for (const size_t size : {1u, 2u, 5u}) {
    GroupThreads threads(size);
    std::barrier meeting(
        static_cast<std::ptrdiff_t>(size));  // which none leaves before all are there
    std::vector<int> runs(size);
    std::vector<std::thread::id> ids(size);
    for (int run = 1; run <= 50; ++run) {
      threads.Run([&](size_t group) {
        meeting.arrive_and_wait();
        ++runs[group];
        ids[group] = std::this_thread::get_id();
      });
      EXPECT_EQ(runs, std::vector<int>(size, run));
    }
    EXPECT_EQ(ids[0], std::this_thread::get_id());
  }
}

}  // namespace
}  // namespace quire
