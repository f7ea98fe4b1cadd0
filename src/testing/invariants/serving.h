// The batches that a random configuration serves.
#ifndef QUIRE_TESTING_INVARIANTS_SERVING_H_
#define QUIRE_TESTING_INVARIANTS_SERVING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attn/sequence_step.h"
#include "base/units.h"
#include "cache/page_list.h"
#include "cache/page_pool.h"
#include "cache/prefix_tree.h"
#include "testing/invariants/random_config.h"

namespace quire::testing {

inline size_t Index(int64_t i) { return static_cast<size_t>(i); }
inline int32_t ToInt32(int64_t i) { return static_cast<int32_t>(i); }

struct Sequence {
  int64_t id = 0;
  int64_t committed = 0;
  PageList list;
};

// A batch, and the truth about where its tokens are. Spans point into the lists of its Serving.
struct Batch {
  std::vector<std::vector<int32_t>> parents;  // [rows] of tree_parents
  std::vector<SequenceStep> seqs;             // [rows], padded rows last
  std::vector<int64_t> committed;             // [rows], 0 for a padded row
  // [rows][reserved tokens] the slot of every position: SGLang's req_to_token.
  std::vector<std::vector<int32_t>> slots;
  int64_t num_real = 0;  // rows that are not padded
};

// Sequences that come, grow, share pages and go, with the real allocator and prefix tree.
class Serving {
 public:
  Serving(const RandomConfig& config, Facts& facts)
      : config_(config),
        facts_(facts),
        random_(config.seed * 2 + 1),
        pool_(PageCount(config.pool_pages), config.page_size),
        tree_(config.page_size) {}

  // Ends some sequences, grows others, admits new ones, and makes a batch of them. The batch is
  // valid until the next call.
  Batch Next();

  // Throws InternalError unless every page is free, or held: by one sequence, or by several at the
  // same place of their rows, or by the prefix tree; slots follow from pages; the scratch page is
  // nobody's; no list can grow into another's page; and the invariants of pool, tree and lists
  // hold.
  void CheckPages();
  // Ends everything. Throws InternalError if a page is lost.
  void End();

 private:
  int32_t TokenAt(int64_t id, int64_t position) const;
  std::vector<int32_t> Tokens(int64_t id, int64_t count) const;
  bool shares() const { return config_.num_families > 0; }

  int64_t DrawLength();
  void EndOrGrow();
  bool Admit();
  void Publish(const Sequence& seq);
  // Evicts cached pages if need be; false if even that is not enough.
  bool Reserve(PageList& list, int64_t tokens);
  // How many sequences hold each page, by page id. Throws unless they may.
  std::vector<int32_t> CountHolders();
  void CheckSlots(const Sequence& seq) const;
  void CheckGrowthIsRefused(Sequence& seq);
  void CheckSharedPage(const Sequence& a, const Sequence& b, int64_t index) const;

  SequenceStep DrawStep(const Sequence& seq, std::vector<int32_t>& parents);
  std::vector<int32_t> DrawTree();
  std::vector<int32_t> DrawDraftTree();
  void AddPaddedRows(Batch& batch);
  void NoteLength(int64_t committed);

  const RandomConfig& config_;
  Facts& facts_;
  Random random_;
  PagePool pool_;
  PrefixTree tree_;
  std::vector<Sequence> seqs_;
  int64_t next_id_ = 0;
};

}  // namespace quire::testing

#endif  // QUIRE_TESTING_INVARIANTS_SERVING_H_
