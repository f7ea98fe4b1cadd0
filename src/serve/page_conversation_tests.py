"""What can be done with a conversation on the page. Run by page_test.py."""

import json
import math
import pathlib
import tempfile

from page_case import BROWSER, BUNDLED_MODEL, PageCase, answer, piece
from webdriver import ENTER, ESCAPE, RIGHT, wait_for

__all__ = ["AnswerTest", "ConversationsTest", "ExamplesTest", "ProbabilitiesTest", "SettingsTest",
           "ThemeTest"]

TITLES = "return [...document.querySelectorAll('#conversations .title')].map((b) => b.innerText)"


class ScriptedCase(PageCase):
    def ask_scripted(self, question, *texts):
        """Asks, and waits until the answer is there."""
        self.script(answer(*texts))
        self.ask(question)
        self.wait_answer()

    def wait_answer(self):
        last = ".turn:last-child .assistant:last-child .again"
        wait_for(lambda: BROWSER.is_shown("#send") and BROWSER.is_shown(last), "the answer")

    def messages(self):
        return [(m["role"], m["content"]) for m in self.sent()["messages"]]


class ConversationsTest(ScriptedCase):
    def test_conversations_are_kept_opened_renamed_and_deleted(self):
        self.ask_scripted("The first question", "One.")
        BROWSER.reload()
        self.assertEqual(BROWSER.text(".user .text"), "The first question")
        self.assertEqual(BROWSER.text(".assistant .text"), "One.")

        BROWSER.click("#new")
        self.ask_scripted("The second question", "Two.")
        self.assertEqual(self.messages(), [("user", "The second question")])
        self.assertEqual(BROWSER.run(TITLES), ["The second question", "The first question"])
        self.assertEqual(BROWSER.text("#conversations [aria-current]"), "The second question")

        BROWSER.click("#conversations li:last-child .title")
        self.assertEqual(BROWSER.text(".assistant .text"), "One.")
        self.ask_scripted("Go on", "Three.")
        self.assertEqual(self.messages(), [("user", "The first question"), ("assistant", "One."),
                                           ("user", "Go on")])

        BROWSER.click("#conversations li:first-child .rename")
        BROWSER.run("document.activeElement.select()")
        BROWSER.type("#conversations input", "Numbers" + ENTER)
        BROWSER.reload()
        self.assertEqual(BROWSER.run(TITLES), ["Numbers", "The second question"])

        BROWSER.click("#conversations li:first-child .delete")
        self.assertEqual(len(BROWSER.run(TITLES)), 2, "it asks first")
        BROWSER.click("#conversations li:first-child .delete")
        self.assertEqual(BROWSER.run(TITLES), ["The second question"])
        self.assertEqual(BROWSER.count(".turn"), 0, "what was open is gone")
        BROWSER.reload()
        self.assertEqual(BROWSER.run(TITLES), ["The second question"])

    def test_an_answer_that_is_left_is_kept_as_far_as_it_came(self):
        self.script([piece(content="Half of"), None])
        self.ask("Slowly")
        wait_for(lambda: BROWSER.text(".assistant .text") == "Half of", "half of the answer")
        BROWSER.click("#new")
        self.assertTrue(BROWSER.is_shown("#send"))
        BROWSER.click("#conversations .title")
        self.assertEqual(BROWSER.text(".assistant .text"), "Half of")
        self.assertIn("Stopped.", BROWSER.text(".foot"))

    def test_a_browser_without_room_says_so(self):
        BROWSER.run("""
            const setItem = Storage.prototype.setItem;
            Storage.prototype.setItem = function (key, value) {
              if (this === localStorage) throw new Error("full");
              setItem.call(this, key, value);
            };""")
        self.ask_scripted("Anything", "Yes.")
        self.assertTrue(BROWSER.is_shown("#storage-full"))
        self.assertEqual(BROWSER.text(".assistant .text"), "Yes.")

    def test_export(self):
        self.script([piece(reasoning_content="Hm."), *answer("# Two\n", "and *so* on")])
        self.ask("What is 1 + 1?")
        self.wait_answer()
        with tempfile.TemporaryDirectory(prefix="quire_page_") as folder:
            BROWSER.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
            files = {}
            for kind, ending in (("markdown", "md"), ("json", "json")):
                BROWSER.click(f"#export-{kind}")
                path = pathlib.Path(folder) / f"What-is-1-1.{ending}"
                wait_for(path.exists, path.name)
                files[ending] = wait_for(path.read_text, path.name)
        self.assertEqual(files["md"], "# What is 1 + 1?\n\n## You\n\nWhat is 1 + 1?\n\n## Answer\n\n"
                                      "> Hm.\n\n# Two\nand *so* on\n")
        exported = json.loads(files["json"])
        self.assertEqual(exported["title"], "What is 1 + 1?")
        self.assertEqual([m["content"] for m in exported["messages"]],
                         ["What is 1 + 1?", "# Two\nand *so* on"])
        self.assertEqual(exported["messages"][1]["reasoning"], "Hm.")


