// quire_cuda_export_bench [--quick]: what planning and exporting cost on the device. --quick leaves out
// all but 64 sequences at page size 64, which have targets.
//
// Times are per launch, by graphs of many launches, the median of several graphs. "warm": launch
// after launch, so that inputs come from the L2 cache where they fit. "cold": between launches the
// cache is written over, and the time of a graph that only does that is taken off. The roof is what
// cudaMemset writes per second in the same run; the floor is what a kernel that does nothing takes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/cuda/plan.h"
#include "bench/cuda_export_bench.h"
#include "bench/sequences.h"
#include "device/cuda/cuda.h"
#include "interop/cuda/export.h"

namespace quire::bench {
namespace {

using cuda::DeviceBuffer;
using cuda::Event;
using cuda::Graph;
using cuda::PinnedBuffer;
using cuda::Stream;

constexpr int kLaunches = 20;  // per graph
constexpr int kGraphs = 15;    // per median
constexpr DraftShape kDraft{.branches = 4, .steps = 4};
constexpr int64_t kRunnersNewPages = 4096;  // the most that a runner's step brings

// A stream, and something to push everything else out of the cache: twice H200's 50 MiB and more.
class Timer {
 public:
  Timer() : flush_("cache flush", ByteOffset(int64_t{256} << 20)) {
    const double seconds = Median([&] { Flush(); });
    roof_ = static_cast<double>(flush_.size().raw()) / seconds;
    flush_seconds_ = seconds;
  }

  const Stream& stream() const { return stream_; }
  double roof() const { return roof_; }  // bytes written per second

  double Warm(FunctionRef<void()> launch) { return Median(launch); }
  double Cold(FunctionRef<void()> launch) {
    return Median([&] {
             Flush();
             launch();
           }) -
           flush_seconds_;
  }

 private:
  void Flush() {
    cuda::Check(cudaMemsetAsync(flush_.data(), 1, flush_.bytes().size(), stream_.get()),
                "flushing the cache");
  }

  // Seconds of one `launch`.
  double Median(FunctionRef<void()> launch) {
    const Graph graph = Graph::Capture(stream_, [&] {
      for (int i = 0; i < kLaunches; ++i) launch();
    });
    graph.Launch(stream_);
    std::vector<double> seconds;
    for (int i = 0; i < kGraphs; ++i) {
      Event begin(/*timing=*/true), end(/*timing=*/true);
      begin.Record(stream_);
      graph.Launch(stream_);
      end.Record(stream_);
      seconds.push_back(end.SecondsSince(begin) / kLaunches);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kGraphs / 2, seconds.end());
    return seconds[kGraphs / 2];
  }

  Stream stream_;
  DeviceBuffer flush_;
  double roof_ = 0;
  double flush_seconds_ = 0;
};

// The sequences of a shape, planned on the device: each holds the row of its number.
class Planned {
 public:
  Planned(const SequenceShape& shape, const Stream& stream)
      : stream_(stream),
        seqs_(shape),
        steps_(seqs_.steps().begin(), seqs_.steps().end()),
        capacity_(seqs_.capacity()),
        width_(steps_[0].pages.size()),
        work_{.query_tile = TokenCount(1), .split = TokenCount(1024), .num_workers = 132},
        row_memory_("page rows",
                    ByteOffset(sizeof(PageId)) * PageRows::Entries(shape.num_seqs, width_)),
        rows_{.num_rows = shape.num_seqs,
              .width = width_,
              .pages = {reinterpret_cast<PageId*>(row_memory_.data()),
                        static_cast<size_t>(PageRows::Entries(shape.num_seqs, width_))}},
        bytes_(cuda::PlanStorageBytes(capacity_, work_, width_ * shape.num_seqs)),
        memory_("plan", bytes_.device),
        pinned_("packed step", bytes_.pinned),
        device_carver_(cuda::DeviceCarver(memory_)),
        pinned_carver_(pinned_.bytes()),
        storage_(capacity_, work_, width_ * shape.num_seqs, rows_, device_carver_, pinned_carver_) {
    Pack(PageCount(0), width_);
  }

  const StepCapacity& capacity() const { return capacity_; }
  PageCount width() const { return width_; }
  const cuda::PlanStorage& storage() const { return storage_; }

