"""How `quire serve` ends: SIGTERM and SIGINT under load.

usage: sigterm_test.py BINARY MODEL [unittest arguments]
"""

import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import serve_client
from serve_client import Server, wait_for

NUM_STREAMS = 8
# Of an answer that a test waits for, and of one that is cut off: more than the model gives in the
# time that anything here takes.
SHORT, LONG = 300, 120_000
# How long the last answer of a drain takes at least, so that a test has time to look on.
DRAIN_S = 1


@contextlib.contextmanager
def full_pipe():
    """The end to write to of a pipe that takes nothing."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    for size in (4096, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(ends[1], b"x" * size)
    os.set_blocking(ends[1], True)
    try:
        yield ends[1]
    finally:
        for end in ends:
            os.close(end)


def health_at(address):
    """What /health says at a unix socket; None if nobody listens there yet."""
    connection = serve_client.UnixConnection(address)
    try:
        connection.request("GET", "/health")
        return json.loads(connection.getresponse().read())
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    finally:
        connection.close()


class Reader(threading.Thread):
    """Reads a stream to its end while the test goes on."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self._stream = stream
        self.broke = None
        self.start()

    def run(self):
        try:
            self._stream.read()
        except (http.client.HTTPException, OSError) as error:
            self.broke = error
        finally:
            self._stream.close()

    def end(self):
        self.join(serve_client.WAIT_S)
        if self.is_alive():
            raise TimeoutError("a stream did not end")
        return self._stream


class SignalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.model = serve_client.long_model(folder.name)

    def start(self, *flags, **options):
        server = Server("--max-total-tokens", 1 << 20, *flags, model=self.model, **options)
        self.addCleanup(server.kill)
        return server

    def open_streams(self, server, max_tokens, count=NUM_STREAMS):
        """Streams of which each has begun to answer."""
        streams = [server.open_stream(f"Question {i}", max_tokens=max_tokens) for i in range(count)]
        for stream in streams:
            next(stream.events())
        return [Reader(stream) for stream in streams]

    def wait_draining(self, server):
        def draining():
            health = server.ask("GET", "/health")
            self.assertIn(health.status, (200, 503))
            return health.status == 503 and health
        return wait_for(draining, "the server to drain")

    def test_answers_are_finished(self):
        server = self.start("--drain-timeout", serve_client.WAIT_S)
        begin = time.monotonic()
        expected = server.complete("Question 0", max_tokens=SHORT, ignore_eos=True).json()
        # A sanitized build is a hundred times slower than an optimised one.
        last_tokens = SHORT + int(SHORT * DRAIN_S / (time.monotonic() - begin))
        last = self.open_streams(server, last_tokens, count=1)
        readers = self.open_streams(server, SHORT)
        server.signal()
        health = self.wait_draining(server)
        self.assertEqual(health.json()["status"], "draining")
        self.assertTrue(health.headers["Retry-After"])
        refused = server.complete(max_tokens=1)
        self.assertEqual((refused.status, refused.error["type"]), (503, "service_unavailable_error"))
        for reader, num_tokens in [(reader, SHORT) for reader in readers] + [(last[0], last_tokens)]:
            stream = reader.end()
            self.assertIsNone(reader.broke)
            self.assertIsNone(stream.error)
            self.assertTrue(stream.is_done)
            self.assertEqual(stream.usage["completion_tokens"], num_tokens)
        self.assertEqual(readers[0].end().text, expected["choices"][0]["text"])
        self.assertEqual(server.wait(), 0)
        self.assertIn("SIGTERM: draining, ", server.log)
        with self.assertRaises(OSError):
            server.raw()

    def test_whole_answers_are_finished_too(self):
        server = self.start("--drain-timeout", serve_client.WAIT_S)
        answers = []
        clients = [threading.Thread(target=lambda i=i: answers.append(
            server.complete(f"Question {i}", max_tokens=SHORT, ignore_eos=True)), daemon=True)
            for i in range(NUM_STREAMS)]
        for client in clients:
            client.start()
        wait_for(lambda: len(server.stats()["running"]) == NUM_STREAMS or len(answers) > 0,
                 "the requests to run")
        server.signal(signal.SIGINT)
        self.assertEqual(server.wait(), 0)
        for client in clients:
            client.join(serve_client.WAIT_S)
        self.assertEqual([answer.status for answer in answers], [200] * NUM_STREAMS)
        for answer in answers:
            self.assertEqual(answer.json()["usage"]["completion_tokens"], SHORT)
        self.assertIn("SIGINT: draining, ", server.log)

    def test_answers_that_take_too_long_are_cut_off_and_told_so(self):
        server = self.start("--drain-timeout", 0.2)
        readers = self.open_streams(server, LONG)
        server.signal()
        for reader in readers:
            stream = reader.end()
            self.assertIsNone(reader.broke)  # its HTTP ends as it should
            self.assertEqual(stream.error["code"], "cancelled")
            self.assertFalse(stream.is_done)
        self.assertEqual(server.wait(), 0)
        self.assertIn(f"cancelling {NUM_STREAMS} requests", server.log)

    def test_second_signal_ends_now(self):
        for first, second in ((signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM),
                              (signal.SIGTERM, signal.SIGINT)):
            with self.subTest(first=first.name, second=second.name):
                server = self.start("--drain-timeout", 10 * serve_client.WAIT_S)
                readers = self.open_streams(server, LONG)
                server.signal(first)
                self.wait_draining(server)
                server.signal(second)
                self.assertEqual(server.wait(), 0)
                self.assertIn("ending now", server.log)
                for reader in readers:
                    stream = reader.end()
                    self.assertFalse(stream.is_done)  # nobody takes it for a whole answer
                    self.assertIsNotNone(reader.broke)

    def test_nothing_to_wait_for(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number=number.name):
                server = self.start()
                server.signal(number)
                self.assertEqual(server.wait(), 0)
                self.assertIn(f"{number.name}: draining, 0 requests open", server.log)

    def test_connections_that_ask_nothing_hold_up_nobody(self):
        server = self.start()
        idle = [server.raw() for _ in range(5)]
        half = server.raw()
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        server.ask("GET", "/health")  # by now it has seen them
        server.signal()
        self.assertEqual(server.wait(), 0)
        for client in [*idle, half]:
            client.close()

    def test_reader_that_takes_nothing_holds_up_nobody(self):
        server = self.start("--drain-timeout", 0.2)
        stream = server.open_stream(max_tokens=LONG, logprobs=20)
        next(stream.events())
        server.signal()
        self.assertEqual(server.wait(), 0)
        stream.close()

    def test_while_it_loads(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number=number.name):
                with tempfile.TemporaryDirectory() as folder:
                    # So many weights that they take a while to make up.
                    model = f"{folder}/model"
                    shutil.copytree(self.model, model)
                    config = pathlib.Path(model, "config.json")
                    wide = {**json.loads(config.read_text()), "intermediate_size": 1 << 20}
                    config.write_text(json.dumps(wide))
                    address = f"{folder}/socket"
                    process = subprocess.Popen(
                        [serve_client.BINARY, "serve", model, "--load-format", "dummy",
                         "--unix-socket", address, "--access-log", "off"],
                        env=serve_client.environment(), stdin=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL)
                    self.addCleanup(process.kill)
                    self.assertEqual(wait_for(lambda: health_at(address), "the server to listen"),
                                     {"status": "loading"})
                    process.send_signal(number)
                    # There is nothing to end properly.
                    self.assertEqual(process.wait(serve_client.WAIT_S), -number)

    def test_a_log_that_is_full_from_the_beginning_stops_nothing(self):
        with tempfile.TemporaryDirectory() as folder, full_pipe() as log:
            address = f"{folder}/socket"
            process = subprocess.Popen(
                [serve_client.BINARY, "serve", self.model, "--load-format", "dummy",
                 "--unix-socket", address],
                env=serve_client.environment(), stdin=subprocess.DEVNULL, stderr=log)
            self.addCleanup(process.kill)
            wait_for(lambda: (health_at(address) or {}).get("status") == "ok", "the server to be ready")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(serve_client.WAIT_S), 0)

    def test_a_log_that_nobody_reads_stops_nothing(self):
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        with tempfile.TemporaryDirectory() as folder:
            address = f"{folder}/socket"
            process = subprocess.Popen(
                [serve_client.BINARY, "serve", self.model, "--load-format", "dummy",
                 "--unix-socket", address],
                env=serve_client.environment(), stdin=subprocess.DEVNULL, stderr=write)
            os.close(write)
            self.addCleanup(process.kill)
            wait_for(lambda: b"ready: " in os.read(read, 4096), "the server to be ready")
            # Lines of 3 KB each: more than the pipe and all that may wait for it.
            for _ in range(500):
                connection = serve_client.UnixConnection(address)
                connection.request("GET", "/" + "x" * 3000)
                self.assertEqual(connection.getresponse().status, 404)
                connection.close()
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(serve_client.WAIT_S), 0)


if __name__ == "__main__":
    serve_client.main()
