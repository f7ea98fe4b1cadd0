"""A running `quire serve`, and how to talk to it. For the tests of the server.

A test is run as `NAME_test.py BINARY MODEL [unittest arguments]`; MODEL needs no weights.
"""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

BINARY = pathlib.Path(sys.argv[1]).resolve()
MODEL = pathlib.Path(sys.argv[2]).resolve()
# Nothing here takes so long: it says that what a test waits for does not come. Sanitized builds on
# a busy machine are slow.
WAIT_S = 240
LOOK_S = 0.01
# Under a sanitizer one in so many random cases: CMake's quire_sanitized_share says it.
TEST_PARTS = int(os.environ.get("QUIRE_TEST_PARTS", 1))


def main(num_arguments=2):
    """Runs the tests of the calling script, which takes `num_arguments` before unittest's."""
    unittest.main("__main__", argv=[sys.argv[0], *sys.argv[1 + num_arguments:]])


def wait_for(condition, what, limit_s=WAIT_S):
    """The first true value of `condition`."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit_s} s for {what}")
        time.sleep(LOOK_S)


def environment(leak_check=False):
    """This process's, without variables of Quire's; looking for leaks takes seconds at every exit."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return clean if leak_check else {"ASAN_OPTIONS": "detect_leaks=0", **clean}


def refused(*flags, model=None):
    """`quire serve` that cannot start: its exit code and what it said."""
    done = subprocess.run([BINARY, "serve", model or MODEL, *map(str, flags)], env=environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S,
                          check=False)
    return done.returncode, done.stdout + done.stderr


def long_model(folder, context=131072):
    """A copy of the model whose answers can be so long that they last while a test looks on."""
    copy = pathlib.Path(folder) / "long"
    shutil.copytree(MODEL, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": context}))
    return copy


# Writes tools and their calls, as DeepSeek-V3.1's does.
TOOLS_TEMPLATE = (
    "{{ bos_token }}{% for t in tools or [] %}[tool {{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>"
    "{{ c.function.name + '<\uff5ctool\u2581sep\uff5c>' + c.function.arguments }}"
    "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>{% endfor %}{% endfor %}[assistant]")


def written_calls(*calls):
    """The text with which a model of TOOLS_TEMPLATE calls tools: names and arguments."""
    text = "".join(f"<\uff5ctool\u2581call\u2581begin\uff5c>{name}<\uff5ctool\u2581sep\uff5c>"
                   f"{json.dumps(arguments)}<\uff5ctool\u2581call\u2581end\uff5c>" for name, arguments in calls)
    return ("<\uff5ctool\u2581calls\u2581begin\uff5c>" + text +
            "<\uff5ctool\u2581calls\u2581end\uff5c>")


def scripted(text):
    """Fields of a request that is answered with this text."""
    return {"structured_outputs": {"choice": [text]}}


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json()["error"]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=WAIT_S)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Server:
    """`quire serve` on a free port, from its start to `stop`."""

    def __init__(self, *flags, model=None, load_format="dummy", key=None, leak_check=False,
                 wait=True, launcher=()):
        self._key = key
        self._log = []
        self._came = threading.Condition()
        keys = ["--api-key", key] if key else []
        command = [*launcher, BINARY, "serve", model or MODEL, "--load-format", load_format, "--port", 0,
                   *keys, *flags]
        self.process = subprocess.Popen([str(part) for part in command],
                                        env=environment(leak_check), stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True, errors="replace")
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.url = self.wait_log(r"listening on (\S+);")[1]
        if wait:
            self.wait_log("ready: ")

    # ---- The process ----

    def _read_log(self):
        for line in self.process.stderr:
            with self._came:
                self._log.append(line)
                self._came.notify_all()
        with self._came:
            self._log.append(None)
            self._came.notify_all()

    @property
    def log(self):
        with self._came:
            return "".join(line for line in self._log if line)

    def wait_log(self, pattern):
        """The first match in what the server says on stderr."""
        end = time.monotonic() + WAIT_S
        with self._came:
            while True:
                text = "".join(line for line in self._log if line)
                found = re.search(pattern, text)
                if found:
                    return found
                if None in self._log or not self._came.wait(end - time.monotonic()):
                    raise RuntimeError(f"quire serve never said {pattern!r}:\n{text}")

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self):
        """The exit code. What a sanitizer found is shown: the code says only that."""
        code = self.process.wait(timeout=WAIT_S)
        self._reader.join()
        self.process.stderr.close()
        if "Sanitizer" in self.log:
            print(self.log, file=sys.stderr)
        return code

    def stop(self):
        """SIGTERM if it still runs; the exit code."""
        if self.process.poll() is None:
            self.signal()
        if self.process.stderr.closed:
            return self.process.returncode
        return self.wait()

    def kill(self):
        """If it still runs, because a test has failed."""
        self.process.kill()
        if not self.process.stderr.closed:
            self.wait()

    def memory_bytes(self):
        """What is resident without shared libraries, of which cuBLASLt, once a GPU needs it, takes 200 MiB."""
        total = 0
        end = None
        is_library = False
        for line in pathlib.Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            if mapping := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ *(.*)", line):
                begin, next_end, path = mapping.groups()
                # Variables that begin as zeros have no file: they lie directly behind the library's others.
                is_library = re.search(r"\.so[.0-9]*$", path) is not None or (
                    is_library and not path and begin == end)
                end = next_end
            elif line.startswith("Rss:") and not is_library:
                total += int(line.split()[1]) * 1024
        return total

    # ---- HTTP ----

    @property
    def address(self):
        url = urllib.parse.urlsplit(self.url)
        return url.hostname, url.port

    def connection(self):
        if self.url.startswith("unix:"):
            return UnixConnection(self.url.removeprefix("unix:"))
        host, port = self.address
        if self.url.startswith("https:"):
            # The certificate is the test's own.
            tls = ssl.create_default_context()
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
            return http.client.HTTPSConnection(host, port, timeout=WAIT_S, context=tls)
        return http.client.HTTPConnection(host, port, timeout=WAIT_S)

    def raw(self):
        """A socket, for what no client would send."""
        return socket.create_connection(self.address, timeout=WAIT_S)

    def _headers(self, headers):
        return {**({"Authorization": f"Bearer {self._key}"} if self._key else {}), **headers}

    def ask(self, method, path, body=None, headers=()):
        """One request on a connection of its own; a `body` that is not bytes or text is JSON."""
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        connection = self.connection()
        try:
            connection.request(method, path, body, self._headers(dict(headers)))
            response = connection.getresponse()
            return Response(response.status, response.headers, response.read())
        finally:
            connection.close()

    def post(self, path, body, headers=()):
        return self.ask("POST", path, body, headers)

    def complete(self, prompt="Hello", **fields):
        """The answer of /v1/completions, greedy unless `fields` say otherwise."""
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})

    def open_stream(self, prompt="Hello", **fields):
        return Stream(self, "/v1/completions",
                      {"prompt": prompt, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}, **fields})

    def stats(self):
        return self.ask("GET", "/stats").json()

    def metrics(self):
        """The values of /metrics by name; labels other than the model's are part of the name."""
        values = {}
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            found = re.fullmatch(r'quire:(\w+)\{model_name="[^"]*",?([^}]*)\} (\S+)', line)
            if found:
                values[found[1] + (f"{{{found[2]}}}" if found[2] else "")] = float(found[3])
        return values

    def wait_idle(self):
        """Until nothing runs or waits, and all ends are counted; the statistics of then."""
        def idle():
            stats = self.stats()
            ended = sum(stats["answers"].values()) == stats["counters"]["answers_finished"]
            return stats if ended and not stats["running"] and stats["waiting"] == 0 else None
        return wait_for(idle, "the server to have nothing to do")


