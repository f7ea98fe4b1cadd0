"""Uses the page of `quire serve` as a person does, in a headless Chromium.

usage: page_test.py BINARY MODEL [--screenshots FOLDER] [unittest arguments]

MODEL is served with its weights, or with dummy ones if its folder has none. Ends with 77 (skipped)
without chromium and chromedriver. page_case.py has what the tests share, page_text_tests.py those of
Markdown and TeX, page_conversation_tests.py those of what can be done with a conversation.
--screenshots runs no tests: it writes page.png and page-phone.png while several requests are answered.
"""

import base64
import contextlib
import http.client
import pathlib
import re
import sys
import threading
import time
import unittest

from page_case import ARGS, BROWSER, KEY, UNITTEST_ARGUMENTS, PageCase, Server, answer
from page_conversation_tests import *
from page_text_tests import *
from webdriver import ENTER, SHIFT, wait_for

# What a dummy model says, and for how long, depends on the last bit of a sum: one of these is
# answered at length.
QUESTIONS = ["Which pages hold this question?", "Go on for as long as you can.", "Count the pages.",
             "What is a quire?", "And then?", "Tell me more.", "Why?", "Once upon a time"]
LONG_ANSWER = 60  # tokens


class ChatTest(PageCase):
    def get_long_answer(self):
        """Asks until an answer is long; returns its tokens and those of all before it."""
        for question in QUESTIONS:
            before = self.server.stats()["counters"]["output_tokens"]
            self.watch()
            self.ask(question)
            self.assertEqual(BROWSER.text(".user .text"), question)
            self.wait_ended()
            self.assertEqual(BROWSER.count(".turn .error"), 0)
            usage = re.search(r" prompt tokens?, [\d,]+ cached · ([\d,]+) output token",
                              BROWSER.text(".usage"))
            self.assertTrue(usage, BROWSER.text(".foot"))
            num_output = int(usage[1].replace(",", ""))
            if num_output >= LONG_ANSWER:
                return num_output, before
            BROWSER.click("#new")
        return self.fail(f"none of {len(QUESTIONS)} answers has {LONG_ANSWER} tokens")

    def test_answer_streams_and_the_live_view_follows(self):
        self.set()
        num_output, before = self.get_long_answer()
        answer = BROWSER.text(".assistant .text")
        self.assertRegex(BROWSER.text(".usage"), r"first after \d+ ms")
        seen = self.seen()
        growing = [text for text in seen["answer"] if text]
        self.assertGreater(len(growing), 3, "the answer came in pieces")
        self.assertLess(len(growing[0]), len(growing[-1]))
        self.assertEqual(growing[-1], answer)
        self.assertGreater(max(seen["inUse"]), 0, "pages were in use while it was answered")
        self.assertEqual(max(seen["rows"]), 1)

        wait_for(lambda: BROWSER.count("#batch li") == 0, "the batch to be empty")
        stats = self.server.stats()
        self.assertEqual(stats["counters"]["output_tokens"], before + num_output)
        shown = {"#pages-in-use": 0, "#pages-cached": stats["pages"]["cached"],
                 "#pages-free": stats["pages"]["free"],
                 "#output-tokens": stats["counters"]["output_tokens"],
                 "#prompt-tokens": stats["counters"]["prompt_tokens"]}
        self.assertGreater(shown["#pages-cached"], 0)
        for selector, value in shown.items():
            wait_for(lambda s=selector, v=value: self.number(s) == v, f"{selector} = {value}")
        self.assertGreater(BROWSER.count("#pages .cached"), 0)
        self.assertEqual(BROWSER.count("#pages .in-use"), 0)
        self.assertNotEqual(BROWSER.run("return document.getElementById('spark-line')"
                                        ".getAttribute('d')"), None)

    def test_follow_up_reuses_the_pages_of_the_conversation(self):
        self.set(**{"max-tokens": "20",
                    "system": "You know what a quire is, and what a page of it holds. " * 4})
        self.ask("What is a quire?")
        self.wait_ended()
        self.ask("And what is a page?")
        self.wait_ended()
        self.assertEqual(BROWSER.count(".turn"), 2)
        shown = BROWSER.text(".turn:last-child .foot")
        usage = re.search(r"([\d,]+) prompt tokens, ([\d,]+) cached", shown)
        self.assertTrue(usage, shown)
        self.assertGreater(int(usage[2].replace(",", "")), 0)
        wait_for(lambda: self.number("#prefix-hits") > 0, "prefix hits")

    def test_stop_ends_the_answer_and_frees_its_pages(self):
        self.set()
        for question in QUESTIONS:
            self.ask(question)
            wait_for(lambda: BROWSER.text(".turn:last-child :is(.text, .usage)"),
                     "the answer to begin")
            if BROWSER.run("""const stop = document.getElementById("stop");
                              return stop.checkVisibility() && (stop.click(), true)"""):
                break
            BROWSER.click("#new")
        wait_for(lambda: self.server.stats()["running"] == [], "the server to stop")
        self.assertEqual(self.server.stats()["pages"]["in_use"], 0)
        wait_for(lambda: "Stopped." in BROWSER.text(".foot"), "the note")
        self.assertTrue(BROWSER.is_shown("#send"))
        self.assertNotEqual(BROWSER.text(".assistant .text"), "")
        wait_for(lambda: self.number("#pages-in-use") == 0, "the view to follow")

    def test_limit_of_tokens_is_kept_and_said(self):
        self.set(**{"max-tokens": "1"})
        self.ask("Be brief.")
        self.wait_ended()
        self.assertIn("Ended at the limit of tokens.", BROWSER.text(".foot"))
        self.assertIn(" 1 output token ", BROWSER.text(".foot"))

    def test_settings_survive_a_reload_and_wrong_ones_are_not_sent(self):
        self.set(**{"max-tokens": "7"})
        BROWSER.reload()
        value = "return document.getElementById('max-tokens').value"
        self.assertEqual(BROWSER.run(value), "7")
        self.set(temperature="9")
        self.ask("Too hot.")
        self.assertTrue(BROWSER.is_shown("#temperature"), "the field that is wrong is shown")
        self.assertEqual(BROWSER.count(".turn"), 0)

    def test_markup_is_shown_as_text(self):
        self.set(**{"max-tokens": "2"})
        text = "<img src=x onerror=document.title='run'><b>bold</b>"
        newline = SHIFT + ENTER + SHIFT  # the second SHIFT lets go
        self.ask(text + newline + "```" + newline + "<i>code</i>" + newline + "```")
        self.wait_ended()
        self.assertIn(text, BROWSER.text(".user .text"))
        self.assertEqual(BROWSER.text(".user pre"), "<i>code</i>")
        self.assertEqual(BROWSER.count("#log :is(img, b, i)"), 0)
        self.assertEqual(BROWSER.run("return document.title"), "Quire")

    def test_refusal_is_shown_in_the_server_words(self):
        self.expected_in_console = [r"/v1/chat/completions .*400"]
        self.set()
        BROWSER.run("document.getElementById('question').value = 'too long '.repeat(20000)")
        BROWSER.click("#send")
        self.wait_ended()
        context = self.server.stats()["context_length"]
        self.assertIn("(400)", BROWSER.text(".turn .error"))
        self.assertIn(str(context), BROWSER.text(".turn .error").replace(",", ""))
        self.assertEqual(BROWSER.text(".turn .again"), "Try again")

    def test_new_conversation_starts_empty(self):
        self.set()
        self.ask("Forget this.")
        wait_for(lambda: BROWSER.text(".assistant :is(.text, .usage)"), "the answer to begin")
        BROWSER.click("#new")
        self.assertEqual(BROWSER.count(".turn"), 0)
        self.assertTrue(BROWSER.is_shown("#welcome"))
        self.assertTrue(BROWSER.is_shown("#send"))
        wait_for(lambda: self.server.stats()["running"] == [], "the server to stop")


