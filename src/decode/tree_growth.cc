#include "decode/tree_growth.h"

namespace quire {

TreeGrowths LayOutTreeGrowths(const GrowthRoom& room, Carver& carver) {
  const int64_t growths = room.growths;
  return {.room = room,
          .kept = carver.Take<TokenLogprob>(growths * room.branches),
          .scores = carver.Take<float>(growths * room.candidates()),
          .tokens = carver.Take<int32_t>(growths * room.candidates()),
          .continued = carver.Take<int32_t>(growths * (1 + room.nodes)),
          .row_parents = carver.Take<int32_t>(growths * room.nodes)};
}

TreeNodes LayOutTreeNodes(const GrowthRoom& room, Carver& carver) {
  const int64_t nodes = int64_t{room.growths} * room.nodes;
  return {.tokens = carver.Take<int32_t>(nodes), .parents = carver.Take<int32_t>(nodes)};
}

}  // namespace quire
