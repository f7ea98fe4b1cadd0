"""Talks to `quire chat` through a pseudo-terminal, as a person does, and through pipes.

usage: chat_test.py BINARY SOURCE_DIR [unittest arguments]
"""

import collections
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BINARY = sys.argv[1]
SOURCE = pathlib.Path(sys.argv[2])
MODEL = SOURCE / "src/testing/testdata/tiny_chat"
CONTEXT = 4096
SECONDS = 240  # for anything to happen, on a loaded machine under a sanitizer
GREEDY = ["--load-format", "dummy", "--temperature", "0", "--max-tokens", "24"]
# An answer that no test lives to see the end of: it is hundreds of thousands of tokens long.
ENDLESS = ["--load-format", "dummy", "--temperature", "1", "--seed", "1", "--ignore-eos"]
ENDLESS_CONTEXT = 1 << 18

CTRL_C = b"\x03"
CTRL_D = b"\x04"
READY = re.compile(rb"/help lists the commands\n> $")
PROMPT = re.compile(rb"\n> $")
STATS = re.compile(rb"\n\x1b\[2mprompt (\d+) tokens \((\d+) cached\), answer (\d+) tokens \((\w+)\), "
                   rb"[\d.]+ tokens/s, first after [\d.]+ s\n\x1b\[0m> $")

Answer = collections.namedtuple("Answer", "text prompt_tokens cached_tokens output_tokens finish")


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_") and k != "NO_COLOR"}
    return {"ASAN_OPTIONS": "detect_leaks=0", **clean, "TERM": "xterm"}


def generate(message, *flags):
    """What `quire generate --chat` answers to the message alone."""
    done = subprocess.run([BINARY, "generate", MODEL, message, "--chat", "--quiet", *GREEDY, *flags],
                          env=environment(), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          timeout=SECONDS, check=True)
    return done.stdout.removesuffix(b"\n")


def longer_model(folder):
    """A copy of the model, in `folder`, with room for an endless answer."""
    model = pathlib.Path(folder) / "model"
    shutil.copytree(MODEL, model)
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = ENDLESS_CONTEXT
    (model / "config.json").write_text(json.dumps(config))
    return model


class Terminal:
    """`quire chat` at a terminal so wide that no line is broken."""

    def __init__(self, *flags, model=MODEL, **variables):
        self.output = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 2000, 0, 0))
            os.execve(BINARY, [BINARY, "chat", str(model), *map(str, flags)],
                      {**environment(), **variables})

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)

    def send(self, data):
        os.write(self.fd, data)

    def read_some(self, deadline):
        """More output; False at its end."""
        if not select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]:
            raise AssertionError(f"nothing came in time, behind {self.output[-2000:]}")
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the other side is closed
            data = b""
        self.output = (self.output + data).replace(b"\r\n", b"\n")
        return data != b""

    def read_until(self, pattern):
        """Takes and returns the output up to the match, and the match."""
        deadline = time.monotonic() + SECONDS
        while not (match := pattern.search(self.output)):
            if not self.read_some(deadline):
                raise AssertionError(f"the program ended with {self.output[-2000:]}")
        before, self.output = self.output[:match.start()], self.output[match.end():]
        return before, match

    def type_line(self, line):
        """What is typed is shown."""
        self.send(line.encode() + b"\n")
        before, _ = self.read_until(re.compile(re.escape(line.encode()) + b"\n"))
        if before:
            raise AssertionError(f"{before} stands before the line")

    def ask(self, message):
        self.type_line(message)
        return self.read_answer()

    def read_answer(self):
        text, stats = self.read_until(STATS)
        return Answer(text, *map(int, stats.groups()[:3]), stats.group(4).decode())

    def say(self, line):
        """What is said to a command, or to a message that is refused."""
        self.type_line(line)
        return self.read_until(re.compile(rb"(^|\n)> $"))[0].decode()

    def exit_code(self):
        """Waits for the program to end."""
        deadline = time.monotonic() + SECONDS
        while self.read_some(deadline):
            pass
        status = os.waitpid(self.pid, 0)[1]
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