  // A step in which each row has `unchanged` pages and gets those up to `listed`.
  void Pack(PageCount unchanged, PageCount listed) {
    std::vector<RowUse> uses;
    for (size_t b = 0; b < steps_.size(); ++b) {
      steps_[b].pages = seqs_.steps()[b].pages.first(static_cast<size_t>(listed.raw()));
      uses.push_back({.row = static_cast<int32_t>(b), .unchanged = unchanged});
    }
    storage_.Pack(steps_, uses);
    storage_.Upload(stream_);
    storage_.Launch(stream_, status_.word());
    stream_.Synchronize();
  }
  // A step that brings `count` pages of each row.
  void Bring(PageCount count) {
    const PageCount listed = capacity_.page_size.PagesFor(steps_[0].kv_len);
    Pack(listed - Min(count, listed), listed);
  }
  // A decode step: the newest page of each row is new.
  void PackDecode() {
    const TokenCount kv_len = steps_[0].kv_len;
    const PageCount before = capacity_.page_size.PagesFor(kv_len) - PageCount(1);
    for (SequenceStep& step : steps_) step.kv_len = capacity_.page_size.TokensIn(before);
    Pack(before, before);
    for (SequenceStep& step : steps_) step.kv_len = kv_len;
    Pack(before, before + PageCount(1));
  }

  // Throws if a kernel has reported something: its time would mean nothing.
  void CheckStatus() {
    status_.Read(stream_);
    stream_.Synchronize();
    status_.ThrowIfReported();
  }
  cuda::StatusWord status() const { return status_.word(); }

 private:
  const Stream& stream_;
  cuda::Status status_;
  Sequences seqs_;
  std::vector<SequenceStep> steps_;
  StepCapacity capacity_;
  PageCount width_;
  WorkShape work_;
  DeviceBuffer row_memory_;
  PageRows rows_;
  cuda::PlanStorageMemory bytes_;
  DeviceBuffer memory_;
  PinnedBuffer pinned_;
  Carver device_carver_, pinned_carver_;
  cuda::PlanStorage storage_;
};

// Output arrays of the device.
class Outputs {
 public:
  template <class T = int32_t>
  std::span<T> Add(int64_t entries) {
    buffers_.emplace_back("output", ByteOffset(sizeof(T)) * entries);
    return {reinterpret_cast<T*>(buffers_.back().data()), static_cast<size_t>(entries)};
  }

 private:
  std::vector<DeviceBuffer> buffers_;
};

class Report {
 public:
  explicit Report(Timer& timer) : timer_(timer) {
    fmt::print(
        "write roof (cudaMemset): {:.0f} GB/s\n\n{:<22}{:>6}{:>10}{:>6}{:>12}{:>10}{:>10}{:>9}"
        "{:>8}{:>10}\n",
        timer.roof() / 1e9, "form", "seqs", "context", "page", "entries", "warm us", "cold us",
        "GB/s", "% roof", "target us");
  }

  void Add(const char* form, const SequenceShape& shape, int64_t entries,
           std::optional<double> target_us, FunctionRef<void()> launch) {
    const double warm = timer_.Warm(launch), cold = timer_.Cold(launch);
    const double rate = static_cast<double>(entries) * sizeof(int32_t) / warm;
    fmt::print("{:<22}{:>6}{:>10}{:>6}{:>12}{:>10.2f}{:>10.2f}{:>9.0f}{:>8.0f}{:>10}\n", form,
               shape.num_seqs, shape.kv_len.raw(), shape.page_size.raw(), entries, warm * 1e6,
               cold * 1e6, rate / 1e9, 100 * rate / timer_.roof(),
               target_us ? fmt::format("{:.0f}", *target_us) : "");
    std::fflush(stdout);
  }

