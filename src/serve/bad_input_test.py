"""What `quire serve` says to what is wrong, and that it answers the next one all the same.

usage: bad_input_test.py BINARY MODEL [unittest arguments]
"""

import json
import pathlib
import socket
import subprocess
import tempfile
import unittest

import serve_client
from serve_client import Server, ServerCase, wait_for

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CONTEXT = 4096  # of the model
MAX_BODY = 1 << 20
MAX_HEADER = 32 << 10
HELLO = [{"role": "user", "content": "Hello"}]


class BadInputTest(ServerCase):
    flags = ("--max-body-bytes", MAX_BODY, "--access-log", "off")

    def assert_refused(self, path, body, *words, status=400, param=None, code=None):
        """By an error of OpenAI's shape whose message has all the words."""
        response = self.server.post(path, body)
        self.assertEqual(response.status, status, response.body)
        self.assertEqual(response.headers["Content-Type"], "application/json")
        self.assertTrue(response.headers["X-Request-Id"])
        error = response.error
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual((error["param"], error["code"]), (param, code), error)
        for word in words:
            self.assertIn(str(word), error["message"])
        return error

    def raw_answer(self, data, close=False):
        """What comes back on a socket until the server closes it."""
        with self.server.raw() as client:
            try:
                client.sendall(data)
                if close:
                    client.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := client.recv(65536):
                    answer += piece
            except ConnectionError:
                pass  # closed on what it did not want to read
            return answer

    def assert_raw_status(self, data, status):
        answer = self.raw_answer(data)
        self.assertRegex(answer, rb"^HTTP/1\.1 %d " % status, answer[:200])
        self.assertIn("error", json.loads(answer.split(b"\r\n\r\n", 1)[1]))


