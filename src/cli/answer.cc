#include "cli/answer.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "cli/colour.h"
#include "cli/output.h"

namespace quire::cli {
namespace {

using Clock = std::chrono::steady_clock;

// How soon an interrupt is seen while nothing comes.
constexpr std::chrono::milliseconds kInterruptCheck{20};

// From the engine's thread to the one that prints, so that a slow terminal holds up no step. The
// listener has a share in it: it may outlive the wait.
class EventQueue {
 public:
  struct Item {
    TextEvent event;
    Clock::time_point time;
  };

  enum class Wakes { kForEvery, kForTheLast };
  explicit EventQueue(Wakes wakes) : wakes_(wakes) {}

  void Put(const TextEvent& event) {
    const std::lock_guard lock(mutex_);
    items_.push_back({event, Clock::now()});
    if (wakes_ == Wakes::kForEvery || event.last_of_request) changed_.notify_one();
  }

  // nullopt: none came for a while.
  std::optional<Item> Take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kInterruptCheck, [&] { return !items_.empty(); })) {
      return std::nullopt;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  const Wakes wakes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
};

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

// Counts and times, and how it ended.
void Note(const EventQueue::Item& item, Clock::time_point begin, ShownAnswer& answer) {
  const TextEvent& event = item.event;
  if (event.cached_tokens) answer.cached_tokens = event.cached_tokens->raw();
  if (event.output_tokens > answer.output_tokens) {
    const double seconds = Seconds(item.time - begin);
    if (answer.output_tokens == 0) answer.first_token_seconds = seconds;
    answer.decode_seconds = seconds - answer.first_token_seconds;
    answer.output_tokens = event.output_tokens;
  }
  answer.finish = event.finish;
  answer.stopped_by = event.stopped_by;
}

}  // namespace

double ShownAnswer::TokensPerSecond() const {
  return decode_seconds > 0 ? static_cast<double>(output_tokens - 1) / decode_seconds : 0;
}

ShownAnswer ShowAnswer(TextEngine& engine, TextRequest request, const Interrupt& interrupt,
                       const ShowPieces& show) {
  ShownAnswer answer{.prompt_tokens = std::ssize(request.tokens.prompt)};
  // Where sixty-four wait, waking one for each token would cost the engine more than its step.
  const auto queue = std::make_shared<EventQueue>(show ? EventQueue::Wakes::kForEvery
                                                       : EventQueue::Wakes::kForTheLast);
  const Clock::time_point begin = Clock::now();
  const std::optional<RequestId> id =
      engine.Submit(std::move(request), [queue](const TextEvent& event) { queue->Put(event); });
  QUIRE_CHECK(id.has_value(), "the queue is full, with one request at a time");
  bool interrupted = false;
  while (true) {
    const std::optional<EventQueue::Item> item = queue->Take();
    if (!interrupted && interrupt.raised()) {
      interrupted = true;
      engine.Cancel(*id);
    }
    if (!item) continue;
    const TextEvent& event = item->event;
    if (!event.error.empty()) throw InternalError(event.error);
    Note(*item, begin, answer);
    if (!interrupted) {
      if (show) show(event.text);
      answer.text.reasoning += event.text.reasoning;
      answer.text.content += event.text.content;
    }
    if (event.last_of_request) break;
  }
  if (interrupted) answer.finish = FinishReason::kCancelled;  // even if its end was on its way
  return answer;
}

std::string Describe(const ShownAnswer& answer) {
  return fmt::format(
      "prompt {} tokens ({} cached), answer {} tokens ({}), {:.1f} tokens/s, first after {:.2f} s",
      answer.prompt_tokens, answer.cached_tokens, answer.output_tokens,
      FinishReasonName(answer.finish), answer.TokensPerSecond(), answer.first_token_seconds);
}

AnswerPrinter::AnswerPrinter(Reasoning reasoning) : reasoning_(reasoning) {}

void AnswerPrinter::Show(const ReasoningPieces& pieces) {
  if (!pieces.reasoning.empty() && reasoning_ == Reasoning::kShown) {
    in_reasoning_ = true;
    PrintDimmed(pieces.reasoning);
  }
  if (pieces.content.empty()) return;
  Finish();
  WriteResult(pieces.content);
}

void AnswerPrinter::Finish() {
  if (std::exchange(in_reasoning_, false)) fmt::print(stderr, "\n");
}

void PrintDimmed(const std::string& text) { fmt::print(stderr, "{}", Dimmed(text)); }

}  // namespace quire::cli
