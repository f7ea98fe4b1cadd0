// Which drafted tokens the target model agrees with.
#ifndef QUIRE_DECODE_ACCEPTANCE_H_
#define QUIRE_DECODE_ACCEPTANCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

// Drafted tokens, as many of each: node 0 is the root, and parents[i] < i is the node that i follows.
struct DraftedNodes {
  std::span<const int32_t> tokens = {};
  std::span<const int32_t> parents = {};
};

// Follows the target's own tokens from the root: target[i] is what it puts behind node i, however it
// chose that. Writes the nodes that are accepted to `path`, the root first, and returns how many; at
// most path.size(). What follows the last of them is target[path[count - 1]]. Of siblings with one
// token the first is taken. Throws Error(kInvalidArgument) if the sizes do not fit; path has one
// element or more. Allocates nothing.
size_t AcceptPath(const DraftedNodes& nodes, std::span<const int32_t> target,
                  std::span<int32_t> path);

}  // namespace quire

#endif  // QUIRE_DECODE_ACCEPTANCE_H_
