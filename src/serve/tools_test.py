"""Tool calls of a live `quire serve`, in every format, of a model without weights at temperature 2: required
calls are always some, and their arguments are what the tools' schemas allow. What is held to anything is the
same text whatever else runs.

usage: tools_test.py BINARY MODEL [unittest arguments]
"""

import concurrent.futures
import json
import random
import re
import unittest

import serve_client
from serve_client import Server, refused
from structured_test import is_valid, random_object

CHAT = "/v1/chat/completions"
ANSWERS = 4
NUM_SEEDS = max(4 // serve_client.TEST_PARTS, 1)
FORMATS = ("deepseek_v3", "deepseek_v31", "deepseek_v32", "kimi_k2", "glm45")


# A request whose answers begin with calls: no token is as likely as the one with which DeepSeek's begin.
CALLS_TOKEN = "906"
BEGINS_WITH_CALLS = {"logit_bias": {CALLS_TOKEN: 100}, "parallel_tool_calls": False}
# One whose reasoning ends after some fifty tokens: "</think>" is twenty times as likely as any other.
ENDS_REASONING = {"logit_bias": {"905": 3}, "chat_template_kwargs": {"enable_thinking": True}}


def tools_of(seed, **fields):
    rng = random.Random(seed)
    return [{"type": "function", "function": {"name": name, "description": "Does.",
                                              "parameters": random_object(rng, 1), **fields}}
            for name in ("first", "second.one")]


def joined_stream(body):
    """What a stream's deltas make: (content, calls, finish_reason) of every choice."""
    choices = {}
    for line in body.decode().split("\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            found = choices.setdefault(choice["index"], ["", [], None])
            delta = choice["delta"]
            found[0] += delta.get("content") or ""
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    assert part["index"] == len(found[1]) and part["type"] == "function", part
                    found[1].append((part["function"]["name"], part["function"]["arguments"]))
                else:
                    name, arguments = found[1][part["index"]]
                    found[1][part["index"]] = (name, arguments + part["function"]["arguments"])
            found[2] = choice["finish_reason"] or found[2]
    return [tuple(choices[i]) for i in sorted(choices)]


class ToolsTest(unittest.TestCase):
    def setUp(self):
        self.server = None

    def start(self, name):
        self.server = Server("--tool-call-parser", name, "--max-running-requests", 8,
                             "--max-total-tokens", 8192)
        self.addCleanup(self.stop)

    def stop(self):
        stats = self.server.wait_idle()
        self.assertEqual((stats["running"], stats["pages"]["in_use"]), ([], 0))
        self.assertEqual(self.server.stop(), 0, self.server.log)

    def ask(self, **fields):
        answer = self.server.post(CHAT, {"messages": [{"role": "user", "content": "Hello"}],
                                         "temperature": 2, "top_p": 1, "max_tokens": 1500, **fields})
        self.assertEqual(answer.status, 200, answer.body)
        return answer

    def assert_calls(self, tools, choice, name=None):
        message = choice["message"]
        self.assertEqual(choice["finish_reason"], "tool_calls", choice)
        self.assertIsNone(message["content"], choice)
        self.assertEqual(len({call["id"] for call in message["tool_calls"]}),
                         len(message["tool_calls"]))
        for call in message["tool_calls"]:
            function = call["function"]
            schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
            self.assertIn(function["name"], [name] if name else schemas)
            self.assertTrue(is_valid(json.loads(function["arguments"]), schemas[function["name"]]),
                            (schemas[function["name"]], function["arguments"]))

    def check_format(self, name):
        self.start(name)
        for seed in range(2):
            tools = tools_of(seed)
            fields = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False,
                      "n": ANSWERS, "seed": seed}
            choices = self.ask(**fields).json()["choices"]
            for choice in choices:
                self.assert_calls(tools, choice)
            whole = [(choice["message"]["content"] or "",
                      [(call["function"]["name"], call["function"]["arguments"])
                       for call in choice["message"]["tool_calls"]], choice["finish_reason"])
                     for choice in choices]
            self.assertEqual(joined_stream(self.ask(**fields, stream=True).body), whole)
            fields["tool_choice"] = {"type": "function", "function": {"name": "second.one"}}
            for choice in self.ask(**fields).json()["choices"]:
                self.assert_calls(tools, choice, "second.one")
                self.assertEqual(len(choice["message"]["tool_calls"]), 1)
        # Reasoning is free, and then there are calls.
        choices = self.ask(**fields, **ENDS_REASONING).json()["choices"]
        for choice in choices:
            self.assertTrue(choice["message"]["reasoning_content"])
            if choice["finish_reason"] != "length":  # few draw no "</think>" by chance
                self.assert_calls(tools, choice, "second.one")
        self.assertIn("tool_calls", [choice["finish_reason"] for choice in choices])

    def test_deepseek_v3(self):
        self.check_format("deepseek_v3")

    def test_deepseek_v31(self):
        self.check_format("deepseek_v31")

    def test_deepseek_v32(self):
        self.check_format("deepseek_v32")

    def test_kimi_k2(self):
        self.check_format("kimi_k2")

    def test_glm45(self):
        self.check_format("glm45")

    def test_a_schema_is_for_content_and_tools_are_for_calls(self):
        self.start("kimi_k2")
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                  "additionalProperties": False}
        kinds = set()
        for seed in range(4):
            tools = tools_of(seed)
            fields = {"tools": tools, "parallel_tool_calls": False, "n": ANSWERS, "seed": seed,
                      "response_format": {"type": "json_schema",
                                          "json_schema": {"name": "s", "schema": schema}}}
            for choice in self.ask(**fields).json()["choices"]:
                kinds.add(choice["finish_reason"])
                if choice["finish_reason"] == "tool_calls":
                    self.assert_calls(tools, choice)
                else:
                    self.assertTrue(is_valid(json.loads(choice["message"]["content"]), schema))
        self.assertEqual(kinds, {"stop", "tool_calls"})

    def test_calls_that_may_be_are_held_where_a_tool_is_strict(self):
        self.start("deepseek_v31")
        begun = {"tools": tools_of(0, strict=True), "n": ANSWERS, **BEGINS_WITH_CALLS}
        for seed in range(3):
            tools = tools_of(seed, strict=True)
            for choice in self.ask(**{**begun, "tools": tools}, seed=seed).json()["choices"]:
                self.assert_calls(tools, choice)
        # A text need not have any, and ends where it wants.
        text = self.ask(tools=begun["tools"], max_tokens=30, seed=1).json()["choices"][0]
        self.assertEqual((text["finish_reason"], "tool_calls" in text["message"]), ("length", False))
        # What has begun as a call of a tool that is not strict may go on as anything.
        for choice in self.ask(**{**begun, "tools": tools_of(0)}, max_tokens=30).json()["choices"]:
            self.assertNotEqual(choice["finish_reason"], "tool_calls")

    def test_a_parser_that_is_not_there_is_refused_with_all_that_are(self):
        code, said = refused("--tool-call-parser", "glm46")
        self.assertEqual(code, 2, said)
        for name in ("auto", *FORMATS):
            self.assertIn(name, said)
        self.assertTrue(re.search("did you mean glm4[57]", said), said)
        code, said = refused("--reasoning-parser", "thinks")
        self.assertEqual(code, 2, said)
        self.assertIn("auto, think, none", said)
        self.assertIn("did you mean think?", said)

    def test_reasoning_may_stay_in_the_content(self):
        self.server = Server("--reasoning-parser", "none")
        self.addCleanup(self.stop)
        text = "<think>hm</think>So."
        choice = self.ask(structured_outputs={"choice": [text]}).json()["choices"][0]
        self.assertEqual(choice["message"]["content"], text)
        self.assertNotIn("reasoning_content", choice["message"])


