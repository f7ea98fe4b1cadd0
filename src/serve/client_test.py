"""The openai package against a live `quire serve`.

usage: client_test.py BINARY MODEL FOLDER [unittest arguments]

Where Python has no openai package, it is installed into a virtual environment in FOLDER, and the
tests run there. Ends with 77 (skipped) if it cannot be had.
"""

import json
import os
import pathlib
import subprocess
import sys

SKIPPED = 77
INSTALL_S = 300


def run_where_openai_is():
    """Goes on in another Python if this one has no openai package."""
    folder = pathlib.Path(sys.argv[3]).resolve()
    python = folder / "bin/python"
    try:
        run = lambda *command: subprocess.run(list(map(str, command)), check=True, timeout=INSTALL_S,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                              text=True)
        has_openai = python.exists() and subprocess.run(
            [python, "-c", "import openai"], capture_output=True, check=False).returncode == 0
        if not has_openai:
            run(sys.executable, "-m", "venv", "--clear", folder)
            run(python, "-m", "pip", "install", "--disable-pip-version-check", "openai")
            run(python, "-c", "import openai")
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: the openai package cannot be installed: {error}")
        print((getattr(error, "output", None) or "")[-2000:])
        sys.exit(SKIPPED)
    os.execv(python, [str(python), *sys.argv])


try:
    import openai
except ImportError:
    if __name__ == "__main__":
        run_where_openai_is()
    raise

import serve_client
from serve_client import TOOLS_TEMPLATE, Server, ServerCase, scripted, wait_for, written_calls

KEY = "sk-client-test"
NAME = "tiny_chat"
HELLO = [{"role": "user", "content": "Hello there"}]
GREEDY = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def client_of(server, key=KEY, **options):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key,
                         **{"max_retries": 0, "timeout": serve_client.WAIT_S, **options})


class ClientCase(ServerCase):
    key = KEY

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = client_of(cls.server)
        cls.addClassCleanup(cls.client.close)

    def chat(self, messages=None, **fields):
        return self.client.chat.completions.create(
            model=NAME, messages=messages or HELLO, **{**GREEDY, "max_tokens": 20, **fields})

    def complete(self, prompt="Hello there", **fields):
        return self.client.completions.create(
            model=NAME, prompt=prompt, **{**GREEDY, "max_tokens": 20, **fields})


