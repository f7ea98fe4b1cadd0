"""Clients for a live `quire serve`, well-behaved and not: what load_test.py and soak.py put on it.

A client asks what was asked before the load, one at a time: answers must be the same.
"""

import asyncio
import json
import random
import re
import socket
import time

NUM_CLIENTS = 64
NUM_CASES = 40
SEED = 20240607
ANSWER_S = 600  # nothing takes so long: an answer that does not come
WORDS = ("a page of the book is read by the one who waits for it while others write more of "
         "them and no two are of the same length or hold the same words as before").split()

# What a client does with a request, and how often.
BEHAVIOURS = {
    "stream": 40,   # reads it all
    "whole": 20,    # asks for it in one piece
    "slow": 10,     # reads little at a time
    "leave": 12,    # closes the connection in the middle
    "reset": 6,     # the same, with a reset
    "vanish": 4,    # sends its request and is gone
    "half": 4,      # sends half of a request and is gone
    "wrong": 4,     # asks for what cannot be
}


# What answers are held to, and who can tell that they are.
NAME = {"type": "string", "minLength": 1, "maxLength": 12}
SCHEMA = {"type": "object", "properties": {"name": NAME, "tags": {"type": "array", "items": NAME,
          "maxItems": 2}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "tags", "age"], "additionalProperties": False}
CONSTRAINTS = (
    ({"guided_regex": "[a-f]{5,30}"}, re.compile("[a-f]{5,30}").fullmatch),
    ({"structured_outputs": {"choice": ["a page", "of the book"]}}, {"a page", "of the book"}.__contains__),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "strict": True,
                                                                 "schema": SCHEMA}}},
     lambda text: set(json.loads(text)) == set(SCHEMA["required"])),
)
# Calls that must be made; an Answer has them as the tool's name and its arguments.
TOOL_FLAGS = ("--tool-call-parser", "glm45")  # of the server
TOOLS = {"tool_choice": "required", "parallel_tool_calls": False,
         "tools": [{"type": "function", "function": {"name": "greet", "parameters": SCHEMA}}]}
NUM_TOOL_CASES = 3


# ---- What is asked ----

def make_text(rng, num_words):
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def make_case(rng, prefixes, lengths):
    """A request whose answer is always the same."""
    text = rng.choice(prefixes) + make_text(rng, rng.choice((1, 5, 20, 60, 200)))
    body = {"max_tokens": rng.choice(lengths), "temperature": 0,
            "ignore_eos": rng.random() < 0.8}
    if rng.random() < 0.2:
        body.update(temperature=1, seed=rng.randrange(1000), n=rng.choice((1, 2, 3)))
    if rng.random() < 0.2:
        body["stop"] = [rng.choice(("e", "th", "zz"))]
    if rng.random() < 0.3:
        body.update(rng.choice(CONSTRAINTS)[0], max_tokens=max(lengths))
    if rng.random() < 0.5:
        return "/v1/completions", {"prompt": text, **body}
    if rng.random() < 0.3:
        body.update(logprobs=True, top_logprobs=5)
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body}


def make_cases(lengths=(1, 2, 7, 20, 50, 100, 200), most_tokens=800):
    """NUM_CASES of them, with answers of up to one of `lengths`; the last has `most_tokens`."""
    rng = random.Random(SEED)
    prefixes = ["", *(make_text(rng, n) + " " for n in (30, 150, 400))]
    cases = [make_case(rng, prefixes, lengths) for _ in range(NUM_CASES - 1 - NUM_TOOL_CASES)]
    for seed in range(NUM_TOOL_CASES):
        cases.append(("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Greet."}], "max_tokens": 2 * max(lengths),
            "temperature": 1, "seed": seed, "n": 1 + seed, "ignore_eos": True, **TOOLS}))
    # So much that it does not fit into the buffers between the server and one who does not read.
    cases.append(("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Go on."}], "max_tokens": most_tokens, "temperature": 0,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 20}))
    return cases


