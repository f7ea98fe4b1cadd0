// quire_tokenize FOLDER: encodes and decodes line by line, for tools/check_tokenizer.py.
//
//   {"hex": "6869"}                  -> {"ids": [12]}       the bytes 68 69
//   {"hex": "...", "special": true}  -> the same with add_special_tokens
//   {"hex": "...", "parse": false}   -> the same without parse_special_tokens
//   {"ids": [12, 3]}                 -> {"text": "...", "skipped": "..."}: with special tokens, and
//                                       without; "streamed": false if a Detokenizer says otherwise
//   {"repeat": 5}                    -> {"seconds": 0.1} of the processor: the last text, five times
//
// A line that fails is answered with {"error": "..."}.
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace quire {
namespace {

std::string ReadHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   const DecodeOptions& options) {
  Detokenizer detokenizer(tokenizer, options);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.Put(id);
  return text + detokenizer.Flush();
}

Json Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  const DecodeOptions keep{.skip_special_tokens = false};
  const DecodeOptions skip{.skip_special_tokens = true};
  const std::string text = tokenizer.Decode(ids, keep);
  const std::string skipped = tokenizer.Decode(ids, skip);
  return {{"text", text},
          {"skipped", skipped},
          {"streamed",
           Stream(tokenizer, ids, keep) == text && Stream(tokenizer, ids, skip) == skipped}};
}

class Session {
 public:
  explicit Session(const std::string& folder) : tokenizer_(OpenTokenizer(folder)) {}

  Json Answer(const Json& line) {
    if (line.contains("ids")) return Decode(*tokenizer_, line.at("ids"));
    if (line.contains("repeat")) return {{"seconds", Time(line.at("repeat"))}};
    text_ = ReadHex(line.at("hex"));
    return {
        {"ids", tokenizer_->Encode(text_, {.add_special_tokens = line.value("special", false),
                                           .parse_special_tokens = line.value("parse", true)})}};
  }

 private:
  double Time(int repeats) const {
    const std::clock_t begin = std::clock();
    for (int i = 0; i < repeats; ++i) (void)tokenizer_->Encode(text_);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::string text_ = {};
};

int Main(const std::string& folder) {
  Session session(folder);
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      answer = session.Answer(Json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: quire_tokenize FOLDER\n");
    return 2;
  }
  try {
    return quire::Main(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quire_tokenize: %s\n", error.what());
    return 1;
  }
}
