"""Anthropic's /v1/messages and OpenAI's /v1/responses of a live `quire serve`, without their packages.

usage: apis_test.py BINARY MODEL [unittest arguments]
"""

import json

import serve_client
from serve_client import TOOLS_TEMPLATE, ServerCase, Stream, scripted, written_calls

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
HELLO = [{"role": "user", "content": "Hello there"}]
GREEDY = {"temperature": 0, "ignore_eos": True}
NAME = "tiny_chat"


class ApiCase(ServerCase):
    def ask(self, path, **fields):
        answer = self.server.post(path, {**GREEDY, **fields})
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def chat(self, messages=None, **fields):
        return self.ask(CHAT, messages=messages or HELLO, max_tokens=20, **fields)

    def message(self, messages=None, **fields):
        return self.ask(MESSAGES, **{"messages": messages or HELLO, "max_tokens": 20, **fields})

    def respond(self, input="Hello there", **fields):
        return self.ask(RESPONSES, **{"input": input, "max_output_tokens": 20, **fields})

    def events(self, path, **fields):
        """(event, data) of a stream, which has its types in both."""
        answer = self.server.post(path, {**GREEDY, "stream": True, **fields})
        self.assertEqual(answer.status, 200, answer.body)
        self.assertTrue(answer.headers["Content-Type"].startswith("text/event-stream"))
        events = []
        for block in answer.body.decode().split("\n\n"):
            if not block or block.startswith(":"):
                continue
            event, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            self.assertEqual(event, "event: " + events[-1]["type"])
        return events