class TerminalCase(unittest.TestCase):
    maxDiff = None

    def start(self, *flags, **kwargs):
        terminal = Terminal(*flags, **kwargs)
        self.addCleanup(terminal.close)
        terminal.read_until(READY)
        return terminal


class TerminalTest(TerminalCase):
    def start_endless(self):
        folder = tempfile.TemporaryDirectory(prefix="quire_chat_")
        self.addCleanup(folder.cleanup)
        return self.start(*ENDLESS, "--context-length", ENDLESS_CONTEXT,
                          model=longer_model(folder.name))

    def test_answer_is_that_of_generate(self):
        terminal = self.start(*GREEDY)
        answer = terminal.ask("Hello")
        self.assertEqual(answer.text, generate("Hello"))
        self.assertEqual((answer.cached_tokens, answer.output_tokens, answer.finish),
                         (0, 24, "length"))

    def test_history_is_used_and_its_prefix_is_cached(self):
        terminal = self.start(*GREEDY)
        first = terminal.ask("Hello")
        second = terminal.ask("And then?")
        self.assertGreater(second.prompt_tokens, first.prompt_tokens + 8)
        self.assertGreaterEqual(second.cached_tokens, first.prompt_tokens)
        self.assertNotEqual(second.text, generate("And then?"))
        third = terminal.ask("And then?")
        self.assertGreater(third.prompt_tokens, second.prompt_tokens + 8)
        self.assertGreaterEqual(third.cached_tokens, second.prompt_tokens)

    def test_reset_forgets(self):
        terminal = self.start(*GREEDY)
        first = terminal.ask("Hello")
        second = terminal.ask("And then?")
        self.assertEqual(terminal.say("/reset"), "")
        again = terminal.ask("And then?")
        self.assertEqual(again.text, generate("And then?"))
        self.assertLess(again.prompt_tokens, second.prompt_tokens)
        self.assertLess(again.cached_tokens, first.prompt_tokens)
        terminal.say("/reset")
        self.assertEqual(terminal.ask("Hello").text, first.text)

    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        terminal = self.start_endless()
        terminal.send(b"Hello\n")
        streamed, _ = terminal.read_until(re.compile(rb".{100}", re.DOTALL))
        self.assertEqual(streamed, b"")
        terminal.send(CTRL_C)
        first = terminal.read_answer()
        self.assertEqual(first.finish, "cancelled")
        self.assertGreater(first.output_tokens, 10)
        # What came of it is part of the conversation.
        terminal.send(b"And then?\n")
        terminal.read_until(re.compile(rb".{100}", re.DOTALL))
        terminal.send(CTRL_C)
        second = terminal.read_answer()
        self.assertEqual(second.finish, "cancelled")
        self.assertGreater(second.prompt_tokens, first.prompt_tokens + 10)
        self.assertGreaterEqual(second.cached_tokens, first.prompt_tokens)
        terminal.send(b"/exit\n")
        self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_c_at_the_prompt_clears_the_line(self):
        terminal = self.start(*GREEDY)
        terminal.send(b"never sent" + CTRL_C)
        said, _ = terminal.read_until(PROMPT)
        self.assertIn(b"leaves", said)
        self.assertEqual(terminal.ask("Hello").text, generate("Hello"))
        # Not the second in a row: a message came between.
        terminal.send(CTRL_C)
        terminal.read_until(PROMPT)
        terminal.send(CTRL_C)
        self.assertEqual(terminal.exit_code(), 0)

    def test_ctrl_d_and_exit_leave(self):
        for keys in (CTRL_D, b"/exit\n"):
            terminal = self.start(*GREEDY)
            terminal.ask("Hello")
            terminal.send(keys)
            self.assertEqual(terminal.exit_code(), 0)

    def test_commands_say_what_they_do(self):
        terminal = self.start(*GREEDY)
        listed = terminal.say("/help")
        for word in ("/reset", "/system", "/stats", "/exit", "ctrl-C", "ctrl-D"):
            self.assertIn(word, listed)
        self.assertRegex(terminal.say("/rest"),
                         r'unknown command "/rest"; did you mean /reset\?; /help')
        self.assertRegex(terminal.say("/foo"), r'unknown command "/foo"; /help')
        self.assertIn('got "it"', terminal.say("/reset it"))
        answer = terminal.ask("Hello")
        self.assertRegex(terminal.say("/stats"),
                         rf"^1 answers, {answer.prompt_tokens} prompt tokens \(0 cached\), 24 output")
        self.assertEqual(terminal.say(""), "")
        self.assertEqual(terminal.say("  "), "")
        self.assertGreater(terminal.ask("//help").prompt_tokens, answer.prompt_tokens)

    def test_two_slashes_send_one(self):
        self.assertEqual(self.start(*GREEDY).ask("//help").text, generate("/help"))

    def test_system_prompt_can_be_changed(self):
        terminal = self.start(*GREEDY, "--system", "Be brief.")
        briefly = terminal.ask("Hello")
        self.assertEqual(briefly.text, generate("Hello", "--system", "Be brief."))
        terminal.say("/reset")
        terminal.say("/system   Be long.")
        self.assertEqual(terminal.ask("Hello").text, generate("Hello", "--system", "Be long."))
        terminal.say("/reset")
        terminal.say("/system")
        self.assertEqual(terminal.ask("Hello").text, generate("Hello"))

    def test_history_that_does_not_fit_is_said_and_reset_helps(self):
        terminal = self.start(*GREEDY, "--context-length", 64)
        for _ in range(10):
            terminal.send(b"Hello\n")
            said, match = terminal.read_until(re.compile(rb"\n(\x1b\[0m)?> $"))
            last = said + match.group()
            if not STATS.search(last):
                break
        self.assertRegex(last.decode(), r"prompt has \d+ tokens, .* length of 64 .*/reset")
        terminal.say("/reset")
        self.assertEqual(terminal.ask("Hello").text, generate("Hello"))
        # By itself too long: there is nothing to reset.
        terminal.say("/reset")
        self.assertNotIn("/reset", terminal.say("word " * 100))

    def test_reasoning_is_dimmed_and_not_in_the_history(self):
        terminal = self.start(*GREEDY, "--chat-template-kwargs", '{"enable_thinking": true}')
        first = terminal.ask("Hello")
        self.assertTrue(first.text.startswith(b"\x1b[2m"), first.text)
        second = terminal.ask("Hello")
        self.assertLess(second.prompt_tokens, first.prompt_tokens + first.output_tokens)


