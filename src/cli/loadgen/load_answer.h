// A streamed answer of an OpenAI-compatible server, noted as it comes.
#ifndef QUIRE_CLI_LOADGEN_LOAD_ANSWER_H_
#define QUIRE_CLI_LOADGEN_LOAD_ANSWER_H_

#include <cstdint>
#include <string_view>

#include "cli/loadgen/load_record.h"
#include "http/sse.h"

namespace quire::cli {

enum class Endpoint { kChat, kCompletions };

// Every way that an answer can end sets the record's outcome, once.
class LoadAnswer {
 public:
  // `record` must outlive this.
  LoadAnswer(Endpoint endpoint, RequestRecord& record);

  // Bytes of the body, cut anywhere, and when they came. Throws Error(kInvalidArgument) once the
  // answer cannot be right: the outcome is then known, and the connection of no more use.
  void Feed(std::string_view bytes, double now);

  // The body ended as HTTP has it.
  void Finish(std::string_view content_type, double now);
  // An answer with a status other than 2xx.
  void Refuse(int status, std::string_view body, double now);
  // The connection failed.
  void Break(std::string_view reason, double now);

 private:
  void OnEvent(const SseEvent& event, double now);
  void OnChunk(std::string_view data, double now);
  void End(Outcome outcome, std::string_view message, double now);

  Endpoint endpoint_;
  RequestRecord& record_;
  SseParser parser_;
  int64_t num_bytes_ = 0;
  int64_t num_events_ = 0;
  bool is_done_ = false;  // [DONE] came
};

}  // namespace quire::cli

#endif  // QUIRE_CLI_LOADGEN_LOAD_ANSWER_H_
