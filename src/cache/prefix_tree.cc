#include "cache/prefix_tree.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace quire {

void PageCopy::AppendSlots(PageSize page_size, std::vector<Slot>& from_slots,
                           std::vector<Slot>& to_slots) const {
  for (int32_t offset = 0; offset < count.raw(); ++offset) {
    from_slots.push_back(page_size.SlotOf(from, offset));
    to_slots.push_back(page_size.SlotOf(to, offset));
  }
}
namespace {

using Tokens = std::span<const int32_t>;

template <class Tag>
size_t Index(Count<Tag> count) {
  return static_cast<size_t>(count.raw());
}

TokenCount CommonPrefix(Tokens a, Tokens b) {
  return TokenCount(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// Moves the first `count` elements of `from` out.
template <class T>
std::vector<T> TakeFront(std::vector<T>& from, size_t count) {
  const auto end = from.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<T> front(std::make_move_iterator(from.begin()), std::make_move_iterator(end));
  from.erase(from.begin(), end);
  return front;
}

}  // namespace

Tokens PrefixTree::ByFirstPage::FirstPage(Tokens tokens) const {
  return tokens.first(std::min(tokens.size(), Index(page_size.tokens())));
}

bool PrefixTree::ByFirstPage::Less(Tokens a, Tokens b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

PrefixMatch PrefixTree::Match(std::string_view salt, Tokens tokens, DraftLayer draft) {
  const Path path = WalkForMatch(salt, tokens, draft);
  PrefixMatch match;
  match.length = LengthOf(path, draft);
  if (match.length > TokenCount(0)) {
    SharePages(path, match);
    // A match ends a node, so that all pages of a node were last used together.
    MarkUsed(NodeEndingAt(path, page_size_.PagesFor(match.length)));
    ++counters_.num_hits;
  }
  ++counters_.num_matches;
  counters_.queried_tokens += TokenCount(tokens.size());
  counters_.matched_tokens += match.length;
  return match;
}

TokenCount PrefixTree::MatchLength(std::string_view salt, Tokens tokens, DraftLayer draft) const {
  return LengthOf(WalkForMatch(salt, tokens, draft), draft);
}

// One token must be left over. With a draft layer it is the one that does not count.
PrefixTree::Path PrefixTree::WalkForMatch(std::string_view salt, Tokens tokens,
                                          DraftLayer draft) const {
  Require(!tokens.empty(), "tokens: expected at least one to match, got none");
  return Walk(salt, draft == DraftLayer::kPresent ? tokens : tokens.first(tokens.size() - 1));
}

TokenCount PrefixTree::LengthOf(const Path& path, DraftLayer draft) {
  if (draft == DraftLayer::kAbsent) return path.length;
  return Max(path.length - TokenCount(1), TokenCount(0));
}

PageCount PrefixTree::Publish(std::string_view salt, Tokens tokens, const PageList& list) {
  RequireHolds(list, tokens);
  const PageCount full_pages = page_size_.FullPages(TokenCount(tokens.size()));
  return Insert(salt, tokens.first(Index(page_size_.TokensIn(full_pages))), list);
}

PageCount PrefixTree::PublishFinished(std::string_view salt, Tokens tokens, PageList list) {
  RequireHolds(list, tokens);
  return Insert(salt, tokens, list);
}

PageCount PrefixTree::Withdraw(std::string_view salt, Tokens tokens, const PageList& list,
                               PageCount first) {
  const PageCount before = num_pages_;
  const std::span<const PageId> theirs = list.PageIds();
  size_t number = 0;  // of the page, along the path
  for (Node* node : Walk(salt, tokens).nodes) {
    for (size_t i = 0; i < node->pages.size(); ++i, ++number) {
      if (number < Index(first)) continue;
      if (number >= theirs.size()) return PageCount(0);
      if (node->pages[i].page() != theirs[number]) continue;
      CutBehind(node, i);
      return before - num_pages_;
    }
  }
  return PageCount(0);
}

void PrefixTree::CutBehind(Node* node, size_t num_kept) {
  std::vector<Node*> below(node->children.begin(), node->children.end());
  for (size_t i = 0; i < below.size(); ++i) {
    const std::vector<Node*> children(below[i]->children.begin(), below[i]->children.end());
    below.insert(below.end(), children.begin(), children.end());
  }
  for (auto leaf = below.rbegin(); leaf != below.rend(); ++leaf) RemoveLeaf(*leaf);
  for (size_t left = node->pages.size(); left > num_kept; --left) RemoveLastPage(node);
}

PageCount PrefixTree::Evict(PageCount wanted) {
  Require(wanted >= PageCount(0), "wanted pages: expected 0 or more, got {}", wanted);
  PageCount freed(0);
  auto end = nodes_.end();  // the nodes from here on are in use
  while (freed < wanted && end != nodes_.begin()) {
    const auto last = std::prev(end);
    if (IsEvictable(*last)) {
      RemoveLastPage(&*last);
      freed += PageCount(1);
    } else {
      end = last;
    }
  }
  counters_.evicted_pages += freed;
  return freed;
}

PageCount PrefixTree::CountEvictable(PageCount at_most) {
  PageCount evictable(0);
  std::unordered_set<const Node*> stay;  // nodes with a child that cannot be evicted entirely
  for (auto node = nodes_.rbegin(); node != nodes_.rend() && evictable < at_most; ++node) {
    if (!stay.contains(&*node)) {
      const PageCount most = Min(PageCount(node->pages.size()), at_most - evictable);
      const auto end = node->pages.rbegin() + most.raw();
      const auto in_use = std::find_if(node->pages.rbegin(), end,
                                       [](const PageLease& page) { return page.IsShared(); });
      const PageCount found(in_use - node->pages.rbegin());
      evictable += found;
      counters_.counted_pages += found + PageCount(in_use == end ? 0 : 1);
      if (in_use == node->pages.rend()) continue;
    }
    stay.insert(node->parent);
  }
  return evictable;
}

PrefixTree::Path PrefixTree::Walk(std::string_view salt, Tokens tokens) const {
  Path path;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return path;
  const Node* node = &root->second;
  while (Node* child = ClosestChild(*node, tokens)) {
    const TokenCount matched = CommonPrefix(child->tokens, tokens);
    if (matched == TokenCount(0)) break;
    path.nodes.push_back(child);
    path.length += matched;
    path.unmatched = TokenCount(child->tokens.size()) - matched;
    if (path.unmatched > TokenCount(0)) break;
    tokens = tokens.subspan(Index(matched));
    node = child;
  }
  return path;
}

PrefixTree::Node* PrefixTree::ClosestChild(const Node& node, Tokens tokens) const {
  // In lexicographic order the longest common prefix is that with a neighbour.
  const auto next = node.children.lower_bound(tokens);
  if (next == node.children.begin()) return next == node.children.end() ? nullptr : *next;
  const auto previous = std::prev(next);
  if (next == node.children.end()) return *previous;
  return CommonPrefix((*next)->tokens, tokens) >= CommonPrefix((*previous)->tokens, tokens)
             ? *next
             : *previous;
}

void PrefixTree::SharePages(const Path& path, PrefixMatch& match) const {
  const size_t full_pages = Index(page_size_.FullPages(match.length));
  const TokenCount rest(page_size_.OffsetOf(match.length));
  match.pages.reserve(full_pages);
  for (const Node* node : path.nodes) {
    for (const PageLease& page : node->pages) {
      if (match.pages.size() == full_pages) {
        if (rest > TokenCount(0)) match.partial = PartialPage{.page = page.Share(), .count = rest};
        return;
      }
      match.pages.push_back(page.Share());
    }
  }
}

void PrefixTree::RequireHolds(const PageList& list, Tokens tokens) const {
  Require(list.page_size() == page_size_, "page list: expected the tree's page_size {}, got {}",
          page_size_, list.page_size());
  Require(TokenCount(tokens.size()) <= list.length(),
          "page list: expected room for the {} tokens to publish, got {}", tokens.size(),
          list.length());
}

PageCount PrefixTree::Insert(std::string_view salt, Tokens tokens, const PageList& list) {
  if (tokens.empty()) return PageCount(0);
  const Path path = Walk(salt, tokens);
  if (path.length == TokenCount(tokens.size())) {
    MarkUsed(NodeEndingAt(path, page_size_.PagesFor(path.length)));
    return PageCount(0);
  }
  const PageCount kept = page_size_.FullPages(path.length);
  Node* end = kept == PageCount(0) ? FindOrAddRoot(salt) : NodeEndingAt(path, kept);
  // All of a partial page was matched and is continued: the longer page replaces it. It is alone in
  // its node, as the node before it was made to end at `kept`.
  const bool replaces = path.unmatched == TokenCount(0) && page_size_.OffsetOf(path.length) != 0;
  if (replaces) RemoveLeaf(path.nodes.back());
  MarkUsed(AddPages(end, tokens, list, kept));
  return page_size_.PagesFor(TokenCount(tokens.size())) - kept;
}

PrefixTree::Node* PrefixTree::NodeEndingAt(const Path& path, PageCount pages) {
  for (Node* node : path.nodes) {
    const PageCount here(node->pages.size());
    if (pages == here) return node;
    if (pages < here) return Split(node, pages);
    pages -= here;
  }
  QUIRE_CHECK(false, "the path of {} tokens ends {} pages too early", path.length, pages);
}

PrefixTree::Node* PrefixTree::Split(Node* node, PageCount pages) {
  Node* parent = node->parent;
  parent->children.erase(node);  // before the tokens it is found by change
  Node* upper = NewNode(parent);
  upper->tokens = TakeFront(node->tokens, Index(page_size_.TokensIn(pages)));
  upper->pages = TakeFront(node->pages, Index(pages));
  node->parent = upper;
  upper->children.insert(node);
  parent->children.insert(upper);
  return upper;
}

PrefixTree::Node* PrefixTree::AddPages(Node* end, Tokens tokens, const PageList& list,
                                       PageCount first) {
  const PageCount last = page_size_.PagesFor(TokenCount(tokens.size()));
  const Tokens added = tokens.subspan(Index(page_size_.TokensIn(first)));
  // A leaf grows, so that a sequence published bit by bit is one node.
  const bool grows = end->parent != nullptr && end->children.empty();
  Node* node = grows ? end : NewNode(end);
  node->tokens.insert(node->tokens.end(), added.begin(), added.end());
  for (PageCount i = first; i < last; i += PageCount(1)) node->pages.push_back(list.SharePage(i));
  if (!grows) end->children.insert(node);
  num_pages_ += last - first;
  num_tokens_ += TokenCount(added.size());
  return node;
}

PrefixTree::Node* PrefixTree::NewNode(Node* parent) {
  const auto place = nodes_.insert(nodes_.begin(), MakeNode(parent));
  place->place = place;
  return &*place;
}

PrefixTree::Node PrefixTree::MakeNode(Node* parent) const {
  return {.parent = parent,
          .salt = nullptr,
          .tokens = {},
          .pages = {},
          .children = Children(ByFirstPage{page_size_}),
          .place = {}};
}

PrefixTree::Node* PrefixTree::FindOrAddRoot(std::string_view salt) {
  auto root = roots_.find(salt);
  if (root == roots_.end()) {
    root = roots_.emplace(std::string(salt), MakeNode(nullptr)).first;
    root->second.salt = &root->first;
  }
  return &root->second;
}

void PrefixTree::MarkUsed(Node* node) {
  for (; node->parent != nullptr; node = node->parent) {
    nodes_.splice(nodes_.begin(), nodes_, node->place);
  }
}

bool PrefixTree::IsEvictable(const Node& node) {
  return node.children.empty() && !node.pages.back().IsShared();
}

void PrefixTree::RemoveLastPage(Node* leaf) {
  if (leaf->pages.size() > 1) {
    const size_t kept_tokens = Index(page_size_.TokensIn(PageCount(leaf->pages.size() - 1)));
    num_pages_ -= PageCount(1);
    num_tokens_ -= TokenCount(leaf->tokens.size() - kept_tokens);
    leaf->pages.pop_back();
    leaf->tokens.resize(kept_tokens);
    return;
  }
  const Node* parent = leaf->parent;
  RemoveLeaf(leaf);
  if (parent->parent == nullptr && parent->children.empty())
    roots_.erase(roots_.find(*parent->salt));
}

void PrefixTree::RemoveLeaf(Node* leaf) {
  num_pages_ -= PageCount(leaf->pages.size());
  num_tokens_ -= TokenCount(leaf->tokens.size());
  leaf->parent->children.erase(leaf);
  nodes_.erase(leaf->place);
}

void PrefixTree::CheckInvariants() const {
  size_t num_children = 0;
  for (const auto& [salt, root] : roots_) {
    CheckRoot(salt, root);
    CheckSiblings(root);
    num_children += root.children.size();
  }
  for (const Node& node : nodes_) {
    CheckNode(node);
    CheckSiblings(node);
    num_children += node.children.size();
  }
  QUIRE_CHECK(num_children == nodes_.size(), "{} children, {} nodes", num_children,
              nodes_.size());  // 3
  CheckOrder();
  CheckPages();
}

void PrefixTree::CheckRoot(const std::string& salt, const Node& root) const {
  QUIRE_CHECK(!root.children.empty() && root.tokens.empty() && root.pages.empty(),
              "root: {} children, {} tokens, {} pages", root.children.size(), root.tokens.size(),
              root.pages.size());                             // 3
  QUIRE_CHECK(root.parent == nullptr && root.salt == &salt);  // 3
}

void PrefixTree::CheckNode(const Node& node) const {
  const TokenCount tokens(node.tokens.size());
  QUIRE_CHECK(tokens > TokenCount(0) && PageCount(node.pages.size()) == page_size_.PagesFor(tokens),
              "{} tokens in {} pages, page_size {}", tokens, node.pages.size(), page_size_);  // 1
  QUIRE_CHECK(node.children.empty() || page_size_.OffsetOf(tokens) == 0,
              "{} tokens and {} children, page_size {}", tokens, node.children.size(),
              page_size_);  // 1
  const auto found = node.parent->children.find(&node);
  QUIRE_CHECK(found != node.parent->children.end() && *found == &node);  // 3
  QUIRE_CHECK(&*node.place == &node);                                    // 3
}

void PrefixTree::CheckSiblings(const Node& parent) const {
  const ByFirstPage order{page_size_};
  const Node* previous = nullptr;
  for (const Node* node : parent.children) {
    if (previous != nullptr) {
      // Enough for all pairs: whatever lies between a page and one that continues it continues it.
      const Tokens before = order.FirstPage(previous);
      QUIRE_CHECK(
          order(previous, node) && CommonPrefix(before, node->tokens) < TokenCount(before.size()),
          "siblings of {} and {} tokens share the first {}", previous->tokens.size(),
          node->tokens.size(), CommonPrefix(before, node->tokens));  // 2
    }
    previous = node;
  }
}

void PrefixTree::CheckOrder() const {
  std::unordered_set<const Node*> seen;
  for (const Node& node : nodes_) {
    const bool below_root = node.parent->parent == nullptr;
    QUIRE_CHECK(below_root || seen.contains(node.parent),
                "a node of {} pages comes before its parent", node.pages.size());  // 4
    seen.insert(&node);
  }
}

void PrefixTree::CheckPages() const {
  std::unordered_set<int32_t> seen;
  TokenCount num_tokens(0);
  for (const Node& node : nodes_) {
    num_tokens += TokenCount(node.tokens.size());
    for (const PageLease& lease : node.pages) {
      QUIRE_CHECK(seen.insert(lease.page().raw()).second, "page {} twice", lease.page());  // 5
    }
  }
  QUIRE_CHECK(num_pages_ == PageCount(seen.size()) && num_tokens_ == num_tokens,
              "{} of {} pages and {} of {} tokens counted", num_pages_, seen.size(), num_tokens_,
              num_tokens);  // 6
}

}  // namespace quire