class LineEditingTest(TerminalCase):
    def answer_to_keys(self, terminal, keys):
        """The answer to a line that is typed with `keys`, whatever is shown of them."""
        terminal.send(keys + b"\n")
        terminal.read_until(re.compile(rb"\n"))
        return terminal.read_answer().text

    def test_a_line_can_be_edited(self):
        expected = generate("Hello")
        for keys in (b"ello\x01H",              # ctrl-A: to the beginning
                     b"ello\x1b[D\x1b[D\x1b[D\x1b[DH",  # left
                     b"Hel\xc3\xa9\x7flo",      # a letter of two bytes, and backspace
                     b"World\x15Hello"):        # ctrl-U: all of it goes
            with self.subTest(keys=keys):
                self.assertEqual(self.answer_to_keys(self.start(*GREEDY), keys), expected)

    def test_earlier_lines_come_back(self):
        terminal = self.start(*GREEDY)
        first = terminal.ask("Hello")
        terminal.say("/reset")
        self.assertEqual(self.answer_to_keys(terminal, b"\x1b[A\x1b[A"), first.text)  # up
        terminal.say("/reset")
        self.assertEqual(self.answer_to_keys(terminal, b"Hel\x10\x10"), first.text)  # ctrl-P
        # What ctrl-C cleared is not among them.
        terminal.say("/reset")
        terminal.send(b"never sent" + CTRL_C)
        terminal.read_until(PROMPT)
        self.assertEqual(self.answer_to_keys(terminal, b"\x10\x10"), first.text)

    def test_bytes_that_are_not_utf8_are_replaced(self):
        self.assertEqual(self.answer_to_keys(self.start(*GREEDY), b"a\xffb"), generate("a\ufffdb"))

    def test_letters_of_all_languages_whatever_the_locale(self):
        for locale in ("C", "C.UTF-8"):
            terminal = self.start(*GREEDY, LC_ALL=locale)
            self.assertEqual(terminal.ask("h\u00e9 \u6f22").text, generate("h\u00e9 \u6f22"))

    def test_the_terminal_is_left_as_it_was(self):
        terminal = Terminal(*GREEDY)
        self.addCleanup(terminal.close)
        before = termios.tcgetattr(terminal.fd)
        terminal.read_until(READY)
        self.assertNotEqual(termios.tcgetattr(terminal.fd), before)
        terminal.say("/help")
        terminal.send(b"/exit\n")
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]), 0)
        terminal.pid = 0
        self.assertEqual(termios.tcgetattr(terminal.fd), before)

    def test_a_terminal_that_cannot_edit_has_plain_lines(self):
        terminal = self.start(*GREEDY, TERM="dumb")
        terminal.send(b"Hello\n")
        shown, _ = terminal.read_until(re.compile(rb"\nprompt .* s\n> $"))
        self.assertEqual(shown, b"Hello\n" + generate("Hello"))