class MessagesTest(ApiCase):
    def test_a_message_is_the_chats_answer(self):
        chat = self.chat()
        message = self.message(model=NAME)
        self.assertEqual(message["content"], [
            {"type": "text", "text": chat["choices"][0]["message"]["content"]}])
        self.assertTrue(message["id"].startswith("msg_"))
        self.assertEqual((message["type"], message["role"], message["model"]),
                         ("message", "assistant", NAME))
        self.assertEqual((message["stop_reason"], message["stop_sequence"]), ("max_tokens", None))
        usage = message["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"],
                         chat["usage"]["prompt_tokens"])
        self.assertEqual(usage["output_tokens"], 20)

    def test_a_conversation_is_the_chats(self):
        turns = [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "a\nb"}]
        chat = self.chat([{"role": "system", "content": "Be\nbrief."}, *turns])
        blocks = [{"type": "text", "text": "a"},
                  {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
        system = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
        for message in (self.message(turns, system="Be\nbrief."),
                        self.message([*turns[:2], {"role": "user", "content": blocks}],
                                     system=system)):
            self.assertEqual(message["content"][0]["text"],
                             chat["choices"][0]["message"]["content"])

    def test_the_answer_goes_on_with_the_assistants_last_message(self):
        begun = [*HELLO, {"role": "assistant", "content": "So it is"}]
        chat = self.chat(begun, continue_final_message=True)
        self.assertEqual(self.message(begun)["content"][0]["text"],
                         chat["choices"][0]["message"]["content"])

    def test_a_stream_makes_the_message(self):
        whole = self.message()
        events = self.events(MESSAGES, messages=HELLO, max_tokens=20)
        self.assertEqual(events[0]["type"], "message_start")
        self.assertEqual([event["type"] for event in events[-3:]],
                         ["content_block_stop", "message_delta", "message_stop"])
        text = "".join(event["delta"]["text"] for event in events
                       if event["type"] == "content_block_delta")
        self.assertEqual(text, whole["content"][0]["text"])
        self.assertEqual(events[-2]["delta"], {"stop_reason": "max_tokens", "stop_sequence": None})
        self.assertEqual(events[-2]["usage"]["output_tokens"], 20)

    def test_stop_sequences(self):
        text = self.message()["content"][0]["text"]
        stop = text[8:12]
        message = self.message(stop_sequences=["not this one", stop])
        self.assertEqual((message["stop_reason"], message["stop_sequence"]), ("stop_sequence", stop))
        self.assertEqual(message["content"][0]["text"], text[:text.index(stop)])

    def test_thoughts_are_blocks(self):
        message = self.message(thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertEqual([block["type"] for block in message["content"]], ["thinking"])
        self.assertTrue(message["content"][0]["thinking"])
        self.assertEqual(message["usage"]["output_tokens_details"]["thinking_tokens"], 20)
        # And can be sent back.
        self.message([*HELLO, {"role": "assistant", "content": message["content"]}, *HELLO])
        plain = self.message(thinking={"type": "disabled"})
        self.assertEqual([block["type"] for block in plain["content"]], ["text"])

    def test_a_schema_holds_the_answer(self):
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        message = self.message(temperature=2, max_tokens=200, ignore_eos=False,
                               output_config={"format": {"type": "json_schema", "schema": schema}})
        self.assertIsInstance(json.loads(message["content"][0]["text"])["a"], bool)

    def test_tokens_are_counted(self):
        for fields in ({"messages": HELLO}, {"messages": HELLO, "system": "Be brief."}):
            usage = self.message(**fields)["usage"]
            counted = self.server.post(COUNT, {"model": NAME, **fields})
            self.assertEqual(counted.json(), {
                "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]})

    def test_errors_are_anthropics(self):
        hello = {"messages": HELLO, "max_tokens": 5}
        image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
        for body, status, kind, said in (
                ({"messages": HELLO}, 400, "invalid_request_error", "max_tokens: missing"),
                ("{", 400, "invalid_request_error", "body"),
                ({**hello, "top_k": "x"}, 400, "invalid_request_error", 'top_k: expected'),
                ({**hello, "unheard": 1}, 400, "invalid_request_error", "unheard: unknown field"),
                ({**hello, "messages": image}, 400, "invalid_request_error",
                 'messages[0].content[0].type: expected'),
                ({**hello, "model": "claude"}, 404, "not_found_error", "model"),
                ({**hello, "messages": [{"role": "user", "content": "long " * 5000}]}, 400,
                 "invalid_request_error", "context length")):
            answer = self.server.post(MESSAGES, body)
            self.assertEqual(answer.status, status, answer.body)
            self.assertEqual(set(answer.json()), {"type", "error"})
            self.assertEqual(answer.json()["type"], "error")
            self.assertEqual(answer.error["type"], kind)
            self.assertIn(said, answer.error["message"])
            self.assertTrue(answer.headers["Request-Id"])
        self.assertEqual(self.server.ask("GET", MESSAGES).json()["type"], "error")
        self.assertEqual(self.server.post(COUNT, {"messages": []}).json()["type"], "error")
        self.assertNotIn("type", self.server.post("/v1/messagesx", {}).json())

    def test_a_client_that_leaves_leaves_nothing(self):
        stream = Stream(self.server, MESSAGES, {**GREEDY, "messages": HELLO, "max_tokens": 3000,
                                                "stream": True})
        next(stream.events())
        stream.close()  # tearDown sees that all pages come back


class ResponsesTest(ApiCase):
    def text(self, response):
        return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                       for part in item["content"])

    def test_a_response_is_the_chats_answer(self):
        chat = self.chat()
        for response in (self.respond(model=NAME), self.respond(HELLO), self.respond(
                [{"type": "message", "role": "user",
                  "content": [{"type": "input_text", "text": "Hello there"}]}])):
            self.assertEqual(self.text(response), chat["choices"][0]["message"]["content"])
            self.assertTrue(response["id"].startswith("resp_"))
            self.assertEqual((response["object"], response["model"]), ("response", NAME))
            self.assertEqual((response["status"], response["incomplete_details"]),
                             ("incomplete", {"reason": "max_output_tokens"}))
            self.assertIs(response["store"], False)
            self.assertEqual(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"])
            self.assertEqual(response["usage"]["output_tokens"], 20)
            self.assertEqual(response["max_output_tokens"], 20)

    def test_a_conversation_is_the_chats(self):
        turns = [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "So?"}]
        chat = self.chat([{"role": "system", "content": "Be brief."}, *turns])
        expected = chat["choices"][0]["message"]["content"]
        self.assertEqual(self.text(self.respond(turns, instructions="Be brief.")), expected)
        self.assertEqual(self.text(self.respond(
            [{"role": "developer", "content": "Be brief."}, *turns])), expected)

    def test_a_stream_makes_the_response(self):
        whole = self.respond()
        events = self.events(RESPONSES, input="Hello there", max_output_tokens=20)
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual([event["type"] for event in events[:4]],
                         ["response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added"])
        self.assertEqual([event["type"] for event in events[-4:]],
                         ["response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.incomplete"])
        text = "".join(event["delta"] for event in events
                       if event["type"] == "response.output_text.delta")
        self.assertEqual(text, self.text(whole))
        final = events[-1]["response"]
        self.assertEqual(self.text(final), text)
        self.assertEqual(final["usage"]["output_tokens"], 20)
        self.assertEqual(len({event["response"]["id"] for event in events if "response" in event}), 1)

    def test_thoughts_are_items_and_can_be_sent_back(self):
        response = self.respond(chat_template_kwargs={"enable_thinking": True})
        self.assertEqual([item["type"] for item in response["output"]], ["reasoning"])
        self.assertTrue(response["output"][0]["content"][0]["text"])
        events = self.events(RESPONSES, input="Hello there", max_output_tokens=20,
                             chat_template_kwargs={"enable_thinking": True})
        text = "".join(event["delta"] for event in events
                       if event["type"] == "response.reasoning_text.delta")
        self.assertEqual(text, response["output"][0]["content"][0]["text"])
        self.respond([*HELLO, *response["output"], *HELLO])
        plain = self.respond(reasoning={"effort": "none"})
        self.assertEqual([item["type"] for item in plain["output"]], ["message"])

    def test_a_schema_holds_the_answer(self):
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        response = self.respond(temperature=2, max_output_tokens=200, ignore_eos=False, text={
            "format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}})
        self.assertEqual(response["status"], "completed")
        self.assertIsInstance(json.loads(self.text(response))["a"], bool)

    def test_what_is_not_done_is_refused_by_name(self):
        for field, value in (("store", True), ("previous_response_id", "resp_1"),
                             ("background", True), ("truncation", "auto"), ("conversation", "c"),
                             ("include", ["file_search_call.results"]), ("unheard", 1),
                             ("max_output_tokens", 0), ("reasoning", {"effort": "high"})):
            answer = self.server.post(RESPONSES, {"input": "x", field: value})
            self.assertEqual(answer.status, 400, answer.body)
            self.assertTrue(answer.error["param"].startswith(field), answer.body)
        self.assertEqual(self.respond(store=False)["store"], False)


READ = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
RUN = {"type": "object", "properties": {"command": {"type": "string"}, "limit": {"type": "integer"}},
       "required": ["command"]}
MESSAGES_TOOLS = [{"name": "read", "description": "Reads.", "input_schema": READ},
                  {"name": "run", "input_schema": RUN, "cache_control": {"type": "ephemeral"}}]
RESPONSES_TOOLS = [{"type": "function", "name": "read", "description": "Reads.", "parameters": READ,
                    "strict": True}, {"type": "function", "name": "run", "parameters": RUN}]
# What an agent's model says, round by round, and what it calls.
ROUNDS = (("I look.", (("read", {"path": "a.py"}), ("read", {"path": "b \u00e9.py"}))),
          ("I try it.", (("run", {"command": "make", "limit": 3}),)),
          ("It works.", ()))


def answer_of(round):
    text, calls = round
    return text + (written_calls(*calls) if calls else "")


def result_of(name, arguments):
    return f"{name} gave {len(json.dumps(arguments))}"


class AgentTest(ApiCase):
    """Two rounds of calls, streamed, and the last word."""

    template = TOOLS_TEMPLATE

    def prompt_of_rounds(self):
        """Tokens of the same conversation by the chat, before its last answer."""
        messages = [*HELLO]
        for text, calls in ROUNDS[:-1]:
            messages.append({"role": "assistant", "content": text, "tool_calls": [
                {"id": f"c{i}", "type": "function",
                 "function": {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"),
                                                                    ensure_ascii=False)}}
                for i, (name, arguments) in enumerate(calls)]})
            messages += [{"role": "tool", "tool_call_id": f"c{i}", "content": result_of(*call)}
                         for i, call in enumerate(calls)]
        tools = [{"type": "function", "function": {"name": tool["name"],
                                                   "parameters": tool["parameters"]}}
                 for tool in RESPONSES_TOOLS]
        return self.chat(messages, tools=tools)["usage"]["prompt_tokens"]

    def assembled_message(self, events):
        """As Anthropic's clients do it."""
        message = events[0]["message"]
        arguments = {}
        for event in events:
            if event["type"] == "content_block_start":
                self.assertEqual(event["index"], len(message["content"]))
                message["content"].append(event["content_block"])
            elif event["type"] == "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                if delta["type"] == "text_delta":
                    block["text"] += delta["text"]
                else:
                    self.assertEqual((delta["type"], block["input"]), ("input_json_delta", {}))
                    arguments[event["index"]] = (arguments.get(event["index"], "")
                                                 + delta["partial_json"])
            elif event["type"] == "message_delta":
                message.update(event["delta"], usage=event["usage"])
        for index, text in arguments.items():
            message["content"][index]["input"] = json.loads(text)
        return message

    def test_messages(self):
        messages = [*HELLO]
        fields = {"tools": MESSAGES_TOOLS, "max_tokens": 400, "ignore_eos": False}
        for text, calls in ROUNDS:
            script = scripted(answer_of((text, calls)))
            message = self.assembled_message(self.events(MESSAGES, messages=messages, **fields,
                                                         **script))
            whole = self.ask(MESSAGES, messages=messages, **{**fields, **script})
            used = [block for block in message["content"] if block["type"] == "tool_use"]
            self.assertEqual([{**block, "id": 0} for block in message["content"]],
                             [{**block, "id": 0} for block in whole["content"]])
            self.assertEqual(message["content"][0], {"type": "text", "text": text})
            self.assertEqual([(block["name"], block["input"]) for block in used], list(calls))
            self.assertEqual(message["stop_reason"], "tool_use" if calls else "end_turn")
            self.assertEqual(len({block["id"] for block in used}), len(calls))
            counted = self.server.post(COUNT, {"messages": messages, "tools": MESSAGES_TOOLS}).json()
            usage = message["usage"]
            self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"],
                             counted["input_tokens"])
            if not calls:
                self.assertEqual(counted["input_tokens"], self.prompt_of_rounds())
            messages += [{"role": "assistant", "content": message["content"]},
                         {"role": "user", "content": [
                             {"type": "tool_result", "tool_use_id": block["id"],
                              "content": result_of(block["name"], block["input"])}
                             for block in used]}]

    def test_responses(self):
        items = [*HELLO]
        fields = {"tools": RESPONSES_TOOLS, "ignore_eos": False}
        for text, calls in ROUNDS:
            events = self.events(RESPONSES, input=items, **fields,
                                 **scripted(answer_of((text, calls))))
            self.assertEqual(events[-1]["type"], "response.completed")
            response = events[-1]["response"]
            for index, item in enumerate(response["output"]):
                deltas = [event for event in events if event.get("output_index") == index]
                self.assertEqual((deltas[0]["type"], deltas[-1]["type"]),
                                 ("response.output_item.added", "response.output_item.done"))
                self.assertEqual(deltas[-1]["item"], item)
                if item["type"] == "function_call":
                    self.assertEqual(deltas[0]["item"], {**item, "arguments": "",
                                                         "status": "in_progress"})
                    self.assertEqual("".join(event["delta"] for event in deltas if event["type"] ==
                                             "response.function_call_arguments.delta"),
                                     item["arguments"])
            said = [item for item in response["output"] if item["type"] == "message"]
            called = [item for item in response["output"] if item["type"] == "function_call"]
            self.assertEqual(said[0]["content"][0]["text"], text)
            self.assertEqual([(item["name"], json.loads(item["arguments"])) for item in called],
                             list(calls))
            self.assertEqual(response["tools"], RESPONSES_TOOLS)
            items += [*response["output"],
                      *({"type": "function_call_output", "call_id": item["call_id"],
                         "output": result_of(item["name"], json.loads(item["arguments"]))}
                        for item in called)]

    def test_calls_can_be_required(self):
        # Of a model that says anything, within bounds.
        path = {"type": "object", "properties": {"path": {"enum": ["a", "b"]}}, "required": ["path"]}
        messages_tools = [{"name": name, "input_schema": path} for name in ("read", "run")]
        responses_tools = [{"type": "function", "name": name, "parameters": path}
                           for name in ("read", "run")]
        for choice, names in (({"type": "any"}, ("read", "run")),
                              ({"type": "tool", "name": "run"}, ("run",))):
            message = self.message(tools=messages_tools, max_tokens=600, temperature=1, seed=4,
                                   tool_choice={**choice, "disable_parallel_tool_use": True})
            self.assertEqual([block["type"] for block in message["content"]], ["tool_use"])
            self.assertIn(message["content"][0]["name"], names)
            self.assertIn(message["content"][0]["input"]["path"], ("a", "b"))
        response = self.respond(tools=responses_tools, max_output_tokens=600, temperature=1, seed=4,
                                parallel_tool_calls=False,
                                tool_choice={"type": "function", "name": "read"})
        self.assertEqual([item["type"] for item in response["output"]], ["function_call"])
        self.assertEqual(response["output"][0]["name"], "read")

    def test_wrong_tools_are_refused_by_name(self):
        for path, fields, said in (
                (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
                 "tools[0].type: expected"),
                (MESSAGES, {"tools": [{"name": "f"}]}, "tools[0].input_schema: missing"),
                (MESSAGES, {"tools": MESSAGES_TOOLS + MESSAGES_TOOLS[:1]}, "tools[2]: expected"),
                (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice.type: expected"),
                (MESSAGES, {"tools": MESSAGES_TOOLS, "tool_choice": {"type": "tool", "name": "x"}},
                 "tool_choice.name: expected"),
                (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type: expected"),
                (RESPONSES, {"tools": RESPONSES_TOOLS, "tool_choice": {"type": "function",
                                                                       "name": "x"}},
                 "tool_choice.name: expected")):
            ask = {"messages": HELLO, "max_tokens": 5} if path == MESSAGES else {"input": "x"}
            answer = self.server.post(path, {**ask, **fields})
            self.assertEqual(answer.status, 400, answer.body)
            self.assertIn(said, answer.error["message"])
        calls = [*HELLO, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "read", "input": {}}]}]
        answer = self.server.post(MESSAGES, {"messages": calls, "max_tokens": 5})
        self.assertIn("messages: expected a tool_result", answer.error["message"])


class KeyTest(ApiCase):
    key = "sk-apis-test"

    def test_keys_come_in_either_header(self):
        body = json.dumps({"messages": HELLO, "max_tokens": 1})
        for headers, status in (({}, 401), ({"x-api-key": "wrong"}, 401), ({"x-api-key": self.key}, 200),
                                ({"Authorization": f"Bearer {self.key}"}, 200),
                                ({"Authorization": "Bearer wrong", "x-api-key": self.key}, 401)):
            connection = self.server.connection()
            connection.request("POST", MESSAGES, body, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            connection.close()
            self.assertEqual(response.status, status, answer)
            if status == 401:
                self.assertEqual(answer["error"]["type"], "authentication_error")


if __name__ == "__main__":
    serve_client.main()
