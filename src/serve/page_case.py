"""What the tests of the page share: a server, a browser, and answers that are scripted.

Importing this starts the browser, or ends with 77 (skipped) without chromium and chromedriver.
"""

import argparse
import atexit
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import unittest
import urllib.request

import webdriver
from webdriver import ENTER, wait_for

SKIPPED = 77
KEY = "sk-page-test"
BUNDLED_MODEL = pathlib.Path(__file__).resolve().parents[2] / "models" / "quire-grade-school"
# Greedy, so that the answer is the same in every run on one machine.
SETTINGS = {"temperature": "0", "max-tokens": "", "system": ""}


def _parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--screenshots", metavar="FOLDER")
    return parser.parse_known_args()


def _start_browser():
    if None in webdriver.find_browser():
        print("SKIPPED: the page was not tested: no chromium or no chromedriver "
              "(tools/packages-browser.txt)")
        sys.exit(SKIPPED)
    browser = webdriver.Browser()
    atexit.register(browser.quit)
    return browser


ARGS, UNITTEST_ARGUMENTS = _parse()
BROWSER = _start_browser()


class Server:
    def __init__(self, *flags, model=None):
        model = model or ARGS.model
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        if not any(pathlib.Path(model).glob("*.safetensors")):
            flags += ("--load-format", "dummy")
        command = [ARGS.binary, "serve", str(model), "--port", "0", *flags]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                         env=environment)
        self._log = []
        self.url = None
        while self.url is None:
            line = self._process.stderr.readline()
            self._log.append(line)
            if not line:
                log = "".join(self._log)
                raise RuntimeError(f"quire ended with {self._process.wait()}:\n{log}")
            found = re.search(r"http://[\d.]+:\d+", line)
            self.url = found and found[0]
        # Someone has to read what it says, or it would wait for that.
        self._reader = threading.Thread(target=lambda: self._log.extend(self._process.stderr),
                                        daemon=True)
        self._reader.start()
        wait_for(lambda: self.stats(KEY)["state"] == "ready", "the model to be loaded")

    def get(self, path, key=None, body=None):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, body, headers=headers)
        with urllib.request.urlopen(request, timeout=webdriver.WAIT_S) as response:
            return response.read(), response.headers

    def stats(self, key=None):
        return json.loads(self.get("/stats", key)[0])

    def stop(self):
        self._process.terminate()
        code = self._process.wait(timeout=webdriver.WAIT_S)
        self._reader.join()
        self._process.stderr.close()
        return code

    def kill(self):
        self._process.kill()
        self.stop()


# Answers of window.scripted, each a list of events, in the place of the server's; what the page asked
# is in window.sent. An event that is null is never followed by another.
SCRIPT = """
    window.sent = [];
    window.scripted = arguments[0];
    window.serverFetch ??= window.fetch;
    window.fetch = async (path, options) => {
      if (path !== "/v1/chat/completions") return serverFetch(path, options);
      sent.push(JSON.parse(options.body));
      const events = scripted.shift();
      return new Response(new ReadableStream({start(out) {
        options.signal.addEventListener("abort", () => out.error(new Error("aborted")));
        for (const event of events) {
          if (event === null) return;
          out.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(event)}\\n\\n`));
        }
        out.enqueue(new TextEncoder().encode("data: [DONE]\\n\\n"));
        out.close();
      }}));
    };"""


def piece(finish=None, logprobs=None, **delta):
    """An event of a scripted answer."""
    return {"choices": [{"index": 0, "delta": delta, "logprobs": logprobs,
                         "finish_reason": finish}]}


def answer(*texts):
    """A scripted answer that comes in these pieces."""
    return [piece(role="assistant", content=""), *(piece(content=text) for text in texts),
            piece(finish="stop")]


class PageCase(unittest.TestCase):
    shares_server = True  # with all classes that say so
    flags = ()            # of the server; only of one that is not shared
    model = None
    _shared = None

    @classmethod
    def setUpClass(cls):
        if not cls.shares_server:
            cls.server = Server(*cls.flags, model=cls.model)
            cls.addClassCleanup(cls.server.stop)
            return
        if PageCase._shared is None:
            PageCase._shared = Server()
            atexit.register(PageCase._shared.stop)
        cls.server = PageCase._shared

    def setUp(self):
        self.expected_in_console = []  # regular expressions; all else is a failure
        BROWSER.open(self.server.url + "/icon.svg")  # a page would keep something when it is left
        BROWSER.run("sessionStorage.clear(); localStorage.clear();")
        BROWSER.open(self.server.url)

    def tearDown(self):
        errors = [e["message"] for e in BROWSER.console() if e["level"] == "SEVERE"]
        expected = [r"/favicon\.ico", *self.expected_in_console]  # of the picture in setUp
        unexpected = [e for e in errors if not any(re.search(p, e) for p in expected)]
        self.assertEqual(unexpected, [], "the browser's console has errors")
        BROWSER.open("about:blank")  # which ends what still runs

    def set(self, **settings):
        BROWSER.click("#settings-button")
        for name, value in {**SETTINGS, **settings}.items():
            BROWSER.clear(f"#{name}")
            BROWSER.type(f"#{name}", value)
        BROWSER.click("#settings-button")

    def ask(self, question):
        BROWSER.type("#question", question + ENTER)

    def script(self, *answers):
        BROWSER.run(SCRIPT, list(answers))

    def sent(self, index=-1):
        """What the page asked of the scripted server."""
        return BROWSER.run("return window.sent.at(arguments[0])", index)

    def wait_ended(self):
        wait_for(lambda: BROWSER.is_shown("#send"), "the answer to end")

    def number(self, selector):
        """What is shown there; 0 for the dash that stands for nothing yet."""
        return float(BROWSER.text(selector).replace(",", "").rstrip("%").replace("–", "0"))

    def watch(self):
        """Keeps every value that the view takes on, however briefly."""
        BROWSER.run("""
            window.seen = {answer: [], inUse: [], rows: []};
            const keep = (list, value) => list.at(-1) === value || list.push(value);
            new MutationObserver(() => {
              const answer = [...document.querySelectorAll(".assistant .text")].at(-1);
              if (answer) keep(seen.answer, answer.innerText);
              keep(seen.inUse, Number(document.getElementById("pages-in-use").innerText));
              keep(seen.rows, document.querySelectorAll("#batch li").length);
            }).observe(document.body, {subtree: true, childList: true, characterData: true});""")

    def seen(self):
        return BROWSER.run("return window.seen")
