// What each path of the server answers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/server_testing.h"

namespace quire::testing {
namespace {

TEST_F(ServerTest, AStreamIsTheWholeAnswerInPieces) {
  Start();
  const json whole = json::parse(Post("/v1/chat/completions", Chat(30)).body);
  const std::string text = whole["choices"][0]["message"]["content"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 30);

  json request = Chat(30, true);
  request["stream_options"] = {{"include_usage", true}};
  const std::vector<std::string> data = Stream("/v1/chat/completions", request);
  ASSERT_GT(data.size(), 4u);
  EXPECT_EQ(data.back(), "[DONE]");
  const json usage = json::parse(data[data.size() - 2])["usage"];
  EXPECT_EQ(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
  // The same prompt again: all of it but its last token is there.
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"],
            whole["usage"]["prompt_tokens"].get<int>() - 1);
  std::string streamed;
  for (size_t i = 0; i + 2 < data.size(); ++i) {
    const json delta = json::parse(data[i])["choices"][0]["delta"];
    streamed += delta.value("content", "");
  }
  EXPECT_EQ(streamed, text);
}

TEST_F(ServerTest, CompletionsTakeManyPromptsAndSamples) {
  Start();
  const json body = {{"prompt", {"One", "Two", "Three"}},
                     {"n", 2},
                     {"max_tokens", 5},
                     {"ignore_eos", true},
                     {"temperature", 0},
                     {"echo", true}};
  const json answer = json::parse(Post("/v1/completions", body).body);
  ASSERT_EQ(answer["choices"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    const std::string text = answer["choices"][i]["text"];
    EXPECT_TRUE(text.starts_with(body["prompt"][i / 2].get<std::string>())) << text;
  }
  EXPECT_TRUE(AllPagesReturned());
}

TEST_F(ServerTest, PathsAndMethods) {
  Start();
  EXPECT_EQ(ErrorOf(Ask("GET", "/v1/nothing")),
            "404 not_found_error null: /v1/nothing: there is no such path");
  EXPECT_EQ(ErrorOf(Ask("GET", "/v1/completions")),
            "405 invalid_request_error null: /v1/completions: expected the method POST, got GET");
  EXPECT_EQ(Ask("GET", "/v1/completions").headers.Find("Allow"), "POST");
  EXPECT_EQ(Ask("POST", "/v1/models/x", "{}").headers.Find("Allow"), "GET, HEAD");
  const HttpResponse refused = Ask("DELETE", "/health");
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.headers.Find("Allow"), "GET, HEAD");
  EXPECT_EQ(Ask("HEAD", "/health").status, 200);
  const HttpResponse page = Ask("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_TRUE(page.headers.Find("Content-Security-Policy").has_value());
}

TEST_F(ServerTest, ModelsAreNamed) {
  ServerOptions options = Options();
  options.service.completions.model_name = "maker/model v1";
  Start(std::move(options));
  EXPECT_EQ(json::parse(Ask("GET", "/v1/models").body)["data"][0]["id"], "maker/model v1");
  EXPECT_EQ(json::parse(Ask("GET", "/v1/models/maker%2Fmodel%20v1").body)["id"], "maker/model v1");
  EXPECT_EQ(Ask("GET", "/v1/models/another").status, 404);
  json request = Chat(2);
  request["model"] = "another";
  EXPECT_EQ(json::parse(Post("/v1/chat/completions", request).body)["error"]["code"],
            "model_not_found");
  request["model"] = "maker/model v1";
  EXPECT_EQ(Post("/v1/chat/completions", request).status, 200);
}

TEST_F(ServerTest, APromptBeyondTheContextIsRefusedWithBothCounts) {
  Start();
  std::string words;
  for (int i = 0; i < 500; ++i) words += fmt::format(" {}", i);
  const HttpResponse refused = Post("/v1/completions", {{"prompt", words}});
  const json error = json::parse(refused.body)["error"];
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(error["code"], "context_length_exceeded");
  const std::string message = error["message"];
  EXPECT_NE(message.find("400"), std::string::npos) << message;
  const json tokens = json::parse(Post("/tokenize", {{"prompt", words}}).body);
  EXPECT_NE(message.find(tokens["count"].dump()), std::string::npos) << message;
}

TEST_F(ServerTest, TextToolsAgree) {
  Start();
  const json tokens = json::parse(Post("/tokenize", {{"content", "Hello there"}}).body);
  const json text = json::parse(Post("/detokenize", {{"tokens", tokens["tokens"]}}).body);
  for (const char* name : {"content", "prompt", "text"}) EXPECT_EQ(text[name], "Hello there");
  EXPECT_EQ(tokens["max_model_len"], 400);
  const json chat = json::parse(Post("/tokenize", {{"messages", Chat(1)["messages"]}}).body);
  const std::string chat_text =
      json::parse(Post("/detokenize", {{"tokens", chat["tokens"]}}).body)["text"];
  EXPECT_EQ(chat_text, "<｜begin▁of▁sentence｜>[user]Hello");
  const json prompt =
      json::parse(Post("/apply-template", {{"messages", Chat(1)["messages"]}}).body);
  EXPECT_EQ(prompt["prompt"], "<｜begin▁of▁sentence｜>[user]Hello");
  EXPECT_EQ(Post("/tokenize", {{"content", 7}}).status, 400);
  const int64_t vocab = model_.tokenizer->vocab_size();
  EXPECT_EQ(ErrorOf(Post("/detokenize", {{"tokens", {1, vocab}}})),
            fmt::format("400 invalid_request_error null: tokens[1]: expected a token of the model, "
                        "0..{}, got {}",
                        vocab - 1, vocab));
}

TEST_F(ServerTest, ALongReplyIsSentAsItIsWritten) {
  Start();
  json tokens = json::array();
  for (int i = 0; i < 60'000; ++i) tokens.push_back(i % 500);
  const HttpResponse reply = Post("/detokenize", {{"tokens", tokens}});
  EXPECT_EQ(reply.headers.Find("Content-Length"), std::nullopt);  // in chunks
  const std::string text = json::parse(reply.body)["content"];
  EXPECT_GT(text.size(), 60'000u);
  const json again =
      json::parse(Post("/tokenize", {{"content", text}, {"with_pieces", true}}).body);
  EXPECT_EQ(again["count"], again["tokens"].size());
  EXPECT_TRUE(Post("/tokenize", {{"content", "a"}}).headers.Find("Content-Length").has_value());
}

TEST_F(ServerTest, TextsHaveALimitInTokens) {
  ServerOptions options = Options();
  options.service.completions.limits.max_text_tokens = 3;
  Start(std::move(options));
  EXPECT_EQ(ErrorOf(Post("/tokenize", {{"content", "1 2 3 4 5"}})),
            "400 invalid_request_error null: the text has more than 3 tokens");
  EXPECT_EQ(Post("/detokenize", {{"tokens", {1, 2, 3}}}).status, 200);
  EXPECT_EQ(Post("/detokenize", {{"tokens", {1, 2, 3, 4}}}).status, 400);
}

TEST_F(ServerTest, PromptsOfTokensAreComparedWithTheContextFirst) {
  Start();
  json tokens = json::array();
  for (int i = 0; i < 400; ++i) tokens.push_back(i);
  for (const json& prompt : {tokens, json::array({json::array({1}), tokens})}) {
    EXPECT_EQ(json::parse(Post("/v1/completions", {{"prompt", prompt}}).body)["error"]["code"],
              "context_length_exceeded");
  }
}

TEST_F(ServerTest, GenerateAnswersAsSglangDoes) {
  Start();
  const json params = {{"max_new_tokens", 6}, {"temperature", 0}, {"ignore_eos", true}};
  const json one =
      json::parse(Post("/generate", {{"text", "Hello there"}, {"sampling_params", params}}).body);
  EXPECT_FALSE(one["text"].get<std::string>().empty());
  EXPECT_EQ(one["meta_info"]["completion_tokens"], 6);
  EXPECT_EQ(one["meta_info"]["finish_reason"], json({{"type", "length"}, {"length", 6}}));
  EXPECT_FALSE(one.contains("index"));
  const json ids = json::parse(Post("/tokenize", {{"prompt", "Hello there"}}).body)["tokens"];
  EXPECT_EQ(one["meta_info"]["prompt_tokens"], ids.size());
  const json same =
      json::parse(Post("/generate", {{"input_ids", ids}, {"sampling_params", params}}).body);
  EXPECT_EQ(same["text"], one["text"]);
  EXPECT_EQ(same["meta_info"]["cached_tokens"], ids.size() - 1);
  const json list = json::parse(
      Post("/generate", {{"text", {"Hello there", "You"}}, {"sampling_params", params}}).body);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["text"], one["text"]);
  EXPECT_EQ(list[1]["index"], 1);
  const std::vector<std::string> data =
      Stream("/generate", {{"text", "Hello there"}, {"sampling_params", params}, {"stream", true}});
  ASSERT_GT(data.size(), 2u);
  EXPECT_EQ(data.back(), "[DONE]");
  const json last = json::parse(data[data.size() - 2]);
  EXPECT_EQ(last["text"], one["text"]);  // all of it so far
  EXPECT_EQ(last["meta_info"]["finish_reason"]["type"], "length");
  EXPECT_EQ(json::parse(data[0])["meta_info"]["finish_reason"], nullptr);
  EXPECT_EQ(
      ErrorOf(Post("/generate", {{"text", "a"}, {"sampling_params", {{"stop_regex", "a*"}}}})),
      "400 invalid_request_error null: sampling_params.stop_regex: expected null (not supported), "
      "got \"a*\"");
  EXPECT_EQ(json::parse(Ask("GET", "/get_model_info").body)["is_generation"], true);
  EXPECT_EQ(json::parse(Ask("GET", "/get_server_info").body)["limits"]["pages"], 400);
}

TEST_F(ServerTest, IdsThatAreGivenAreThoseOfTheText) {
  Start();
  json request = Chat(6);
  request["return_token_ids"] = true;
  const json chat = json::parse(Post("/v1/chat/completions", request).body);
  const json ids = chat["choices"][0]["token_ids"];
  EXPECT_EQ(ids.size(), 6u);
  const json prompt =
      json::parse(Post("/tokenize", {{"messages", request["messages"]}}).body)["tokens"];
  EXPECT_EQ(chat["prompt_token_ids"], prompt);
  const json generated = json::parse(
      Post("/generate", {{"input_ids", prompt},
                         {"sampling_params", {{"max_new_tokens", 6}, {"ignore_eos", true}}},
                         {"return_logprob", true},
                         {"top_logprobs_num", 2}})
          .body);
  EXPECT_EQ(generated["output_ids"], ids);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(generated["meta_info"]["output_token_logprobs"][i][1], ids[i]);
    EXPECT_EQ(generated["meta_info"]["output_top_logprobs"][i].size(), 2u);
  }
}

TEST_F(ServerTest, AConversationsLastMessageIsContinued) {
  Start();
  const json messages = json::array(
      {{{"role", "user"}, {"content", "Hello"}}, {{"role", "assistant"}, {"content", "Well, "}}});
  const json body = {{"messages", messages}, {"continue_final_message", true}};
  const std::string prompt = json::parse(Post("/apply-template", body).body)["prompt"];
  EXPECT_TRUE(prompt.ends_with("[user]Hello[assistant]Well, ")) << prompt;
  json request = body;
  request["max_tokens"] = 5;
  request["ignore_eos"] = true;
  request["return_token_ids"] = true;
  const json answer = json::parse(Post("/v1/chat/completions", request).body);
  EXPECT_EQ(answer["prompt_token_ids"], json::parse(Post("/tokenize", body).body)["tokens"]);
  EXPECT_EQ(answer["choices"][0]["token_ids"].size(), 5u);
}

TEST_F(ServerTest, AStopStringIsPartOfTheAnswerIfAskedFor) {
  Start();
  json request = Chat(30);
  const std::string text =
      json::parse(Post("/v1/chat/completions", request).body)["choices"][0]["message"]["content"];
  ASSERT_TRUE(text.size() > 8);
  // Within ASCII, wherever that is: a stop string is a text.
  size_t begin = 0;
  while (begin + 2 < text.size() && ((text[begin] | text[begin + 1]) & 0x80) != 0) ++begin;
  const std::string stop = text.substr(begin, 2);
  request["stop"] = stop;
  for (const bool included : {false, true}) {
    request["include_stop_str_in_output"] = included;
    const json choice = json::parse(Post("/v1/chat/completions", request).body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_EQ(choice["message"]["content"], text.substr(0, text.find(stop) + (included ? 2 : 0)));
  }
}

TEST_F(ServerTest, TheCacheIsFlushedWhenNothingRuns) {
  Start();
  Post("/v1/chat/completions", Chat(5));
  ASSERT_TRUE(AllPagesReturned());
  EXPECT_GT(engine_->Snapshot().pages_cached, PageCount(0));
  runner_->is_held = true;
  std::thread client([&] { EXPECT_EQ(Post("/v1/chat/completions", Chat(5)).status, 200); });
  EXPECT_TRUE(Eventually([&] { return engine_->counters().running == 1; }));
  EXPECT_EQ(Ask("POST", "/flush_cache").status, 400);
  runner_->is_held = false;
  client.join();
  ASSERT_TRUE(AllPagesReturned());
  EXPECT_EQ(Ask("POST", "/flush_cache").status, 200);
  EXPECT_EQ(engine_->Snapshot().pages_cached, PageCount(0));
  EXPECT_EQ(Post("/v1/chat/completions", Chat(5)).status, 200);
}

TEST_F(ServerTest, UsageComesWithEveryChunkIfAskedFor) {
  Start();
  json request = Chat(5, true);
  request["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  const std::vector<std::string> data = Stream("/v1/chat/completions", request);
  int64_t last = 0;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    const json usage = json::parse(data[i])["usage"];
    EXPECT_GT(usage["prompt_tokens"], 0);
    EXPECT_GE(usage["completion_tokens"], last);
    last = usage["completion_tokens"];
  }
  EXPECT_EQ(last, 5);
}

TEST_F(ServerTest, TheDocumentNamesEveryPath) {
  Start();
  const json document = json::parse(Ask("GET", "/openapi.json").body);
  EXPECT_EQ(document["openapi"], "3.1.0");
  for (const auto& [path, operations] : document["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      if (method == "post" && path != "/flush_cache") {
        EXPECT_EQ(Ask("POST", path, "{}").status, 400) << path;
        EXPECT_TRUE(operation.contains("requestBody")) << path;
      }
      EXPECT_EQ(Ask("PUT", path).status, 405) << path;
    }
  }
  EXPECT_EQ(document["paths"].size(), 19u);
}

TEST_F(ServerTest, NumbersAddUp) {
  Start();
  for (int i = 0; i < 3; ++i) Post("/v1/chat/completions", Chat(7));
  const json stats = json::parse(Ask("GET", "/stats").body);
  EXPECT_EQ(stats["state"], "ready");
  EXPECT_EQ(stats["page_size"], 4);
  EXPECT_EQ(stats["context_length"], 400);
  EXPECT_EQ(stats["pages"]["total"], 400);
  EXPECT_EQ(stats["pages"]["free"].get<int>() + stats["pages"]["cached"].get<int>(), 400);
  EXPECT_EQ(stats["counters"]["output_tokens"], 21);
  const std::string text = Ask("GET", "/metrics").body;
  for (const char* line :
       {R"(quire:generation_tokens_total{model_name="test-model"} 21)",
        R"(quire:e2e_request_latency_seconds_count{model_name="test-model"} 3)",
        R"(quire:time_to_first_token_seconds_count{model_name="test-model"} 3)",
        R"(quire:inter_token_latency_seconds_count{model_name="test-model"} 18)"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  const json info = json::parse(Ask("GET", "/server_info").body);
  EXPECT_EQ(info["threads"], 3);
  EXPECT_EQ(info["limits"]["pages"], 400);
}

TEST_F(ServerTest, SamplingOfARequestThatAsksForNoneIsSaidAsItWasWritten) {
  model_.generation.sampling = {.temperature = 0.7f, .top_k = 20, .top_p = 0.95f};
  Start();
  const json expected = {
      {"temperature", 0.7},      {"top_p", 0.95},         {"top_k", 20},           {"min_p", 0},
      {"repetition_penalty", 1}, {"presence_penalty", 0}, {"frequency_penalty", 0}};
  EXPECT_EQ(json::parse(Ask("GET", "/server_info").body)["sampling_defaults"], expected);
}

}  // namespace
}  // namespace quire::testing
