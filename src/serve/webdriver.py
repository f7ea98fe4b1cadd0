"""A headless Chromium, driven through chromedriver by the W3C WebDriver protocol."""

import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for an element's id
ENTER = "\ue007"
SHIFT = "\ue008"
ESCAPE = "\ue00c"
RIGHT = "\ue014"
WAIT_S = 240  # for what comes at once, but not on a busy machine
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
             "--window-size=1280,800", "--force-color-profile=srgb", "--hide-scrollbars"]


def find_browser():
    """(chromium, chromedriver), either of which may be None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None), shutil.which("chromedriver")


def wait_for(condition, what, timeout_s=WAIT_S):
    """Returns the first true value of condition()."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s for {what}")
        time.sleep(0.02)


class Browser:
    def __init__(self):
        chromium, chromedriver = find_browser()
        self._profile = tempfile.TemporaryDirectory(prefix="quire_page_",
                                                    ignore_cleanup_errors=True)
        self._driver = subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        try:
            self._url = f"http://127.0.0.1:{self._read_port()}"
            options = {"binary": chromium,
                       "args": [*ARGUMENTS, f"--user-data-dir={self._profile.name}"]}
            session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        except BaseException:
            self._end_driver()
            raise
        self._url += f"/session/{session['sessionId']}"

    def quit(self):
        try:
            self._call("DELETE", "")
        finally:
            self._end_driver()

    def _read_port(self):
        for line in self._driver.stdout:
            port = re.search(r"successfully on port (\d+)", line)
            if port:
                return port[1]
        raise RuntimeError(f"chromedriver ended with {self._driver.wait()}")

    def _end_driver(self):
        self._driver.terminate()
        self._driver.wait()
        self._driver.stdout.close()
        self._profile.cleanup()

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=2 * WAIT_S) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            with error:
                message = json.load(error)["value"]["message"]
            raise RuntimeError(f"{method} {path}: {message}") from None

    def _element(self, selector):
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return f"/element/{found[ELEMENT]}"

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def reload(self):
        self._call("POST", "/refresh", {})

    def click(self, selector):
        self._call("POST", self._element(selector) + "/click", {})

    def type(self, selector, keys):
        self._call("POST", self._element(selector) + "/value", {"text": keys})

    def clear(self, selector):
        self._call("POST", self._element(selector) + "/clear", {})

    def label(self, selector):
        """What a screen reader calls it."""
        return self._call("GET", self._element(selector) + "/computedlabel")

    def run(self, script, *args):
        return self._call("POST", "/execute/sync", {"script": script, "args": list(args)})

    def run_async(self, script, *args):
        """`script` is the body of an async function."""
        wrapped = ("const done = arguments[arguments.length - 1];"
                   f"(async (...args) => {{ {script} }})(...arguments)"
                   ".then((value) => done({value}), (error) => done({error: String(error)}));")
        result = self._call("POST", "/execute/async", {"script": wrapped, "args": list(args)})
        if "error" in result:
            raise RuntimeError(result["error"])
        return result.get("value")

    def text(self, selector):
        """Of the last element that matches; "" if none does."""
        return self.run("const all = document.querySelectorAll(arguments[0]);"
                        "return all.length ? all[all.length - 1].innerText : '';", selector)

    def is_shown(self, selector):
        return self.run("return document.querySelector(arguments[0])?.checkVisibility() ?? false",
                        selector)

    def count(self, selector):
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def wait_shown(self, selector):
        wait_for(lambda: self.is_shown(selector), f"{selector} to be shown")

    def console(self):
        """The entries since the last call: [{level, message, source}]"""
        return self._call("POST", "/se/log", {"type": "browser"})

    def devtools(self, command, **params):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})