def check_constraint(case, answer):
    """Raises Failure where an answer has ended and is not what its request holds it to; how many were."""
    _, body = case
    num_held = 0
    for fields, is_allowed in CONSTRAINTS:
        if "stop" in body or not fields.items() <= body.items():
            continue
        for text, reason, _ in answer.choices.values():
            if reason == "stop":
                num_held += 1
                if not is_allowed(text):
                    raise Failure(f"{fields}: {text!r}")
    if TOOLS.items() <= body.items():
        for text, reason, _ in answer.choices.values():
            if reason == "tool_calls":
                num_held += 1
                name, arguments = text[:len("greet")], json.loads(text[len("greet"):])
                if name != "greet" or set(arguments) != set(SCHEMA["required"]):
                    raise Failure(f"calls: {text!r}")
    return num_held


# ---- What is answered ----

class Answer:
    """Of each choice its text, its end, and how many log-probabilities; and the tokens of all."""

    def __init__(self):
        self.choices = {}
        self.num_tokens = None

    def add(self, body):
        for choice in body["choices"]:
            text, reason, num_logprobs = self.choices.get(choice["index"], ("", None, 0))
            part = choice.get("message") or choice.get("delta") or {}
            text += choice.get("text") or part.get("content") or ""
            for call in part.get("tool_calls") or ():
                text += (call["function"].get("name") or "") + call["function"]["arguments"]
            logprobs = choice.get("logprobs") or {}
            self.choices[choice["index"]] = (text, choice["finish_reason"] or reason,
                                             num_logprobs + len(logprobs.get("content") or ()))
        if body.get("usage"):
            self.num_tokens = body["usage"]["completion_tokens"]

    def __eq__(self, other):
        return (self.choices, self.num_tokens) == (other.choices, other.num_tokens)

    def __repr__(self):
        return f"{self.num_tokens} tokens: {self.choices}"


class Failure(Exception):
    """What must not happen."""


class Connection:
    """HTTP over asyncio's streams: just what this server speaks."""

    @classmethod
    async def open(cls, address, receive_bytes=None):
        client = socket.socket()
        client.setblocking(False)
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(client, address)
        self = cls()
        self._socket = client
        limit = {"limit": receive_bytes} if receive_bytes else {}
        self._reader, self._writer = await asyncio.open_connection(sock=client, **limit)
        return self

    async def send(self, path, body, part=1.0):
        """A request, or so much of it from its beginning; a `body` that is not bytes is JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        data = head.encode() + data
        self._writer.write(data[:int(len(data) * part)])
        await self._writer.drain()

    async def head(self):
        """The status and the headers."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return int(head[0].split()[1]), headers

    async def pieces(self, headers):
        if "content-length" in headers:
            yield await self._reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)

    def close(self, reset=False):
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self._writer.transport.abort()
        else:
            self._writer.close()


async def read_stream(connection, headers, answer, pause_s=0):
    """Adds events to `answer` and yields after each; the last must be [DONE]."""
    rest, data = b"", b""
    async for piece in connection.pieces(headers):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: "):
                continue
            data = line[len(b"data: "):]
            if data == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise Failure(f"a stream ended with {event}")
            answer.add(event)
            yield
        if pause_s:
            await asyncio.sleep(pause_s)
    if data != b"[DONE]":
        raise Failure(f"a stream ended with {data!r}")


def as_stream(body):
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


# ---- The clients ----

def ask_one_at_a_time(server, cases):
    """What the server answers when it has nothing else to do."""
    answers = []
    for path, body in cases:
        response = server.post(path, body)
        if response.status != 200:
            raise Failure(f"{path} {body}: {response.status} {response.body}")
        answers.append(Answer())
        answers[-1].add(response.json())
    return answers


# What the server says to a body that is none.
BAD_BODIES = (b"", b"{", b"[]", b"null", b'{"prompt": "\xff\xfe"', b'{"prompt": ' + b"[" * 2000,
              b'{"prompt": "x", "max_tokens": 1e999}', b"\0" * 100)