 private:
  Timer& timer_;
};

// Of the step that was packed last, which brings `new_pages` pages.
void MeasurePlan(const char* form, int64_t new_pages, const SequenceShape& shape, Planned& planned,
                 Timer& timer, Report& report) {
  report.Add(form, shape, new_pages, std::nullopt,
             [&] { planned.storage().Launch(timer.stream(), planned.status()); });
  planned.CheckStatus();
}

void MeasureExports(const SequenceShape& shape, Planned& planned, Timer& timer, Report& report) {
  const StepCapacity& capacity = planned.capacity();
  const auto add = [&](const char* form, int64_t entries, std::optional<double> target_us,
                       FunctionRef<void()> launch) {
    report.Add(form, shape, entries, target_us, launch);
    planned.CheckStatus();
  };
  Outputs outputs;
  const FlatIndices flat{.kv_indptr = outputs.Add(IndptrEntries(capacity)),
                         .kv_indices = outputs.Add(FlatIndexEntries(capacity).raw())};
  add("flat_indices", (shape.kv_len * shape.num_seqs).raw(), shape.num_seqs == 1 ? 8.0 : 20.0, [&] {
    ExportFlatIndices(planned.storage(), capacity, flat, timer.stream(), planned.status());
  });
  const int64_t page_entries = FlatPageEntries(capacity).raw();
  const FlatPages pages{.kv_indptr = outputs.Add(IndptrEntries(capacity)),
                        .kv_pages = outputs.Add(page_entries),
                        .last_page_len = outputs.Add(capacity.num_seqs)};
  add("flat_pages", page_entries, std::nullopt, [&] {
    ExportFlatPages(planned.storage(), capacity, pages, timer.stream(), planned.status());
  });
  const int64_t table_entries = BlockTableEntries(BlockTableRule::kCeil, capacity);
  const BlockTable table{
      .fill = -1, .table = outputs.Add(table_entries), .kv_lens = outputs.Add(capacity.num_seqs)};
  add("block_table", table_entries, std::nullopt, [&] {
    ExportBlockTable(planned.storage(), capacity, table, timer.stream(), planned.status());
  });
  const int64_t unified_entries = UnifiedPageTableEntries(capacity);
  const UnifiedPageTable unified{.table = outputs.Add(unified_entries),
                                 .kv_lens = outputs.Add(capacity.num_seqs)};
  add("unified_page_table", unified_entries, std::nullopt, [&] {
    ExportUnifiedPageTable(planned.storage(), capacity, unified, timer.stream(), planned.status());
  });
  const int64_t draft_entries = (DraftRowEntries(capacity, kDraft) * kDraft.steps).raw();
  const DraftRows drafts{
      .shape = kDraft,
      .kv_indptr = outputs.Add(DraftIndptrEntries(capacity, kDraft) * kDraft.steps),
      .kv_indices = outputs.Add(draft_entries),
      .write_slots = outputs.Add<int64_t>(DraftSlotEntries(capacity, kDraft))};
  add("draft_rows (4 x 4)", draft_entries, std::nullopt, [&] {
    ExportDraftRows(planned.storage(), capacity, drafts, timer.stream(), planned.status());
  });
  const int64_t branch_entries = DraftBranchEntries(capacity, kDraft) * kDraft.steps;
  const DraftTables tables{.shape = kDraft,
                           .fill = -1,
                           .prefix_table = outputs.Add(DraftPrefixEntries(capacity)),
                           .prefix_lens = outputs.Add(capacity.num_seqs),
                           .branch_table = outputs.Add(branch_entries),
                           .branch_lens = outputs.Add(DraftSlotEntries(capacity, kDraft))};
  add("draft_tables (4 x 4)", DraftPrefixEntries(capacity) + branch_entries, std::nullopt, [&] {
    ExportDraftTables(planned.storage(), capacity, tables, timer.stream(), planned.status());
  });
}

// As many CTAs as the plan has, and as an export of 64 sequences at page size 64.
void MeasureFloor(Timer& timer, Report& report) {
  for (int32_t ctas : {17, 192}) {
    const std::string form = fmt::format("nothing ({} CTAs)", ctas);
    report.Add(form.c_str(), {.num_seqs = 0, .kv_len = TokenCount(0)}, 0, std::nullopt,
               [&] { LaunchNothing(ctas, timer.stream()); });
  }
}

void MeasureShape(const SequenceShape& shape, Timer& timer, Report& report) {
  Planned planned(shape, timer.stream());
  const PageCount pages = planned.width() * shape.num_seqs;
  MeasurePlan("plan (all pages new)", pages.raw(), shape, planned, timer, report);
  MeasureExports(shape, planned, timer, report);
  planned.PackDecode();
  MeasurePlan("plan (decode)", shape.num_seqs, shape, planned, timer, report);
  planned.Bring(PageCount(kRunnersNewPages / shape.num_seqs));
  MeasurePlan("plan (4096 pages new)", kRunnersNewPages, shape, planned, timer, report);
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  using namespace quire;
  using namespace quire::bench;
  const bool is_quick = argc == 2 && argv[1] == std::string_view("--quick");
  if (argc > 1 && !is_quick) {
    fmt::print(stderr, "usage: quire_cuda_export_bench [--quick]\n");
    return 2;
  }
  try {
    const cuda::DeviceProperties device = cuda::QueryDevice();
    fmt::print("{}, {} SMs\n", device.name, device.num_sms);
    Timer timer;
    Report report(timer);
    MeasureFloor(timer, report);
    for (int32_t num_seqs : {1, 64}) {
      for (int32_t page_size : {1, 64}) {
        if (is_quick && (num_seqs != 64 || page_size != 64)) continue;
        const TokenCount room = DraftReserve(PageSize(page_size), kDraft);
        MeasureShape({.num_seqs = num_seqs,
                      .kv_len = TokenCount(131072),
                      .room = room,
                      .page_size = PageSize(page_size)},
                     timer, report);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
