#include "decode/acceptance.h"

#include "base/error.h"

namespace quire {

// A node stands behind the one that it follows, so one pass finds the whole path.
size_t AcceptPath(const DraftedNodes& nodes, std::span<const int32_t> target,
                  std::span<int32_t> path) {
  const size_t num_nodes = nodes.tokens.size();
  Require(num_nodes >= 1, "nodes: expected the root or more, got none");
  Require(nodes.parents.size() == num_nodes, "parents: expected {} (one per node), got {}",
          num_nodes, nodes.parents.size());
  Require(target.size() == num_nodes, "target: expected {} (one per node), got {}", num_nodes,
          target.size());
  Require(!path.empty(), "path: expected room for one node or more, got none");
  size_t count = 0;
  path[count++] = 0;
  for (size_t i = 1; i < num_nodes && count < path.size(); ++i) {
    const int32_t at = path[count - 1];
    if (nodes.parents[i] != at || nodes.tokens[i] != target[static_cast<size_t>(at)]) continue;
    path[count++] = static_cast<int32_t>(i);
  }
  return count;
}

}  // namespace quire