class Stream:
    """A streamed answer that is being read."""

    def __init__(self, server, path, body):
        self._connection = server.connection()
        self._connection.request("POST", path, json.dumps(body), server._headers({}))
        self._socket = self._connection.sock
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.text = ""
        self.usage = None
        self.error = None
        self.is_done = False  # [DONE] came
        self._lines = self._read_lines()  # one for all: a piece may hold more than the event asked for

    def events(self):
        """The data of the events that are left. An end that is no proper one is IncompleteRead."""
        for line in self._lines:
            if not line.startswith(b"data: "):
                continue
            data = line[len(b"data: "):].strip()
            if data == b"[DONE]":
                self.is_done = True
                continue
            event = json.loads(data)
            self.error = event.get("error", self.error)
            self.usage = event.get("usage") or self.usage
            self.text += "".join(choice["text"] for choice in event.get("choices", ()))
            yield event

    def _read_lines(self):
        # Not HTTPResponse.readline, which takes a connection that breaks off for an end.
        rest = b""
        while piece := self._response.read1(65536):
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines

    def read(self):
        """To its end."""
        for _ in self.events():
            pass
        self.close()
        return self

    def close(self):
        """As a client that goes away."""
        self._response.close()
        self._connection.close()
        self._socket.close()


class ServerCase(unittest.TestCase):
    """Tests of one server, which stays up whatever they do to it."""

    flags = ()
    key = None
    has_long_answers = False  # see long_model
    template = None  # in place of the model's own

    @classmethod
    def setUpClass(cls):
        model, flags = None, cls.flags
        if cls.has_long_answers:
            folder = tempfile.TemporaryDirectory()
            cls.addClassCleanup(folder.cleanup)
            model, flags = long_model(folder.name), ("--max-total-tokens", 1 << 20, *flags)
        if cls.template:
            folder = tempfile.TemporaryDirectory()
            cls.addClassCleanup(folder.cleanup)
            model = pathlib.Path(folder.name) / MODEL.name
            shutil.copytree(MODEL, model)
            (model / "chat_template.jinja").write_text(cls.template)
        cls.server = Server(*flags, model=model, key=cls.key)
        cls.addClassCleanup(cls._stop)

    @classmethod
    def _stop(cls):
        code = cls.server.stop()
        if code != 0:
            raise AssertionError(f"quire serve ended with {code}:\n{cls.server.log}")

    def assert_works(self):
        """The server is well and answers."""
        self.assertEqual(self.server.ask("GET", "/health").status, 200)
        answer = self.server.complete(max_tokens=3, ignore_eos=True)
        self.assertEqual((answer.status, answer.json()["usage"]["completion_tokens"]), (200, 3))

    def assert_idle(self):
        stats = self.server.wait_idle()
        self.assertEqual((stats["running"], stats["pages"]["in_use"]), ([], 0))

    def tearDown(self):
        self.assert_works()
        self.assert_idle()
