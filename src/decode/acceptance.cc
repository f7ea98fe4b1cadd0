#include "decode/acceptance.h"

#include <utility>

#include "base/error.h"

namespace quire {
namespace {

void RequireNodes(const char* what, size_t actual, const DraftTree& tree, int32_t max_nodes) {
  Require(std::cmp_equal(actual, tree.num_nodes()), "{}: expected {} (one per node), got {}", what,
          tree.num_nodes(), actual);
  Require(max_nodes >= 1, "max_nodes: expected >= 1, got {}", max_nodes);
}

// The first token at which the running sum of `weights` exceeds coin * total, or the last that weighs
// anything.
int32_t Draw(std::span<const float> weights, float coin) {
  double total = 0;
  for (float weight : weights) total += weight;
  double sum = 0;
  int32_t last = static_cast<int32_t>(weights.size()) - 1;
  for (size_t token = 0; token < weights.size(); ++token) {
    if (weights[token] <= 0) continue;
    last = static_cast<int32_t>(token);
    sum += weights[token];
    if (sum > coin * total) break;
  }
  return last;
}

}  // namespace

Acceptance AcceptGreedy(const DraftTree& tree, std::span<const int32_t> target, int32_t max_nodes) {
  RequireNodes("target", target.size(), tree, max_nodes);
  Acceptance accepted{.nodes = {0}};
  while (std::ssize(accepted.nodes) < max_nodes) {
    const size_t at = static_cast<size_t>(accepted.nodes.back());
    int32_t child = tree.first_child[at];
    while (child != -1 && tree.tokens[static_cast<size_t>(child)] != target[at]) {
      child = tree.next_sibling[static_cast<size_t>(child)];
    }
    if (child == -1) break;
    accepted.nodes.push_back(child);
  }
  accepted.next_token = target[static_cast<size_t>(accepted.nodes.back())];
  return accepted;
}

Acceptance AcceptSampled(const DraftTree& tree, const TargetSampling& target, int32_t max_nodes) {
  RequireNodes("coins", target.coins.size(), tree, max_nodes);
  const size_t num_nodes = static_cast<size_t>(tree.num_nodes());
  Require(!target.probabilities.empty() && target.probabilities.size() % num_nodes == 0,
          "probabilities: expected a multiple of {} nodes, got {}", num_nodes,
          target.probabilities.size());
  const size_t vocab = target.probabilities.size() / num_nodes;
  Acceptance accepted{.nodes = {0}};
  std::vector<float> rest;
  for (;;) {
    const size_t at = static_cast<size_t>(accepted.nodes.back());
    const auto probabilities = target.probabilities.subspan(at * vocab, vocab);
    rest.assign(probabilities.begin(), probabilities.end());
    if (std::ssize(accepted.nodes) == max_nodes) break;
    float sum = 0;
    int32_t child = tree.first_child[at];
    for (; child != -1; child = tree.next_sibling[static_cast<size_t>(child)]) {
      const int32_t token = tree.tokens[static_cast<size_t>(child)];
      Require(token >= 0 && std::cmp_less(token, vocab), "node {}: token {} of a vocabulary of {}",
              child, token, vocab);
      sum += probabilities[static_cast<size_t>(token)];
      if (target.coins[at] <= sum) break;
      rest[static_cast<size_t>(token)] = 0;  // refused: its share is spent
    }
    if (child == -1) break;
    accepted.nodes.push_back(child);
  }
  accepted.next_token = Draw(rest, target.last_coin);
  return accepted;
}

}  // namespace quire