class Load:
    """64 clients until `seconds` have passed or `num_requests` were begun, and what they saw. `look`
    is called with the load several times a second."""

    def __init__(self, server, cases, answers):
        self._server = server
        self._address = server.address
        self._cases, self._answers = cases, answers
        self.num_begun = 0     # requests of all kinds
        self.num_sent = 0      # whole requests that were good
        self.num_finished = {name: 0 for name in BEHAVIOURS}
        self.statuses = {}     # of responses that were read
        self.tokens_seen = 0   # of finished answers
        self.choices_seen = 0
        self.failures = []
        self.memory = 0        # resident bytes, when it was last looked at
        self.max_memory = 0
        self.max_running = 0

    def run(self, seconds, num_requests=float("inf"), look=lambda load: None):
        asyncio.run(self._run(time.monotonic() + seconds, num_requests, look))
        return self

    async def _run(self, end, num_requests, look):
        clients = [asyncio.create_task(self._client(random.Random(SEED + i), end, num_requests))
                   for i in range(NUM_CLIENTS)]
        watcher = asyncio.create_task(self._watch(look))
        await asyncio.gather(*clients)
        watcher.cancel()

    async def _watch(self, look):
        while True:
            self.memory = self._server.memory_bytes()
            self.max_memory = max(self.max_memory, self.memory)
            stats = await asyncio.to_thread(self._server.stats)
            self.max_running = max(self.max_running, len(stats["running"]))
            look(self)
            await asyncio.sleep(0.2)

    async def _client(self, rng, end, num_requests):
        kept = None  # a connection that is used again
        while (time.monotonic() < end and self.num_begun < num_requests and not self.failures):
            self.num_begun += 1
            behaviour = rng.choices(list(BEHAVIOURS), BEHAVIOURS.values())[0]
            case = rng.randrange(NUM_CASES)
            try:
                keeps = behaviour in ("stream", "whole", "wrong")
                if not keeps or kept is None or rng.random() < 0.2:
                    if kept:
                        kept.close()
                    kept = await Connection.open(self._address, 4096 if behaviour == "slow" else None)
                await asyncio.wait_for(getattr(self, "_" + behaviour)(kept, rng, case), ANSWER_S)
                self.num_finished[behaviour] += 1
                if not keeps:
                    kept.close()
                    kept = None
            except (Failure, OSError, EOFError, ValueError, KeyError, asyncio.TimeoutError) as error:
                path, body = self._cases[case]
                self.failures.append(f"{behaviour} {path} {json.dumps(body)[:300]}: {error!r}")
        if kept:
            kept.close()

    async def _head(self, connection, expected=200):
        status, headers = await connection.head()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status != expected:
            raise Failure(f"expected status {expected}, got {status}")
        return headers

    def _check(self, case, answer):
        if answer != self._answers[case]:
            raise Failure(f"expected {self._answers[case]}, got {answer}")
        self.tokens_seen += answer.num_tokens
        self.choices_seen += len(answer.choices)

    async def _send(self, connection, case, stream=True):
        path, body = self._cases[case]
        await connection.send(path, as_stream(body) if stream else body)
        self.num_sent += 1

    async def _stream(self, connection, _, case, pause_s=0):
        await self._send(connection, case)
        answer = Answer()
        async for _ in read_stream(connection, await self._head(connection), answer, pause_s):
            pass
        self._check(case, answer)

    async def _slow(self, connection, rng, case):
        # Most of them what is large.
        case = NUM_CASES - 1 if rng.random() < 0.7 else case
        await self._stream(connection, rng, case, pause_s=0.01)

    async def _whole(self, connection, _, case):
        await self._send(connection, case, stream=False)
        headers = await self._head(connection)
        answer = Answer()
        answer.add(json.loads(b"".join([piece async for piece in connection.pieces(headers)])))
        self._check(case, answer)

    async def _leave(self, connection, rng, case):
        await self._send(connection, case)
        answer = Answer()
        left = rng.randrange(1, 30)
        async for _ in read_stream(connection, await self._head(connection), answer):
            left -= 1
            if left == 0:
                break

    async def _reset(self, connection, rng, case):
        await self._leave(connection, rng, case)
        connection.close(reset=True)

    async def _vanish(self, connection, rng, case):
        await self._send(connection, case, stream=rng.random() < 0.5)
        connection.close(reset=rng.random() < 0.5)

    async def _half(self, connection, rng, case):
        path, body = self._cases[case]
        await connection.send(path, body, part=rng.uniform(0.1, 0.9))
        connection.close(reset=rng.random() < 0.5)

    async def _wrong(self, connection, rng, case):
        path, body = self._cases[case]
        wrong = rng.choice(({"temperature": -1}, {"max_tokens": "x"}, {"tools": [1]}, {"oops": 1}))
        bad = rng.choice(BAD_BODIES) if rng.random() < 0.5 else {**body, **wrong}
        await connection.send(path, bad)
        headers = await self._head(connection, expected=400)
        async for _ in connection.pieces(headers):
            pass
