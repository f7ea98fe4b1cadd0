#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "cli/bench_report.h"
#include "cli/flags.h"
#include "cli/load.h"
#include "cli/machine.h"
#include "cli/measure.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/progress.h"
#include "device/thread_pool.h"

namespace quire::cli {
namespace {

using Numbers = std::vector<int64_t>;

struct BenchFlags {
  ModelFlags model = {};
  std::optional<Numbers> batches = {};
  std::optional<Numbers> input_lengths = {};
  std::optional<Numbers> contexts = {};
  std::optional<int64_t> output_length = {};
  std::optional<int64_t> repeats = {};
  bool quick = false;
  std::string json = {};  // a file, or - for stdout
};

// What to measure.
struct BenchWork {
  Numbers batches;
  Numbers input_lengths;
  Numbers contexts;
  int64_t output_length;
  int64_t repeats;
  int64_t chunk;           // tokens of a prefill step
  double prefill_seconds;  // when a prefill has run long enough
  int roof_repeats;
};

// For models of 1B parameters on 2 cores: about a minute, or 20 s.
const BenchWork kFullWork{.batches = {1, 16},
                          .input_lengths = {256},
                          .contexts = {128, 1024, 4096, 8192},
                          .output_length = 16,
                          .repeats = 3,
                          .chunk = 512,
                          .prefill_seconds = 4,
                          .roof_repeats = 4};
const BenchWork kQuickWork{.batches = {1, 16},
                           .input_lengths = {128},
                           .contexts = {128, 1024, 8192},
                           .output_length = 4,
                           .repeats = 3,
                           .chunk = 128,
                           .prefill_seconds = 1,
                           .roof_repeats = 2};
constexpr int64_t kContextSteps = 4;

int64_t Largest(const Numbers& numbers) {
  return numbers.empty() ? 0 : *std::max_element(numbers.begin(), numbers.end());
}

// Defaults are cut to what the model can do; what the user asks for is not.
BenchWork MakeWork(const BenchFlags& flags, const ModelConfig& config) {
  BenchWork work = flags.quick ? kQuickWork : kFullWork;
  work.output_length = flags.output_length.value_or(work.output_length);
  work.repeats = flags.repeats.value_or(work.repeats);
  const int64_t context = flags.model.context_length.value_or(TokenCount(config.max_context)).raw();
  std::erase_if(work.contexts, [&](int64_t n) { return n + kContextSteps > context; });
  for (int64_t& n : work.input_lengths) n = std::clamp(context - work.output_length, int64_t{1}, n);
  work.batches = flags.batches.value_or(work.batches);
  work.input_lengths = flags.input_lengths.value_or(work.input_lengths);
  work.contexts = flags.contexts.value_or(work.contexts);
  const int64_t longest = Largest(work.input_lengths) + work.output_length;
  Require(longest <= context, "--input-len {} and --output-len {} exceed the context length of {}",
          Largest(work.input_lengths), work.output_length, context);
  Require(Largest(work.contexts) + kContextSteps <= context,
          "--contexts {} and {} tokens to decode exceed the context length of {}",
          Largest(work.contexts), kContextSteps, context);
  return work;
}

// Room for all that is measured, not for more.
RunnerOptions OptionsFor(const BenchWork& work, const ModelFlags& flags) {
  const TokenCount sequence(Largest(work.input_lengths) + work.output_length);
  const TokenCount longest = Max(sequence, TokenCount(Largest(work.contexts) + kContextSteps));
  const int64_t batch = Largest(work.batches);
  const PageSize page_size = flags.page_size;
  const PageCount pages = Max(page_size.PagesFor(sequence) * batch, page_size.PagesFor(longest));
  return MakeRoom(flags, {.context = longest,
                          .max_seqs = static_cast<int32_t>(batch),
                          .max_step_tokens = TokenCount(std::max(work.chunk, batch)),
                          .pool_tokens = page_size.TokensIn(pages)});
}

// While there is no runner, so that the memory it reads adds nothing to the plan.
cpu::Roofs MeasureRoofs(int num_threads, int repeats) {
  ThreadPool threads(num_threads);
  return cpu::RoofMeter(threads).Measure(repeats);
}

// The median of the repeats, by their time.
Measurement Median(int64_t repeats, const std::function<Measurement()>& measure) {
  std::vector<Measurement> all;
  for (int64_t i = 0; i < repeats; ++i) all.push_back(measure());
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end(), [](const Measurement& a, const Measurement& b) {
    return a.seconds < b.seconds;
  });
  return *middle;
}

void MeasureSteps(const OpenedModel& model, const BenchWork& work, TaskBar& tasks,
                  BenchReport& report) {
  tasks.Pause();
  const std::unique_ptr<CpuRunner> runner = LoadRunner(model, report.options);
  report.plan = runner->memory_plan();
  StepMeter meter(*runner);
  meter.Decode(1, TokenCount(0), 1);  // touches what steps write
  for (const int64_t length : work.input_lengths) {
    for (const int64_t batch : work.batches) {
      tasks.Begin(fmt::format("prefill: batch {}, prompt {}", batch, length));
      report.prefill.push_back(meter.Prefill(batch, TokenCount(length), work.prefill_seconds));
      tasks.Begin(fmt::format("decode: batch {}, context {}", batch, length));
      report.decode.push_back(Median(work.repeats, [&] {
        return meter.Decode(batch, TokenCount(length), work.output_length);
      }));
    }
  }
  for (const int64_t context : work.contexts) {
    tasks.Begin(fmt::format("decode: context {}", context));
    report.contexts.push_back(
        Median(work.repeats, [&] { return meter.Decode(1, TokenCount(context), kContextSteps); }));
  }
}

BenchReport Bench(const BenchFlags& flags, const std::string& command_line) {
  const OpenedModel model = OpenModel(flags.model.model, flags.model.load_format);
  const BenchWork work = MakeWork(flags, *model.config);
  const RunnerOptions options = OptionsFor(work, flags.model);
  BenchReport report{.command_line = command_line,
                     .model = flags.model.model.string(),
                     .config = *model.config,
                     .options = options,
                     .cpu = CpuModel()};
  TaskBar tasks(static_cast<int>(2 * work.batches.size() * work.input_lengths.size() +
                                 work.contexts.size() + 2));
  tasks.Begin("roofs, before");
  const cpu::Roofs before = MeasureRoofs(options.num_threads, work.roof_repeats);
  MeasureSteps(model, work, tasks, report);
  tasks.Begin("roofs, after");
  report.roofs = Best(before, MeasureRoofs(options.num_threads, work.roof_repeats));
  return report;
}

// Opens the file at once: not to be able to write it is better known before than after.
std::ofstream OpenReport(const std::string& file) {
  std::ofstream out;
  if (file.empty() || file == "-") return out;
  out.open(file);
  Require(out.is_open(), "--json: expected a file that can be written, got {}",
          QuoteForMessage(file));
  return out;
}

void Run(const BenchFlags& flags, const std::string& command_line) {
  std::ofstream file = OpenReport(flags.json);
  const BenchReport report = Bench(flags, command_line);
  const std::string json = ToJson(report).dump(2) + "\n";
  WriteResult(flags.json == "-" ? json : ToTables(report));
  if (!file.is_open()) return;
  file << json << std::flush;
  if (!file) throw std::system_error(errno, std::generic_category(), flags.json);
}

void AddFlags(FlagReader& reader, BenchFlags& flags) {
  const auto numbers = [](int64_t max) {
    return [max](const std::string& where, const std::string& text) {
      return ParseInts(where, text, 1, max);
    };
  };
  const auto number = [](const std::string& where, const std::string& text) {
    return ParseInt(where, text, 1, 1'000'000);
  };
  reader.Add({"--batch", "LIST", "1,16", "Sequences that run together"}, flags.batches,
             numbers(4096));
  reader.Add({"--input-len", "LIST", "256", "Tokens of a prompt; decoding begins behind them"},
             flags.input_lengths, numbers(int64_t{1} << 31));
  reader.Add({"--output-len", "TOKENS", "16", "Tokens that each sequence decodes"},
             flags.output_length, number);
  reader.Add({"--contexts", "LIST", "128,1024,4096,8192",
              "Context lengths for the table of cost per token"},
             flags.contexts, numbers(int64_t{1} << 31));
  reader.Add({"--repeats", "N", "3", "Repeats of decoding, of which the median is shown"},
             flags.repeats, number);
  reader.AddSwitch("--quick", flags.quick,
                   "Shorter: about 20 s, not a minute, for 1B parameters on 2 cores");
  reader.Add({"--json", "FILE", "", "Write everything as JSON too; - for stdout, without tables"},
             flags.json, [](const auto&, const std::string& text) { return text; });
  AddModelFlags(reader, flags.model);
}

}  // namespace

void AddBench(CLI::App& quire, const std::string& command_line) {
  CLI::App* app = quire.add_subcommand(
      "bench", "Measure prefill and decode against what this machine could do at most");
  app->footer(
      "Examples:\n"
      "  quire bench models/DeepSeek-V2-Lite\n"
      "  quire bench bench/models/dense_1b --load-format dummy --batch 1,8 --input-len 512\n"
      "\n"
      "Tokens are random, from a fixed seed. The roofs, how fast memory can be read and how many\n"
      "multiply-adds can be done, are measured before and after on the same threads. A prefill of\n"
      "many prompts stops after some seconds: its steps are alike. KV and steps are made as large\n"
      "as the measurements need, unless flags say more.\n");
  SetCommand(*app, AddFlags, [command_line](const BenchFlags& flags) { Run(flags, command_line); });
}

}  // namespace quire::cli
