#include "cli/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cli/bench_report.h"
#include "cli/flags.h"
#include "cli/load.h"
#include "cli/loadgen/load_command.h"
#include "cli/loadgen/load_flags.h"
#include "cli/loadgen/svg_plot.h"
#include "cli/measure.h"
#include "cli/model_name.h"
#include "cli/output.h"
#include "cli/parse.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/result_file.h"
#include "cli/simulated_acceptance.h"
#include "local/device.h"
#include "local/local_model.h"
#include "runner/layer_drafter.h"
#include "runner/speculative_runner.h"

namespace quire::cli {
namespace {

using Numbers = std::vector<int64_t>;

constexpr const char* kSharedGroup = "Options";
constexpr const char* kStepsGroup = "Measuring a model";
constexpr int64_t kMaxLength = int64_t{1} << 31;

struct BenchFlags {
  LoadFlags load = {};
  ModelFlags model = {};
  std::optional<Numbers> batches = {};
  std::optional<std::string> input_length = {};  // what they may be depends on the mode
  std::optional<std::string> output_length = {};
  std::optional<Numbers> contexts = {};
  std::optional<int64_t> repeats = {};
  std::optional<std::string> compare = {};  // as MODEL
  std::optional<double> simulated_length = {};
  bool quick = false;
  std::string json = {};  // a file, or - for stdout
  std::string plot = {};
};

// What to measure.
struct BenchWork {
  Numbers batches;
  Numbers input_lengths;
  Numbers contexts;
  int64_t output_length;
  int64_t room_behind = 0;  // tokens that a sequence has at most behind its prompt
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
BenchWork MakeWork(const BenchFlags& flags, const ModelConfig& config,
                   const Speculation& speculation) {
  BenchWork work = flags.quick ? kQuickWork : kFullWork;
  if (flags.output_length) {
    work.output_length = ParseInt("--output-len", *flags.output_length, 1, 1'000'000);
  }
  work.repeats = flags.repeats.value_or(work.repeats);
  const int64_t context = flags.model.context_length.value_or(TokenCount(config.max_context)).raw();
  std::erase_if(work.contexts, [&](int64_t n) { return n + kContextSteps > context; });
  work.room_behind = speculation.is_on()
                         ? RoomForDrafts(speculation.shape, work.output_length).raw()
                         : work.output_length;
  for (int64_t& n : work.input_lengths) n = std::clamp(context - work.room_behind, int64_t{1}, n);
  work.batches = flags.batches.value_or(work.batches);
  if (flags.input_length) {
    work.input_lengths = ParseInts("--input-len", *flags.input_length, 1, kMaxLength);
  }
  work.contexts = flags.contexts.value_or(work.contexts);
  const int64_t longest = Largest(work.input_lengths) + work.room_behind;
  Require(longest <= context,
          "--input-len {} and --output-len {}{} exceed the context length of {}",
          Largest(work.input_lengths), work.output_length,
          speculation.is_on() ? fmt::format(", with drafts {} tokens,", work.room_behind) : "",
          context);
  Require(Largest(work.contexts) + kContextSteps <= context,
          "--contexts {} and {} tokens to decode exceed the context length of {}",
          Largest(work.contexts), kContextSteps, context);
  return work;
}

// The speculation that flags ask for, if it can be measured.
Speculation SpeculationOf(const BenchFlags& flags) {
  Speculation speculation = MakeLocalOptions(flags.model, {}).speculation;
  Require(speculation.choices.empty(),
          "--speculative-num-steps: expected a number, since one shape is measured, got auto");
  Require(!speculation.is_on() || flags.model.ranks == nullptr,
          "--speculative-algorithm: expected one process with it, got several");
  if (!flags.simulated_length) return speculation;
  Require(speculation.is_on(),
          "--simulate-accept-length: expected --speculative-algorithm with it, got none");
  Require(flags.model.load_format == LoadFormat::kDummy,
          "--simulate-accept-length: expected --load-format dummy with it, since guesses of real "
          "weights are right or wrong by themselves");
  const auto most = static_cast<double>(speculation.shape.steps + 1);
  Require(*flags.simulated_length >= 1 && *flags.simulated_length <= most,
          "--simulate-accept-length: expected 1..{}, one more than --speculative-num-steps, got {}",
          most, *flags.simulated_length);
  return speculation;
}

// Room for all that is measured, not for more.
RunnerOptions OptionsFor(const BenchWork& work, const ModelFlags& flags) {
  const TokenCount sequence(Largest(work.input_lengths) + work.room_behind);
  const TokenCount longest = Max(sequence, TokenCount(Largest(work.contexts) + kContextSteps));
  const int64_t batch = Largest(work.batches);
  const PageSize page_size = flags.page_size;
  const PageCount pages = Max(page_size.PagesFor(sequence) * batch, page_size.PagesFor(longest));
  return MakeRoom(flags, {.context = longest,
                          .max_seqs = static_cast<int32_t>(batch),
                          .max_step_tokens = TokenCount(std::max(work.chunk, batch)),
                          .pool_tokens = page_size.TokensIn(pages)});
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

// Decoding of one sequence at every context.
std::vector<Measurement> MeasureContexts(StepMeter& meter, const BenchWork& work, TaskBar& tasks) {
  std::vector<Measurement> contexts;
  for (const int64_t context : work.contexts) {
    tasks.Begin(fmt::format("decode: context {}", context));
    contexts.push_back(
        Median(work.repeats, [&] { return meter.Decode(1, TokenCount(context), kContextSteps); }));
  }
  return contexts;
}

// `target`, with its drafts.
std::unique_ptr<MeteredRunner> Drafting(std::unique_ptr<MeteredRunner> target,
                                        const Speculation& speculation,
                                        std::optional<double> simulated_length) {
  if (!simulated_length) return Speculate(std::move(target), speculation, {}, {});
  auto simulated = std::make_unique<SimulatedAcceptance>(std::move(target), *simulated_length);
  if (speculation.algorithm != Speculation::Algorithm::kNgram) {
    return Speculate(std::move(simulated), speculation, {}, {});
  }
  // Random texts repeat nothing, and what ngrams find costs nothing.
  auto drafter = std::make_unique<AnyChains>(simulated->limits().vocab_size);
  return std::make_unique<SpeculativeRunner>(std::move(simulated), std::move(drafter),
                                             speculation.shape.Room());
}

void MeasureDrafts(MeteredRunner& runner, const ModelConfig& config, const BenchWork& work,
                   TaskBar& tasks, SpeculationReport& report) {
  StepMeter meter(runner, config);
  for (const int64_t length : work.input_lengths) {
    for (const int64_t batch : work.batches) {
      tasks.Begin(fmt::format("decode with drafts: batch {}, context {}", batch, length));
      report.rows.push_back(
          meter.DecodeWithDrafts(batch, TokenCount(length), work.output_length, report.shape));
    }
  }
}

void MeasureSteps(const OpenedModel& model, const BenchWork& work, const Speculation& speculation,
                  const std::shared_ptr<Collective>& ranks, TaskBar& tasks, BenchReport& report) {
  tasks.Pause();
  std::unique_ptr<MeteredRunner> runner =
      LoadRunner(model, report.device, report.options, PrintLoading(), ranks);
  report.plan = runner->memory_plan();
  StepMeter meter(*runner, *model.config);
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
  report.contexts = MeasureContexts(meter, work, tasks);
  if (!report.speculation) return;
  runner = Drafting(std::move(runner), speculation, report.speculation->simulated_length);
  MeasureDrafts(*runner, *model.config, work, tasks, *report.speculation);
}

// A model beside the measured one, at the same contexts and with flags that it can have.
ComparedModel Compare(const BenchFlags& flags, const OpenedModel& model, const BenchWork& work,
                      TaskBar& tasks) {
  ModelFlags plain = flags.model;
  plain.speculative_algorithm = Speculation::Algorithm::kNone;
  plain.speculative_num_steps = plain.speculative_eagle_topk =
      plain.speculative_num_draft_tokens = {};
  plain.speculative_draft_model_path = {};
  RunnerOptions options = OptionsFor(work, plain);
  if (!model.config->indexer) options.index_top_k = 0;
  ComparedModel compared{.model = model.folder.string(), .config = *model.config};
  tasks.Pause();
  const std::unique_ptr<MeteredRunner> runner =
      LoadRunner(model, flags.model.device, options, PrintLoading());
  compared.plan = runner->memory_plan();
  StepMeter meter(*runner, *model.config);
  meter.Decode(1, TokenCount(0), 1);
  compared.contexts = MeasureContexts(meter, work, tasks);
  return compared;
}

std::optional<OpenedModel> OpenCompared(const BenchFlags& flags, const BenchWork& work) {
  if (!flags.compare) return std::nullopt;
  ModelFlags other = flags.model;
  other.model = *flags.compare;
  other.named.reset();
  std::optional<OpenedModel> model = OpenModel(FindModel(other).folder, other.load_format);
  const int64_t most = model->config->max_context;
  Require(Largest(work.contexts) + kContextSteps <= most,
          "--compare: --contexts {} and {} tokens to decode exceed its context length of {}",
          Largest(work.contexts), kContextSteps, most);
  return model;
}

BenchReport Bench(const BenchFlags& flags, const std::string& command_line) {
  OpenedModel model = OpenModel(FindModel(flags.model).folder, flags.model.load_format);
  const Speculation speculation = SpeculationOf(flags);
  OpenDraftModel(speculation, model);
  const BenchWork work = MakeWork(flags, *model.config, speculation);
  Require(!work.contexts.empty() || (!flags.compare && flags.plot.empty()),
          "--contexts: expected some for --compare and --plot, got none");
  const std::optional<OpenedModel> other = OpenCompared(flags, work);
  const RunnerOptions options = OptionsFor(work, flags.model);
  BenchReport report{.command_line = command_line,
                     .model = model.folder.string(),
                     .config = *model.config,
                     .options = options,
                     .device = flags.model.device,
                     .device_name = DeviceName(flags.model.device)};
  if (speculation.is_on()) {
    report.speculation = {.algorithm = AlgorithmName(speculation.algorithm),
                          .shape = speculation.shape,
                          .simulated_length = flags.simulated_length};
  }
  const size_t kinds = speculation.is_on() ? 3 : 2;
  TaskBar tasks(static_cast<int>(kinds * work.batches.size() * work.input_lengths.size() +
                                 work.contexts.size() * (other ? 2 : 1) + 2));
  tasks.Begin("roofs, before");
  const cpu::Roofs before = MeasureRoofs(report.device, options.num_threads, work.roof_repeats);
  MeasureSteps(model, work, speculation, RanksOf(flags.model), tasks, report);
  if (other) report.compared = Compare(flags, *other, work, tasks);
  tasks.Begin("roofs, after");
  report.roofs = Best(before, MeasureRoofs(report.device, options.num_threads, work.roof_repeats));
  return report;
}

void MeasureModel(BenchFlags flags, const std::string& command_line) {
  JoinRanks(flags.model);
  Require(flags.model.ranks == nullptr || !flags.compare,
          "--compare: expected one process with it, since the others load MODEL only, got several");
  ResultFile file("--json", flags.json);
  ResultFile plot_file("--plot", flags.plot);
  const BenchReport report = Bench(flags, command_line);
  const std::string json = ToJson(report).dump(2) + "\n";
  WriteResult(flags.json == "-" ? json : ToTables(report));
  file.Write(json);
  plot_file.Write(ToSvg(ToPlot(report)));
}

void LoadServer(const BenchFlags& flags, const std::string& command_line) {
  LoadFlags load = flags.load;
  load.plot = flags.plot;
  // The variable names a folder, which is nothing to ask a server for.
  const std::optional<NamedModel>& named = flags.model.named;
  if (named && named->where == "--model") load.target.model = named->text;
  if (flags.input_length) load.workload.input = ParseLength("--input-len", *flags.input_length);
  if (flags.output_length) load.workload.output = ParseLength("--output-len", *flags.output_length);
  LoadServer(std::move(load), flags.json, command_line);
}

// Flags of the other mode would do nothing. What the environment holds is no request.
void RefuseOtherMode(const FlagReader& reader, bool with_url) {
  for (const auto& [name, group] : reader.Typed()) {
    if (group == kSharedGroup || name == "--model") continue;
    Require(group != kLoadGroup || with_url, "{}: expected --url with it, got none", name);
    Require(group == kLoadGroup || !with_url,
            "{}: expected without --url, which loads a server and no model, got both", name);
  }
}

void AddSharedFlags(FlagReader& reader, BenchFlags& flags) {
  const auto keep = [](const auto&, const std::string& text) { return text; };
  reader.Add({"--input-len", "LENGTH", "256",
              "Tokens of a prompt, several as in 128,512; decoding begins behind them.\n"
              "With --url: N words, about a token each; N-M: any number from N to M;\n"
              "lognormal:MEAN,SIGMA or lognormal:MEAN,SIGMA,MAX: the mean of the lengths, the\n"
              "standard deviation of their logarithm, and where they are cut"},
             flags.input_length, keep);
  reader.Add({"--output-len", "LENGTH", "16; 64 with --url",
              "Tokens that each sequence decodes. With --url also N-M or lognormal:..."},
             flags.output_length, keep);
  reader.Add({"--json", "FILE", "", "Write everything as JSON too; - for stdout, without tables"},
             flags.json, keep);
  reader.Add({"--plot", "FILE.svg", "",
              "Draw time per token over --contexts. With --url: latency and throughput over\n"
              "concurrency; of a single run, how its latencies are distributed"},
             flags.plot, keep);
}

void AddBenchFlags(FlagReader& reader, BenchFlags& flags) {
  AddSharedFlags(reader, flags);
  AddLoadFlags(reader, flags.load);
  const auto numbers = [](int64_t max) {
    return [max](const std::string& where, const std::string& text) {
      return ParseInts(where, text, 1, max);
    };
  };
  const auto number = [](const std::string& where, const std::string& text) {
    return ParseInt(where, text, 1, 1'000'000);
  };
  reader
      .Add({"--batch", "LIST", "1,16", "Sequences that run together"}, flags.batches, numbers(4096))
      .Group(kStepsGroup);
  reader
      .Add({"--contexts", "LIST", "128,1024,4096,8192",
            "Context lengths for the table of cost per token"},
           flags.contexts, numbers(kMaxLength))
      .Group(kStepsGroup);
  reader
      .Add({"--compare", "MODEL", "",
            "Measure another model at --contexts too, and show both: a sparse one and a dense one"},
           flags.compare, [](const auto&, const std::string& text) { return text; })
      .Group(kStepsGroup);
  reader
      .Add({"--simulate-accept-length", "X", "",
            "With --speculative-algorithm and made-up weights: drafts give X tokens on average,\n"
            "whatever was guessed. It says what steps cost, and nothing of a model's guesses"},
           flags.simulated_length,
           [](const std::string& where, const std::string& text) {
             return ParseNumber(where, text, 1, static_cast<double>(kMaxDraftSteps + 1));
           })
      .Group(kStepsGroup);
  reader
      .Add({"--repeats", "N", "3", "Repeats of decoding, of which the median is shown"},
           flags.repeats, number)
      .Group(kStepsGroup);
  reader
      .AddSwitch("--quick", flags.quick,
                 "Shorter: about 20 s, not a minute, for 1B parameters on 2 cores")
      .Group(kStepsGroup);
  AddModelFlags(reader, flags.model);
}

}  // namespace

void AddBench(CLI::App& quire, const std::string& command_line) {
  AddCommand(
      quire,
      {"bench", "Measure a model on this machine, or a running server with --url",
       "Examples:\n"
       "  quire bench models/DeepSeek-V2-Lite\n"
       "  quire bench bench/models/dense_1b --load-format dummy --batch 1,8 --input-len 512\n"
       "  quire bench bench/models/v32_slice --load-format dummy --contexts 1024,16384,131072 \\\n"
       "      --compare bench/models/v32_slice_dense --plot contexts.svg\n"
       "  quire bench bench/models/moe_1b --load-format dummy --speculative-algorithm ngram \\\n"
       "      --simulate-accept-length 2\n"
       "  quire bench --url http://127.0.0.1:8080 --concurrency 1,16,64 --plot load.svg\n"
       "  quire bench --url http://127.0.0.1:8080 --request-rate 4 --input-len 100-900\n"
       "\n"
       "A model: tokens are random, from a fixed seed. The roofs, how fast memory can be read and\n"
       "how many multiply-adds can be done, are measured before and after on the same threads. A\n"
       "prefill of many prompts stops after some seconds: its steps are alike. KV and steps are\n"
       "made as large as the measurements need, unless flags say more.\n"
       "\n"
       "A server, Quire's or any other that speaks the OpenAI protocol: --model is the one to ask "
       "it\n"
       "for, the first of its /v1/models unless that is given. Answers are streamed, and\n"
       "the time to the first text (TTFT), per output token (TPOT), between pieces of text (ITL)\n"
       "and to the end are shown, with throughput and every failure by its kind. A request that\n"
       "fails counts in no latency and no rate. Ctrl-C ends the load and shows what is there.\n"
       "Ends with 1 if every request failed, with 130 after Ctrl-C.\n"},
      AddBenchFlags, [command_line](const BenchFlags& flags, const FlagReader& reader) {
        const bool with_url = !flags.load.target.url.empty();
        RefuseOtherMode(reader, with_url);
        with_url ? LoadServer(flags, command_line) : MeasureModel(flags, command_line);
      });
}

}  // namespace quire::cli