class LookTest(PageCase):
    def test_policy_allows_this_server_only(self):
        policy = self.server.get("/")[1]["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)

    def test_everything_that_can_be_used_has_a_name(self):
        BROWSER.click("#settings-button")
        self.script(answer("An answer.\n```\ncode\n```"))
        self.ask("A question.")
        wait_for(lambda: BROWSER.is_shown(".again"), "the answer")
        names = BROWSER.run("""
            const used = "button, input, select, textarea, [role=img], [role=log], [role=group]";
            return [...document.querySelectorAll(used)].filter((node) => node.checkVisibility())
              .map((node, i) => node.id ||= `used-${i}`);""")
        self.assertGreater(len(names), 30)
        for name in names:
            with self.subTest(name):
                self.assertNotEqual(BROWSER.label(f"#{name}"), "")

    def test_phone_shows_one_view_at_a_time(self):
        BROWSER.devtools("Emulation.setDeviceMetricsOverride", width=390, height=780,
                         deviceScaleFactor=1, mobile=True)
        self.addCleanup(BROWSER.devtools, "Emulation.clearDeviceMetricsOverride")
        self.assertTrue(BROWSER.is_shown("#chat"))
        self.assertFalse(BROWSER.is_shown("#live"))
        width = "return document.scrollingElement.scrollWidth"
        self.assertLessEqual(BROWSER.run(width), 390)
        self.assertFalse(BROWSER.is_shown("#history"))
        wide = "wide " * 20
        self.script(answer(f"```\n{wide}\n```\n|{'a|' * 30}\n|{'-|' * 30}\n\n$${wide}$$\n{'x' * 99}"))
        self.ask("What is wide?")
        wait_for(lambda: BROWSER.is_shown(".again"), "the answer")
        self.assertLessEqual(BROWSER.run(width), 390)
        for name in ("live", "history"):
            BROWSER.click(f"[data-show={name}]")
            self.assertFalse(BROWSER.is_shown("#chat"))
            self.assertTrue(BROWSER.is_shown(f"#{name}"))
            self.assertLessEqual(BROWSER.run(width), 390)

    def test_dark_and_light(self):
        self.addCleanup(BROWSER.devtools, "Emulation.setEmulatedMedia", features=[])
        brightness = {}
        for scheme in ("dark", "light"):
            BROWSER.devtools("Emulation.setEmulatedMedia",
                             features=[{"name": "prefers-color-scheme", "value": scheme}])
            brightness[scheme] = BROWSER.run("""
                const style = getComputedStyle(document.body);
                const mean = (rgb) => rgb.reduce((sum, v) => sum + Number(v), 0) / 3;
                return [style.backgroundColor, style.color].map(
                    (c) => mean(c.match(/\\d+/g).slice(0, 3)));""")
        (dark, on_dark), (light, on_light) = brightness["dark"], brightness["light"]
        self.assertLess(dark, 60)
        self.assertGreater(on_dark, 180)
        self.assertGreater(light, 200)
        self.assertLess(on_light, 80)

    def test_events_survive_any_cut(self):
        stream = (': ping\r\n\r\ndata: {"a": "é😀"}\r\n\r\ndata:1\ndata: 2\n\nid: 3\n\n'
                  'data: [DONE]\n\ndata: x')
        got = BROWSER.run_async("""
            const { events } = await import("/api.js");
            const bytes = new TextEncoder().encode(args[0]);
            const all = [];
            for (let cut = 0; cut <= bytes.length; cut++) {
              const pieces = [bytes.slice(0, cut), bytes.slice(cut)];
              const list = [];
              const body = new ReadableStream({start(out) {
                pieces.forEach((piece) => out.enqueue(piece));
                out.close();
              }});
              for await (const data of events(body)) list.push(data);
              all.push(list);
            }
            return all;""", stream)
        self.assertEqual(len(got), len(stream.encode()) + 1)
        for events in got:
            self.assertEqual(events, ['{"a": "é😀"}', "1\n2", "[DONE]"])


class KeyTest(PageCase):
    shares_server = False
    flags = ("--api-key", KEY)

    def setUp(self):
        super().setUp()
        self.expected_in_console = [r"401 \(Unauthorized\)"]

    def give_key(self, key):
        BROWSER.wait_shown("#key-dialog")
        BROWSER.type("#key", key + ENTER)

    def test_key_is_asked_for_and_kept_in_the_tab(self):
        self.give_key("sk-wrong")
        BROWSER.wait_shown("#key-refused")
        self.give_key(KEY)
        wait_for(lambda: BROWSER.text("#state") == "ready", "the live view")
        self.set(**{"max-tokens": "5"})
        self.ask("May I?")
        self.wait_ended()
        self.assertRegex(BROWSER.text(".usage"), r"\d output token")

        BROWSER.console()  # up to here, 401 was expected
        self.expected_in_console = []
        BROWSER.reload()
        wait_for(lambda: BROWSER.text("#state") == "ready", "the live view")
        self.assertFalse(BROWSER.is_shown("#key-dialog"))
        self.assertFalse(BROWSER.run(
            "return Object.values(localStorage).includes(arguments[0])", KEY))

    def test_without_a_key_the_page_says_so_and_asks_again_when_told(self):
        BROWSER.wait_shown("#key-dialog")
        BROWSER.click("#key-cancel")
        wait_for(lambda: BROWSER.text("#state") == "locked", "the state")
        BROWSER.click("#key-button")
        self.give_key(KEY)
        wait_for(lambda: BROWSER.text("#state") == "ready", "the live view")


class ServerGoneTest(PageCase):
    shares_server = False

    def test_a_server_that_went_away_is_seen(self):
        self.expected_in_console = ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET",
                                    "ERR_EMPTY_RESPONSE"]
        wait_for(lambda: BROWSER.text("#state") == "ready", "the live view")
        self.assertEqual(self.server.stop(), 0)
        wait_for(lambda: BROWSER.text("#state") == "unreachable", "the state")
        self.ask("Anyone?")
        self.wait_ended()
        self.assertNotEqual(BROWSER.text(".turn .error"), "")


