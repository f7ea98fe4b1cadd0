"""Drives `quire bench --url` against a server of its own that speaks the OpenAI protocol.

The name of the model says how the server behaves, so that every kind of answer can be had from
one. Times are only ever held against what the server waits at least.

usage: bench_client_test.py BINARY SOURCE_DIR [unittest arguments]
"""

import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree

BINARY = sys.argv[1]
FIRST_DELAY = 0.05
NEXT_DELAY = 0.2  # a client that is held up for so long would see two parts at once
KEY = "sk-very-secret"
NO_LEAK_CHECK = {"ASAN_OPTIONS": "detect_leaks=0"}
KNOWN_FIELDS = {"model", "messages", "prompt", "max_tokens", "stream", "stream_options"}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self, status, body, content_type="application/json"):
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers), None))
        if self.server.asks_for_key and "Authorization" not in self.headers:
            return self.answer(401, json.dumps({"error": {"message": "no key"}}))
        return self.answer(200, json.dumps({"data": [{"id": "plain"}, {"id": "other"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.seen)
            self.server.seen.append((self.path, dict(self.headers), body))
            self.server.running += 1
            self.server.most_running = max(self.server.most_running, self.server.running)
        try:
            self.complete(body, number)
        except OSError:
            self.close_connection = True  # the client went away
        finally:
            with self.server.lock:
                self.server.running -= 1

    def complete(self, body, number):
        model = body["model"]
        if model == "mixed":
            model = ("plain", "http 503", "cut")[number % 3]
        if model == "strict" and not set(body) <= KNOWN_FIELDS:
            return self.answer(400, json.dumps({"error": {"message": "unknown field ignore_eos"}}))
        if model == "http 503":
            return self.answer(503, json.dumps({"error": {"message": "draining"}}))
        if model == "text 500":
            return self.answer(500, "<html>oops</html>", "text/html")
        if model == "whole":
            return self.answer(200, json.dumps({"choices": [{"message": {"content": "x"}}]}))
        if model == "closed":
            self.close_connection = True
            return None
        if model == "hang":
            self.server.ended.wait(20)
            self.close_connection = True
            return None
        return self.stream(body, model)

    def piece(self, data):
        data = data.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, data):
        self.piece("data: " + (data if isinstance(data, str) else json.dumps(data)) + "\n\n")

    def text_event(self, text, **choice):
        if self.path.endswith("/chat/completions"):
            self.event({"choices": [{"index": 0, "delta": {"content": text}, **choice}]})
        else:
            self.event({"choices": [{"index": 0, "text": text, **choice}]})

    def stream(self, body, model):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.path.endswith("/chat/completions"):
            self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        time.sleep(FIRST_DELAY)
        self.piece(": ping\n\n")
        for i in range(body["max_tokens"] // 2):
            if i > 0:
                time.sleep(NEXT_DELAY)
            self.text_event("two tokens ")
        if model == "cut":
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if model == "garbage":
            self.event("{not json")
        if model == "error":
            self.event({"error": {"message": "out of pages"}})
        if model != "no done":
            self.text_event("", finish_reason="length")
            if model != "no usage":
                prompt = body.get("prompt") or body["messages"][0]["content"]
                self.event({"choices": [], "usage": {
                    "prompt_tokens": len(prompt.split()) + 3,
                    "completion_tokens": body["max_tokens"],
                    "prompt_tokens_details": {"cached_tokens": 4}}})
            self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.seen = []  # path, headers, body
        self.running = 0
        self.most_running = 0
        self.asks_for_key = False
        self.ended = threading.Event()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients go away as they like
            super().handle_error(request, client_address)


def environment(env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return {**NO_LEAK_CHECK, **clean, **(env or {})}


class BenchClientTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire_bench_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.server = Server()
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        thread.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.ended.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def command(self, *flags, url=None):
        line = [BINARY, "bench", "--url", url or self.url, *map(str, flags)]
        for flag, value in (("--input-len", "8"), ("--output-len", "6"), ("--warmup", "0")):
            line += [] if flag in flags else [flag, value]
        return line

    def bench(self, *flags, url=None, code=0, env=None):
        done = subprocess.run(self.command(*flags, url=url), env=environment(env), text=True,
                              capture_output=True, timeout=120, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def bench_json(self, *flags, **kwargs):
        return json.loads(self.bench(*flags, "--json", "-", **kwargs).stdout)

    def bodies(self):
        return [body for _, _, body in self.server.seen if body]

    # ---- What is sent, and what is measured ----

    def test_chat_is_streamed_and_timed(self):
        found = self.bench_json("--num-requests", 3)
        run, = found["runs"]
        self.assertEqual((run["ok"], run["failed"], run["peak_concurrency"]), (3, 0, 1))
        self.assertEqual(found["settings"]["model"], "plain")  # the first that is listed
        for body in self.bodies():
            self.assertEqual(list(body), ["model", "messages", "max_tokens", "stream",
                                          "stream_options", "ignore_eos"])
            self.assertEqual(body["stream_options"], {"include_usage": True})
            self.assertEqual(body["max_tokens"], 6)
            self.assertIs(body["ignore_eos"], True)
            self.assertEqual(len(body["messages"][0]["content"].split()), 8)
        self.assertEqual(len({body["messages"][0]["content"] for body in self.bodies()}), 3)
        for request in run["requests"]:
            self.assertEqual(request["outcome"], "ok")
            self.assertGreaterEqual(request["ttft_ms"], FIRST_DELAY * 1e3)
            self.assertEqual(len(request["itl_ms"]), 2)
            self.assertGreaterEqual(sum(request["itl_ms"]), NEXT_DELAY * 1e3)
            self.assertGreaterEqual(request["e2e_ms"], (FIRST_DELAY + 2 * NEXT_DELAY) * 1e3)
            self.assertEqual(request["prompt_tokens"], 8 + 3)
            self.assertEqual(request["output_tokens"], 6)
            self.assertEqual(request["finish_reason"], "length")
        self.assertEqual(run["prompt_tokens"], 3 * 11)
        self.assertEqual(run["output_tokens"], 3 * 6)
        self.assertAlmostEqual(run["cached_share"], 4 / 11)
        self.assertEqual(run["ttft_ms"]["samples"], 3)
        self.assertEqual(run["itl_ms"]["samples"], 6)
        self.assertGreaterEqual(run["tpot_ms"]["p50"], 2 * NEXT_DELAY * 1e3 / 5)
        self.assertAlmostEqual(run["output_tokens_per_s"], 18 / run["seconds"])
        for latency in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
            values = [run[latency][p] for p in ("min", "p50", "p90", "p95", "p99", "max")]
            self.assertEqual(values, sorted(values))
        self.assertIn("bench", found["command"])
        self.assertNotEqual(found["machine"]["cpu"], "")

    def test_completions_have_a_prompt(self):
        run, = self.bench_json("--endpoint", "completions", "--model", "other", "--num-requests", 2,
                               url=self.url + "/v1/")["runs"]
        self.assertEqual(run["ok"], 2)
        self.assertEqual(run["requests"][0]["prompt_tokens"], 11)
        self.assertEqual([path for path, _, _ in self.server.seen], ["/v1/completions"] * 2)
        self.assertEqual(self.bodies()[0]["model"], "other")
        self.assertEqual(len(self.bodies()[0]["prompt"].split()), 8)

    def test_table_json_and_plot_of_several_concurrencies(self):
        plot, file = self.folder / "a.svg", self.folder / "a.json"
        done = self.bench("--concurrency", "1,4", "--num-requests", 8, "--plot", plot, "--json",
                          file)
        runs = json.loads(file.read_text())["runs"]
        self.assertEqual([run["concurrency"] for run in runs], [1, 4])
        self.assertEqual([run["peak_concurrency"] for run in runs], [1, 4])
        self.assertLessEqual(self.server.most_running, 4)
        rows = [line.split() for line in done.stdout.splitlines()]
        self.assertIn(["1", "8", "0", "1"], [row[:4] for row in rows])
        self.assertIn(["4", "8", "0", "4"], [row[:4] for row in rows])
        for words in ("TTFT", "TPOT", "ITL", "end to end", "several tokens", "p99",
                      "11.0 prompt and 6.0 output tokens"):
            self.assertIn(words, done.stdout)
        self.assertIn("concurrency 4: ", done.stderr)
        self.assertIn("8/8 requests, 0 failed", done.stderr)
        root = xml.etree.ElementTree.parse(plot).getroot()
        texts = {element.text for element in root.iter() if element.tag.endswith("}text")}
        for text in ("Time to the first text (TTFT)", "Time per output token (TPOT)", "End to end",
                     "Output throughput", "ms", "tokens/s", "p50", "p99",
                     "concurrency, requests at a time", "0", "1", "4"):
            self.assertIn(text, texts)
        # Prompts of one run are not those of another.
        prompts = [body["messages"][0]["content"] for body in self.bodies()]
        self.assertEqual(len(set(prompts)), 16)

    def test_a_rate_is_an_open_loop(self):
        plot = self.folder / "a.svg"
        run, = self.bench_json("--request-rate", 200, "--num-requests", 20, "--plot", plot)["runs"]
        self.assertEqual(run["ok"], 20)
        self.assertEqual(run["request_rate"], 200)
        begins = [request["begin_s"] for request in run["requests"]]
        self.assertEqual(begins, sorted(begins))
        self.assertGreater(run["peak_concurrency"], 1)  # a closed loop of one would have one
        again, = self.bench_json("--request-rate", 200, "--num-requests", 20)["runs"]
        self.assertEqual([request["begin_s"] for request in again["requests"]], begins)
        other, = self.bench_json("--request-rate", 200, "--num-requests", 20, "--seed", 2)["runs"]
        self.assertNotEqual([request["begin_s"] for request in other["requests"]], begins)
        text = plot.read_text()
        xml.etree.ElementTree.fromstring(text)
        self.assertIn("% of samples at most this", text)

    def test_lengths_are_drawn(self):
        self.bench_json("--num-requests", 12, "--concurrency", 12, "--input-len", "3-9",
                        "--output-len", "lognormal:6,0.5,12")
        words = {len(body["messages"][0]["content"].split()) for body in self.bodies()}
        outputs = {body["max_tokens"] for body in self.bodies()}
        self.assertGreater(len(words), 2)
        self.assertTrue(words <= set(range(3, 10)), words)
        self.assertGreater(len(outputs), 2)
        self.assertTrue(outputs <= set(range(1, 13)), outputs)

    def test_prefixes_are_shared(self):
        found = self.bench_json("--num-requests", 6, "--shared-prefix", 20, "--num-prefixes", 2)
        self.assertEqual(found["settings"]["shared_prefix"], 20)
        prompts = [body["messages"][0]["content"].split() for body in self.bodies()]
        self.assertEqual({len(prompt) for prompt in prompts}, {28})
        self.assertEqual(len({" ".join(prompt[:20]) for prompt in prompts}), 2)
        self.assertEqual(len({" ".join(prompt) for prompt in prompts}), 6)

    def test_warm_up_does_not_count(self):
        run, = self.bench_json("--num-requests", 2, "--warmup", 3)["runs"]
        self.assertEqual(run["ok"], 2)
        self.assertEqual(len(self.bodies()), 5)

    def test_duration_ends_a_run(self):
        run, = self.bench_json("--duration", 0.3, "--concurrency", 2)["runs"]
        self.assertGreater(run["ok"], 0)
        self.assertEqual(run["unfinished"], 0)
        self.assertGreaterEqual(run["seconds"], 0.3)
        self.assertTrue(all(request["begin_s"] < 0.3 for request in run["requests"]))

    def test_a_server_that_does_not_count_is_said_so(self):
        run, = self.bench_json("--num-requests", 2, "--model", "no usage")["runs"]
        self.assertEqual(run["ok"], 2)
        self.assertEqual(run["answers_without_usage"], 2)
        self.assertIsNone(run["requests"][0]["output_tokens"])
        self.assertEqual(run["output_tokens"], 6)  # 3 pieces each
        self.assertIn("2 answers without usage",
                      self.bench("--num-requests", 2, "--model", "no usage").stdout)

    def test_the_key_is_sent_and_not_reported(self):
        for flags, env in ((["--api-key", KEY], {}), ([f"--api-key={KEY}"], {}),
                           ([], {"QUIRE_API_KEY": KEY})):
            self.server.seen.clear()
            done = self.bench("--num-requests", 1, "--json", "-", *flags, env=env)
            self.assertEqual([headers["Authorization"] for _, headers, _ in self.server.seen],
                             [f"Bearer {KEY}"] * 2)  # the models, then the request
            self.assertNotIn(KEY, done.stdout + done.stderr)

    def test_a_server_that_asks_for_a_key_is_named(self):
        self.server.asks_for_key = True
        done = self.bench(code=1)
        self.assertIn("/v1/models: the server asks for a key: --api-key gives it one", done.stderr)

    def test_connections_are_kept(self):
        ports = set()
        original = Handler.do_POST

        def note_port(handler):
            ports.add(handler.client_address[1])
            original(handler)
        Handler.do_POST = note_port
        self.addCleanup(setattr, Handler, "do_POST", original)
        self.bench("--num-requests", 6, "--model", "plain", "--concurrency", 2)
        self.assertLessEqual(len(ports), 2)

    # ---- What goes wrong ----

    def test_every_failure_has_its_kind_and_all_failed_ends_with_1(self):
        for model, kind, words in (("http 503", "http 503", "draining"),
                                   ("text 500", "http 500", "html"),
                                   ("whole", "malformed", "application/json"),
                                   ("garbage", "malformed", "answer"),
                                   ("error", "server error", "out of pages"),
                                   ("cut", "early end", "cut short"),
                                   ("no done", "early end", "[DONE]"),
                                   ("closed", "connection", "without an answer")):
            with self.subTest(model=model):
                run, = self.bench_json("--model", model, "--num-requests", 2, code=1)["runs"]
                self.assertEqual(run["failures"], {kind: 2})
                self.assertEqual((run["ok"], run["failed"], run["unfinished"]), (0, 2, 0))
                self.assertEqual(run["ttft_ms"], {"samples": 0})
                self.assertEqual(run["output_tokens_per_s"], 0)
                for request in run["requests"]:
                    self.assertEqual(request["outcome"], kind)
                    self.assertIn(words, request["message"])
        done = self.bench("--model", "http 503", "--num-requests", 2, code=1)
        self.assertIn("2 failed, http 503: status 503: draining", done.stdout)
        self.assertIn("quire: error: every request failed", done.stderr)

    def test_a_failure_counts_as_no_success(self):
        plot = self.folder / "a.svg"
        run, = self.bench_json("--model", "mixed", "--num-requests", 9, "--plot", plot)["runs"]
        self.assertEqual(run["ok"], 3)
        self.assertEqual(run["failures"], {"early end": 3, "http 503": 3})
        self.assertEqual(run["e2e_ms"]["samples"], 3)
        self.assertEqual(run["output_tokens"], 18)
        xml.etree.ElementTree.parse(plot)

    def test_a_request_that_takes_too_long_has_failed(self):
        run, = self.bench_json("--model", "hang", "--num-requests", 2, "--concurrency", 2,
                               "--timeout", 0.2, code=1)["runs"]
        self.assertEqual(run["failures"], {"timeout": 2})
        self.assertGreaterEqual(run["requests"][0]["e2e_ms"], 200)

    def test_no_server(self):
        self.server.shutdown()
        self.server.server_close()
        done = self.bench(code=1)
        self.assertEqual(done.stdout, "")
        self.assertIn("cannot ask the server for its models", done.stderr)
        run, = self.bench_json("--model", "plain", "--num-requests", 2, code=1)["runs"]
        self.assertEqual(run["failures"], {"connection": 2})

    def test_a_server_that_refuses_ignore_eos_can_be_loaded_without(self):
        run, = self.bench_json("--model", "strict", "--num-requests", 2, code=1)["runs"]
        self.assertEqual(run["failures"], {"http 400": 2})
        self.assertIn("unknown field ignore_eos", run["requests"][0]["message"])
        found = self.bench_json("--model", "strict", "--num-requests", 2, "--no-ignore-eos")
        self.assertEqual(found["runs"][0]["ok"], 2)
        self.assertFalse(found["settings"]["ignore_eos"])

    def test_ctrl_c_ends_the_run_and_reports(self):
        file = self.folder / "a.json"
        process = subprocess.Popen(
            self.command("--model", "hang", "--concurrency", "3,5", "--num-requests", 50,
                         "--json", file),
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while len(self.bodies()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, stdout + stderr)
        self.assertIn("3 not finished when the run was ended", stdout)
        run, = json.loads(file.read_text())["runs"]  # the second did not begin
        self.assertTrue(run["interrupted"])
        self.assertEqual((run["ok"], run["failed"], run["unfinished"]), (0, 0, 3))

    def test_flags_that_cannot_be_are_refused(self):
        for flags, words in ((["--concurrency", "1,0"], ["--concurrency", "item 1", '"0"']),
                             (["--concurrency", 2, "--request-rate", 1], ["--request-rate", "both"]),
                             (["--request-rate", 0], ["--request-rate", '"0"']),
                             (["--endpoint", "embeddings"], ["--endpoint", "chat, completions"]),
                             (["--input-len", "9-3"], ["--input-len", "9"]),
                             (["--output-len", "normal:3"], ["--output-len", "normal:3"]),
                             (["--batch", 3], ["--batch", "--url"]),
                             (["--page-size", 3], ["--page-size", "--url"]),
                             (["model"], ["MODEL", "--url"]),
                             (["--plot", self.folder / "no/a.svg"], ["--plot", "no/a.svg"]),
                             (["--json", self.folder / "no/a"], ["--json", "no/a"])):
            with self.subTest(flags=flags):
                done = self.bench(*flags, code=2)
                self.assertEqual(done.stdout, "")
                for word in words:
                    self.assertIn(word, done.stderr)
        self.assertEqual(self.server.seen, [])
        done = self.bench(url="gopher://x", code=2)
        self.assertIn("gopher", done.stderr)
        done = subprocess.run([BINARY, "bench", "--concurrency", "3"], env=environment(), text=True,
                              capture_output=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--concurrency: expected --url with it", done.stderr)

    def test_the_environments_model_flags_do_not_disturb(self):
        run, = self.bench_json("--num-requests", 1,
                               env={"QUIRE_MODEL": "/no/folder", "QUIRE_PAGE_SIZE": "3"})["runs"]
        self.assertEqual(run["ok"], 1)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
