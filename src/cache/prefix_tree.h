// A PrefixTree finds the pages of earlier sequences again by their tokens.
//
// It is a radix tree over tokens whose nodes hold runs of whole pages; only the last page of a leaf
// may be partial. A match is counted in tokens. The full pages it covers are shared with the tree; if
// it ends inside a page, the tokens before the end are to be copied into a page of the sequence's
// own:
//
//   PrefixMatch match = tree.Match(salt, prompt, DraftLayer::kAbsent);
//   const size_t num_full = match.pages.size();
//   PageList list(page_size, std::move(match.pages));
//   ... ExtendLists, to match.length plus the tokens of the first step ...
//   if (match.partial) copies.push_back(match.partial->CopyTo(list.PageIds()[num_full]));
//
// Two sequences that part inside a page each have a page of their own there.
//
// A lease is the lock: a page that anybody but the tree holds, and the pages before it, are not
// evicted. So there is no lock to take, to forget or to carry along, and a page evicted is always a
// page freed. Eviction takes single pages, from the end of the leaf that was used longest ago. A
// page is used when a match or a publication covers it.
//
// One thread at a time uses a tree. Time is linear in the tokens given and those of the one node
// that may be split; nothing recurses.
#ifndef QUIRE_CACHE_PREFIX_TREE_H_
#define QUIRE_CACHE_PREFIX_TREE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "cache/page_list.h"
#include "cache/page_pool.h"

namespace quire {

// Copy the first `count` tokens' rows of page `from` into page `to`, before any write of the step.
struct PageCopy {
  PageId from;
  PageId to;
  TokenCount count;

  // The copy as rows to move, slot by slot: what a store's Move takes.
  void AppendSlots(PageSize page_size, std::vector<Slot>& from_slots,
                   std::vector<Slot>& to_slots) const;

  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

// The first `count` tokens of a page, 1 <= count < page size. Kept until the copy is done, since
// the lease alone keeps the page from being evicted and handed out again.
struct PartialPage {
  PageLease page;
  TokenCount count;

  PageCopy CopyTo(PageId to) const { return {.from = page.page(), .to = to, .count = count}; }
};

struct PrefixMatch {
  TokenCount length;                   // TokensIn(pages) + the partial page's count
  std::vector<PageLease> pages;        // the full pages, in order
  std::optional<PartialPage> partial;  // where the match ends inside a page
};

// With a draft layer a match of n tokens counts as n - 1: the draft layer's row of a token depends
// on the token after it, which for the last one may differ.
enum class DraftLayer { kAbsent, kPresent };

// What a tree has done since it was made.
struct PrefixTreeCounters {
  int64_t num_matches = 0;
  int64_t num_hits = 0;       // matches of at least one token
  TokenCount queried_tokens;  // given to Match
  TokenCount matched_tokens;  // found by Match
  PageCount evicted_pages;
  PageCount counted_pages;  // looked at by CountEvictable
};

class PrefixTree {
 public:
  explicit PrefixTree(PageSize page_size) : page_size_(page_size) {}

  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The longest prefix of `tokens` cached under `salt`, but never all of them: at least one token
  // is left to compute. Where several pages share as many tokens with the query, takes the first
  // that does not precede it in the order of their tokens. Throws Error(kInvalidArgument) if there
  // are no tokens.
  PrefixMatch Match(std::string_view salt, std::span<const int32_t> tokens, DraftLayer draft);

  // How long Match would find it. Nothing is used by that.
  TokenCount MatchLength(std::string_view salt, std::span<const int32_t> tokens,
                         DraftLayer draft) const;

  // Caches the full pages among those that hold `tokens`, the first tokens of a sequence that goes
  // on. Their rows have been computed, from these tokens, and will not be written again; a list is
  // always published under one salt. Where the tree already has the tokens its pages stay, and the
  // list keeps its own. Returns how many pages were added. Throws Error(kInvalidArgument) if the
  // list is shorter than `tokens` or has another page size.
  PageCount Publish(std::string_view salt, std::span<const int32_t> tokens, const PageList& list);
  // The same at the end of a sequence, with its partial last page; a list given away cannot be
  // written to. The pages of the list that the tree did not take are given back. A partial page of
  // the tree that the new pages continue is replaced.
  PageCount PublishFinished(std::string_view salt, std::span<const int32_t> tokens, PageList list);

  // Forgets pages that were published and cannot be trusted: of those of `list`, which begins with
  // `tokens`, from number `first` on, and whatever is behind them. Whoever holds one keeps it. Returns how
  // many were forgotten.
  PageCount Withdraw(std::string_view salt, std::span<const int32_t> tokens, const PageList& list,
                     PageCount first);