def capture(path, width, height, mobile):
    BROWSER.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height,
                     deviceScaleFactor=1, mobile=mobile)
    picture = BROWSER.devtools("Page.captureScreenshot", format="png")["data"]
    path.write_bytes(base64.b64decode(picture))


def take_screenshots(folder):
    """The page in the middle of an answer, with others in its batch; the answer on a phone."""
    server = Server("--max-total-tokens", "24576")

    def load(i):
        with contextlib.suppress(OSError, http.client.HTTPException):  # until it is killed
            for j in range(30):
                server.get("/v1/completions", body={
                    "prompt": "A page of a quire. " * 20 * i + f"{i}, {j}",
                    "max_tokens": 200 + 100 * i, "ignore_eos": True})

    others = [threading.Thread(target=load, args=[i], daemon=True) for i in range(1, 6)]
    BROWSER.open(server.url)
    for thread in others:
        thread.start()
    time.sleep(20)  # for the curve
    for example in (2, 1, 0):
        BROWSER.click("#new")
        BROWSER.run("document.querySelectorAll('.example')[arguments[0]].click()", example)
        wait_for(lambda: BROWSER.is_shown(".again"), "the answer")
    capture(folder / "page.png", 1280, 860, mobile=False)
    capture(folder / "page-phone.png", 390, 780, mobile=True)
    server.kill()  # with what it still has to do for the others


if __name__ == "__main__":
    if ARGS.screenshots:
        take_screenshots(pathlib.Path(ARGS.screenshots))
    else:
        unittest.main(argv=[sys.argv[0], *UNITTEST_ARGUMENTS])
