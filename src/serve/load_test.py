"""Many clients at once, well-behaved and not, against a live `quire serve`.

usage: load_test.py BINARY MODEL SECONDS SANITIZERS [unittest arguments]

For SECONDS, 64 clients ask what was asked before the load, one at a time: answers must be the same.
SANITIZERS is what the binary was built with, or none: with one, the memory of the process is not
compared with its plan.
"""

import asyncio
import json
import random
import socket
import sys
import time
import unittest

import serve_client
from serve_client import Server

SECONDS = float(sys.argv[3])
SANITIZERS = sys.argv[4]
NUM_CLIENTS = 64
NUM_CASES = 40
SEED = 20240607
ANSWER_S = 600  # nothing takes so long: an answer that does not come
MEMORY_TOLERANCE = 0.05
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


# ---- What is asked ----

def make_text(rng, num_words):
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


def make_case(rng, prefixes):
    """A request whose answer is always the same."""
    text = rng.choice(prefixes) + make_text(rng, rng.choice((1, 5, 20, 60, 200)))
    body = {"max_tokens": rng.choice((1, 2, 7, 20, 50, 100, 200)), "temperature": 0,
            "ignore_eos": rng.random() < 0.8}
    if rng.random() < 0.2:
        body.update(temperature=1, seed=rng.randrange(1000), n=rng.choice((1, 2, 3)))
    if rng.random() < 0.2:
        body["stop"] = [rng.choice(("e", "th", "zz"))]
    if rng.random() < 0.5:
        return "/v1/completions", {"prompt": text, **body}
    if rng.random() < 0.3:
        body.update(logprobs=True, top_logprobs=5)
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body}


