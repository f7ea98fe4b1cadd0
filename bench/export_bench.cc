#include "bench/export_bench.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attn/plan_storage.h"
#include "bench/sequences.h"
#include "interop/export.h"
#include "kernels/cpu/mla_attention.h"

namespace quire::bench {
namespace {

constexpr DraftShape kDraft{.branches = 4, .steps = 4};

// Cases that would write more are left out; it is draft rows only, and their title says so.
constexpr int64_t kMaxMiB = 512;

// Something to time: sequences and output arrays are inside.
using Work = std::function<void(Executor&)>;

template <class T = int32_t>
std::vector<T> Array(int64_t entries) {
  return std::vector<T>(static_cast<size_t>(entries));
}

Work PlanWork(const Sequences& seqs, int num_threads) {
  const WorkShape work = cpu::MlaWorkShape({.num_heads = 16}, num_threads);
  const auto storage = std::make_shared<PlanStorage>(seqs.capacity(), work);
  return [&seqs, storage](Executor& executor) { storage->Make(seqs.steps(), executor); };
}

Work FlatIndicesWork(const Sequences& seqs, int) {
  return [&seqs, indptr = Array(IndptrEntries(seqs.capacity())),
          indices = Array(FlatIndexEntries(seqs.capacity()).raw())](Executor& executor) mutable {
    ExportFlatIndices(seqs.steps(), seqs.capacity(), {.kv_indptr = indptr, .kv_indices = indices},
                      executor);
  };
}

Work BlockTableWork(const Sequences& seqs, int) {
  return [&seqs, table = Array(BlockTableEntries(BlockTableRule::kCeil, seqs.capacity())),
          lens = Array(seqs.capacity().num_seqs)](Executor& executor) mutable {
    ExportBlockTable(seqs.steps(), seqs.capacity(),
                     {.rule = BlockTableRule::kCeil, .table = table, .kv_lens = lens}, executor);
  };
}

Work UnifiedTableWork(const Sequences& seqs, int) {
  return [&seqs, table = Array(UnifiedPageTableEntries(seqs.capacity())),
          lens = Array(seqs.capacity().num_seqs)](Executor& executor) mutable {
    ExportUnifiedPageTable(seqs.steps(), seqs.capacity(), {.table = table, .kv_lens = lens},
                           executor);
  };
}

Work DraftRowsWork(const Sequences& seqs, int) {
  const StepCapacity& capacity = seqs.capacity();
  return [&seqs, indptr = Array(DraftIndptrEntries(capacity, kDraft) * kDraft.steps),
          indices = Array((DraftRowEntries(capacity, kDraft) * kDraft.steps).raw()),
          slots = Array<int64_t>(DraftSlotEntries(capacity, kDraft))](Executor& executor) mutable {
    ExportDraftRows(
        seqs.steps(), seqs.capacity(),
        {.shape = kDraft, .kv_indptr = indptr, .kv_indices = indices, .write_slots = slots},
        executor);
  };
}

int64_t PagesWritten(const SequenceShape& shape) {
  return (shape.page_size.PagesFor(shape.kv_len) * shape.num_seqs).raw();
}
int64_t TokensWritten(const SequenceShape& shape) { return (shape.kv_len * shape.num_seqs).raw(); }
int64_t DraftsWritten(const SequenceShape& shape) {
  int64_t entries = 0;
  for (int32_t i = 0; i < kDraft.steps; ++i) {
    entries += kDraft.branches * ((shape.kv_len + TokenCount(i + 1)) * shape.num_seqs).raw();
  }
  return entries;
}

struct Form {
  const char* name;
  const char* title;
  int64_t (*entries)(const SequenceShape&);
  Work (*make)(const Sequences&, int num_threads);
};

constexpr Form kForms[] = {
    {"plan", "one page-table entry per page, and the schedule (us)", PagesWritten, PlanWork},
    {"block_table", "one entry per page (us)", PagesWritten, BlockTableWork},
    {"unified_table", "one entry per page (us)", PagesWritten, UnifiedTableWork},
    {"flat_indices", "one entry per token (us)", TokensWritten, FlatIndicesWork},
    {"draft_rows", "one entry per token, branch (4) and step (4) (us; cases over 512 MiB left out)",
     DraftsWritten, DraftRowsWork},
};

struct ExportCase {
  const Form* form;
  SequenceShape shape;
  std::string inputs;  // <form>/b<num_seqs>/s<context>/p<page size>
};

// The inputs and outputs of the case at hand; see AttentionBench for why they are kept.
class ExportBench {
 public:
  explicit ExportBench(Executor& parallel) : parallel_(parallel) {}

  Executor& serial() { return serial_; }
  Executor& parallel() { return parallel_; }

  void Run(const ExportCase& c, Executor& executor, benchmark::State& state) {
    if (c.inputs != inputs_) Prepare(c);
    for (auto _ : state) work_(executor);
    state.SetLabel(c.form->title);
    state.counters[kEntries] = static_cast<double>(c.form->entries(c.shape));
  }

 private:
  void Prepare(const ExportCase& c) {
    ShowProgress(c.inputs);
    inputs_ = c.inputs;
    work_ = nullptr;
    seqs_ = std::make_unique<Sequences>(c.shape);
    work_ = c.form->make(*seqs_, parallel_.num_threads());
  }

  SerialExecutor serial_;
  Executor& parallel_;
  std::string inputs_;
  std::unique_ptr<Sequences> seqs_;
  Work work_;
};

void RegisterCase(Effort effort, const ExportCase& c, const std::shared_ptr<ExportBench>& bench) {
  const bool is_full = effort == Effort::kFull;
  for (Executor* executor : {&bench->serial(), &bench->parallel()}) {
    const char* threads = executor == &bench->serial() ? "serial" : "parallel";
    benchmark::RegisterBenchmark(
        fmt::format("{}/{}", c.inputs, threads).c_str(),
        [bench, c, executor](benchmark::State& state) { bench->Run(c, *executor, state); })
        ->UseRealTime()
        ->MinTime(is_full ? 0.02 : 0.005)
        ->Repetitions(is_full ? 5 : 3)
        ->ReportAggregatesOnly();
  }
}

void RegisterForm(Effort effort, const Form& form, const std::shared_ptr<ExportBench>& bench) {
  for (int32_t num_seqs : {1, 16, 64, 256}) {
    for (int64_t kilo : {1, 8, 32, 128}) {
      const bool is_quick = (num_seqs == 1 || num_seqs == 64) && (kilo == 1 || kilo == 32);
      if (effort == Effort::kQuick && !is_quick) continue;
      for (int32_t page_size : kPageSizes) {
        const SequenceShape shape{
            .num_seqs = num_seqs,
            .kv_len = TokenCount(kilo * 1024),
            // For the drafts: every branch has its own first and last page.
            .room = TokenCount(kDraft.branches * (kDraft.steps + 2 * page_size)),
            .page_size = PageSize(page_size)};
        if (form.entries(shape) * int64_t{sizeof(int32_t)} > kMaxMiB << 20) continue;
        const ExportCase c{
            .form = &form,
            .shape = shape,
            .inputs = fmt::format("{}/b{}/s{}k/p{}", form.name, num_seqs, kilo, page_size)};
        RegisterCase(effort, c, bench);
      }
    }
  }
}

}  // namespace

void RegisterExports(Effort effort, Executor& parallel) {
  const auto bench = std::make_shared<ExportBench>(parallel);
  for (const Form& form : kForms) RegisterForm(effort, form, bench);
}

}  // namespace quire::bench
