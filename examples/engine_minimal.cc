// Text in, text out with the library: opens a model folder on the CPU or on a GPU, streams the answer
// to one message, and continues one text. With --dummy the weights are made up, and so is what it says.
#include <cstdio>
#include <exception>
#include <future>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "quire/local/local_model.h"

using namespace quire;

struct Arguments {
  std::string folder = {};
  std::string message = "What is latent attention?";
  DeviceChoice device = DeviceChoice::kAuto;
  bool dummy = false;
};

void Run(const Arguments& arguments) {
  LocalOptions options{.device = arguments.device,
                       .load_format = arguments.dummy ? LoadFormat::kDummy : LoadFormat::kAuto,
                       .context = TokenCount(2048),
                       .max_seqs = 4,
                       .num_threads = 2};
  options.events.planned = [](const MemoryPlan& plan) {
    std::printf("%s\n", ToTable(plan).c_str());
  };
  const LocalModel model = OpenLocalModel(arguments.folder, options);
  std::printf("on %s\n\n", DeviceName(model.device).c_str());

  // A chat answer, piece by piece. The listener runs on the engine's thread.
  const OrderedJson messages = {{{"role", "user"}, {"content", arguments.message}}};
  const ChatPrompt prompt = MakeChatPrompt(*model.text, {.messages = &messages});
  const TextRequest chat{.tokens = {.prompt = prompt.tokens,
                                    .sampling = model.text->generation.sampling,
                                    .max_tokens = 64},
                         .reasoning = prompt.reasoning};
  std::promise<void> done;
  model.answers->Submit(chat, [&](const TextEvent& event) {
    std::fputs(event.text.content.c_str(), stdout);
    std::fflush(stdout);
    if (event.last_of_request) done.set_value();
  });
  done.get_future().wait();

  // A text to be continued, in one call. Its prompt could share a cached prefix with any other.
  const TextRequest text{.tokens = {.prompt = EncodePrompt(*model.text, "Once upon a time"),
                                    .sampling = {.temperature = 0},
                                    .max_tokens = 16}};
  for (const TextAnswer& answer : GenerateText(*model.answers, text)) {
    std::printf("\n\nOnce upon a time%s\n(%lld tokens, %s)\n", answer.text.content.c_str(),
                static_cast<long long>(answer.output_tokens), FinishReasonName(answer.finish));
  }
}

[[noreturn]] void Refuse(const std::string& problem) {
  throw std::invalid_argument(
      problem + "\nusage: engine_minimal FOLDER [MESSAGE] [--device auto|cpu|cuda] [--dummy]");
}

DeviceChoice ParseDevice(const std::string& name) {
  if (name == "auto") return DeviceChoice::kAuto;
  if (name == "cpu") return DeviceChoice::kCpu;
  if (name == "cuda") return DeviceChoice::kCuda;
  Refuse("--device: expected auto, cpu or cuda, got '" + name + "'");
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  int num_words = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--dummy") {
      arguments.dummy = true;
    } else if (word == "--device") {
      if (++i == argc) Refuse("--device: expected auto, cpu or cuda, got nothing");
      arguments.device = ParseDevice(argv[i]);
    } else if (word.starts_with("--")) {
      Refuse("expected --device or --dummy, got '" + word + "'");
    } else if (++num_words == 1) {
      arguments.folder = word;
    } else if (num_words == 2) {
      arguments.message = word;
    } else {
      Refuse("expected a folder and a message, got '" + word + "' too");
    }
  }
  if (num_words == 0) Refuse("expected the folder of a model, got none");
  return arguments;
}

int main(int argc, char** argv) try {
  Run(Parse(argc, argv));
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
