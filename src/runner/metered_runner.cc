#include "runner/metered_runner.h"

#include <numeric>

namespace quire {

const char* StepPartName(StepPart part) {
  switch (part) {
    case StepPart::kEmbedding:
      return "embedding";
    case StepPart::kProjections:
      return "projections";
    case StepPart::kAttention:
      return "attention";
    case StepPart::kMlp:
      return "mlp";
    case StepPart::kHead:
      return "head";
    case StepPart::kPlan:
      return "plan";
    case StepPart::kSampling:
      return "sampling";
    case StepPart::kOther:
      return "other";
  }
  return "unknown";
}

StepPart StepPartOf(ForwardPart part) {
  switch (part) {
    case ForwardPart::kEmbedding:
      return StepPart::kEmbedding;
    case ForwardPart::kProjections:
      return StepPart::kProjections;
    case ForwardPart::kAttention:
      return StepPart::kAttention;
    case ForwardPart::kMlp:
      return StepPart::kMlp;
    case ForwardPart::kHead:
      return StepPart::kHead;
  }
  return StepPart::kOther;
}

double StepTimes::Sum() const { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0); }

StepTimes& StepTimes::operator+=(const StepTimes& more) {
  for (size_t i = 0; i < seconds_.size(); ++i) seconds_[i] += more.seconds_[i];
  return *this;
}

}  // namespace quire