class ChatTest(ClientCase):
    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [NAME])
        self.assertEqual(self.client.models.retrieve(NAME).id, NAME)

    def test_chat(self):
        answer = self.chat()
        self.assertEqual((answer.object, answer.model), ("chat.completion", NAME))
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual(len(answer.choices), 1)
        choice = answer.choices[0]
        self.assertEqual((choice.index, choice.finish_reason), (0, "length"))
        self.assertEqual(choice.message.role, "assistant")
        self.assertNotEqual(choice.message.content, "")
        self.assertIsNone(choice.logprobs)
        self.assertEqual(answer.usage.completion_tokens, 20)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 20)
        self.assertEqual(self.chat().choices[0].message, choice.message)
        other = self.chat([{"role": "system", "content": "Be brief."}, *HELLO,
                           {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "So?"}])
        self.assertGreater(other.usage.prompt_tokens, answer.usage.prompt_tokens)
        parts = [{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}]
        self.assertEqual(self.chat(parts).choices[0].message, choice.message)

    def test_request_ids(self):
        response = self.client.chat.completions.with_raw_response.create(
            model=NAME, messages=HELLO, max_tokens=1, extra_headers={"X-Request-Id": "mine-7"})
        self.assertEqual(response.headers["X-Request-Id"], "mine-7")
        self.assertTrue(self.chat(max_tokens=1)._request_id)

    def test_stream_is_the_whole_answer_in_pieces(self):
        whole = self.chat(max_tokens=50)
        with self.chat(max_tokens=50, stream=True) as stream:
            chunks = list(stream)
        self.assertTrue(all(chunk.usage is None for chunk in chunks))
        self.assertEqual({chunk.object for chunk in chunks}, {"chat.completion.chunk"})
        self.assertEqual(len({chunk.id for chunk in chunks}), 1)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(text, whole.choices[0].message.content)
        reasons = [chunk.choices[0].finish_reason for chunk in chunks]
        self.assertEqual(reasons, [None] * (len(chunks) - 1) + ["length"])
        self.assertGreater(len(chunks), 10)

    def test_usage_of_a_stream_and_cached_tokens(self):
        question = [{"role": "user", "content": "Count the pages of this long question. " * 30}]
        first = self.chat(question).usage
        self.assertLess(first.prompt_tokens_details.cached_tokens, 5)  # what every chat begins with
        *_, last = self.chat(question, stream=True, stream_options={"include_usage": True})
        self.assertEqual(last.choices, [])
        self.assertEqual(last.usage.prompt_tokens, first.prompt_tokens)
        self.assertEqual(last.usage.completion_tokens, 20)
        # All but the last token, from which the answer is drawn.
        self.assertEqual(last.usage.prompt_tokens_details.cached_tokens, first.prompt_tokens - 1)
        longer = self.chat([{"role": "user", "content": question[0]["content"] + "And more?"}]).usage
        self.assertGreater(longer.prompt_tokens_details.cached_tokens, 100)

    def test_logprobs(self):
        choice = self.chat(logprobs=True, top_logprobs=3).choices[0]
        self.assertEqual(len(choice.logprobs.content), 20)
        self.assertEqual("".join(item.token for item in choice.logprobs.content),
                         choice.message.content)
        for item in choice.logprobs.content:
            self.assertEqual(len(item.top_logprobs), 3)
            self.assertEqual(item.logprob, max(top.logprob for top in item.top_logprobs))
            self.assertLess(item.logprob, 0)
        streamed = [item for chunk in self.chat(logprobs=True, top_logprobs=3, stream=True)
                    for item in (chunk.choices[0].logprobs.content or []
                                 if chunk.choices[0].logprobs else [])]
        self.assertEqual(streamed, choice.logprobs.content)
        self.assertIsNone(self.chat().choices[0].logprobs)

    def test_several_answers(self):
        fields = {"n": 3, "temperature": 1, "seed": 5}
        answer = self.chat(**fields)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
        texts = [choice.message.content for choice in answer.choices]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(answer.usage.completion_tokens, 60)
        streamed = ["", "", ""]
        for chunk in self.chat(stream=True, **fields):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        self.assertEqual(streamed, texts)

    def test_seeds(self):
        text = lambda **fields: self.chat(temperature=1, **fields).choices[0].message.content
        self.assertEqual(text(seed=1), text(seed=1))
        self.assertNotEqual(text(seed=1), text(seed=2))
        self.assertNotEqual(text(), text())

    def test_stop(self):
        whole = self.chat(max_tokens=60).choices[0].message.content
        stop = next(whole[i:i + 3] for i in range(15, len(whole)) if whole[i:i + 3].isalpha())
        for stops in (stop, ["not in it", stop]):
            choice = self.chat(max_tokens=60, stop=stops).choices[0]
            self.assertEqual(choice.message.content, whole[:whole.index(stop)])
            self.assertEqual(choice.finish_reason, "stop")
        chunks = list(self.chat(max_tokens=60, stop=stop, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(text, whole[:whole.index(stop)])
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_max_completion_tokens(self):
        answer = self.client.chat.completions.create(
            model=NAME, messages=HELLO, max_completion_tokens=4, extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.completion_tokens, 4)


class AgentTest(ClientCase):
    template = TOOLS_TEMPLATE

    def test_two_rounds_of_calls_and_the_last_word(self):
        schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        tools = [{"type": "function", "name": "read", "parameters": schema, "strict": False}]
        items = [*HELLO]
        for text, path in (("I look.", "a.py"), ("And there.", "b.py"), ("It works.", None)):
            calls = [("read", {"path": path})] if path else []
            script = text + (written_calls(*calls) if calls else "")
            with self.client.responses.stream(model=NAME, input=items, tools=tools,
                                              extra_body=scripted(script)) as stream:
                response = stream.get_final_response()
            self.assertEqual(response.output_text, text)
            called = [item for item in response.output if item.type == "function_call"]
            self.assertEqual([(item.name, json.loads(item.arguments)) for item in called], calls)
            items += response.output
            items += [{"type": "function_call_output", "call_id": item.call_id, "output": "pass"}
                      for item in called]


class ResponsesTest(ClientCase):
    def respond(self, input="Hello there", **fields):
        return self.client.responses.create(model=NAME, input=input,
                                            **{**GREEDY, "max_output_tokens": 20, **fields})

    def test_response(self):
        response = self.respond(instructions="Be brief.")
        self.assertEqual((response.object, response.model), ("response", NAME))
        self.assertEqual((response.status, response.incomplete_details.reason),
                         ("incomplete", "max_output_tokens"))
        self.assertEqual(response.output_text, self.chat(
            [{"role": "system", "content": "Be brief."}, *HELLO]).choices[0].message.content)
        self.assertEqual((response.usage.output_tokens, response.instructions), (20, "Be brief."))
        # What came can be sent back as it is.
        again = self.respond([*HELLO, *response.output, *HELLO])
        self.assertGreater(again.usage.input_tokens, response.usage.input_tokens)

    def test_stream_is_the_response_in_pieces(self):
        whole = self.respond()
        with self.client.responses.stream(model=NAME, input="Hello there", max_output_tokens=20,
                                          **GREEDY) as stream:
            events = list(stream)
        text = "".join(event.delta for event in events
                       if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        self.assertEqual(events[-1].type, "response.incomplete")
        self.assertEqual(events[-1].response.output_text, text)
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        with self.client.responses.stream(
                model=NAME, input="Hello there", max_output_tokens=200, text={
                    "format": {"type": "json_schema", "name": "s", "schema": schema}}) as stream:
            final = stream.get_final_response()
        self.assertEqual(final.status, "completed")
        self.assertIn("a", final.output_text)

    def test_reasoning(self):
        thinking = {"extra_body": {"ignore_eos": True,
                                   "chat_template_kwargs": {"enable_thinking": True}}}
        whole = self.respond(**thinking)
        self.assertEqual([item.type for item in whole.output], ["reasoning"])
        events = list(self.respond(stream=True, **thinking))
        text = "".join(event.delta for event in events
                       if event.type == "response.reasoning_text.delta")
        self.assertEqual(text, whole.output[0].content[0].text)
        self.respond([*HELLO, *whole.output, *HELLO])

    def test_nothing_is_stored(self):
        self.assertIs(self.respond(store=False).to_dict()["store"], False)
        for fields in ({"store": True}, {"previous_response_id": "resp_1"}):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.respond(**fields)
            self.assertEqual([refused.exception.param], list(fields))


class CompletionTest(ClientCase):
    def test_completion(self):
        answer = self.complete()
        self.assertEqual((answer.object, answer.model), ("text_completion", NAME))
        self.assertEqual((answer.choices[0].finish_reason, answer.usage.completion_tokens),
                         ("length", 20))
        text = "".join(chunk.choices[0].text for chunk in self.complete(stream=True))
        self.assertEqual(text, answer.choices[0].text)

    def test_prompts_of_token_ids_and_many(self):
        tokens = self.server.post("/tokenize", {"prompt": "Hello there"}).json()["tokens"]
        one = self.complete().choices[0].text
        self.assertEqual(self.complete(tokens).choices[0].text, one)
        many = self.complete(["Hello there", "Another"], n=2)
        self.assertEqual([choice.index for choice in many.choices], [0, 1, 2, 3])
        self.assertEqual([many.choices[0].text, many.choices[1].text], [one, one])
        self.assertEqual(many.choices[2].text, self.complete("Another").choices[0].text)
        both = self.complete([tokens, tokens])
        self.assertEqual([choice.text for choice in both.choices], [one, one])

    def test_echo_and_logprobs(self):
        plain = self.complete(logprobs=2).choices[0]
        self.assertTrue(plain.text.startswith("".join(plain.logprobs.tokens[:8])), plain)
        self.assertEqual(len(plain.logprobs.top_logprobs), 20)
        echo = self.complete(logprobs=2, echo=True)
        self.assertEqual(echo.choices[0].text, "Hello there" + plain.text)
        self.assertIsNone(echo.choices[0].logprobs.token_logprobs[0])
        self.assertEqual(len(echo.choices[0].logprobs.tokens), echo.usage.prompt_tokens + 20)
        scored = self.complete(max_tokens=0, echo=True, logprobs=0)
        self.assertEqual(scored.choices[0].text, "Hello there")


class ErrorTest(ClientCase):
    def assert_raises(self, kind, call, *words):
        with self.assertRaises(kind) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertIs(type(caught.exception), kind)
        return caught.exception

    def test_bad_requests(self):
        error = self.assert_raises(openai.BadRequestError, lambda: self.chat(temperature=9),
                                   "temperature", "0..2", "9")
        self.assertEqual((error.status_code, error.param, error.type),
                         (400, "temperature", "invalid_request_error"))
        self.assertTrue(error.request_id)
        error = self.assert_raises(openai.BadRequestError, lambda: self.complete([5] * 9999),
                                   "9999", "4096")
        self.assertEqual(error.code, "context_length_exceeded")
        self.assert_raises(openai.BadRequestError, lambda: self.chat(max_tokens=0), "max_tokens")
        tools = [{"type": "custom", "custom": {"name": "f"}}]
        self.assert_raises(openai.BadRequestError, lambda: self.chat(tools=tools), "tools[0].type")
        schema = {"name": "n", "schema": {"type": "object", "not": {}}}
        self.assert_raises(openai.BadRequestError,
                           lambda: self.chat(response_format={"type": "json_schema",
                                                              "json_schema": schema}),
                           "response_format.json_schema.schema", "not")
        # A stream is refused before it begins.
        self.assert_raises(openai.BadRequestError, lambda: self.chat(stream=True, top_p=7), "top_p")

    def test_not_found(self):
        error = self.assert_raises(
            openai.NotFoundError,
            lambda: self.client.chat.completions.create(model="gpt-5", messages=HELLO), "gpt-5")
        self.assertEqual((error.status_code, error.code, error.param),
                         (404, "model_not_found", "model"))
        self.assert_raises(openai.NotFoundError, lambda: self.client.models.retrieve("gpt-5"))
        self.assert_raises(openai.NotFoundError, lambda: self.client.embeddings.create(
            model=NAME, input="x"), "/v1/embeddings")

    def test_keys(self):
        for key in ("sk-wrong", "x"):
            with client_of(self.server, key) as other:
                error = self.assert_raises(openai.AuthenticationError, other.models.list)
                self.assertEqual((error.status_code, error.code), (401, "invalid_api_key"))

    def test_nobody_listens(self):
        server = Server()
        self.assertEqual(server.stop(), 0)
        with client_of(server) as late:
            self.assert_raises(openai.APIConnectionError, late.models.list)


class LongTest(ClientCase):
    """What happens while an answer is under way; none of these is waited for."""

    flags = ("--max-running-requests", 4, "--max-queued-requests", 1)
    has_long_answers = True

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.name = cls.client.models.list().data[0].id

    def open(self, **fields):
        """A stream of four answers that has begun."""
        stream = self.client.chat.completions.create(
            model=self.name, messages=HELLO, stream=True, n=4, **GREEDY, **fields)
        for _ in zip(range(5), stream):
            pass
        self.assertTrue(self.server.stats()["running"])
        return stream

    def cancelled(self):
        return self.server.stats()["answers"]["cancelled"]

    def test_stream_that_is_closed_is_cancelled(self):
        for close in (lambda stream: stream.close(), lambda stream: stream.response.close()):
            before = self.cancelled()
            close(self.open())
            self.assert_idle()
            wait_for(lambda n=before + 4: self.cancelled() == n, "all four to be cancelled")

    def test_client_that_is_closed_cancels(self):
        before = self.cancelled()
        with client_of(self.server) as other:
            stream = other.completions.create(model=self.name, prompt="Hello", stream=True,
                                              max_tokens=100_000, **GREEDY)
            next(iter(stream))
        self.assert_idle()
        self.assertEqual(self.cancelled(), before + 1)

    def test_time_out_of_the_client_cancels(self):
        before = self.cancelled()
        with client_of(self.server, timeout=1) as hasty:
            with self.assertRaises(openai.APITimeoutError):
                hasty.completions.create(model=self.name, prompt="Hello", max_tokens=100_000, **GREEDY)
        self.assert_idle()
        self.assertEqual(self.cancelled(), before + 1)

    def test_time_out_of_the_request(self):
        fields = {"temperature": 0, "extra_body": {"ignore_eos": True, "timeout": 0.3}}
        with self.assertRaises(openai.APIStatusError) as caught:
            self.client.chat.completions.create(model=self.name, messages=HELLO, **fields)
        self.assertEqual((caught.exception.status_code, caught.exception.code),
                         (408, "deadline_exceeded"))
        with self.assertRaises(openai.APIError) as caught:
            for _ in self.client.chat.completions.create(model=self.name, messages=HELLO, stream=True,
                                                         **fields):
                pass
        self.assertEqual(caught.exception.code, "deadline_exceeded")

    def test_full_queue(self):
        streams = [self.open()]
        waiting = self.client.completions.create(model=self.name, prompt="x", stream=True,
                                                 max_tokens=2)
        wait_for(lambda: self.server.stats()["waiting"] == 1, "a request to wait")
        with self.assertRaises(openai.RateLimitError) as caught:
            self.client.completions.create(model=self.name, prompt="x")
        self.assertEqual((caught.exception.status_code, caught.exception.code), (429, "queue_full"))
        self.assertGreater(int(caught.exception.response.headers["Retry-After"]), 0)
        streams[0].close()
        # Told to try again, the package does.
        with client_of(self.server, max_retries=10) as patient:
            self.assertEqual(patient.completions.create(model=self.name, prompt="x", max_tokens=2)
                             .usage.prompt_tokens, 2)
        waiting.close()

    def test_end_of_the_server(self):
        server = Server("--api-key", KEY, "--drain-timeout", 0.1)
        with client_of(server) as client:
            stream = client.completions.create(model=NAME, prompt="Hello", stream=True, n=8,
                                               max_tokens=4000, **GREEDY)
            next(iter(stream))
            server.signal()
            with self.assertRaises(openai.APIError) as caught:
                for _ in stream:
                    pass
            self.assertEqual(caught.exception.code, "cancelled")
        self.assertEqual(server.wait(), 0)


class ToolsTest(ClientCase):
    """Calls, in texts that the model is made to write."""

    flags = ("--tool-call-parser", "glm45")
    tools = [{"type": "function", "function": {
        "name": "weather", "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
                                                        "days": {"type": "integer"}},
                       "required": ["city", "days"], "additionalProperties": False}}}]
    text = ("I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Z\u00fcrich \"West\""
            "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>"
            "weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>")
    calls = [("weather", {"city": "Z\u00fcrich \"West\"", "days": 3}), ("weather", {"city": "Rome"})]

    def scripted(self, **fields):
        return {"tools": self.tools, "max_tokens": 400, "n": 2,
                "extra_body": {"structured_outputs": {"choice": [self.text]}}, **fields}

    def assert_calls(self, choice):
        self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", "I look."))
        self.assertEqual([(call.function.name, json.loads(call.function.arguments))
                          for call in choice.message.tool_calls], self.calls)
        self.assertEqual(len({call.id for call in choice.message.tool_calls}), 2)

    def test_calls(self):
        answer = self.chat(**self.scripted())
        self.assertEqual(len(answer.choices), 2)
        for choice in answer.choices:
            self.assert_calls(choice)

    def test_a_stream_is_put_together_by_the_package(self):
        with self.client.chat.completions.stream(model=NAME, messages=HELLO,
                                                 **self.scripted()) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        for choice in final.choices:
            self.assert_calls(choice)

    def test_required_calls_have_arguments_of_the_schema(self):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            answer = self.chat(tools=self.tools, tool_choice=choice, parallel_tool_calls=False,
                               max_tokens=400, temperature=1.5, seed=1, extra_body={})
            call, = answer.choices[0].message.tool_calls
            arguments = json.loads(call.function.arguments)
            self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
            self.assertEqual((call.function.name, sorted(arguments)), ("weather", ["city", "days"]))
            self.assertIs(type(arguments["days"]), int)


if __name__ == "__main__":
    serve_client.main(num_arguments=3)