class AnswerTest(ScriptedCase):
    def test_a_question_is_edited_and_asked_again(self):
        self.ask_scripted("First", "One.")
        self.ask_scripted("Secnod", "What?")
        self.ask_scripted("Third", "Three.")
        self.script(answer("Two."))
        BROWSER.run("document.querySelectorAll('.change')[1].click()")
        self.assertEqual(BROWSER.run("return document.activeElement.value"), "Secnod")
        BROWSER.type(".edit textarea", ESCAPE)
        self.assertEqual(BROWSER.count(".edit"), 0, "Escape leaves it as it was")
        BROWSER.run("document.querySelectorAll('.change')[1].click()")
        BROWSER.clear(".edit textarea")
        BROWSER.type(".edit textarea", "Second" + ENTER)
        self.assertEqual(BROWSER.run("return document.activeElement.id"), "log", "what had it is gone")
        wait_for(lambda: BROWSER.text(".assistant .text") == "Two.", "the new answer")
        self.assertEqual(self.messages(),
                         [("user", "First"), ("assistant", "One."), ("user", "Second")])
        self.assertEqual(BROWSER.count(".turn"), 2)

    def test_an_answer_is_regenerated(self):
        self.ask_scripted("First", "One.")
        self.ask_scripted("Second", "Tow.")
        self.assertEqual(BROWSER.run("return [...document.querySelectorAll('.again')]"
                                     ".map((node) => node.checkVisibility())"), [False, True])
        self.script(answer("Two."))
        BROWSER.click(".turn:last-child .again")
        wait_for(lambda: BROWSER.text(".assistant .text") == "Two.", "the new answer")
        self.assertEqual(self.messages(),
                         [("user", "First"), ("assistant", "One."), ("user", "Second")])
        self.assertEqual(BROWSER.count(".assistant"), 2)

    def test_escape_stops(self):
        self.script([piece(content="Half of"), None])
        self.ask("Slowly")
        wait_for(lambda: BROWSER.text(".assistant .text") == "Half of", "half of the answer")
        BROWSER.type("#question", ESCAPE)
        wait_for(lambda: BROWSER.is_shown("#send"), "the end")
        self.assertIn("Stopped.", BROWSER.text(".foot"))
        self.assertEqual(BROWSER.text(".assistant .text"), "Half of")

    def test_messages_and_code_are_copied(self):
        BROWSER.devtools("Browser.grantPermissions", origin=self.server.url,
                         permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        text = "See **this**:\n\n```c\nint x;\n  y;\n```"
        self.ask_scripted("Copy *me*", text)
        for selector, expected in ((".user .copy", "Copy *me*"), (".code .copy", "int x;\n  y;"),
                                   (".assistant > .actions .copy", text)):
            BROWSER.click(selector)
            wait_for(lambda s=selector: BROWSER.text(s) == "Copied", "the button to say so")
            self.assertEqual(BROWSER.run_async("return navigator.clipboard.readText()"), expected)

    def test_reasoning_is_folded(self):
        self.script([piece(reasoning_content="Let *me*"), piece(reasoning_content=" see."),
                     *answer("Yes.")])
        self.ask("Well?")
        self.wait_answer()
        self.assertEqual(BROWSER.text(".reasoning summary"), "Reasoning")
        self.assertEqual(BROWSER.text(".assistant .text"), "Yes.")
        self.assertFalse(BROWSER.is_shown(".reasoning > div > p"))
        BROWSER.click(".reasoning summary")
        self.assertEqual(BROWSER.text(".reasoning > div"), "Let me see.")

    def test_calls_of_tools_are_shown_as_they_come_and_answered(self):
        def part(index=0, **function):
            return piece(tool_calls=[{"index": index, "function": function}])

        def first(index, name):
            return piece(tool_calls=[{"index": index, "id": f"call-{index}", "type": "function",
                                      "function": {"name": name, "arguments": ""}}])

        calls = [piece(content="I look."), first(0, "get_weather"), part(arguments='{"city": "Br')]
        self.script([*calls, None], [*calls, part(arguments='emen"}'), first(1, "get_time"),
                                     part(1, arguments="{}"), piece(finish="tool_calls")],
                    answer("It rains."))
        self.ask("How is the weather?")
        wait_for(lambda: BROWSER.text(".call pre") == '{"city": "Br', "some of the arguments")
        self.assertEqual(BROWSER.text(".call summary"), "Calls get_weather")
        BROWSER.click("#stop")
        self.wait_answer()
        BROWSER.click(".again")
        wait_for(lambda: BROWSER.count(".results textarea") == 2, "both calls")
        self.assertEqual(BROWSER.run("return document.querySelector('.call pre').innerText"),
                         '{\n  "city": "Bremen"\n}')
        self.assertEqual(BROWSER.text(".call summary"), "Calls get_time")
        BROWSER.type(".results label:first-child textarea", "rain")
        BROWSER.type(".results label:nth-child(2) textarea", "noon")
        BROWSER.click(".results button")
        wait_for(lambda: BROWSER.text(".assistant .text") == "It rains.", "the answer")
        sent = self.sent()["messages"]
        self.assertEqual([m["role"] for m in sent], ["user", "assistant", "tool", "tool"])
        self.assertEqual(sent[1]["tool_calls"][0],
                         {"id": "call-0", "type": "function",
                          "function": {"name": "get_weather", "arguments": '{"city": "Bremen"}'}})
        self.assertEqual([(m["tool_call_id"], m["content"]) for m in sent[2:]],
                         [("call-0", "rain"), ("call-1", "noon")])


ALL_SETTINGS = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
                "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
                "seed": 7, "max_tokens": 3}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class SettingsTest(ScriptedCase):
    def fill(self, **texts):
        BROWSER.click("#settings-button")
        for name, value in {**ALL_SETTINGS, **texts}.items():
            BROWSER.type("#" + name.replace("_", "-"), str(value))
        BROWSER.click("#settings-button")

    def test_every_setting_is_sent(self):
        self.fill(stop_texts="END\\n", tools=json.dumps([TOOL]))
        self.ask_scripted("Go", "Gone.")
        sent = self.sent()
        for name, value in {**ALL_SETTINGS, "stop": ["END\n"], "tools": [TOOL]}.items():
            self.assertEqual(sent[name], value)
        self.assertNotIn("logprobs", sent)

        BROWSER.click("#settings-button")
        BROWSER.click("#defaults")
        self.ask_scripted("Go", "Gone.")
        self.assertEqual(set(self.sent()), {"model", "messages", "stream", "stream_options"})

    def test_the_server_takes_every_setting(self):
        self.fill(stop_texts="never said")
        BROWSER.click("#settings-button")
        BROWSER.click("#probabilities")
        self.ask("Go")
        self.wait_ended()
        self.assertEqual(BROWSER.text(".foot .error"), "")
        self.assertRegex(BROWSER.text(".usage"), r"\d output token")

    def test_defaults_are_the_servers(self):
        defaults = json.loads(self.server.get("/server_info")[0])["sampling_defaults"]
        self.assertEqual((defaults["temperature"], defaults["top_p"]), (0.7, 0.95))
        shown = "return Number(document.getElementById(arguments[0]).placeholder)"
        for name, value in defaults.items():
            wait_for(lambda n=name, v=value: BROWSER.run(shown, n.replace("_", "-")) == v, name)

    def test_tools_that_are_no_json_are_not_sent(self):
        BROWSER.click("#settings-button")
        BROWSER.type("#tools", "[{")
        BROWSER.click("#settings-button")
        self.ask("Go")
        self.assertTrue(BROWSER.is_shown("#tools"), "the field that is wrong is shown")
        self.assertEqual(BROWSER.count(".turn"), 0)


