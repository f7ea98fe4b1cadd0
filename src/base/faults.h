// Faults that can be put back, to prove that the tests would have caught them.
//
// Each names a repair of the same family: a size in one unit, a write in another. One Faults value
// is given to sizing, planning and store construction. Unless the build has QUIRE_FAULTS, Faults is
// an empty type whose Has() is constant false, and no faulty line is compiled.
#ifndef QUIRE_BASE_FAULTS_H_
#define QUIRE_BASE_FAULTS_H_

namespace quire {

enum class Fault : int {
  kNone = 0,
  kFlatIndexSizedInPages = 24587,     // the flat-index buffer is sized in pages
  kTilesCountedInPages = 25556,       // the planner counts pages, the kernel reads tokens
  kIndexKeyLayoutMismatch = 23562,    // reader and writer of index keys disagree on the layout
  kSerialPageTableFill = 27320,       // one worker walks every page of a row
  kDraftRowsWithoutBranches = 27460,  // draft rows sized without the branch factor
  kDraftsNotSeen = 29,                // draft steps do not see the drafts before them
};

class Faults {
 public:
  constexpr Faults() = default;
#ifdef QUIRE_FAULTS
  constexpr explicit Faults(Fault fault) : fault_(fault) {}
  constexpr bool Has(Fault fault) const { return fault_ == fault; }

 private:
  Fault fault_ = Fault::kNone;
#else
  constexpr bool Has(Fault) const { return false; }
#endif
};

}  // namespace quire

#endif  // QUIRE_BASE_FAULTS_H_
