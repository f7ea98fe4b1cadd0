"""Answers of a live `quire serve` that are held to schemas, expressions and grammars, of a model without
weights at temperature 2: whatever it draws, it is valid, and the same text whatever runs beside it.

usage: structured_test.py BINARY MODEL [unittest arguments]
"""

import concurrent.futures
import json
import random
import re

import serve_client
from serve_client import ServerCase

CHAT = "/v1/chat/completions"
NUM_SCHEMAS = max(250 // serve_client.TEST_PARTS, 1)
ANSWERS = 8  # of each
NAMES = ("a", "id", "name", "caf\u00e9", "x\"y", "tab\t", "nam")


def random_value(rng, depth):
    kind = rng.randrange(11 if depth > 0 else 8)
    if kind == 0:
        return {"type": "boolean"}
    if kind == 1:
        return {"type": ["integer", "null"], "minimum": -rng.randrange(2000),
                "maximum": rng.randrange(300)}
    if kind == 2:
        return {"type": "number", "exclusiveMinimum": 0, "maximum": 1 + rng.randrange(1000)}
    if kind == 3:
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": 3 + rng.randrange(10)}
    if kind == 4:
        return {"enum": ["red", "gr\"een", 3, None, [1, "a"]]}
    if kind == 5:
        return {"type": "string", "pattern": "^[a-f]{2,6}(-[\"0-9]{1,3})?$"}
    if kind == 6:
        return {"type": "string", "format": rng.choice(["date-time", "uuid"])}
    if kind == 7:
        return {"const": {"k": 1.5}}
    if kind == 8:
        return {"type": "array", "items": random_value(rng, depth - 1), "minItems": rng.randrange(2),
                "maxItems": 1 + rng.randrange(3)}
    if kind == 9:
        return {"anyOf": [random_value(rng, depth - 1), random_value(rng, depth - 1)]}
    return random_object(rng, depth)


def random_object(rng, depth=2):
    names = [f"{rng.choice(NAMES)}{i}" for i in range(rng.randrange(1, 4))]
    return {"type": "object", "properties": {name: random_value(rng, depth - 1) for name in names},
            "required": [name for name in names if rng.random() < 0.7],
            "additionalProperties": False}


def is_of(kind, value):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"null": value is None, "boolean": isinstance(value, bool),
            "integer": number and value == int(value), "number": number,
            "string": isinstance(value, str), "array": isinstance(value, list),
            "object": isinstance(value, dict)}[kind]


def is_valid(value, schema):
    """What JSON Schema says, as far as the schemas above go."""
    kinds = schema.get("type", [])
    if kinds and not any(is_of(k, value) for k in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "anyOf" in schema and not any(is_valid(value, one) for one in schema["anyOf"]):
        return False
    if isinstance(value, dict) and "properties" in schema:
        return (set(schema["required"]) <= set(value) <= set(schema["properties"])
                and all(is_valid(value[name], schema["properties"][name]) for name in value))
    if isinstance(value, list) and "items" in schema:
        return (schema["minItems"] <= len(value) <= schema["maxItems"]
                and all(is_valid(item, schema["items"]) for item in value))
    if isinstance(value, str):
        return (schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9)
                and ("pattern" not in schema or re.search(schema["pattern"], value) is not None))
    if is_of("number", value):
        return (schema.get("minimum", value) <= value <= schema.get("maximum", value)
                and value > schema.get("exclusiveMinimum", value - 1))
    return True