class PipeTest(unittest.TestCase):
    def chat(self, stdin, *flags):
        return subprocess.run([BINARY, "chat", MODEL, *map(str, flags)], input=stdin, timeout=SECONDS,
                              env=environment(), capture_output=True, check=False)

    def test_every_line_is_a_message_and_stdout_has_the_answers(self):
        done = self.chat(b"Hello\n\n/reset\r\nAnd then?", *GREEDY)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, generate("Hello") + b"\n" + generate("And then?") + b"\n")
        self.assertEqual(done.stderr.count(b" tokens/s, "), 2)
        self.assertNotIn(b"> ", done.stderr)
        self.assertNotIn(b"\x1b", done.stderr)

    def test_quiet_says_nothing(self):
        done = self.chat(b"Hello\n", "--quiet", *GREEDY)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_bytes_that_are_not_utf8_are_replaced(self):
        self.assertEqual(self.chat(b"a\xffb\n", *GREEDY).stdout, generate("a\ufffdb") + b"\n")

    def test_message_that_is_not_answered_shows_in_the_exit_code(self):
        done = self.chat(b"word " * CONTEXT + b"\nHello\n", *GREEDY)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), rf"prompt has \d+ tokens, .* length of {CONTEXT} ")
        self.assertEqual(done.stdout, generate("Hello") + b"\n")

    def test_model_without_a_template_is_refused(self):
        with tempfile.TemporaryDirectory(prefix="quire_chat_") as folder:
            model = longer_model(folder)
            (model / "chat_template.jinja").unlink()
            done = subprocess.run([BINARY, "chat", model, *GREEDY], input=b"", env=environment(),
                                  capture_output=True, timeout=SECONDS, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertIn(b"no chat template", done.stderr)

    def test_interrupt_ends_with_130(self):
        with tempfile.TemporaryDirectory(prefix="quire_chat_") as folder:
            with subprocess.Popen([BINARY, "chat", longer_model(folder), *ENDLESS,
                                   "--context-length", str(ENDLESS_CONTEXT)],
                                  env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as process:
                process.stdin.write(b"Hello\n")
                process.stdin.flush()
                self.assertEqual(len(process.stdout.read(100)), 100)
                process.send_signal(signal.SIGINT)
                _, stderr = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn(b"(cancelled)", stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
