// What benchmarks against the roofs of this machine share.
#ifndef QUIRE_BENCH_ROOF_BENCH_H_
#define QUIRE_BENCH_ROOF_BENCH_H_

#include <benchmark/benchmark.h>

#include <memory>
#include <string>

#include "base/executor.h"
#include "bench/tables.h"
#include "kernels/cpu/roof.h"

namespace quire::bench {

// Keeps the inputs of the shape at hand (Google Benchmark calls a function once per repetition, and
// in between to find the number of iterations), and the roofs. A Step is made of (Shape, Executor)
// and has RunNextLayer(), Bytes() and Flops().
template <class Step, class Shape>
class RoofBench {
 public:
  RoofBench(Effort effort, Executor& executor) : effort_(effort), executor_(executor) {}

  // Registers `name` with Google Benchmark.
  static void Register(const std::shared_ptr<RoofBench>& bench, const Shape& shape,
                       const std::string& name, const std::string& label) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [bench, shape, name, label](benchmark::State& state) {
                                   state.SetLabel(label);
                                   bench->Run(shape, name, state);
                                 })
        ->UseRealTime()
        ->MinTime(bench->effort_ == Effort::kFull ? 0.3 : 0.1)
        ->Repetitions(bench->effort_ == Effort::kFull ? 5 : 3)
        ->ReportAggregatesOnly();
  }

 private:
  void Run(const Shape& shape, const std::string& name, benchmark::State& state) {
    if (name != name_) Prepare(shape, name);
    for (auto _ : state) step_->RunNextLayer();
    state.counters[kBytes] = step_->Bytes();
    state.counters[kFlops] = step_->Flops();
    state.counters[kReadRoof] = roofs_.read_bytes_per_s;
    state.counters[kFmaRoof] = roofs_.flops_per_s;
    state.counters[kFmaAfter] = meter_->Measure(1).flops_per_s;
  }

  void Prepare(const Shape& shape, const std::string& name) {
    ShowProgress(name);
    name_ = name;
    step_.reset();  // before the next is made: both may not fit
    if (!meter_) meter_ = std::make_unique<cpu::RoofMeter>(executor_);
    roofs_ = meter_->Measure(effort_ == Effort::kFull ? 20 : 5);
    step_ = std::make_unique<Step>(shape, executor_);
  }

  Effort effort_;
  Executor& executor_;
  std::string name_;
  std::unique_ptr<cpu::RoofMeter> meter_;
  cpu::Roofs roofs_;  // measured before the shape at hand
  std::unique_ptr<Step> step_;
};

}  // namespace quire::bench

#endif  // QUIRE_BENCH_ROOF_BENCH_H_