class ThemeTest(PageCase):
    def paper(self):
        """How bright the page is, 0 to 255."""
        return BROWSER.run("return Number(getComputedStyle(document.body).backgroundColor"
                           ".match(/\\d+/)[0])")

    def choose(self, theme):
        BROWSER.run("const choice = document.getElementById('theme'); choice.value = arguments[0];"
                    "choice.dispatchEvent(new Event('change'));", theme)

    def test_theme_is_chosen_and_kept(self):
        self.addCleanup(BROWSER.devtools, "Emulation.setEmulatedMedia", features=[])
        for system in ("dark", "light"):
            BROWSER.devtools("Emulation.setEmulatedMedia",
                             features=[{"name": "prefers-color-scheme", "value": system}])
            for theme in ("dark", "light", "system"):
                with self.subTest(theme, system=system):
                    self.choose(theme)
                    is_dark = (system if theme == "system" else theme) == "dark"
                    self.assertEqual(self.paper() < 60, is_dark)
        self.choose("dark")
        BROWSER.reload()
        self.assertLess(self.paper(), 60)
        self.assertEqual(BROWSER.run("return document.getElementById('theme').value"), "dark")


def scored(text, probability, **others):
    """An entry of `logprobs` with the alternatives `others`."""
    entries = [{"token": t, "logprob": math.log(p), "bytes": list(t.encode())}
               for t, p in {text: probability, **others}.items()]
    return {"content": [{**entries[0], "top_logprobs": entries}], "refusal": None}