class BodyTest(BadInputTest):
    def test_malformed_json(self):
        for body in ("", " ", "{", '{"prompt": "x"', '{"prompt": "x",}', "nonsense", '{"prompt": \'x\'}',
                     '{"prompt": "x"} {}', '{"prompt": NaN}', '{"prompt": "x" "n": 1}', "\x00",
                     '{"prompt": "\x01"}', '{"prompt": "\\ud800"}', '{"prompt": 1e999}'):
            for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize", "/apply-template"):
                with self.subTest(body=body, path=path):
                    self.assertEqual(self.server.post(path, body).status, 400)
        self.assert_refused(CHAT, "{", "body: line 1, column 2")

    def test_json_that_is_no_object(self):
        for body in ("null", "[]", "7", '"text"', "true"):
            with self.subTest(body=body):
                self.assert_refused(COMPLETIONS, body, "body", "object")

    def test_deeply_nested_json(self):
        for depth in (200, 100_000):
            for opening, closing in (("[", "]"), ('{"a":', "}")):
                for value in (opening * depth, opening * depth + "1" + closing * depth):
                    with self.subTest(depth=depth, opening=opening, ends=value[-1]):
                        for body in (value, f'{{"prompt": {value}}}', f'{{"messages": {value}}}'):
                            self.assertEqual(self.server.post(CHAT, body).status, 400)
                            self.assertEqual(self.server.post(COMPLETIONS, body).status, 400)

    def test_repeated_and_unknown_fields(self):
        self.assertEqual(
            self.server.post(COMPLETIONS, '{"prompt": "a", "prompt": "b"}').status, 400)
        self.assert_refused(COMPLETIONS, {"prompt": "x", "promt": "y"}, "promt", "unknown",
                            param="promt")

    def test_wrong_types(self):
        for field, value in (("max_tokens", "5"), ("max_tokens", 1.5), ("max_tokens", [5]),
                             ("temperature", "hot"), ("temperature", True), ("top_p", {}),
                             ("n", "2"), ("n", 1.5), ("stream", "yes"), ("stream", 1),
                             ("stop", 7), ("stop", [7]), ("stop", {"a": 1}), ("seed", "x"),
                             ("seed", 1.5), ("logit_bias", []), ("logit_bias", {"a": 1}),
                             ("logit_bias", {"1": "x"}), ("model", 7), ("user", 7),
                             ("stream_options", "x"), ("stream_options", {"include_usage": 1}),
                             ("ignore_eos", 1), ("timeout", "soon"), ("stop_token_ids", ["a"])):
            with self.subTest(field=field, value=value):
                error = self.server.complete(**{field: value}).error
                self.assertTrue(error["param"].startswith(field), error)
                self.assertIn("expected", error["message"])
        for prompt in (7, {}, [1.5], ["a", 1], [[1], "a"], [["a"]], True):
            with self.subTest(prompt=prompt):
                response = self.server.complete(prompt)
                self.assertEqual(response.status, 400)
                self.assertTrue(response.error["param"].startswith("prompt"))
        for messages in (7, "Hello", {}, [7], ["Hello"], [{"role": "user"}], [{"content": "x"}],
                         [{"role": 7, "content": "x"}], [{"role": "user", "content": 7}],
                         [{"role": "user", "content": [{"type": "image_url"}]}],
                         [{"role": "user", "content": "x", "extra": 1}]):
            with self.subTest(messages=messages):
                response = self.server.post(CHAT, {"messages": messages})
                self.assertEqual(response.status, 400)
                self.assertTrue(response.error["param"].startswith("messages"), response.error)

    def test_stop_tokens_beyond_the_vocabulary(self):
        self.assert_refused(COMPLETIONS, {"prompt": "x", "stop_token_ids": [1, 1 << 20]},
                            "stop_token_ids[1]", 1 << 20, param="stop_token_ids[1]")

    def test_unknown_model(self):
        for path, fields in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": HELLO})):
            self.assert_refused(path, {"model": "gpt-5", **fields}, "gpt-5", "tiny_chat",
                                status=404, param="model", code="model_not_found")
        self.assertEqual(self.server.ask("GET", "/v1/models/gpt-5").status, 404)

    def test_empty_prompts(self):
        for prompt in ("", [], [""], [[]], ["x", ""], [[1], []]):
            with self.subTest(prompt=prompt):
                response = self.server.complete(prompt)
                self.assertEqual(response.status, 400)
                self.assertTrue(response.error["param"].startswith("prompt"), response.error)
        self.assert_refused(CHAT, {"messages": []}, "messages", param="messages")
        self.assert_refused(CHAT, {}, "messages", "missing", param="messages")
        self.assert_refused(COMPLETIONS, {}, "prompt", "missing", param="prompt")

    def test_prompt_beyond_the_context_is_told_both_counts(self):
        self.assert_refused(COMPLETIONS, {"prompt": [5] * 5000}, 5000, CONTEXT, param="prompt",
                            code="context_length_exceeded")
        self.assert_refused(COMPLETIONS, {"prompt": [5] * CONTEXT}, CONTEXT, param="prompt",
                            code="context_length_exceeded")
        text = "word " * 6000
        count = self.server.post("/tokenize", {"prompt": text}).json()["count"]
        self.assert_refused(COMPLETIONS, {"prompt": text}, count, CONTEXT, param="prompt",
                            code="context_length_exceeded")
        error = self.server.post(CHAT, {"messages": [{"role": "user", "content": text}]}).error
        self.assertEqual(error["code"], "context_length_exceeded")
        # A stream is refused before it begins.
        self.assertEqual(self.server.complete([5] * 5000, stream=True).status, 400)
        # One prompt of several.
        self.assertEqual(self.server.complete([[5], [5] * 5000]).status, 400)
        # The longest one that fits.
        answer = self.server.complete([5] * (CONTEXT - 1), max_tokens=1).json()
        self.assertEqual(answer["usage"]["total_tokens"], CONTEXT)

    def test_answer_beyond_the_context(self):
        response = self.server.complete([5] * 4000, max_tokens=100, ignore_eos=True)
        self.assertEqual(response.status, 200)
        self.assertEqual(response.json()["usage"]["total_tokens"], CONTEXT)
        self.assertEqual(response.json()["choices"][0]["finish_reason"], "length")

    def test_token_ids_that_are_none(self):
        for token in (-1, 909, 1 << 31, 1 << 70, -(1 << 70)):
            with self.subTest(token=token):
                self.assertEqual(self.server.complete([token]).status, 400)
                self.assertEqual(self.server.complete(logit_bias={str(token): 1}).status, 400)
                self.assertEqual(self.server.complete(stop_token_ids=[token]).status, 400)

    def test_invalid_sampling_values(self):
        for field, values in {
                "temperature": (-0.1, 2.1, 1e300), "top_p": (0, -1, 1.1), "top_k": (-2, 0.5),
                "min_p": (-0.1, 1.1), "presence_penalty": (-2.1, 2.1),
                "frequency_penalty": (-2.1, 2.1), "repetition_penalty": (0, -1, 1e5),
                "n": (0, -1, 1_000_000), "max_tokens": (0, -1, -(1 << 63)), "min_tokens": (-1, 1000),
                "logprobs": (-1, 21), "seed": (1 << 64,), "timeout": (0, -1, 1e9),
                "logit_bias": ({"1": 101}, {"1": -101}),
                "stop": ("", ["x"] * 17, "x" * 1025)}.items():
            for value in values:
                with self.subTest(field=field, value=value):
                    response = self.server.complete(**{"max_tokens": 16, field: value})
                    self.assertEqual(response.status, 400, response.body)
                    self.assertTrue(response.error["param"].startswith(field), response.error)
        self.assert_refused(COMPLETIONS, {"prompt": "x", "max_tokens": 1, "max_completion_tokens": 2},
                            "max_tokens", param="max_completion_tokens")
        self.assert_refused(CHAT, {"messages": HELLO, "top_logprobs": 3}, "logprobs",
                            param="top_logprobs")

    def test_bad_utf8(self):
        for bad in (b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"):
            with self.subTest(bad=bad):
                for path, body in ((COMPLETIONS, b'{"prompt": "%s"}' % bad),
                                   (COMPLETIONS, b'{"%s": 1, "prompt": "x"}' % bad),
                                   (COMPLETIONS, bad),
                                   (CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}' % bad),
                                   (CHAT, b'{"messages": [{"role": "%s", "content": "x"}]}' % bad),
                                   ("/tokenize", b'{"prompt": "%s"}' % bad)):
                    response = self.server.post(path, body)
                    self.assertEqual(response.status, 400, (path, body, response.body))
                    json.loads(response.body.decode())  # which is proper itself

    def test_fields_that_are_not_supported_are_named(self):
        for field, value in (("functions", [{"name": "f"}]), ("function_call", {"name": "f"}),
                             ("modalities", ["audio"]), ("audio", {"voice": "x"}),
                             ("reasoning_effort", "high"), ("store", True),
                             ("web_search_options", {}), ("prediction", {"type": "content"})):
            with self.subTest(field=field):
                self.assert_refused(CHAT, {"messages": HELLO, field: value}, field, param=field)
        for field, value in (("suffix", "x"), ("best_of", 3), ("use_beam_search", True),
                             ("logprobs", True)):
            with self.subTest(field=field):
                self.assert_refused(COMPLETIONS, {"prompt": "x", field: value}, field, param=field)

    def test_role_the_template_refuses(self):
        response = self.server.post(CHAT, {"messages": [{"role": "narrator", "content": "x"}]})
        self.assertEqual(response.status, 400, response.body)

    def test_oversize_body(self):
        big = b'{"prompt": "%s"}' % (b"x" * MAX_BODY)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        self.assert_raw_status(head + b"Content-Length: %d\r\n\r\n" % len(big) + big, 413)
        self.assert_raw_status(head + b"Content-Length: %d\r\n\r\n" % (1 << 62), 413)
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        self.assert_raw_status(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 20, 413)
        # Just fits, and is no more than a prompt that is too long.
        fits = json.dumps({"prompt": ""}).encode()
        fits = json.dumps({"prompt": "x" * (MAX_BODY - len(fits))}).encode()
        self.assertEqual(len(fits), MAX_BODY)
        self.assert_refused(COMPLETIONS, fits, CONTEXT, param="prompt",
                            code="context_length_exceeded")


class HttpTest(BadInputTest):
    def test_header_floods(self):
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
        many = b"".join(b"X-%d: y\r\n" % i for i in range(10_000))
        self.assert_raw_status(head + many + b"\r\n", 431)
        self.assert_raw_status(head + b"X: " + b"y" * MAX_HEADER + b"\r\n\r\n", 431)
        self.assert_raw_status(b"GET /" + b"a" * MAX_HEADER + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431)
        # No line ever ends.
        self.assert_raw_status(b"G" * (4 * MAX_HEADER), 431)
        self.assert_raw_status(head + b"y" * (4 * MAX_HEADER), 431)

    def test_encoded_bodies(self):
        for coding in (b"gzip", b"zstd"):
            self.assert_raw_status(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                   b"Content-Encoding: %s\r\nContent-Length: 15\r\n\r\n"
                                   b'{"content":"a"}' % coding, 415)

    def test_what_is_no_http(self):
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"HELO mail\r\n\r\n",
                     b"GET\r\n\r\n", b"GET /health\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
                     b"Content-Length: 2\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                     b"GET /health HTTP/1.1\r\nHost: localhost\r\nBad Name: x\r\n\r\n",
                     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
                     b"zz\r\n"):
            with self.subTest(data=data):
                answer = self.raw_answer(data, close=True)
                self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 400 "), answer)
        self.assert_raw_status(b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n", 505)
        self.assert_raw_status(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501)

    def test_paths_and_methods(self):
        for path in ("/nothing", "/v1", "/v1/", "/v1/chat", "/v1/embeddings", "//", "/../etc/passwd",
                     "/%2e%2e/etc/passwd", "/health/", "/v1/completions/", "/HEALTH"):
            with self.subTest(path=path):
                for method in ("GET", "POST", "DELETE"):
                    response = self.server.ask(method, path)
                    self.assertEqual(response.status, 404, (method, response.body))
                    self.assertEqual(response.error["type"], "not_found_error")
        for method, path in (("GET", COMPLETIONS), ("GET", CHAT), ("PUT", CHAT), ("DELETE", CHAT),
                             ("PATCH", COMPLETIONS), ("OPTIONS", CHAT), ("POST", "/health"),
                             ("POST", "/metrics"), ("DELETE", "/v1/models"), ("POST", "/"),
                             ("BREW", "/health")):
            with self.subTest(method=method, path=path):
                response = self.server.ask(method, path)
                self.assertEqual(response.status, 405, response.body)
                self.assertTrue(response.headers["Allow"])
        self.assertEqual(self.server.ask("GET", "/health?x=1").status, 200)

    def test_half_a_request_and_then_nothing(self):
        whole = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n"
                 b'{"prompt": "x"}  ')
        for length in (1, 10, 40, len(whole) - 20, len(whole) - 1):
            with self.subTest(length=length):
                self.assertEqual(self.raw_answer(whole[:length], close=True), b"")

    def test_headers_that_do_not_come_are_timed_out(self):
        clients = [self.server.raw() for _ in range(20)]
        for client in clients:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHo")
        self.assert_works()  # meanwhile
        for client in clients:
            self.assertRegex(client.recv(100), rb"^HTTP/1\.1 408 ")
            client.close()

    def test_half_sent_bodies_hold_up_nobody(self):
        clients = [self.server.raw() for _ in range(50)]
        for client in clients:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        self.assert_works()
        for client in clients:
            client.close()

    def test_clients_that_are_gone_while_their_request_is_read(self):
        body = json.dumps({"prompt": "a few words, " * 500, "max_tokens": 5}).encode()
        request = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
                   % len(body)) + body
        for i in range(1000):
            with self.server.raw() as client:
                if i % 2:  # closed with a reset
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.sendall(request)

    def test_requests_one_after_another_in_one_piece(self):
        one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = self.raw_answer(one * 3 + last)
        self.assertEqual(answer.count(b"HTTP/1.1 200 "), 3)
        self.assertEqual(answer.count(b"HTTP/1.1 404 "), 1)