  // Frees pages until `wanted` are freed or none can be, and returns how many were. Each of them is
  // back in the pool. Passes over leaves in use, so the cost is that of the pages freed and of the
  // nodes in use that are older. Throws Error(kInvalidArgument) if wanted < 0.
  PageCount Evict(PageCount wanted);

  PageSize page_size() const { return page_size_; }
  PageCount num_pages() const { return num_pages_; }
  TokenCount num_tokens() const { return num_tokens_; }
  const PrefixTreeCounters& counters() const { return counters_; }
  // What Evict(at_most) could free now. Looks at so many pages and at a page of every node in use that
  // is older: leases come and go without the tree, so there is no count to keep, but whoever asks
  // wants to know whether there are enough.
  PageCount CountEvictable(PageCount at_most);

  // Throws InternalError unless the invariants hold. Walks all tokens.
  void CheckInvariants() const;

 private:
  struct Node;

  // Orders siblings by the tokens of their first pages.
  struct ByFirstPage {
    using is_transparent = void;
    using Tokens = std::span<const int32_t>;

    PageSize page_size;

    Tokens FirstPage(Tokens tokens) const;
    Tokens FirstPage(const Node* node) const { return FirstPage(node->tokens); }
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return Less(FirstPage(a), FirstPage(b));
    }
    static bool Less(Tokens a, Tokens b);
  };

  using Children = std::set<Node*, ByFirstPage>;

  // A run of pages without a branch; or a root: no pages, one per salt.
  struct Node {
    Node* parent;             // null for a root
    const std::string* salt;  // a root's key in roots_; null otherwise
    std::vector<int32_t> tokens;
    std::vector<PageLease> pages;
    Children children;
    std::list<Node>::iterator place;  // in nodes_; not for a root
  };

  // The nodes that share tokens with a query, from below a root down: all their tokens, but for the
  // last one's last `unmatched`.
  struct Path {
    std::vector<Node*> nodes;
    TokenCount length;  // tokens shared
    TokenCount unmatched;
  };

  Path Walk(std::string_view salt, std::span<const int32_t> tokens) const;
  // What a match has to go by, and how long it is.
  Path WalkForMatch(std::string_view salt, std::span<const int32_t> tokens, DraftLayer draft) const;
  static TokenCount LengthOf(const Path& path, DraftLayer draft);
  Node* ClosestChild(const Node& node, std::span<const int32_t> tokens) const;
  void SharePages(const Path& path, PrefixMatch& match) const;

  PageCount Insert(std::string_view salt, std::span<const int32_t> tokens, const PageList& list);
  void RequireHolds(const PageList& list, std::span<const int32_t> tokens) const;
  // The node that ends after the first `pages` > 0 pages of the path; splits one if need be, whose
  // lower part keeps its address.
  Node* NodeEndingAt(const Path& path, PageCount pages);
  Node* Split(Node* node, PageCount pages);
  // Adds the pages of `list` from index `first` on, with their tokens, behind `end`. Returns the
  // node they are in.
  Node* AddPages(Node* end, std::span<const int32_t> tokens, const PageList& list, PageCount first);
  Node MakeNode(Node* parent) const;
  // A node without tokens and pages, not yet among its parent's children. To be marked as used,
  // with the nodes above it.
  Node* NewNode(Node* parent);
  Node* FindOrAddRoot(std::string_view salt);
  void MarkUsed(Node* node);
  static bool IsEvictable(const Node& node);
  void RemoveLastPage(Node* leaf);
  // Removes the pages of a node behind the first `num_kept`, and the nodes below it.
  void CutBehind(Node* node, size_t num_kept);
  void RemoveLeaf(Node* leaf);

  void CheckNode(const Node& node) const;
  void CheckRoot(const std::string& salt, const Node& root) const;
  void CheckSiblings(const Node& parent) const;
  void CheckOrder() const;
  void CheckPages() const;

  // Invariants:
  //   1. A node has at least one token and PagesFor(tokens) pages, all full if it has children.
  //   2. Siblings differ in the tokens of their first pages: none has all those of another.
  //   3. Every node is a child of its parent and there are no other children. A root has children,
  //      but neither tokens nor pages, and knows its salt.
  //   4. A node comes before its children in nodes_.
  //   5. No page is in the tree twice.
  //   6. num_pages_ and num_tokens_ are the sums over the nodes.
  PageSize page_size_;
  std::map<std::string, Node, std::less<>> roots_;
  // In the order of use, latest first. Whatever uses a node uses its parent too, so with 4 the last
  // node is a leaf, the one to evict from: no clock and no search.
  std::list<Node> nodes_;
  PageCount num_pages_;
  TokenCount num_tokens_;
  PrefixTreeCounters counters_;
};

}  // namespace quire

#endif  // QUIRE_CACHE_PREFIX_TREE_H_
