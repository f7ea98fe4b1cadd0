// Ranks: several of them compute one model together, each with a share of its weights. They meet in
// collective calls, which all of them make in one order.
//
// Nothing waits for ever: a rank that fails, or that the others have waited for longer than the group's
// patience, ends every call of every rank with one message, which names the rank and the reason.
#ifndef QUIRE_DEVICE_COLLECTIVE_H_
#define QUIRE_DEVICE_COLLECTIVE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_view.h"

namespace quire {

// [first, first + count) of something that is cut.
struct Share {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
};

// What rank `rank` of `size` has of `width`: whole units, but for the last one, as even as can be. Shares
// stand in the order of ranks and leave nothing out.
Share ShareOf(int64_t width, int64_t unit, int32_t rank, int32_t size);

// What ranks compute: all of them the same tokens, each its share of the values; or each tokens of its own,
// with the others' experts.
enum class RankTokens { kSame, kOwn };

// Rows [first, first + count) of what this rank shows, for rank `to`.
struct GivenRows {
  int32_t to = 0;
  int64_t first = 0;
  int64_t count = 0;
};
// Rows [first, first + count) of what rank `from` shows, to row `to` on.
struct RowPart {
  int32_t from = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t to = 0;
};

// The longest that a rank waits for another one within a step.
inline constexpr std::chrono::seconds kRankPatience{60};

// One rank's end of the group. For one thread at a time, but for Fail and ThrowIfFailed. Calls throw
// DeviceError(kForever) once a rank has failed. Memory that a call was given stays until the group is
// gone: other ranks may read it while a call throws.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // `whole` is [rows, width] at every rank, of which rank r has written the columns shares[r]. Afterwards
  // all have all. Types and shapes are the same everywhere.
  virtual void AllGather(TensorView whole, std::span<const Share> shares) = 0;
  // Every word becomes the OR of all ranks': what one of them has, where the others have 0.
  virtual void AllReduceOr(std::span<uint32_t> words) = 0;
  // Every rank shows `rows`, [any number, width], dense, and takes parts of what is shown to `taken`,
  // [any number, width], dense and none of `rows`. Of any two ranks, what one gives and what the other takes
  // are the same rows in the same order.
  virtual void FetchRows(ConstTensorView rows, std::span<const GivenRows> given,
                         std::span<const RowPart> parts, TensorView taken) = 0;
  // Rank 0's message becomes everybody's. The others wait for it as long as it takes.
  virtual void Broadcast(std::vector<std::byte>& message) = 0;

  // Messages from one rank to another, beside what all do: from any thread, one at a time for each other rank.
  // Send returns at once. Receive waits for the next one of `from`: within a step, patience ends when none has
  // come for so long while nothing else went on between the ranks either.
  enum class Waits { kForever, kWithinStep };
  virtual void Send(int32_t to, std::span<const std::byte> message) = 0;
  virtual void Receive(int32_t from, std::vector<std::byte>& message, Waits waits) = 0;

  // Returns when all ranks have called it, as long as that takes: some load more slowly than others.
  virtual void WaitForAll() = 0;

  // Ends all calls: "rank 2 of 4: <reason>". Only the first failure of a group counts.
  virtual void Fail(const std::string& reason) noexcept = 0;
  virtual void ThrowIfFailed() const = 0;
};

// A group of threads of this process; rank r is at [r].
std::vector<std::unique_ptr<Collective>> MakeLocalRanks(
    int32_t size, std::chrono::milliseconds patience = kRankPatience);

}  // namespace quire

#endif  // QUIRE_DEVICE_COLLECTIVE_H_
