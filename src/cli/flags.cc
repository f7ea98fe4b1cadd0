#include "cli/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/fault_names.h"
#include "cli/parse.h"
#include "runner/adaptive_drafter.h"
#include "runner/shape_chooser.h"

namespace quire::cli {
namespace {

constexpr const char* kModelGroup = "Model";
constexpr const char* kMemoryGroup = "Memory and steps";
constexpr const char* kRanksGroup = "Ranks";
constexpr const char* kSpeculationGroup = "Speculation";

constexpr int64_t kMaxRanks = 1024;

// So many that their bytes can be counted, whatever the model: 4 KB a token in each of 1024 layers.
constexpr int64_t kMaxTotalTokens = int64_t{1} << 36;

TokenCount ParseTokens(const std::string& where, const std::string& text) {
  return TokenCount(ParseInt(where, text, 1));
}

KvFormat ParseKvFormat(const std::string& where, const std::string& text) {
  return ParseChoice<KvFormat>(where, text,
                               {{"auto", KvFormat::kLatentBf16},
                                {"bf16", KvFormat::kLatentBf16},
                                {"bfloat16", KvFormat::kLatentBf16},
                                {"f32", KvFormat::kLatentF32},
                                {"float32", KvFormat::kLatentF32},
                                {"fp8", KvFormat::kLatentFp8},
                                {"fp8_e4m3", KvFormat::kLatentFp8}});
}

IndexKeyType ParseIndexKeyType(const std::string& where, const std::string& text) {
  return ParseChoice<IndexKeyType>(where, text,
                                   {{"auto", IndexKeyType::kAuto},
                                    {"f32", IndexKeyType::kF32},
                                    {"bf16", IndexKeyType::kBf16},
                                    {"fp8", IndexKeyType::kFp8}});
}

IndexKeyLayout ParseIndexKeyLayout(const std::string& where, const std::string& text) {
  return ParseChoice<IndexKeyLayout>(where, text,
                                     {{"auto", IndexKeyLayout::kAuto},
                                      {"plain", IndexKeyLayout::kPlain},
                                      {"preshuffled", IndexKeyLayout::kPreshuffled}});
}

LoadFormat ParseLoadFormat(const std::string& where, const std::string& text) {
  return ParseChoice<LoadFormat>(where, text,
                                 {{"auto", LoadFormat::kAuto},
                                  {"safetensors", LoadFormat::kSafetensors},
                                  {"dummy", LoadFormat::kDummy}});
}

StepMode ParseStepMode(const std::string& where, const std::string& text) {
  return ParseChoice<StepMode>(where, text,
                               {{"eager", StepMode::kEager}, {"graph", StepMode::kGraph}});
}

void AddWhichModel(FlagReader& reader, ModelFlags& flags) {
  const auto add = [&](const FlagText& text, auto& target, auto parse) {
    reader.Add(text, target, parse).Group(kModelGroup).Twin();
  };
  reader
      .Add({"MODEL", "", "the bundled model",
            "Folder of the model: config.json, and its safetensors files; or owner/name, if it is\n"
            "in the Hugging Face cache"},
           flags.model, [](const auto&, const std::string& text) { return text; })
      .Group(kModelGroup);
  add({"--model", "MODEL", "", "The same as MODEL"}, flags.named,
      [](const std::string& where, const std::string& text) {
        return NamedModel{.where = where, .text = text};
      });
  add({"--load-format", "FORMAT", "auto",
       "auto or safetensors: the weights of the folder's files;\n"
       "dummy: made-up weights, and tokens where no tokenizer is there:\n"
       "config.json will do"},
      flags.load_format, ParseLoadFormat);
  add({"--device", "DEVICE", "cpu",
       "What computes: cpu, or cuda, a Hopper GPU (H100, H200), if quire was built for it"},
      flags.device, ParseDevice);
  add({"--threads", "N", std::to_string(flags.threads), "CPU threads that compute"}, flags.threads,
      [](const std::string& where, const std::string& text) {
        return static_cast<int32_t>(ParseInt(where, text, 1, ThreadPool::kMaxThreads));
      });
}

void AddMemory(FlagReader& reader, ModelFlags& flags) {
  const auto add = [&](const FlagText& text, auto& target, auto parse) {
    reader.Add(text, target, parse).Group(kMemoryGroup).Twin();
  };
  add({"--context-length", "TOKENS", "", "The longest sequence, prompt and output together"},
      flags.context_length, ParseTokens);
  add({"--max-running-requests", "N", "", "Sequences that can run at the same time"},
      flags.max_running_requests, [](const std::string& where, const std::string& text) {
        return static_cast<int32_t>(ParseInt(where, text, 1, 4096));
      });
  add({"--chunked-prefill-size", "TOKENS", "",
       "Tokens that one step computes at most; longer prompts take several steps. On a GPU\n"
       "8192 unless said otherwise"},
      flags.chunked_prefill_size, ParseTokens);
  add({"--max-total-tokens", "TOKENS", "",
       "Tokens that the KV cache holds, of all sequences together. Unless this is given: as many\n"
       "as all sequences may need, or as fit; on a CPU in no more than 256 MiB, or a quarter of\n"
       "the weights' size, but enough for one sequence"},
      flags.max_total_tokens, [](const std::string& where, const std::string& text) {
        return TokenCount(ParseInt(where, text, 1, kMaxTotalTokens));
      });
  add({"--page-size", "TOKENS", std::to_string(flags.page_size.raw()),
       "Tokens per page of the KV cache, 1 to 256: any value works and gives the same\n"
       "results"},
      flags.page_size, [](const std::string& where, const std::string& text) {
        return PageSize(ParseInt(where, text, PageSize::kMin, PageSize::kMax));
      });
  add({"--kv-cache-dtype", "TYPE", "auto",
       "What the KV cache stores: bf16 (auto), f32, or fp8 at about half the memory\n"
       "(bfloat16, float32 and fp8_e4m3 are the same)"},
      flags.kv_cache_dtype, ParseKvFormat);
  add({"--index-cache-dtype", "TYPE", "auto",
       "What a sparse model's index keys are stored as: f32, bf16 or fp8; auto is f32 for f32\n"
       "weights, fp8 otherwise"},
      flags.index_cache_dtype, ParseIndexKeyType);
  add({"--index-cache-layout", "LAYOUT", "auto",
       "How fp8 index keys lie in a page, with the same results: plain (auto), or preshuffled,\n"
       "where the page size is a multiple of 16"},
      flags.index_cache_layout, ParseIndexKeyLayout);
  add({"--index-topk", "N", "",
       "Keys that each query of a sparse model attends to, for experiments: fewer than the\n"
       "model was made for"},
      flags.index_topk, [](const std::string& where, const std::string& text) {
        return static_cast<int32_t>(ParseInt(where, text, 1, std::numeric_limits<int32_t>::max()));
      });
  add({"--mem-fraction-static", "PART", fmt::format("{}", flags.mem_fraction_static),
       "Part of the machine's available memory, or of the GPU's, to stay within, above 0 and\n"
       "up to 1"},
      flags.mem_fraction_static, ParseFraction);
  add({"--step-mode", "MODE", "",
       "eager: every step at its own size, the default on a CPU; graph: steps are padded\n"
       "to fixed sizes, with the same results, and on a GPU recorded as graphs, the default\n"
       "there"},
      flags.step_mode, ParseStepMode);
  const auto add_switch = [&](const char* name, bool& target, const char* help) {
    reader.AddSwitch(name, target, help).Group(kMemoryGroup).Twin();
  };
  add_switch("--disable-cuda-graph", flags.disable_cuda_graph,
             "Eager steps: the same as --step-mode eager");
  add_switch("--deterministic", flags.deterministic,
             "On a GPU: results do not depend on what else runs, at some cost. A CPU's never do");
  add_switch(
      "--check", flags.check,
      "Look for mistakes of quire's own, slowly: what a step must not read is NaN, and on a GPU\n"
      "launches are waited for one by one, so that an error names its own");
}

void AddRanks(FlagReader& reader, ModelFlags& flags) {
  const auto add = [&](const FlagText& text, int32_t& target) {
    reader
        .Add(text, target,
             [](const std::string& where, const std::string& value) {
               return static_cast<int32_t>(ParseInt(where, value, 1, kMaxRanks));
             })
        .Group(kRanksGroup)
        .Twin();
  };
  add({"--tp-size", "N", "1",
       "Ranks that compute the model together, each with a share of the weights and of --threads,\n"
       "in this process, or in as many processes as mpirun starts. The results are those of one, "
       "on\n"
       "GPUs with --deterministic; each has a GPU of its own where there are as many, and "
       "otherwise,\n"
       "in this process, they share the first"},
      flags.tp_size);
  add({"--ep-size", "N", "1",
       "1: every rank has a share of the width of all experts; as many as --tp-size: it has whole\n"
       "experts, as many as the others. The results are the same"},
      flags.ep_size);
  add({"--dp-size", "N", "1",
       "Ranks that run sequences of their own, each with all weights but the experts', of which "
       "it\n"
       "has as many as the others, and with a KV cache and a prefix tree of its own. The results "
       "are\n"
       "those of one, on GPUs with --deterministic. Without --tp-size; under mpirun each is a "
       "process.\n"
       "Requests, tokens of a step and of the KV cache, threads and memory are of all together"},
      flags.dp_size);
}

// What groups cannot do yet is said by name.
void CheckGroups(const ModelFlags& flags) {
  if (flags.dp_size == 1) return;
  Require(flags.tp_size == 1 && flags.ep_size == 1,
          "--dp-size: expected 1 with --tp-size {} and --ep-size {}, since a group has one rank so "
          "far, got {}",
          flags.tp_size, flags.ep_size, flags.dp_size);
  Require(
      flags.speculative_algorithm != Speculation::Algorithm::kEagle3,
      "--dp-size: expected 1 with --speculative-algorithm eagle3, since a head is of one rank so "
      "far, got {}",
      flags.dp_size);
}

Speculation::Algorithm ParseAlgorithm(const std::string& where, const std::string& text) {
  return ParseChoice<Speculation::Algorithm>(where, text,
                                             {{"none", Speculation::Algorithm::kNone},
                                              {"eagle", Speculation::Algorithm::kEagle},
                                              {"nextn", Speculation::Algorithm::kEagle},
                                              {"eagle3", Speculation::Algorithm::kEagle3},
                                              {"ngram", Speculation::Algorithm::kNgram}});
}

void AddSpeculation(FlagReader& reader, ModelFlags& flags) {
  const auto add = [&](const FlagText& text, auto& target, auto parse) {
    reader.Add(text, target, parse).Group(kSpeculationGroup).Twin();
  };
  const auto add_number = [&](const FlagText& text, std::optional<int64_t>& target, int64_t least,
                              int64_t most) {
    add(text, target, [least, most](const std::string& where, const std::string& value) {
      return ParseInt(where, value, least, most);
    });
  };
  add({"--speculative-algorithm", "NAME", "none",
       "Guess tokens ahead, several a step, for the same text sooner: none; eagle (or nextn), by "
       "the\n"
       "model's own draft layer; eagle3, by a draft model; or ngram, what followed the last "
       "tokens\n"
       "where they stood before in the sequence"},
      flags.speculative_algorithm, ParseAlgorithm);
  add({"--speculative-draft-model-path", "FOLDER", "",
       "Folder of the draft model of eagle3: an EAGLE-3 head that was made for MODEL"},
      flags.speculative_draft_model_path,
      [](const std::string&, const std::string& text) { return text; });
  static_assert(kMaxDraftSteps == 8 && kMaxDraftBranches == 8 && kMaxDraftNodes == 64);
  add({"--speculative-num-steps", "N", "3, of ngram 4",
       "Tokens that are guessed behind each other, 1 to 8; or auto: as many, in a chain or a "
       "tree,\n"
       "or none, as are worth it, by what steps are measured to cost at the start and how many\n"
       "guesses were right of late"},
      flags.speculative_num_steps, [](const std::string& where, const std::string& value) {
        return value == "auto" ? kAutoSteps : ParseInt(where, value, 1, kMaxDraftSteps);
      });
  add_number({"--speculative-eagle-topk", "N", "1",
              "Guesses for each of them, 1 to 8: more than one make a tree. Not of ngram"},
             flags.speculative_eagle_topk, 1, kMaxDraftBranches);
  add_number(
      {"--speculative-num-draft-tokens", "N", "",
       "Tokens that a step computes of a sequence that guesses, 2 to 64: of a tree the most\n"
       "likely guesses and the token before them; with one guess each one more than the steps"},
      flags.speculative_num_draft_tokens, 2, kMaxDraftNodes);
}

// Nothing is rewritten: what does not fit is said.
void CheckNodes(const ModelFlags& flags, const TreeShape& shape) {
  Require(
      shape.branches > 1 || shape.nodes == shape.steps + 1,
      "--speculative-num-draft-tokens: expected {}, one more than --speculative-num-steps, got {}",
      shape.steps + 1, shape.nodes);
  Require(shape.branches == 1 || flags.speculative_num_draft_tokens,
          "--speculative-num-draft-tokens: expected a number with --speculative-eagle-topk {}, got "
          "none",
          shape.branches);
  Require(
      shape.nodes <= shape.candidates() + 1,
      "--speculative-num-draft-tokens: expected 2..{}, as many as --speculative-num-steps {} and "
      "--speculative-eagle-topk {} give, got {}",
      shape.candidates() + 1, shape.steps, shape.branches, shape.nodes);
}

void CheckDraftModel(const Speculation& speculation) {
  const bool is_eagle3 = speculation.algorithm == Speculation::Algorithm::kEagle3;
  Require(is_eagle3 || speculation.draft_model.empty(),
          "--speculative-draft-model-path: expected --speculative-algorithm eagle3 with it");
  Require(!is_eagle3 || !speculation.draft_model.empty(),
          "--speculative-algorithm: expected --speculative-draft-model-path with eagle3, got none");
}

Speculation SpeculationOf(const ModelFlags& flags) {
  Speculation speculation{.algorithm = flags.speculative_algorithm,
                          .draft_model = flags.speculative_draft_model_path};
  const std::optional<int64_t> steps = flags.speculative_num_steps;
  const std::optional<int64_t> branches = flags.speculative_eagle_topk;
  const std::optional<int64_t> nodes = flags.speculative_num_draft_tokens;
  for (const auto& [name, value] : {std::pair{"--speculative-num-steps", steps},
                                    std::pair{"--speculative-eagle-topk", branches},
                                    std::pair{"--speculative-num-draft-tokens", nodes}}) {
    Require(!value || speculation.is_on(),
            "{}: expected --speculative-algorithm eagle, eagle3 or ngram with it, got none", name);
  }
  CheckDraftModel(speculation);
  if (!speculation.is_on()) return speculation;
  const bool is_ngram = speculation.algorithm == Speculation::Algorithm::kNgram;
  TreeShape& shape = speculation.shape;
  shape.branches = branches.value_or(1);
  Require(!is_ngram || shape.branches == 1,
          "--speculative-eagle-topk: expected 1 with --speculative-algorithm ngram, got {}",
          shape.branches);
  if (steps == kAutoSteps) {
    constexpr int64_t kBranches = 4, kNodes = 16;
    speculation.choices =
        CandidateShapes(is_ngram ? 1 : branches.value_or(kBranches), nodes.value_or(kNodes));
    shape = ShapeAround(speculation.choices);
    return speculation;
  }
  shape.steps = is_ngram ? 4 : 3;
  if (nodes && shape.branches == 1) shape.steps = std::min(*nodes - 1, kMaxDraftSteps);
  if (steps) shape.steps = *steps;
  shape.nodes = nodes.value_or(shape.steps + 1);
  CheckNodes(flags, shape);
  return speculation;
}

}  // namespace

DeviceKind ParseDevice(const std::string& where, const std::string& text) {
  return ParseChoice<DeviceKind>(where, text,
                                 {{"cpu", DeviceKind::kCpu}, {"cuda", DeviceKind::kCuda}});
}

void AddModelFlags(FlagReader& reader, ModelFlags& flags) {
  AddWhichModel(reader, flags);
  AddMemory(reader, flags);
  AddRanks(reader, flags);
  AddSpeculation(reader, flags);
}

namespace {

// What an experiment puts back, in a build that can.
Faults FaultsOfEnvironment() {
  const char* number = std::getenv("QUIRE_REVERT");
  if (number == nullptr) return {};
  const Faults faults = ParseFault(number);
  fmt::print(stderr, "warning: fault {} is put back, so results are wrong\n", number);
  return faults;
}

}  // namespace

LocalOptions MakeLocalOptions(const ModelFlags& flags, const RunnerOptions& defaults) {
  const DeviceKind device = flags.device;
  CheckGroups(flags);
  const Speculation speculation = SpeculationOf(flags);
  const std::string problem = DeviceProblem(device);
  Require(problem.empty(), "--device {}: {}", DeviceKindName(device), problem);
  Require(!(flags.disable_cuda_graph && flags.step_mode == StepMode::kGraph),
          "--disable-cuda-graph: expected --step-mode eager with it, got --step-mode graph");
  Require(!(flags.check && flags.step_mode == StepMode::kGraph),
          "--check: expected --step-mode eager with it, got --step-mode graph");
  // CUDA reads this when it is first used. A graph would be one launch.
  if (flags.check && device == DeviceKind::kCuda) setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  LocalOptions options;
  options.device = device == DeviceKind::kCpu ? DeviceChoice::kCpu : DeviceChoice::kCuda;
  options.load_format = flags.load_format;
  options.page_size = flags.page_size;
  options.context = flags.context_length.value_or(defaults.context);
  options.max_seqs = flags.max_running_requests.value_or(defaults.max_seqs);
  options.max_step_tokens =
      flags.chunked_prefill_size.value_or(StepTokensFor(device, defaults.max_step_tokens));
  options.pool_tokens = flags.max_total_tokens.value_or(defaults.pool_tokens);
  options.kv_format = flags.kv_cache_dtype;
  options.index_type = flags.index_cache_dtype;
  options.index_layout = flags.index_cache_layout;
  options.index_top_k = flags.index_topk;
  options.mode = flags.step_mode;
  if (flags.disable_cuda_graph) options.mode = StepMode::kEager;
  options.checks = flags.check ? StepChecks::kPoison : StepChecks::kOff;
  options.deterministic = flags.deterministic;
  options.num_threads = flags.threads;
  options.tp_size = flags.tp_size;
  options.ep_size = flags.ep_size;
  options.dp_size = flags.dp_size;
  if (flags.ranks != nullptr) {
    options.ranks = flags.ranks->collective();
    options.ranks_of_machine = flags.ranks->mpi().ranks_of_machine();
    options.ranks_of_cpus = flags.ranks->mpi().ranks_of_cpus();
  }
  options.memory_fraction = flags.mem_fraction_static;
  options.speculation = speculation;
  options.faults = FaultsOfEnvironment();
  return options;
}

RunnerOptions MakeOptions(const ModelFlags& flags, const RunnerOptions& defaults) {
  return MakeRunnerOptions(flags.device, MakeLocalOptions(flags, defaults));
}

const char* AlgorithmName(Speculation::Algorithm algorithm) {
  switch (algorithm) {
    case Speculation::Algorithm::kNone:
      return "none";
    case Speculation::Algorithm::kNgram:
      return "ngram";
    case Speculation::Algorithm::kEagle:
      return "eagle";
    case Speculation::Algorithm::kEagle3:
      return "eagle3";
  }
  return "?";
}

RunnerOptions MakeRoom(const ModelFlags& flags, const RunnerOptions& room) {
  Require(flags.dp_size == 1, "--dp-size: expected 1, since this command runs fixed steps, got {}",
          flags.dp_size);
  const RunnerOptions options = MakeOptions(flags, room);
  const auto require = [](const char* name, int64_t needed, int64_t given) {
    Require(given >= needed, "{}: expected {} or more for what is to run, got {}", name, needed,
            given);
  };
  require("--context-length", room.context.raw(), options.context.raw());
  require("--max-running-requests", room.max_seqs, options.max_seqs);
  require("--max-total-tokens", room.pool_tokens.raw(), options.pool_tokens.raw());
  return options;
}

}  // namespace quire::cli