class IdleTest(BadInputTest):
    flags = ("--idle-timeout", 0.2, "--max-connections", 4)

    def test_connection_on_which_nothing_is_asked_is_closed(self):
        with self.server.raw() as client:
            self.assertEqual(client.recv(1), b"")

    def test_more_connections_than_there_may_be(self):
        clients = [self.server.raw() for _ in range(4)]
        for client in clients:
            client.sendall(b"G")  # begun: not idle
        refused = self.raw_answer(b"")
        self.assertRegex(refused, rb"^HTTP/1\.1 503 ")
        for client in clients:
            client.close()
        wait_for(lambda: self.raw_answer(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                 .startswith(b"HTTP/1.1 200"), "connections to be free again")


class KeyTest(BadInputTest):
    key = "sk-test"

    def test_missing_and_wrong_keys(self):
        for value in (None, "", "Bearer", "Bearer ", "Bearer wrong", "Bearer sk-test2",
                      "Bearer sk-tes", "sk-test", "Basic c2stdGVzdA==", "bearer\tsk-test"):
            headers = {"Authorization": value or ""}
            for method, path in (("POST", CHAT), ("POST", COMPLETIONS), ("POST", "/tokenize"),
                                 ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/stats"),
                                 ("GET", "/server_info")):
                with self.subTest(value=value, path=path):
                    response = self.server.ask(method, path, "{" if method == "POST" else None, headers)
                    self.assertEqual(response.status, 401, response.body)
                    self.assertEqual(response.headers["WWW-Authenticate"], "Bearer")
                    self.assertEqual(response.error["code"], "invalid_api_key")
                    self.assertNotIn(b"sk-test", response.body)
        self.assertNotIn("sk-test", self.server.log)

    def test_without_a_key_a_body_is_not_waited_for(self):
        head = b"Host: localhost\r\nContent-Length: 1000\r\n\r\n"
        for path in (CHAT, COMPLETIONS, "/tokenize"):
            answer = self.raw_answer(f"POST {path} HTTP/1.1\r\n".encode() + head)
            self.assertRegex(answer, rb"^HTTP/1\.1 401 (?s:.)*WWW-Authenticate: Bearer")
            self.assertIn(b"X-Request-Id: req-", answer)
            self.assertIn(b"invalid_api_key", answer)
        self.assertRegex(self.raw_answer(b"POST /nowhere HTTP/1.1\r\n" + head), rb"^HTTP/1\.1 404 ")
        self.assertRegex(self.raw_answer(b"PUT /health HTTP/1.1\r\n" + head),
                         rb"^HTTP/1\.1 405 (?s:.)*Allow: GET, HEAD")

    def test_health_needs_none(self):
        headers = {"Authorization": ""}
        self.assertEqual(self.server.ask("GET", "/health", headers=headers).status, 200)
        self.assertEqual(self.server.ask("GET", "/", headers=headers).status, 200)


class QueueTest(BadInputTest):
    flags = ("--max-running-requests", 1, "--max-queued-requests", 1)
    has_long_answers = True

    def test_full_queue(self):
        running = self.server.open_stream(max_tokens=100_000)
        next(running.events())
        waiting = self.server.open_stream(max_tokens=2)
        wait_for(lambda: self.server.stats()["waiting"] == 1, "the second request to wait")
        for fields in ({}, {"stream": True}, {"prompt": ["a", "b"]}):
            with self.subTest(fields=fields):
                response = self.server.complete(**fields)
                self.assertEqual(response.status, 429, response.body)
                self.assertGreater(int(response.headers["Retry-After"]), 0)
                self.assertEqual((response.error["type"], response.error["code"]),
                                 ("rate_limit_error", "queue_full"))
        running.close()
        self.assertEqual(waiting.read().usage["completion_tokens"], 2)
        self.assertTrue(waiting.is_done)
        self.assertEqual(self.server.stats()["counters"]["requests_refused"], 3)


class FlagsTest(unittest.TestCase):
    """Flags that cannot be right: exit code 2 and one line."""

    def assert_refused(self, flags, *words, model=None):
        with self.subTest(flags=flags):
            code, output = serve_client.refused(*flags, model=model)
            self.assertEqual(code, 2, output)
            lines = output.strip().splitlines()
            self.assertEqual(len(lines), 1, output)
            for word in words:
                self.assertIn(str(word), lines[0])

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_numbers(self):
        for flag, values in {"--port": ("x", -1, 65536), "--max-queued-requests": (0, "x"),
                             "--max-output-tokens": (0,), "--max-body-bytes": (0, "1k", 1 << 40),
                             "--max-total-body-bytes": (0, "x", 1000),
                             "--max-connections": (0, -1), "--request-timeout": (0, -1, "soon", 1e9),
                             "--idle-timeout": (0,), "--write-timeout": ("nan",),
                             "--ping-interval": (0,), "--drain-timeout": (-1,),
                             "--access-log": ("xml",), "--threads": (0,)}.items():
            for value in values:
                self.assert_refused([f"{flag}={value}", "--load-format", "dummy"], flag)
        self.assert_refused(["--no-such-flag"], "--no-such-flag")

    def test_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            self.assert_refused(["--load-format", "dummy", "--port", port], port, "in use")

    def test_addresses(self):
        for host in ("", "nowhere", "1.2.3", "192.0.2.1"):
            self.assert_refused(["--load-format", "dummy", "--port", 0, "--host", host], host)

    def test_origins(self):
        for origin in ("https://example.com/", "https://example.com/app", "example.com", "https://",
                       "://example.com", "https://a.com https://b.com"):
            self.assert_refused(["--load-format", "dummy", "--port", 0, "--cors-origin", origin],
                                "--cors-origin", origin)

    def test_key_files(self):
        empty = self.folder / "empty"
        empty.write_text("\n\n")
        for file in (self.folder / "none", self.folder, empty):
            self.assert_refused(["--port", 0, "--api-key-file", file], "--api-key-file", file)
        self.assert_refused(["--port", 0, "--api-key", ""], "--api-key")

    def test_tls_files(self):
        junk = self.folder / "junk.pem"
        junk.write_text("no certificate")
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        make_certificate(cert, key)
        other_cert, other_key = self.folder / "other.pem", self.folder / "other_key.pem"
        make_certificate(other_cert, other_key)
        none = self.folder / "none.pem"
        for flags, word in ((["--tls-cert-file", none, "--tls-key-file", key], none),
                            (["--tls-cert-file", cert, "--tls-key-file", none], none),
                            (["--tls-cert-file", junk, "--tls-key-file", key], junk),
                            (["--tls-cert-file", cert, "--tls-key-file", junk], junk),
                            (["--tls-cert-file", cert, "--tls-key-file", other_key], other_key),
                            (["--tls-cert-file", cert], "key"), (["--tls-key-file", key], "cert")):
            self.assert_refused(["--port", 0, *flags], word)

    def test_unix_sockets(self):
        file = self.folder / "file"
        file.write_text("not a socket")
        self.assert_refused(["--unix-socket", file], file)
        self.assertEqual(file.read_text(), "not a socket")
        long = self.folder / ("x" * 200)
        self.assert_refused(["--unix-socket", long], len(str(long)))
        self.assert_refused(["--unix-socket", self.folder / "no/folder"], "no/folder")

    def test_models(self):
        code, output = serve_client.refused("--port", 0, model=self.folder / "none")
        self.assertEqual(code, 2, output)
        self.assertIn(str(self.folder / "none"), output.splitlines()[-1])


class TransportTest(unittest.TestCase):
    """The same server behind TLS, and on a unix socket."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, server):
        self.addCleanup(server.stop)
        self.assertEqual(server.ask("GET", "/health").json(), {"status": "ok"})
        answer = server.complete(max_tokens=40, ignore_eos=True).json()
        stream = server.open_stream(max_tokens=40).read()
        self.assertTrue(stream.is_done)
        self.assertEqual(stream.text, answer["choices"][0]["text"])
        self.assertEqual(stream.usage["completion_tokens"], 40)
        gone = server.open_stream(max_tokens=4000)
        next(gone.events())
        gone.close()
        self.assertEqual(server.wait_idle()["pages"]["in_use"], 0)
        self.assertEqual(server.stats()["answers"]["cancelled"], 1)
        self.assertEqual(server.stop(), 0)

    def test_tls(self):
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        make_certificate(cert, key)
        server = Server("--tls-cert-file", cert, "--tls-key-file", key)
        self.assertTrue(server.url.startswith("https://"))
        with server.raw() as plain:  # who does not speak TLS is closed
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            try:
                self.assertFalse(plain.recv(100).startswith(b"HTTP/"))
            except ConnectionError:
                pass
        self.check(server)

    def test_unix_socket(self):
        path = self.folder / "quire.sock"
        server = Server("--unix-socket", path)
        self.assertEqual(server.url, f"unix:{path}")
        self.assertTrue(path.is_socket())
        self.check(server)
        self.assertFalse(path.exists())


def make_certificate(cert, key):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)


if __name__ == "__main__":
    serve_client.main()
