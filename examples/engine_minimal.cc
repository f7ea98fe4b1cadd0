// Text in, text out with the library: opens a model folder, streams one chat answer, and continues one
// text. With --dummy the weights are made up, and the answers are noise.
#include <cstdio>
#include <exception>
#include <future>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/engine.h"
#include "model/config.h"
#include "model/weight_source.h"
#include "runner/cpu_runner.h"
#include "runner/memory_plan.h"
#include "textgen/text_engine.h"
#include "textgen/text_model.h"

using namespace quire;

void Run(const char* folder, bool dummy) {
  const ModelConfig config = ReadModelConfig(folder);
  const auto weights = dummy ? MakeDummyWeights(config) : OpenWeightFiles(folder, config);
  const RunnerOptions options{.context = TokenCount(2048), .max_seqs = 4, .num_threads = 2};
  const MemoryPlan plan = MakeMemoryPlan(config, *weights, options);
  std::printf("%s\n", ToTable(plan).c_str());

  CpuRunner runner(config, *weights, options, plan);
  Engine engine(runner, {});
  const TextModel model = OpenTextModel(folder);
  TextEngine answers(engine, model);

  // A chat answer, piece by piece. The listener runs on the engine's thread.
  const OrderedJson messages = {{{"role", "user"}, {"content", "What is latent attention?"}}};
  ChatPrompt prompt = MakeChatPrompt(model, {.messages = &messages});
  TextRequest chat{
      .tokens = {.prompt = prompt.tokens, .sampling = model.generation.sampling, .max_tokens = 64},
      .reasoning = prompt.reasoning};
  std::promise<void> done;
  answers.Submit(chat, [&](const TextEvent& event) {
    std::fputs(event.text.content.c_str(), stdout);
    std::fflush(stdout);
    if (event.last_of_request) done.set_value();
  });
  done.get_future().wait();

  // A text to be continued, in one call. Its prompt could share a cached prefix with any other.
  const TextRequest text{.tokens = {.prompt = EncodePrompt(model, "Once upon a time"),
                                    .sampling = {.temperature = 0},
                                    .max_tokens = 16}};
  for (const TextAnswer& answer : GenerateText(answers, text)) {
    std::printf("\n\nOnce upon a time%s\n(%lld tokens, %s)\n", answer.text.content.c_str(),
                static_cast<long long>(answer.output_tokens), FinishReasonName(answer.finish));
  }
}

int main(int argc, char** argv) try {
  const bool dummy = argc == 3 && std::string_view(argv[2]) == "--dummy";
  if (argc != 2 && !dummy) throw std::invalid_argument("usage: engine_minimal FOLDER [--dummy]");
  Run(argv[1], dummy);
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
