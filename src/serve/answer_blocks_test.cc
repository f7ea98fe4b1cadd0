#include "serve/answer_blocks.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "serve/messages_answer.h"
#include "serve/test_tokenizer.h"

namespace quire {
namespace {

const Tokenizer& BlocksTokenizer() {
  static const std::unique_ptr<const Tokenizer> kTokenizer = SmallTokenizer();
  return *kTokenizer;
}

AnswerShape BlocksShape(Endpoint endpoint) {
  return {.endpoint = endpoint,
          .id = endpoint == Endpoint::kMessages ? "msg_1" : "resp_1",
          .created = 1700000000,
          .model = "m",
          .prompts = {{.tokens = {8, 7, 3}}},
          .tokenizer = &BlocksTokenizer(),
          .request = {{"store", false}}};
}

TextEvent Piece(std::string reasoning, std::string content, int64_t count,
                FinishReason finish = FinishReason::kNone) {
  TextEvent event;
  event.text = {.reasoning = std::move(reasoning), .content = std::move(content)};
  event.output_tokens = count;
  event.finish = finish;
  if (count == 1) event.cached_tokens = TokenCount(2);
  return event;
}

// Thoughts, then text; the third token ends the one and begins the other.
std::vector<TextEvent> Events(FinishReason finish) {
  return {Piece("Let", "", 1), Piece(" me", "", 2), Piece(".", "Yes", 3), Piece("", "", 4),
          Piece("", "!", 5, finish)};
}

Json WholeOf(Endpoint endpoint, const std::vector<TextEvent>& events) {
  const auto answer = MakeBlockAnswer(BlocksShape(endpoint), Delivery::kWhole);
  for (const TextEvent& event : events) EXPECT_TRUE(answer->Take(0, event).empty());
  ReplyPieces pieces = answer->Json();
  Json whole = Json::parse(pieces());
  EXPECT_EQ(pieces(), "");
  EXPECT_EQ(answer->Ending(), "");
  return whole;
}

std::vector<Json> EventsOf(Endpoint endpoint, const std::vector<TextEvent>& events) {
  const auto answer = MakeBlockAnswer(BlocksShape(endpoint), Delivery::kStream);
  std::vector<Json> data;
  for (const TextEvent& event : events) {
    for (const SseEvent& made : answer->Take(0, event)) {
      data.push_back(Json::parse(made.data));
      EXPECT_EQ(data.back()["type"], made.type);
    }
  }
  EXPECT_EQ(answer->Ending(), "");
  return data;
}

std::string Types(const std::vector<Json>& events) {
  std::string types;
  for (const Json& event : events) types += event["type"].get<std::string>() + "\n";
  return types;
}

TEST(MessagesAnswerTest, AWholeMessage) {
  const Json whole = WholeOf(Endpoint::kMessages, Events(FinishReason::kStop));
  EXPECT_EQ(whole.dump(1), Json::parse(R"({"id": "msg_1", "type": "message", "role": "assistant",
    "model": "m", "content": [{"type": "thinking", "thinking": "Let me.", "signature": ""},
                              {"type": "text", "text": "Yes!"}],
    "stop_reason": "end_turn", "stop_sequence": null,
    "usage": {"input_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2,
              "output_tokens": 5, "output_tokens_details": {"thinking_tokens": 3}}})")
                               .dump(1));
}

TEST(MessagesAnswerTest, StopReasons) {
  const Json cut = WholeOf(Endpoint::kMessages, {Piece("", "a", 1, FinishReason::kLength)});
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
  TextEvent stopped = Piece("", "a", 1, FinishReason::kStop);
  stopped.stopped_by = "END";
  const Json by_text = WholeOf(Endpoint::kMessages, {stopped});
  EXPECT_EQ(by_text["stop_reason"], "stop_sequence");
  EXPECT_EQ(by_text["stop_sequence"], "END");
  const Json empty = WholeOf(Endpoint::kMessages, {Piece("", "", 1, FinishReason::kStop)});
  EXPECT_EQ(empty["stop_reason"], "end_turn");
  EXPECT_EQ(empty["content"], Json::array());
}

TEST(MessagesAnswerTest, EventsOfAStreamMakeTheWholeMessage) {
  const std::vector<Json> events = EventsOf(Endpoint::kMessages, Events(FinishReason::kStop));
  EXPECT_EQ(Types(events),
            "message_start\n"
            "content_block_start\ncontent_block_delta\ncontent_block_delta\ncontent_block_delta\n"
            "content_block_stop\n"
            "content_block_start\ncontent_block_delta\ncontent_block_delta\ncontent_block_stop\n"
            "message_delta\nmessage_stop\n");
  Json message = events.front()["message"];
  EXPECT_EQ(message["content"], Json::array());
  EXPECT_TRUE(message["stop_reason"].is_null());
  for (const Json& event : events) {
    if (event["type"] == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
    } else if (event["type"] == "content_block_delta") {
      const Json& delta = event["delta"];
      const char* field = delta["type"] == "text_delta" ? "text" : "thinking";
      std::string& text =
          message["content"][event["index"].get<size_t>()][field].get_ref<std::string&>();
      text += delta[field].get<std::string>();
    } else if (event["type"] == "message_delta") {
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    }
  }
  EXPECT_EQ(message, WholeOf(Endpoint::kMessages, Events(FinishReason::kStop)));
}

TEST(MessagesAnswerTest, AStreamThatFailsEndsWithAnthropicsError) {
  const auto answer = MakeBlockAnswer(BlocksShape(Endpoint::kMessages), Delivery::kStream);
  EXPECT_EQ(answer->Take(0, Piece("", "a", 1)).size(), 3u);
  TextEvent failed = Piece("", "", 1, FinishReason::kFailed);
  failed.error = "no power";
  EXPECT_TRUE(answer->Take(0, failed).empty());
  EXPECT_EQ(answer->Ending(),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":"
            "\"the server failed to compute the answer: no power\"}}\n\n");
}

TEST(MessagesAnswerTest, CountedTokens) {
  EXPECT_EQ(CountedTokensJson(7), R"({"input_tokens":7})");
}

// A text and two calls, the first in parts, the second at once.
std::vector<TextEvent> CallEvents() {
  std::vector<TextEvent> events = {Piece("", "So", 1), Piece("", "", 2), Piece("", "", 3),
                                   Piece("", "", 4, FinishReason::kStop)};
  events[1].calls = {{.index = 0, .name = "f", .id = "c0", .arguments = "{\"a\""}};
  events[2].calls = {{.index = 0, .arguments = ": 1}"},
                     {.index = 1, .name = "g", .id = "c1", .arguments = "[1"}};
  return events;
}

TEST(MessagesAnswerTest, CallsAreBlocks) {
  const Json whole = WholeOf(Endpoint::kMessages, CallEvents());
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(whole["content"], Json::parse(R"([{"type": "text", "text": "So"},
    {"type": "tool_use", "id": "c0", "name": "f", "input": {"a": 1}},
    {"type": "tool_use", "id": "c1", "name": "g", "input": {"INVALID_JSON": "[1"}}])"));
  const std::vector<Json> events = EventsOf(Endpoint::kMessages, CallEvents());
  EXPECT_EQ(Types(events),
            "message_start\ncontent_block_start\ncontent_block_delta\ncontent_block_stop\n"
            "content_block_start\ncontent_block_delta\ncontent_block_delta\ncontent_block_stop\n"
            "content_block_start\ncontent_block_delta\ncontent_block_stop\n"
            "message_delta\nmessage_stop\n");
  EXPECT_EQ(events[4]["content_block"],
            Json::parse(R"({"type": "tool_use", "id": "c0", "name": "f", "input": {}})"));
  EXPECT_EQ(events[5]["delta"],
            Json::parse(R"({"type": "input_json_delta", "partial_json": "{\"a\""})"));
}

TEST(ResponsesAnswerTest, CallsAreItems) {
  const Json whole = WholeOf(Endpoint::kResponses, CallEvents());
  EXPECT_EQ(whole["status"], "completed");
  ASSERT_EQ(whole["output"].size(), 3u);
  EXPECT_EQ(whole["output"][1],
            Json::parse(R"({"id": "fc_1_1", "type": "function_call", "status": "completed",
                            "call_id": "c0", "name": "f", "arguments": "{\"a\": 1}"})"));
  const std::vector<Json> events = EventsOf(Endpoint::kResponses, CallEvents());
  EXPECT_EQ(events.back()["response"], whole);
  EXPECT_EQ(Types({events.begin() + 8, events.begin() + 13}),
            "response.output_item.added\nresponse.function_call_arguments.delta\n"
            "response.function_call_arguments.delta\nresponse.function_call_arguments.done\n"
            "response.output_item.done\n");
  EXPECT_EQ(events[8]["item"]["arguments"], "");
  EXPECT_EQ(events[11]["arguments"], "{\"a\": 1}");
}

TEST(ResponsesAnswerTest, AWholeResponse) {
  const Json whole = WholeOf(Endpoint::kResponses, Events(FinishReason::kStop));
  EXPECT_EQ(whole.dump(1), Json::parse(R"({"id": "resp_1", "object": "response",
    "created_at": 1700000000, "status": "completed", "background": false, "error": null,
    "incomplete_details": null, "model": "m", "store": false, "output": [
      {"id": "rs_1_0", "type": "reasoning", "status": "completed", "summary": [],
       "content": [{"type": "reasoning_text", "text": "Let me."}]},
      {"id": "msg_1_1", "type": "message", "status": "completed", "role": "assistant",
       "content": [{"type": "output_text", "text": "Yes!", "annotations": [], "logprobs": []}]}],
    "usage": {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 5,
              "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 8}})")
                               .dump(1));
}

TEST(ResponsesAnswerTest, AnAnswerThatIsCutIsIncomplete) {
  const Json cut = WholeOf(Endpoint::kResponses, Events(FinishReason::kLength));
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"], Json::parse(R"({"reason": "max_output_tokens"})"));
  EXPECT_EQ(cut["output"][0]["status"], "completed");
  EXPECT_EQ(cut["output"][1]["status"], "incomplete");
}

TEST(ResponsesAnswerTest, EventsOfAStreamMakeTheWholeResponse) {
  for (const FinishReason finish : {FinishReason::kStop, FinishReason::kLength}) {
    const std::vector<Json> events = EventsOf(Endpoint::kResponses, Events(finish));
    const std::string end = finish == FinishReason::kStop ? "completed" : "incomplete";
    EXPECT_EQ(Types(events),
              "response.created\nresponse.in_progress\n"
              "response.output_item.added\nresponse.content_part.added\n"
              "response.reasoning_text.delta\nresponse.reasoning_text.delta\n"
              "response.reasoning_text.delta\nresponse.reasoning_text.done\n"
              "response.content_part.done\nresponse.output_item.done\n"
              "response.output_item.added\nresponse.content_part.added\n"
              "response.output_text.delta\nresponse.output_text.delta\n"
              "response.output_text.done\nresponse.content_part.done\nresponse.output_item.done\n"
              "response." +
                  end + "\n");
    const Json whole = WholeOf(Endpoint::kResponses, Events(finish));
    EXPECT_EQ(events.back()["response"], whole);
    EXPECT_EQ(events[0]["response"]["status"], "in_progress");
    EXPECT_EQ(events[0]["response"]["output"], Json::array());
    std::string text;
    for (size_t i = 0; i < events.size(); ++i) {
      const Json& event = events[i];
      EXPECT_EQ(event["sequence_number"], i);
      if (event["type"] == "response.output_text.delta") text += event["delta"].get<std::string>();
      if (event["type"] == "response.output_item.done") {
        EXPECT_EQ(event["item"], whole["output"][event["output_index"].get<size_t>()]);
      }
      if (event["type"] == "response.output_item.added") {
        EXPECT_EQ(event["item"]["status"], "in_progress");
        EXPECT_EQ(event["item"]["content"], Json::array());
      }
      if (event["type"] == "response.content_part.done") {
        const Json& item = whole["output"][event["output_index"].get<size_t>()];
        EXPECT_EQ(event["part"], item["content"][0]);
        EXPECT_EQ(event["item_id"], item["id"]);
      }
    }
    EXPECT_EQ(text, "Yes!");
  }
}

TEST(ResponsesAnswerTest, AStreamThatFailsBeforeItsFirstTokenIsACreatedAndAFailedResponse) {
  const auto answer = MakeBlockAnswer(BlocksShape(Endpoint::kResponses), Delivery::kStream);
  EXPECT_TRUE(answer->Take(0, Piece("", "", 0, FinishReason::kDeadline)).empty());
  std::vector<Json> events;
  SseParser parser;
  parser.Feed(answer->Ending(),
              [&](const SseEvent& event) { events.push_back(Json::parse(event.data)); });
  EXPECT_EQ(Types(events), "response.created\nresponse.in_progress\nresponse.failed\n");
  EXPECT_EQ(events[2]["response"]["status"], "failed");
  EXPECT_EQ(events[2]["response"]["error"]["code"], "server_error");
  EXPECT_EQ(events[2]["sequence_number"], 2);
}

}  // namespace
}  // namespace quire