def said_of(choice):
    """Content, calls and end, as joined_stream has them."""
    message = choice["message"]
    return (message["content"] or "", [(call["function"]["name"], call["function"]["arguments"])
                                       for call in message.get("tool_calls", ())],
            choice["finish_reason"])


class SameTextTest(unittest.TestCase):
    """The same requests one by one, with nothing reused or guessed, and all at once in little room."""

    # Their prompt is the same.
    messages = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "Hello"}]

    def start(self, *flags):
        server = Server("--tool-call-parser", "deepseek_v31", *flags)

        def stop():
            self.assertEqual(server.wait_idle()["pages"]["in_use"], 0)
            self.assertEqual(server.stop(), 0, server.log)
        self.addCleanup(stop)
        return server

    def requests(self):
        fields = {"messages": self.messages, "temperature": 2, "top_p": 1, "n": 4, "max_tokens": 400}
        for seed in range(NUM_SEEDS):
            schema = {"response_format": {"type": "json_schema", "json_schema": {
                "name": "s", "schema": random_object(random.Random(seed))}}}
            required = {"tools": tools_of(seed), "tool_choice": "required",
                        "parallel_tool_calls": False}
            strict = {"tools": tools_of(seed, strict=True), **BEGINS_WITH_CALLS}
            for held in (schema, required, strict, {**schema, "stop": ["e", "1"]},
                         {**required, "stop": ["0\"", "5"]}):
                yield {**fields, "seed": seed, **held}
        # Held to nothing, and easily guessed: it says the same again and again.
        for _ in range(4):
            yield {**fields, "temperature": 0, "ignore_eos": True, "max_tokens": 300}

    def ask(self, server, request, stream):
        answer = server.post(CHAT, {**request, "stream": stream})
        self.assertEqual(answer.status, 200, answer.body)
        return (joined_stream(answer.body) if stream
                else [said_of(choice) for choice in answer.json()["choices"]])

    def test_what_is_held_is_the_same_text_whatever_else_runs(self):
        requests = list(self.requests())
        alone = self.start("--disable-radix-cache", "--max-total-tokens", 16384)
        expected = [self.ask(alone, request, stream=False) for request in requests]
        busy = self.start("--speculative-algorithm", "ngram", "--page-size", 7,
                          "--chunked-prefill-size", 32, "--max-running-requests", 24,
                          "--max-total-tokens", 4102)  # of one context and a bit
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            both = [pool.submit(self.ask, busy, request, stream) for request in requests
                    for stream in (False, True)]
            answers = [answer.result() for answer in both]
        for request, said, whole, streamed in zip(requests, expected, answers[::2], answers[1::2]):
            self.assertEqual(whole, said, request)
            self.assertEqual(streamed, said, request)
        self.assertEqual({end for said in expected for _, _, end in said},
                         {"stop", "tool_calls", "length"})
        counters = busy.stats()["counters"]
        for name in ("preemptions", "cached_tokens", "accepted_tokens"):
            self.assertGreater(counters[name], 0, name)


if __name__ == "__main__":
    serve_client.main()
