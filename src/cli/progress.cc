#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/colour.h"
#include "runner/memory_plan.h"

namespace quire::cli {
namespace {

constexpr int kBarWidth = 30;
constexpr double kUpdateSeconds = 0.05;  // 20 times a second looks smooth

}  // namespace

StatusLine::StatusLine() : is_terminal_(StderrIsTerminal()) {}

void StatusLine::Show(const std::string& text) {
  if (!is_terminal_) return;
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
  is_shown_ = true;
}

void StatusLine::Clear() {
  if (is_shown_) fmt::print(stderr, "\r\x1b[K");
  is_shown_ = false;
}

std::string Bar(double part) {
  const int full = std::clamp(static_cast<int>(part * kBarWidth), 0, kBarWidth);
  return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", kBarWidth - full);
}

LoadingBar::LoadingBar(ByteOffset total, int32_t num_ranks, std::function<Clock::time_point()> now)
    : total_(total), num_ranks_(num_ranks), now_(std::move(now)) {}

void LoadingBar::Update(ByteOffset loaded) {
  if (loaded >= total_ && !all_loaded_) all_loaded_ = Seconds();
  if (Seconds() < next_update_) return;
  next_update_ = Seconds() + kUpdateSeconds;
  const double part = static_cast<double>(loaded.raw()) / static_cast<double>(total_.raw());
  line_.Show(fmt::format("loading {} {:3.0f}%  {} of {}  {}", Bar(part), part * 100,
                         FormatBytes(loaded), FormatBytes(total_), RateOf(loaded)));
}

std::string LoadingBar::Finish() {
  line_.Clear();
  if (num_ranks_ > 1) {
    return fmt::format("loaded {} of weights on each of {} ranks in {:.1f} s", FormatBytes(total_),
                       num_ranks_, Seconds());
  }
  return fmt::format("loaded {} of weights in {:.1f} s, {}", FormatBytes(total_), Seconds(),
                     RateOf(total_));
}

double LoadingBar::Seconds() const {
  if (all_loaded_) return *all_loaded_;
  return std::chrono::duration<double>(now_() - begin_).count();
}

// Of small models there is no gigabyte a second to see.
std::string LoadingBar::RateOf(ByteOffset loaded) const {
  const double rate = static_cast<double>(loaded.raw()) / std::max(Seconds(), 1e-9);
  return rate < 0.1e9 ? fmt::format("{:.1f} MB/s", rate * 1e-6)
                      : fmt::format("{:.2f} GB/s", rate * 1e-9);
}

void TaskBar::Begin(const std::string& task) {
  const double part = static_cast<double>(num_begun_) / num_tasks_;
  ++num_begun_;
  if (line_.is_terminal()) {
    line_.Show(fmt::format("{} {}/{}  {}", Bar(part), num_begun_, num_tasks_, task));
  } else {
    fmt::print(stderr, "{}/{}  {}\n", num_begun_, num_tasks_, task);
  }
}

}  // namespace quire::cli
