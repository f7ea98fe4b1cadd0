#include "kernels/cpu/expert_exchange.h"

#include <array>

#include "base/error.h"

namespace quire::cpu {

ExchangeScratch LayOutExchange(const OpLimits& limits, Carver& carver) {
  const int64_t experts = limits.num_visitors() > 0 ? limits.num_experts() : 0;
  const int64_t ranks = limits.expert_ranks;
  return {.counts = carver.Take<int32_t>(ranks * experts),
          .offsets = carver.Take<int32_t>(experts > 0 ? experts / ranks + 1 : 0),
          .given = carver.Take<GivenRows>(experts),
          .parts = carver.Take<RowPart>(experts),
          .rows = carver.TakeTensor(DType::kF32, {limits.num_visitors(), limits.hidden_size})};
}

void ExpertExchange::GatherCounts(std::span<const int32_t> offsets) const {
  QUIRE_CHECK(std::ssize(offsets) == num_experts() + 1, "{} offsets of {} experts", offsets.size(),
              num_experts());
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    count(ranks_.rank(), static_cast<int64_t>(e)) = offsets[e + 1] - offsets[e];
  }
  std::array<Share, kMaxExpertRanks> shares;
  for (int32_t rank = 0; rank < ranks_.size(); ++rank) {
    shares[static_cast<size_t>(rank)] = {.first = int64_t{rank} * num_experts(),
                                         .count = num_experts()};
  }
  auto* const bits = reinterpret_cast<float*>(scratch_.counts.data());  // they are only copied
  ranks_.AllGather(TensorView(bits, {1, std::ssize(scratch_.counts)}),
                   std::span(shares).first(static_cast<size_t>(ranks_.size())));
}

// Rows of one expert lie together, whoever's they are: its weights are read once.
SortedRows ExpertExchange::Bring(const SortedRows& home) {
  GatherCounts(home.offsets);
  for (int32_t owner = 0; owner < ranks_.size(); ++owner) {
    const Share experts = ShareOf(num_experts(), 1, owner, ranks_.size());
    for (int64_t e = experts.first; e < experts.end(); ++e) {
      const auto number = static_cast<size_t>(e);
      scratch_.given[number] = {
          .to = owner, .first = home.offsets[number], .count = count(ranks_.rank(), e)};
    }
  }
  const Share own = ShareOf(num_experts(), 1, ranks_.rank(), ranks_.size());
  std::array<int64_t, kMaxExpertRanks> first{};  // at each rank, of the expert at hand
  for (int32_t rank = 0; rank < ranks_.size(); ++rank) {
    for (int64_t e = 0; e < own.first; ++e) first[static_cast<size_t>(rank)] += count(rank, e);
  }
  size_t num_parts = 0;
  int64_t to = 0;
  scratch_.offsets[0] = 0;
  for (int64_t e = own.first; e < own.end(); ++e) {
    for (int32_t rank = 0; rank < ranks_.size(); ++rank) {
      const int64_t rows = count(rank, e);
      int64_t& from = first[static_cast<size_t>(rank)];
      scratch_.parts[num_parts++] = {.from = rank, .first = from, .count = rows, .to = to};
      from += rows;
      to += rows;
    }
    scratch_.offsets[static_cast<size_t>(e - own.first) + 1] = static_cast<int32_t>(to);
  }
  ranks_.FetchRows(home.rows, scratch_.given, scratch_.parts.first(num_parts), scratch_.rows);
  return {.rows = scratch_.rows, .offsets = scratch_.offsets};
}

void ExpertExchange::Return(const SortedRows& home) {
  size_t num_given = 0;
  for (int32_t owner = 0; owner < ranks_.size(); ++owner) {
    const Share experts = ShareOf(num_experts(), 1, owner, ranks_.size());
    int64_t at = 0;  // of the rows that visit the owner
    for (int64_t e = experts.first; e < experts.end(); ++e) {
      for (int32_t rank = 0; rank < ranks_.size(); ++rank) {
        const int64_t rows = count(rank, e);
        if (owner == ranks_.rank()) {
          scratch_.given[num_given++] = {.to = rank, .first = at, .count = rows};
        }
        if (rank == ranks_.rank()) {
          const auto number = static_cast<size_t>(e);
          scratch_.parts[number] = {
              .from = owner, .first = at, .count = rows, .to = home.offsets[number]};
        }
        at += rows;
      }
    }
  }
  ranks_.FetchRows(scratch_.rows, scratch_.given.first(num_given), scratch_.parts, home.rows);
}

}  // namespace quire::cpu
