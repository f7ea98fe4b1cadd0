#include "cli/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace quire::cli {
namespace {

struct LogPipe {
  LogPipe() {
    EXPECT_EQ(::pipe(ends.data()), 0);
    EXPECT_GT(::fcntl(ends[1], F_SETPIPE_SZ, 4096), 0);
  }
  ~LogPipe() {
    ::close(ends[0]);
    CloseWriter();
  }
  void CloseWriter() {
    if (ends[1] >= 0) ::close(std::exchange(ends[1], -1));
  }
  // To its end.
  std::string Read() {
    std::string text;
    std::array<char, 4096> piece = {};
    for (ssize_t n = 0; (n = ::read(ends[0], piece.data(), piece.size())) > 0;) {
      text.append(piece.data(), static_cast<size_t>(n));
    }
    return text;
  }
  std::array<int, 2> ends = {-1, -1};
};

TEST(LogWriterTest, LinesOfManyThreadsComeWholeAndAllOfThem) {
  LogPipe pipe;
  std::string text;
  std::thread reader([&] { text = pipe.Read(); });
  {
    LogWriter log(pipe.ends[1]);
    std::vector<std::thread> writers;
    for (char name : {'a', 'b', 'c'}) {
      writers.emplace_back([&log, name] {
        for (int i = 0; i < 500; ++i) log.Put(std::string(100, name));
      });
    }
    for (std::thread& writer : writers) writer.join();
    EXPECT_EQ(log.num_dropped(), 0);
  }
  pipe.CloseWriter();
  reader.join();
  EXPECT_EQ(text.size(), 3u * 500 * 101);
  for (size_t i = 0; i < text.size(); i += 101) {
    ASSERT_EQ(text.substr(i, 101), std::string(100, text[i]) + "\n");
  }
}

TEST(LogWriterTest, ALogThatNobodyReadsDropsLinesAndCountsThem) {
  LogPipe pipe;
  std::optional<LogWriter> log;
  log.emplace(pipe.ends[1], 10'000);
  constexpr int kLines = 2000;
  for (int i = 0; i < kLines; ++i) log->Put(std::string(100, 'x'));  // ends, though nobody reads
  const int64_t dropped = log->num_dropped();
  EXPECT_GT(dropped, kLines - 300);
  std::string text;
  std::thread reader([&] { text = pipe.Read(); });
  log.reset();
  pipe.CloseWriter();
  reader.join();
  EXPECT_NE(text.find(" lines of this log were dropped"), std::string::npos);
  EXPECT_EQ(std::ranges::count(text, 'x'), (kLines - dropped) * 100);
}

TEST(LogWriterTest, TheEndComesThoughNobodyReads) {
  LogPipe pipe;
  LogWriter log(pipe.ends[1]);
  for (int i = 0; i < 200; ++i) log.Put(std::string(100, 'x'));
}

TEST(LogWriterTest, ALogThatIsClosedIsNoFault) {
  LogWriter log(-1);
  for (int i = 0; i < 10; ++i) log.Put("line");
}

}  // namespace
}  // namespace quire::cli
