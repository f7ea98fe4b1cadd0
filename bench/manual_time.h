// Benchmarks whose time is taken by the device's own clock.
#ifndef QUIRE_BENCH_MANUAL_TIME_H_
#define QUIRE_BENCH_MANUAL_TIME_H_

#include <benchmark/benchmark.h>

namespace quire::bench {

// Runs the benchmark's iterations, each of which takes the seconds that `measure` returns; the mean.
template <class Measure>
double MeanSeconds(benchmark::State& state, Measure measure) {
  double sum = 0;
  for (auto _ : state) {
    const double seconds = measure();
    state.SetIterationTime(seconds);
    sum += seconds;
  }
  return sum / static_cast<double>(state.iterations());
}

}  // namespace quire::bench

#endif  // QUIRE_BENCH_MANUAL_TIME_H_
