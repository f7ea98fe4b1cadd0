// Bytes -> operations on a small pool and tree, with the invariants checked after each. What was
// just published must be found.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "cache/page_list.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"

namespace quire {
namespace {

class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  // The next byte modulo n; 0 at the end.
  int Below(int n) {
    if (bytes_.empty()) return 0;
    const int value = bytes_.front() % n;
    bytes_ = bytes_.subspan(1);
    return value;
  }

 private:
  std::span<const uint8_t> bytes_;
};

struct Sequence {
  std::string_view salt;
  std::vector<int32_t> tokens;
  PageList list;
};

class Machine {
 public:
  explicit Machine(Bytes bytes)
      : bytes_(bytes),
        page_size_(1 + bytes_.Below(5)),
        pool_(PageCount(16), page_size_),
        tree_(page_size_) {}

  void Run() {
    while (!bytes_.empty()) {
      Step();
      pool_.CheckInvariants();
      tree_.CheckInvariants();
      for (const Sequence& sequence : running_) sequence.list.CheckInvariants();
    }
  }

 private:
  void Step() {
    switch (bytes_.Below(6)) {
      case 0:
        return Start();
      case 1:
        return Grow();
      case 2:
        return Publish();
      case 3:
        return Finish();
      case 4:
        return Evict();
      case 5:
        if (!running_.empty()) running_.erase(running_.begin());
        return;
    }
  }

  void AppendTokens(std::vector<int32_t>& tokens) {
    const int count = 1 + bytes_.Below(12);
    for (int i = 0; i < count; ++i) tokens.push_back(bytes_.Below(3));
  }

  DraftLayer Draft() { return bytes_.Below(2) == 0 ? DraftLayer::kAbsent : DraftLayer::kPresent; }

  bool Extend(PageList& list, size_t length) {
    const ExtendRequest request{&list, TokenCount(length)};
    return ExtendLists(pool_, {&request, 1}).has_value();
  }

  void Start() {
    const std::string_view salt = bytes_.Below(2) == 0 ? "a" : "b";
    std::vector<int32_t> tokens;
    AppendTokens(tokens);
    PrefixMatch match = tree_.Match(salt, tokens, Draft());
    QUIRE_CHECK(match.length < TokenCount(tokens.size()));
    PageList list(page_size_, std::move(match.pages));
    if (Extend(list, tokens.size())) {
      running_.push_back({salt, std::move(tokens), std::move(list)});
    }
  }

  void Grow() {
    if (running_.empty()) return;
    Sequence& sequence = running_.back();
    std::vector<int32_t> tokens = sequence.tokens;
    AppendTokens(tokens);
    if (Extend(sequence.list, tokens.size())) sequence.tokens = std::move(tokens);
  }

  void Publish() {
    if (running_.empty()) return;
    const Sequence& sequence = running_.front();
    tree_.Publish(sequence.salt, sequence.tokens, sequence.list);
    const TokenCount full =
        page_size_.TokensIn(page_size_.FullPages(TokenCount(sequence.tokens.size())));
    CheckFound(sequence, full);
  }

  void Finish() {
    if (running_.empty()) return;
    Sequence sequence = std::move(running_.back());
    running_.pop_back();
    tree_.PublishFinished(sequence.salt, sequence.tokens, std::move(sequence.list));
    CheckFound(sequence, TokenCount(sequence.tokens.size()));
  }

  void CheckFound(const Sequence& sequence, TokenCount at_least) {
    std::vector<int32_t> query = sequence.tokens;
    query.push_back(0);
    const PrefixMatch match = tree_.Match(sequence.salt, query, DraftLayer::kAbsent);
    QUIRE_CHECK(match.length >= at_least, "{} of {} tokens found", match.length, at_least);
  }

  void Evict() {
    const PageCount wanted(bytes_.Below(17));
    const PageCount evictable = tree_.CountEvictable(tree_.num_pages());
    const PageCount free_before = pool_.num_free();
    const PageCount freed = tree_.Evict(wanted);
    QUIRE_CHECK(freed == Min(wanted, evictable), "{} freed, {} wanted, {} evictable", freed, wanted,
                evictable);
    QUIRE_CHECK(pool_.num_free() == free_before + freed);
  }

  Bytes bytes_;
  PageSize page_size_;
  PagePool pool_;
  PrefixTree tree_;
  std::vector<Sequence> running_;
};

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  quire::Machine(quire::Bytes({bytes, size})).Run();
  return 0;
}
