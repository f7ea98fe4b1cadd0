#include "cli/line_reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "cli/interrupt.h"

namespace quire::cli {
namespace {

using Outcome = LineReader::Outcome;

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  int ends[2] = {-1, -1};  // to read from, to write to
};

class LineReaderTest : public testing::Test {
 protected:
  ~LineReaderTest() override {
    close(pipe_.ends[0]);
    Close();
  }

  void Write(const std::string& text) {
    ASSERT_EQ(write(pipe_.ends[1], text.data(), text.size()), std::ssize(text));
  }
  void Close() {
    if (pipe_.ends[1] >= 0) close(pipe_.ends[1]);
    pipe_.ends[1] = -1;
  }
  void ExpectLine(const std::string& expected) {
    std::string line;
    ASSERT_EQ(reader_.Next(interrupt_, line), Outcome::kLine);
    EXPECT_EQ(line, expected);
  }
  Outcome Next() {
    std::string line;
    return reader_.Next(interrupt_, line);
  }

  Pipe pipe_;
  Interrupt interrupt_{Interrupt::Times::kAlways};
  LineReader reader_{pipe_.ends[0]};
};

TEST_F(LineReaderTest, LinesComeHoweverTheyAreCut) {
  Write("one\ntw");
  ExpectLine("one");
  Write("o\n\n" + std::string(10000, 'x') + "\nlast");
  ExpectLine("two");
  ExpectLine("");
  ExpectLine(std::string(10000, 'x'));
  Close();
  ExpectLine("last");
  EXPECT_EQ(Next(), Outcome::kEnd);
  EXPECT_EQ(Next(), Outcome::kEnd);
}

TEST_F(LineReaderTest, AnInterruptComesFirstAndForgetsWhatWasTyped) {
  Write("one\ntwo\nthr");
  ExpectLine("one");
  std::raise(SIGINT);
  EXPECT_EQ(Next(), Outcome::kInterrupted);
  EXPECT_EQ(Next(), Outcome::kInterrupted);  // until it is cleared
  interrupt_.Clear();
  Write("new\n");
  ExpectLine("new");
}

TEST(InterruptTest, IsRaisedUntilItIsCleared) {
  Interrupt interrupt(Interrupt::Times::kAlways);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(interrupt.raised());
    std::raise(SIGINT);
    std::raise(SIGINT);
    EXPECT_TRUE(interrupt.raised());
    EXPECT_TRUE(interrupt.raised());
    interrupt.Clear();
  }
}

struct sigaction CurrentAction() {
  struct sigaction action = {};
  sigaction(SIGINT, nullptr, &action);
  return action;
}

TEST(InterruptTest, WhatWasBeforeIsPutBack) {
  const auto before = CurrentAction().sa_handler;
  {
    const Interrupt interrupt(Interrupt::Times::kAlways);
    EXPECT_NE(CurrentAction().sa_handler, before);
  }
  EXPECT_EQ(CurrentAction().sa_handler, before);
  const Interrupt again(Interrupt::Times::kAlways);
  EXPECT_FALSE(again.raised());
}

TEST(InterruptTest, OnceLetsTheSecondEndTheProgram) {
  const Interrupt interrupt(Interrupt::Times::kOnce);
  std::raise(SIGINT);
  EXPECT_TRUE(interrupt.raised());
  EXPECT_EQ(CurrentAction().sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace quire::cli