class StructuredTest(ServerCase):
    # Little room: answers preempt each other.
    flags = ("--max-running-requests", 16, "--max-total-tokens", 4096)

    def chat(self, **fields):
        body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 2, "top_p": 1,
                "max_tokens": 1500, **fields}
        answer = self.server.post(CHAT, body)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()["choices"]

    def schema_request(self, seed):
        schema = random_object(random.Random(seed))
        return schema, {"n": ANSWERS, "seed": seed, "response_format": {
            "type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}}

    def test_answers_of_random_schemas_parse_and_validate_whatever_runs_beside_them(self):
        requests = [self.schema_request(seed) for seed in range(NUM_SCHEMAS)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda request: self.chat(**request[1]), requests))
        ended = 0
        for (schema, _), choices in zip(requests, answers):
            for choice in choices:
                if choice["finish_reason"] != "stop":
                    continue
                ended += 1
                text = choice["message"]["content"]
                self.assertTrue(is_valid(json.loads(text), schema), (schema, text))
        self.assertEqual(ended, NUM_SCHEMAS * ANSWERS)
        # Alone they are the same.
        for i in range(0, NUM_SCHEMAS, 25):
            self.assertEqual([c["message"]["content"] for c in self.chat(**requests[i][1])],
                             [c["message"]["content"] for c in answers[i]])

    def test_streams_are_the_same_text(self):
        for seed in range(5):
            _, request = self.schema_request(seed)
            whole = [choice["message"]["content"] for choice in self.chat(**request)]
            texts = [""] * ANSWERS
            ends = [None] * ANSWERS
            body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 2, "top_p": 1,
                    "max_tokens": 1500, "stream": True, **request}
            for line in self.server.post(CHAT, body).body.decode().split("\n"):
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content") or ""
                    ends[choice["index"]] = choice["finish_reason"] or ends[choice["index"]]
            self.assertEqual(texts, whole)
            self.assertEqual(ends, ["stop"] * ANSWERS)

    def test_every_kind_and_name(self):
        for choice in self.chat(n=8, structured_outputs={"choice": ["yes", "no, never"]}):
            self.assertIn(choice["message"]["content"], ("yes", "no, never"))
        for fields in ({"guided_regex": "[0-9]{3}-[a-f]{2,4}"},
                       {"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2,4}"}}):
            for choice in self.chat(n=8, **fields):
                self.assertRegex(choice["message"]["content"], r"\A[0-9]{3}-[a-f]{2,4}\Z")
        for choice in self.chat(n=8, guided_grammar="root ::= \"(\" root? \")\" | [0-9]"):
            self.assertRegex(choice["message"]["content"], r"\A\(*[0-9]?\)*\Z")
        self.assertIn(self.chat(guided_json="{\"type\": \"boolean\"}")[0]["message"]["content"],
                      ("true", "false"))
        answer = self.server.post("/generate", {"text": "Hello", "sampling_params": {
            "regex": "[xyz]{5}", "temperature": 2}}).json()
        self.assertRegex(answer["text"], r"\A[xyz]{5}\Z")

    def test_any_object_is_json_as_far_as_it_goes(self):
        for choice in self.chat(n=8, max_tokens=400, response_format={"type": "json_object"}):
            text = choice["message"]["content"]
            self.assertTrue(text.startswith("{"), text)
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(text), dict)

    def test_reasoning_is_free(self):
        # Few draw "</think>" by chance; none ends before it.
        for choice in self.chat(n=16, seed=0, max_tokens=60,
                                chat_template_kwargs={"enable_thinking": True},
                                structured_outputs={"choice": ["yes", "no"]}):
            if choice["finish_reason"] == "stop":
                self.assertIn(choice["message"]["content"], ("yes", "no"))
            else:
                self.assertTrue(choice["message"]["reasoning_content"])

    def test_what_is_not_supported_is_refused_by_name(self):
        for field, value, param, said in (
                ("guided_json", {"type": "object", "properties": {"a": {"not": {}}}}, "guided_json",
                 "#/properties/a: \"not\": not supported"),
                ("guided_regex", "(?=a)", "guided_regex", "lookahead"),
                ("guided_grammar", "root ::= root \"a\"", "guided_grammar", "rule root"),
                ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": 7}}},
                 "response_format.json_schema.schema", "\"type\"")):
            answer = self.server.post(CHAT, {"messages": [{"role": "user", "content": "x"}],
                                             field: value})
            self.assertEqual(answer.status, 400, answer.body)
            self.assertEqual(answer.error["param"], param)
            self.assertIn(said, answer.error["message"])


if __name__ == "__main__":
    serve_client.main()
