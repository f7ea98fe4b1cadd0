#include "runner/remote_runner.h"

#include <exception>
#include <string>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

enum class Call : int32_t { kSubmit, kCollect, kEnd };

// How a call has ended.
enum class Ended : int32_t { kWell, kError, kInternalError, kDeviceError, kDeviceLost };

void PutText(const std::string& text, MessageWriter& message) {
  message.PutList(std::span(text.data(), text.size()));
}

std::string TakeText(MessageReader& message) {
  std::string text(message.Take<size_t>(), ' ');
  message.TakeAll(std::span(text.data(), text.size()));
  return text;
}

// do_it(), and how it has ended, with words and, of an Error, its code.
template <class Fn>
void Answer(MessageWriter& message, Fn do_it) {
  const auto put = [&](Ended ended, const std::exception& error) {
    message.Put(ended);
    PutText(error.what(), message);
  };
  try {
    const auto write = do_it();
    message.Put(Ended::kWell);
    write();
  } catch (const Error& error) {
    put(Ended::kError, error);
    message.Put(error.code());
  } catch (const DeviceError& error) {
    put(error.is_sticky() ? Ended::kDeviceLost : Ended::kDeviceError, error);
  } catch (const std::exception& error) {
    put(Ended::kInternalError, error);
  }
}

void ThrowUnlessWell(MessageReader& message) {
  const auto ended = message.Take<Ended>();
  if (ended == Ended::kWell) return;
  const std::string text = TakeText(message);
  switch (ended) {
    case Ended::kError:
      throw Error(message.Take<ErrorCode>(), "{}", text);
    case Ended::kDeviceError:
      throw DeviceError(DeviceError::Lasts::kOnce, text);
    case Ended::kDeviceLost:
      throw DeviceError(DeviceError::Lasts::kForever, text);
    default:
      throw InternalError(text);
  }
}

}  // namespace

RemoteRunner::RemoteRunner(std::shared_ptr<Collective> ranks, int32_t rank,
                           const RunnerLimits& limits, const MemoryPlan& plan)
    : ranks_(std::move(ranks)), rank_(rank), limits_(limits), plan_(plan) {}

RemoteRunner::~RemoteRunner() {
  try {
    MessageWriter(message_).Put(Call::kEnd);
    ranks_->Send(rank_, message_);
  } catch (const std::exception&) {
    // A rank has failed, and all know.
  }
}

// What the message asks for, and what came of it.
MessageReader RemoteRunner::Ask() {
  ranks_->Send(rank_, message_);
  ranks_->Receive(rank_, message_, Collective::Waits::kWithinStep);
  MessageReader answer(message_);
  ThrowUnlessWell(answer);
  return answer;
}

void RemoteRunner::Submit(const StepBatch& batch) {
  MessageWriter message(message_);
  message.Put(Call::kSubmit);
  WriteBatch(batch, message);
  Ask();
  batch_ = batch;
}

const StepResult& RemoteRunner::Collect() {
  MessageWriter message(message_);
  message.Put(Call::kCollect);
  WriteMasks(batch_, message);
  MessageReader answer = Ask();
  return results_.Read(answer);
}

void ServeRunner(Runner& runner, Collective& ranks) {
  BatchReader batches;
  std::vector<std::byte> asked, answered;
  while (true) {
    ranks.Receive(0, asked, Collective::Waits::kForever);
    MessageReader message(asked);
    const auto call = message.Take<Call>();
    if (call == Call::kEnd) return;
    MessageWriter answer(answered);
    Answer(answer, [&] {
      const StepResult* result = nullptr;
      if (call == Call::kSubmit) {
        runner.Submit(batches.Read(message));
      } else {
        batches.ReadMasks(message);
        result = &runner.Collect();
      }
      return [&answer, result] {
        if (result != nullptr) WriteResult(*result, answer);
      };
    });
    ranks.Send(0, answered);
  }
}

}  // namespace quire
