// Clusters, as far as the project names them by CUDA's cooperative groups.
#ifndef QUIRE_TESTING_CUDA_EMULATOR_COOPERATIVE_GROUPS_H_
#define QUIRE_TESTING_CUDA_EMULATOR_COOPERATIVE_GROUPS_H_

#include "testing/cuda/emulator/machine.h"
#include "testing/cuda/emulator/meetings.h"

namespace cooperative_groups {

class cluster_group {
 public:
  unsigned block_rank() const { return quire::emulator::RankInCluster(); }
  void barrier_arrive() const { quire::emulator::ArriveAtCluster(); }
  void barrier_wait() const { quire::emulator::WaitForCluster(); }
  void sync() const {
    barrier_arrive();
    barrier_wait();
  }
  template <class T>
  T* map_shared_rank(T* pointer, unsigned rank) const {
    return static_cast<T*>(quire::emulator::InCta(rank, pointer));
  }
};
inline cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups

#endif  // QUIRE_TESTING_CUDA_EMULATOR_COOPERATIVE_GROUPS_H_
