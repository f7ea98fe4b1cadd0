// What steps with drafts cost, measured before anybody is served.
#ifndef QUIRE_RUNNER_SHAPE_COSTS_H_
#define QUIRE_RUNNER_SHAPE_COSTS_H_

#include <functional>
#include <span>
#include <string>

#include "runner/adaptive_drafter.h"
#include "runner/shape_chooser.h"
#include "step/step.h"

namespace quire {

struct CostMeter {
  std::function<double()> seconds;  // a clock
  double budget_seconds = 4;        // what is not measured by then is taken to cost too much
};

// Runs steps of 1, 4, 16, ... sequences, as many as may run and have pages, with short texts: each shape of
// `drafter`, which is that of `runner`, and none; of several steps the shortest counts. Empty where the context
// is too short. Longer texts make all steps longer by about the same, so drafts may pay a little more than this
// says. Nothing runs yet, and what was in the pages is lost.
ShapeCosts MeasureShapeCosts(Runner& runner, AdaptiveDrafter& drafter, const CostMeter& meter);

// Milliseconds of a step of each shape, by sequences, as a table for users.
std::string ToTable(std::span<const TreeShape> shapes, const ShapeCosts& costs);

}  // namespace quire

#endif  // QUIRE_RUNNER_SHAPE_COSTS_H_