def make_cases():
    rng = random.Random(SEED)
    prefixes = ["", *(make_text(rng, n) + " " for n in (30, 150, 400))]
    cases = [make_case(rng, prefixes) for _ in range(NUM_CASES - 1)]
    # So much that it does not fit into the buffers between the server and one who does not read.
    cases.append(("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 800, "temperature": 0,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 20}))
    return cases


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
        data = json.dumps(body).encode()
        data = (f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                + data)
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

class Load:
    """64 clients until `seconds` have passed, and what they saw."""

    def __init__(self, server, cases, answers):
        self._server = server
        self._address = server.address
        self._cases, self._answers = cases, answers
        self.num_sent = 0      # whole requests that were good
        self.num_finished = {name: 0 for name in BEHAVIOURS}
        self.statuses = {}     # of responses that were read
        self.tokens_seen = 0   # of finished answers
        self.choices_seen = 0
        self.failures = []
        self.max_memory = 0
        self.max_running = 0

    def run(self, seconds):
        asyncio.run(self._run(time.monotonic() + seconds))
        return self

    async def _run(self, end):
        clients = [asyncio.create_task(self._client(random.Random(SEED + i), end))
                   for i in range(NUM_CLIENTS)]
        watcher = asyncio.create_task(self._watch())
        await asyncio.gather(*clients)
        watcher.cancel()

    async def _watch(self):
        while True:
            self.max_memory = max(self.max_memory, self._server.memory_bytes())
            stats = await asyncio.to_thread(self._server.stats)
            self.max_running = max(self.max_running, len(stats["running"]))
            await asyncio.sleep(0.2)

    async def _client(self, rng, end):
        kept = None  # a connection that is used again
        while time.monotonic() < end and not self.failures:
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
        async for piece in connection.pieces(headers):
            answer.add(json.loads(piece))
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
        await connection.send(path, {**body, **wrong})
        headers = await self._head(connection, expected=400)
        async for _ in connection.pieces(headers):
            pass


class LoadTest(unittest.TestCase):
    def ask_one_at_a_time(self, server, cases):
        answers = []
        for path, body in cases:
            response = server.post(path, body)
            self.assertEqual(response.status, 200, response.body)
            answers.append(Answer())
            answers[-1].add(response.json())
        return answers

    def start(self, *flags):
        server = Server("--access-log", "off", *flags, leak_check=True)
        self.addCleanup(server.kill)
        return server

    def check_load(self, server, seconds):
        cases = make_cases()
        answers = self.ask_one_at_a_time(server, cases)
        self.assertGreater(len({repr(answer) for answer in answers}), NUM_CASES // 2)
        load = Load(server, cases, answers).run(seconds)
        self.assertIsNone(server.process.poll(), f"the server has ended:\n{server.log[-5000:]}")
        stats = server.wait_idle()
        print(f"{seconds:g} s: {load.num_finished}, {load.tokens_seen} tokens, at most "
              f"{load.max_running} running; {stats['counters']}", flush=True)
        self.assertEqual(load.failures, [])
        for behaviour, count in load.num_finished.items():
            self.assertGreater(count, 0, behaviour)
        self.assertEqual(set(load.statuses), {200, 400})
        self.assertEqual((stats["running"], stats["waiting"], stats["pages"]["in_use"]), ([], 0, 0))
        self.check_numbers(server, load, answers)
        return load, stats

    def check_numbers(self, server, load, answers):
        """/metrics against what the clients saw, and against itself."""
        metrics = server.metrics()
        stats = server.stats()
        counters = stats["counters"]
        ends = {reason: metrics[f'request_success_total{{finished_reason="{reason}"}}']
                for reason in ("stop", "length", "cancelled", "deadline", "failed")}
        self.assertEqual((ends["deadline"], ends["failed"]), (0, 0))
        self.assertEqual(sum(ends.values()), counters["answers_finished"])
        self.assertEqual(ends, stats["answers"])
        before = len(answers)
        self.assertLessEqual(counters["requests_added"], before + load.num_sent)
        self.assertGreaterEqual(counters["requests_added"], before + sum(
            load.num_finished[name] for name in ("stream", "whole", "slow", "leave", "reset")))
        self.assertEqual(metrics["e2e_request_latency_seconds_count"], counters["requests_added"])
        choices_before = sum(len(answer.choices) for answer in answers)
        self.assertGreaterEqual(ends["stop"] + ends["length"], choices_before + load.choices_seen)
        self.assertGreater(ends["cancelled"], 0)
        tokens_before = sum(answer.num_tokens for answer in answers)
        self.assertEqual(metrics["generation_tokens_total"], counters["output_tokens"])
        self.assertEqual(metrics["generation_tokens_total"], metrics["request_generation_tokens_sum"])
        self.assertGreaterEqual(metrics["generation_tokens_total"], tokens_before + load.tokens_seen)
        self.assertEqual(metrics["request_generation_tokens_count"], counters["answers_finished"])
        self.assertGreater(metrics["prefix_cache_hits_total"], 0)
        self.assertLessEqual(metrics["prefix_cache_hits_total"], metrics["prompt_tokens_total"])
        self.assertEqual(counters["requests_refused"], 0)
        statuses = {int(status) for status in stats["http_responses"]}
        self.assertLessEqual(statuses, {200, 400})
        self.assertEqual(stats["http_responses"]["400"], load.num_finished["wrong"])

    def test_load(self):
        # So much that the program itself is little beside it.
        server = self.start("--max-total-tokens", 6 << 20, "--max-running-requests", NUM_CLIENTS)
        load, _ = self.check_load(server, SECONDS)
        self.assertGreater(load.max_running, NUM_CLIENTS // 4)
        plan = server.ask("GET", "/server_info").json()["memory_bytes"]
        ratio = max(load.max_memory, server.memory_bytes()) / plan
        print(f"resident memory: {ratio:.3f} of the plan of {plan / 2**20:.0f} MiB")
        self.assertEqual(server.stop(), 0)
        self.assertGreater(plan, 500 << 20)
        if SANITIZERS != "none":
            print(f"SKIPPED: memory against the plan, because the build has -fsanitize={SANITIZERS}")
            return
        self.assertLess(abs(ratio - 1), MEMORY_TOLERANCE)

    def test_load_in_little_memory(self):
        """Answers lose their pages to others, and go on later."""
        server = self.start("--max-total-tokens", 8192, "--context-length", 4096,
                            "--max-running-requests", 32, "--page-size", 16)
        _, stats = self.check_load(server, max(SECONDS / 4, 5))
        self.assertGreater(stats["counters"]["preemptions"], 0)
        self.assertGreater(stats["counters"]["evicted_pages"], 0)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    serve_client.main(num_arguments=4)