class ProbabilitiesTest(ScriptedCase):
    def setUp(self):
        super().setUp()
        BROWSER.click("#settings-button")
        BROWSER.click("#probabilities")
        BROWSER.click("#settings-button")

    def move_to(self, text):
        """The pointer, onto the first `text` of the answer."""
        x, y = BROWSER.run("""
            const walker = document.createTreeWalker(
                document.querySelector(".assistant .text"), NodeFilter.SHOW_TEXT);
            while (walker.nextNode()) {
              const at = walker.currentNode.data.indexOf(arguments[0]);
              if (at < 0) continue;
              const range = document.createRange();
              range.setStart(walker.currentNode, at);
              range.setEnd(walker.currentNode, at + arguments[0].length);
              const {left, right, top, bottom} = range.getBoundingClientRect();
              return [(left + right) / 2, (top + bottom) / 2];
            }""", text)
        BROWSER.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def test_probabilities_stand_under_the_pointer_and_the_arrow_keys(self):
        tokens = [("The", 0.9, {"A": 0.08}), (" **", 0.5, {}), ("sk", 0.25, {"se": 0.6}),
                  ("y", 1, {}), ("**", 0.7, {}), ("<|eos|>", 0.4, {})]
        self.script([piece(content="" if text[0] == "<" else text, logprobs=scored(text, p, **others))
                     for text, p, others in tokens] + [piece(finish="stop")])
        self.ask("What is blue?")
        self.wait_answer()
        self.assertEqual((self.sent()["logprobs"], self.sent()["top_logprobs"]), (True, 5))
        self.assertEqual(BROWSER.text(".assistant .text"), "The sky")

        self.move_to("sk")
        wait_for(lambda: BROWSER.is_shown("#token-card"), "the card")
        self.assertEqual(BROWSER.text("#token-card").split(), ["sk", "25.0%", "se", "60.0%"])
        self.assertEqual(BROWSER.text("#token-card .chosen").split(), ["sk", "25.0%"])
        self.move_to("y")
        wait_for(lambda: BROWSER.text("#token-card").split() == ["y", "100%"], "the next token")
        BROWSER.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=5, y=5)
        wait_for(lambda: not BROWSER.is_shown("#token-card"), "the card to go")

        BROWSER.run("document.querySelector('.assistant .text').focus()")
        seen = []
        for _ in range(5):
            BROWSER.type(".assistant .text", RIGHT)
            seen.append(BROWSER.text("#token-card .chosen").split()[0])
        self.assertEqual(seen, ["The", "␣**", "sk", "y", "y"], "of ** alone nothing is shown")

    def test_tokens_of_the_server_make_up_the_answer(self):
        BROWSER.run("""
            const real = window.fetch;
            window.fetch = async (path, options) => {
              const response = await real(path, options);
              if (path === "/v1/chat/completions") window.copy = response.clone().text();
              return response;
            };""")
        self.set(**{"max-tokens": "24"})
        self.ask("What is a quire?")
        self.wait_ended()
        text, places = BROWSER.run_async("""
            const { placeTokens } = await import("/probabilities.js");
            const events = (await copy).split("\\n").filter((line) => line.startsWith("data: {"))
              .map((line) => JSON.parse(line.slice(6)).choices[0]).filter(Boolean);
            const text = events.map((event) => event.delta.content ?? "").join("");
            const tokens = events.flatMap((event) => event.logprobs?.content ?? []);
            return [text, placeTokens(tokens, text).map(({from, to}) => [from, to])];""")
        self.assertNotEqual(text, "")
        end = 0
        for begin, after in places:
            self.assertLessEqual(begin, end)  # less where tokens share a character
            end = after
        self.assertEqual(end, len(text.encode("utf-16-le")) // 2)


class ExamplesTest(PageCase):
    shares_server = False
    model = BUNDLED_MODEL

    def test_the_bundled_model_answers_the_examples(self):
        examples = BROWSER.run("return [...document.querySelectorAll('.example')]"
                               ".map((node) => node.innerText)")
        self.assertEqual(len(examples), 3)
        for i, (example, result) in enumerate(zip(examples, ("26", "122", "127"))):
            with self.subTest(example):
                BROWSER.run("document.querySelectorAll('.example')[arguments[0]].click()", i)
                wait_for(lambda: BROWSER.is_shown(".again"), "the answer")
                self.assertEqual(BROWSER.text(".user .text"), example)
                self.assertEqual(BROWSER.text(".assistant .text h6"), result)
                BROWSER.click("#new")
