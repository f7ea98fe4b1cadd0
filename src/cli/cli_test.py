"""Drives the quire binary as a user does.

usage: cli_test.py BINARY SOURCE_DIR [unittest arguments]
"""

import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import xml.etree.ElementTree

BINARY = sys.argv[1]
SOURCE = pathlib.Path(sys.argv[2])
FIXTURES = SOURCE / "src/runner/testdata/hf"
V2_LITE = FIXTURES / "v2_lite"  # one file
V3_GROUPS = FIXTURES / "v3_groups"  # several files
V32 = FIXTURES / "v32"  # sparse attention
DRAFTING = FIXTURES / "v3_mtp"  # has a draft layer
HEAD = SOURCE / "src/model/testdata/eagle3/eagle3"  # an EAGLE-3 head that fits V2_LITE
SPARSE = SOURCE / "src/runner/testdata/dummy/sparse"  # the same, and no weights
TINY_CHAT = SOURCE / "src/testing/testdata/tiny_chat"  # no weights: --load-format dummy
VOCAB_SIZE = 101
CONTEXT = 512
TINY_CHAT_CONTEXT = 4096
TOLERANCE = 1e-4
# In sanitized builds looking for leaks takes seconds at every exit: one test does it.
IS_SANITIZED = b"__asan_init" in pathlib.Path(BINARY).read_bytes()
NO_LEAK_CHECK = {"ASAN_OPTIONS": "detect_leaks=0"}

SCORE_KEYS = ["tokens", "logprobs", "top_logprobs"]
ROW_KEYS = {
    "batch", "steps", "tokens", "seconds", "ms_per_step", "tokens_per_s", "flops", "weight_bytes",
    "kv_bytes", "gflop_per_s", "gb_per_s", "percent_of_roof", "percent_of_read",
    "percent_of_multiply_add", "ms_per_step_by_part"}


def quire(*args, env=None, stdin="", limit_bytes=None):
    """Runs the binary in an environment without variables of Quire's but those in `env`, with at most
    `limit_bytes` of memory (not where a sanitizer maps more than that by itself)."""
    limit = None
    if limit_bytes and not IS_SANITIZED:
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.run([BINARY, *map(str, args)], env={**NO_LEAK_CHECK, **clean, **(env or {})},
                          input=stdin, capture_output=True, text=True, timeout=300, check=False,
                          preexec_fn=limit)


def start_quire(*args, env=None):
    """The same, not waited for."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    return subprocess.Popen([BINARY, *map(str, args)],
                            env={**NO_LEAK_CHECK, **clean, **(env or {})},
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def expected_of(model):
    return json.loads((model / "expected.json").read_text())


def ids(tokens):
    return ",".join(map(str, tokens))


class CliTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="quire_cli_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_ok(self, *args, **kwargs):
        done = quire(*args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def run_json(self, *args, **kwargs):
        return json.loads(self.run_ok(*args, **kwargs))

    def assert_refused(self, words, *args, code=2, **kwargs):
        """The run ends with `code`, prints nothing, and its last line has every one of `words`."""
        done = quire(*args, **kwargs)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        message = done.stderr.strip().splitlines()[-1]
        self.assertTrue(message.startswith("quire: error: "), message)
        for word in words:
            self.assertIn(word, message)
        return done

    def copy_model(self, model=V2_LITE):
        copy = self.folder / "model"
        shutil.copytree(model, copy)
        return copy

    def change_config(self, model, file="config.json", **changes):
        path = model / file
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps(config))


class TopLevelTest(CliTest):
    def test_version_is_the_projects(self):
        self.assertRegex(self.run_ok("--version"), r"^quire \d+\.\d+\.\d+\n$")

    def test_it_starts_where_there_are_no_libraries_of_cuda(self):
        linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
        self.assertIn("libstdc++", linked)
        self.assertNotRegex(linked, "libcu|libnccl|libnv")

    def test_help_has_an_example_of_every_subcommand(self):
        text = self.run_ok("--help")
        for command in ("generate", "chat", "inspect", "score", "bench"):
            self.assertIn(f"  quire {command} ", text)
            self.assertIn(f"  quire {command} ", self.run_ok(command, "--help"))

    def test_help_names_the_twin_of_every_common_flag(self):
        names = ["page-size", "context-length", "max-running-requests", "chunked-prefill-size",
                 "kv-cache-dtype", "mem-fraction-static", "max-total-tokens", "load-format",
                 "index-cache-dtype", "index-cache-layout", "index-topk",
                 "speculative-algorithm", "speculative-num-steps", "speculative-eagle-topk",
                 "speculative-num-draft-tokens", "speculative-draft-model-path",
                 "threads", "disable-cuda-graph", "step-mode", "device", "deterministic", "check"]
        for command in ("generate", "chat", "inspect", "score", "bench"):
            text = self.run_ok(command, "--help")
            for name in names:
                self.assertIn(f"--{name} ", text)
                self.assertIn(f"(Env:QUIRE_{name.upper().replace('-', '_')})", text)

    def test_help_works_whatever_the_environment_holds(self):
        self.run_ok("score", "--help", env={"QUIRE_PAGE_SIZE": "abc"})

    def test_no_or_an_unknown_subcommand_is_refused(self):
        self.assert_refused(["subcommand"])
        self.assert_refused(["subcommand", "score", '"serv"'], "serv")

    def test_what_comes_near_to_an_unknown_name_is_suggested(self):
        self.assert_refused(['got "serv"; did you mean serve?'], "serv")
        self.assert_refused(['got "--prot"; did you mean --port?'], "serve", "--prot", 1)
        self.assert_refused(['got "--pagesize=3"; did you mean --page-size?'], "score",
                            "--pagesize=3")
        (self.folder / "prompt.txt").write_text("")
        for command in (("generate", V2_LITE, "--prompt-file"), ("eval", "--data"),
                        ("score", "--tokens-file")):
            self.assert_refused(['did you mean "' + str(self.folder / "prompt.txt")], *command,
                                self.folder / "promt.txt")
        self.assert_refused(['which does not exist; did you mean "' + str(V2_LITE)], "inspect",
                            str(V2_LITE).replace("v2_lite", "v2_liet"))


class ReadmeTest(CliTest):
    # The tree that a target of the Makefile builds.
    trees = {"serve": "release", "quire": "release", "test": "dev", "cuda": "cuda", "bench": "release"}

    def test_what_a_command_uses_was_built_by_one_before_it(self):
        built = set()
        blocks = re.findall(r"^```sh\n(.*?)^```", (SOURCE / "README.md").read_text(), re.M | re.S)
        lines = "".join(blocks).splitlines()
        self.assertRegex(lines[0], "^sudo apt-get update && sudo apt-get install -y make")  # the only thing that make does not install
        for line in lines:
            if found := re.match(r"make ([a-z-]+)", line):
                built.add(self.trees.get(found[1]))
            if found := re.search(r"\bbuild/(release|dev|cuda)/", line.split("#")[0]):
                self.assertIn(found[1], built, line)

    def test_commands_run_as_they_stand(self):
        text = (SOURCE / "README.md").read_text()
        commands = [line for line in text.splitlines()
                    if re.search("release/quire (generate|chat|eval|score|inspect|--help)", line)]
        self.assertEqual(len(commands), 11)
        for command in commands:
            with self.subTest(command=command):
                command = command.replace("build/release/quire", BINARY)
                if IS_SANITIZED:  # every question takes the same ways, and most of a second
                    command = command.replace("--num-questions 20", "--num-questions 2")
                done = subprocess.run(command, shell=True, cwd=SOURCE, input="Hello\n", text=True,
                                      capture_output=True, timeout=1800, check=False,
                                      env={**os.environ, **NO_LEAK_CHECK})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotEqual(done.stdout.strip(), "")


class ScoreTest(CliTest):
    def check_scores(self, model, *flags):
        expected = expected_of(model)
        tokens = expected["tokens"]
        scores = self.run_json("score", model, "--tokens", ids(tokens), "--json",
                               "--kv-cache-dtype", "f32", "--index-cache-dtype", "f32", *flags)
        self.assertEqual(scores["tokens"], tokens)
        self.assertEqual(len(scores["logprobs"]), len(tokens))
        for i, logprob in enumerate(expected["logprobs"]):
            self.assertAlmostEqual(scores["logprobs"][i + 1], logprob, delta=TOLERANCE)
        return scores

    def test_every_fixture_scores_as_expected(self):
        models = sorted(path.parent for path in FIXTURES.glob("*/expected.json"))
        self.assertGreater(len(models), 0)
        for model in models:
            with self.subTest(model=model.name):
                self.check_scores(model)

    def test_pages_chunks_threads_and_modes_change_no_bit(self):
        first = self.check_scores(V3_GROUPS, "--top", 3)
        for flags in (["--page-size", 1], ["--page-size", 61], ["--page-size", 256],
                      ["--chunked-prefill-size", 1], ["--chunked-prefill-size", 7],
                      ["--page-size", 2, "--chunked-prefill-size", 30], ["--threads", 1],
                      ["--threads", 3], ["--step-mode", "graph"], ["--disable-cuda-graph"],
                      ["--device", "cpu"], ["--deterministic"], ["--tp-size", 2],
                      ["--tp-size", 4, "--ep-size", 4],
                      ["--max-running-requests", 4], ["--context-length", CONTEXT]):
            with self.subTest(flags=flags):
                self.assertEqual(self.check_scores(V3_GROUPS, "--top", 3, *flags), first)

    def test_a_sparse_model_scores_alike_with_every_page_size_and_layout(self):
        first = self.check_scores(V32, "--top", 3)
        for flags in (["--page-size", 1], ["--page-size", 61], ["--chunked-prefill-size", 7],
                      ["--step-mode", "graph"], ["--check"], ["--threads", 3],
                      ["--index-topk", 24]):
            with self.subTest(flags=flags):
                self.assertEqual(self.check_scores(V32, "--top", 3, *flags), first)
        args = ["score", SPARSE, "--load-format", "dummy", "--tokens", ids(range(100)), "--json"]
        self.assertEqual(self.run_json(*args, "--index-cache-layout", "preshuffled"),
                         self.run_json(*args))

    def test_a_narrower_choice_of_keys_changes_scores_and_says_so(self):
        tokens = ids(expected_of(V32)["tokens"])
        wide = self.run_json("score", V32, "--tokens", tokens, "--json")
        done = quire("score", V32, "--tokens", tokens, "--json", "--index-topk", 8)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotEqual(json.loads(done.stdout)["logprobs"], wide["logprobs"])
        self.assertIn("queries attend to 8 keys, not to the 24", done.stderr)

    def test_greedy_continuation_is_the_expected_one(self):
        for model in (V2_LITE, V3_GROUPS, V32):
            greedy = expected_of(model)["greedy"]
            for chunk in (1, 50, 512):
                scores = self.check_scores(model, "--continue", len(greedy),
                                           "--chunked-prefill-size", chunk)
                self.assertEqual(scores["continuation"], greedy)

    def test_json_has_exactly_these_fields(self):
        scores = self.run_json("score", V2_LITE, "--tokens", "5,6,7", "--top", 4, "--json")
        self.assertEqual(list(scores), SCORE_KEYS)
        self.assertEqual(scores["tokens"], [5, 6, 7])
        self.assertEqual(len(scores["logprobs"]), 3)
        self.assertIsNone(scores["logprobs"][0])
        self.assertEqual(len(scores["top_logprobs"]), 4)
        self.assertIsNone(scores["top_logprobs"][0])
        for top in scores["top_logprobs"][1:]:
            self.assertEqual(len(top), 4)
            self.assertTrue(all(0 <= int(token) < VOCAB_SIZE for token in top))
            values = list(top.values())
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertTrue(all(math.isfinite(v) and v <= 0 for v in values))

    def test_numbers_read_back_as_the_same_float(self):
        scores = self.run_json("score", V2_LITE, "--tokens", "5,6,7", "--json")
        text = self.run_ok("score", V2_LITE, "--tokens", "5,6,7", "--json")
        for value in scores["logprobs"][1:]:
            as_float, = struct.unpack("f", struct.pack("f", value))
            self.assertLess(abs(as_float - value), 1e-7 * abs(value))  # within its last digit
            self.assertIn(repr(value), text)

    def test_tops_and_logprobs_agree(self):
        scores = self.run_json("score", V2_LITE, "--tokens", "5,6,7", "--top", 1, "--json")
        likely = list(scores["top_logprobs"][2])[0]
        again = self.run_json("score", V2_LITE, "--tokens", f"5,6,{likely}", "--json")
        self.assertEqual(again["logprobs"][2], scores["top_logprobs"][2][likely])

    def test_continuation_begins_with_the_top_of_what_follows(self):
        scores = self.run_json("score", V2_LITE, "--tokens", "5", "--continue", 1, "--json",
                               "--top", 2)
        self.assertEqual(list(scores), SCORE_KEYS + ["continuation"])
        self.assertEqual(scores["logprobs"], [None])
        self.assertEqual(str(scores["continuation"][0]), list(scores["top_logprobs"][1])[0])

    def test_tokens_come_from_a_file_or_stdin_too(self):
        by_flag = self.run_json("score", V2_LITE, "--tokens", "5,6,7", "--json")
        for text in ("5 6\n7\n", "5,6,7\n", "[5, 6, 7]"):
            file = self.folder / "tokens"
            file.write_text(text)
            self.assertEqual(
                self.run_json("score", V2_LITE, "--tokens-file", file, "--json"), by_flag)
            self.assertEqual(
                self.run_json("score", V2_LITE, "--tokens-file", "-", "--json", stdin=text),
                by_flag)

    def test_table_has_a_row_for_every_token(self):
        lines = self.run_ok("score", V2_LITE, "--tokens", "5,6,7", "--top", 2).splitlines()
        self.assertEqual([line.split()[:2] for line in lines[1:5]],
                         [["0", "5"], ["1", "6"], ["2", "7"], ["3", "next"]])
        self.assertIn("perplexity", lines[-1])

    def test_a_model_with_longrope_says_which_factors_its_scores_have(self):
        model = FIXTURES / "minicpm3_long"
        tokens = ids(range(5, 25))
        score = lambda *flags: self.run_json("score", model, "--tokens", tokens, "--json", *flags)
        alone, continued = score(), score("--continue", 12)
        self.assertEqual(alone["rope_factors"], "short")
        self.assertEqual(continued["rope_factors"], "short")  # 32 tokens, the original context
        self.assertEqual(continued["logprobs"], alone["logprobs"])
        beyond = score("--continue", 13)
        self.assertEqual(beyond["rope_factors"], "long")
        self.assertNotEqual(beyond["logprobs"], alone["logprobs"])
        # The context says it, not what is done in it.
        in_long = score("--context-length", 33)
        self.assertEqual((in_long["rope_factors"], in_long["logprobs"]),
                         ("long", beyond["logprobs"]))
        table = self.run_ok("score", model, "--tokens", tokens, "--continue", 13)
        self.assertIn("LongRoPE: long factors", table.splitlines()[-1])

    def test_dummy_weights_need_no_files(self):
        model = self.folder / "model"
        model.mkdir()
        shutil.copy(V2_LITE / "config.json", model)
        args = ["score", model, "--tokens", "5,6,7", "--json"]
        self.assert_refused(["model.safetensors", "--load-format dummy"], *args)
        first = self.run_json(*args, "--load-format", "dummy")
        self.assertEqual(self.run_json(*args, "--load-format", "dummy"), first)

    def test_dummy_tokens_are_text(self):
        # Most of its 320 tokens are bytes, several of which may be one character.
        done = quire("generate", SPARSE, "a b", "--load-format", "dummy", "--max-tokens", 40)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(done.stdout), 20)
        self.assertIn("tokens are made up", done.stderr)
        self.assert_refused(["no chat template", "its tokens are made up"], "generate", SPARSE,
                            "Hello", "--chat", "--load-format", "dummy")

    def test_nothing_leaks(self):
        self.run_ok("score", V3_GROUPS, "--tokens", "5,6,7", "--continue", 3,
                    env={"ASAN_OPTIONS": "detect_leaks=1"})

    def test_memory_plan_is_on_stderr(self):
        done = quire("score", V2_LITE, "--tokens", "5,6,7", "--json")
        self.assertIn("memory plan", done.stderr)
        self.assertIn("loaded", done.stderr)
        self.assertEqual(done.stdout.count("\n"), 1)


class GenerateTest(CliTest):
    flags = ["--load-format", "dummy", "--max-tokens", 30]
    greedy = [*flags, "--temperature", 0]

    def text(self, *args, **kwargs):
        """The answer, without the newline behind it."""
        return self.without_newline(self.run_ok("generate", TINY_CHAT, *args, **kwargs))

    def without_newline(self, output):
        self.assertEqual(output[-1:], "\n")
        return output[:-1]

    def json(self, *args, model=TINY_CHAT, **kwargs):
        return self.run_json("generate", model, *args, "--json", **kwargs)

    def assert_generate_refused(self, words, *args, **kwargs):
        """Before weights are read."""
        done = self.assert_refused(words, "generate", TINY_CHAT, *self.flags, *args, **kwargs)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_prompt_comes_from_the_argument_a_file_or_stdin(self):
        file = self.folder / "prompt"
        file.write_text("Hello there\n")
        expected = self.text("Hello there", *self.greedy)
        self.assertGreater(len(set(expected)), 10)
        self.assertEqual(self.text("--prompt-file", file, *self.greedy), expected)
        for args in ([], ["-"], ["--prompt-file", "-"]):
            self.assertEqual(self.text(*args, *self.greedy, stdin="Hello there\n"), expected)
        self.assertNotEqual(self.text(*self.greedy, stdin="Hello there\n\n"), expected)
        self.assertEqual(self.run_ok("generate", *self.greedy, "--", TINY_CHAT, "Hello there"),
                         expected + "\n")

    def test_stdout_has_the_text_and_stderr_the_rest(self):
        done = quire("generate", TINY_CHAT, "Hello there", *self.greedy)
        self.assertEqual(done.stdout, self.json("Hello there", *self.greedy)["text"] + "\n")
        self.assertRegex(done.stderr.splitlines()[-1],
                         r"^prompt 5 tokens \(0 cached\), answer 30 tokens \(length\), [\d.]+ tokens/s")
        self.assertIn("memory plan", done.stderr)
        quiet = quire("generate", TINY_CHAT, "Hello there", *self.greedy, "--quiet")
        self.assertEqual((quiet.stdout, quiet.stderr), (done.stdout, ""))

    def test_json_has_exactly_these_fields(self):
        found = self.json("Hello there", *self.greedy, "--seed", 7)
        self.assertEqual(list(found), ["text", "reasoning", "finish_reason", "stop", "seed", "usage",
                                       "timings"])
        self.assertEqual((found["reasoning"], found["finish_reason"], found["stop"], found["seed"]),
                         ("", "length", None, 7))
        self.assertEqual(found["usage"], {
            "prompt_tokens": 5, "completion_tokens": 30, "total_tokens": 35,
            "prompt_tokens_details": {"cached_tokens": 0}})
        self.assertEqual(list(found["timings"]), ["first_token_seconds", "decode_seconds",
                                                  "tokens_per_second"])
        self.assertTrue(all(value > 0 for value in found["timings"].values()))

    def test_seeds_draw_and_the_models_own_sampling_is_the_default(self):
        first = self.text("Hello", *self.flags, "--seed", 1)
        self.assertEqual(self.text("Hello", *self.flags, "--seed", 1), first)
        self.assertNotEqual(self.text("Hello", *self.flags, "--seed", 2), first)
        config = json.loads((TINY_CHAT / "generation_config.json").read_text())
        same = ["--temperature", config["temperature"], "--top-p", config["top_p"]]
        self.assertEqual(self.text("Hello", *self.flags, "--seed", 1, *same), first)
        for other in (["--temperature", 1.5], ["--top-p", 0.2], ["--top-k", 2], ["--min-p", 0.9]):
            self.assertNotEqual(self.text("Hello", *self.flags, "--seed", 1, *other), first)

    def test_without_a_seed_answers_differ_and_say_their_seed(self):
        first, second = (self.json("Hello", *self.flags) for _ in range(2))
        self.assertNotEqual(first["seed"], second["seed"])
        self.assertNotEqual(first["text"], second["text"])
        again = self.json("Hello", *self.flags, "--seed", first["seed"])
        self.assertEqual(again["text"], first["text"])

    def test_chat_wraps_the_prompt_as_a_message(self):
        raw = self.json("Hello", *self.greedy)
        chat = self.json("Hello", *self.greedy, "--chat")
        told = self.json("Hello", *self.greedy, "--chat", "--system", "Be brief.")
        by_hand = self.json("<｜User｜>Hello<｜Assistant｜>", *self.greedy)
        self.assertEqual(chat["text"], by_hand["text"])
        self.assertEqual(chat["usage"], by_hand["usage"])
        self.assertNotEqual(chat["text"], raw["text"])
        self.assertGreater(told["usage"]["prompt_tokens"], chat["usage"]["prompt_tokens"])

    def test_reasoning_is_apart_and_not_on_stdout(self):
        args = ["Hello", "--chat", *self.greedy, "--chat-template-kwargs",
                '{"enable_thinking": true}']
        found = self.json(*args)
        self.assertNotEqual(found["text"], "")
        self.assertNotEqual(found["reasoning"], "")
        done = quire("generate", TINY_CHAT, *args)
        self.assertEqual(done.stdout, found["text"] + "\n")
        self.assertIn(found["reasoning"] + "\n", done.stderr)

    def test_stop_strings_end_the_text_before_them(self):
        whole = self.text("Hello there", *self.greedy)
        stop = next(whole[i:i + 4] for i in range(12, len(whole)) if whole[i:i + 4].isalpha())
        for stops in (["--stop", stop], ["--stop", "not in it", "--stop", stop]):
            found = self.json(*stops, "Hello there", *self.greedy)
            self.assertEqual(found["text"], whole[:whole.index(stop)])
            self.assertEqual((found["finish_reason"], found["stop"]), ("stop", stop))

    def test_end_tokens_end_unless_told_otherwise(self):
        prompt = "<｜User｜><｜Assistant｜>"  # tokens 907 and 908, behind the begin token
        tokens = self.run_json("score", TINY_CHAT, "--load-format", "dummy", "--tokens", "0,907,908",
                               "--continue", 30, "--json")["continuation"]
        end = next(i for i in range(8, 30) if tokens[i] not in tokens[:i])
        model = self.copy_model(TINY_CHAT)
        self.change_config(model, "generation_config.json", eos_token_id=[1, tokens[end]])
        ended = self.json(prompt, *self.greedy, model=model)
        self.assertEqual((ended["finish_reason"], ended["stop"]), ("stop", None))
        self.assertEqual(ended["usage"]["completion_tokens"], end + 1)
        later = self.json(prompt, *self.greedy, "--min-tokens", end + 2, model=model)
        self.assertGreater(later["usage"]["completion_tokens"], end + 1)
        ignored = self.json(prompt, *self.greedy, "--ignore-eos", model=model)
        self.assertEqual(ignored["usage"]["completion_tokens"], 30)
        self.assertEqual(ignored["text"], self.text(prompt, *self.greedy))

    def test_bytes_that_are_not_utf8_are_replaced(self):
        for flags in ([], ["--chat"]):
            done = subprocess.run([BINARY, "generate", str(TINY_CHAT), *map(str, self.greedy), *flags],
                                  input=b"a\xffb", capture_output=True, check=True,
                                  env={**os.environ, **NO_LEAK_CHECK})
            self.assertEqual(self.without_newline(done.stdout.decode()),
                             self.text("a\ufffdb", *self.greedy, *flags))

    def test_what_cannot_be_is_refused(self):
        file = self.folder / "prompt"
        for args, words in ((["x", "--prompt-file", file], ["PROMPT", "--prompt-file", "both"]),
                            (["--prompt-file", file], ["--prompt-file", str(file)]),
                            (["x", "--temperature", "-1"], ["--temperature", "0..100", '"-1"']),
                            (["x", "--top-p", "0"], ["--top-p", "above 0", '"0"']),
                            (["x", "--min-p", "2"], ["--min-p", "0..1", '"2"']),
                            (["x", "--min-tokens", 31], ["--min-tokens", "30", "31"]),
                            (["x", "--stop", ""], ["--stop", "empty"]),
                            (["x", "--system", "y"], ["--system", "--chat"]),
                            (["x", "--chat", "--chat-template-kwargs", "[1]"],
                             ["--chat-template-kwargs", "object"]),
                            (["x", "y"], ["generate", '"y"'])):
            with self.subTest(args=args):
                self.assert_generate_refused(words, *args)
        self.assert_refused(["--max-tokens", "1 or more", '"0"'], "generate", TINY_CHAT, "x",
                            "--max-tokens", 0)

    def test_without_a_model_it_says_where_the_bundled_one_was_looked_for(self):
        alone = pathlib.Path(shutil.copy(BINARY, self.folder / "quire"))
        done = subprocess.run([alone, "generate"], cwd=self.folder, input="Hello", text=True,
                              capture_output=True, check=False,
                              env={"PATH": os.environ["PATH"], **NO_LEAK_CHECK})
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in ("MODEL", "QUIRE_MODEL", "models/quire-grade-school"):
            self.assertIn(word, done.stderr)

    def test_one_text_is_a_prompt_for_the_bundled_model(self):
        text = "Question: 8 buttons cost $64. How much do 10 buttons cost?\nAnswer:"
        answer = self.run_json("generate", text, "--stop", "Question:", "--json")
        self.assertEqual(answer["text"].split()[-2:], ["####", "80"])
        # No folders. The last is too long to be a path, but in words that are one token each.
        for word in ("hi", "README.md", "altogether " * 400):
            self.run_ok("generate", word, "--max-tokens", 3)

    def test_the_sparse_bundled_model_finds_what_it_needs_among_fewer_keys_than_it_sees(self):
        text = "Clara owns 38 notebooks, and Ingrid owns 8 fewer. How many do the two own altogether?"
        for page_size in (1, 64):
            answer = self.run_json("generate", SOURCE / "models/quire-grade-school-sparse", "--chat", text,
                                   "--index-topk", 32, "--page-size", page_size, "--json")
            self.assertEqual(answer["text"].split()[-2:], ["####", "68"])

    def test_what_drafts_for_the_bundled_model_is_mostly_right_and_changes_no_text(self):
        model = SOURCE / "models/quire-grade-school"

        def told(*flags):
            out = self.folder / "run.json"
            self.run_ok("eval", model, "--data", model / "eval/heldout.jsonl", "--num-questions", 4,
                        "--json", out, *flags)
            run = json.loads(out.read_text())
            return [answer["text"] for answer in run["answers"]], run

        texts, _ = told()
        layer = ["--speculative-algorithm", "eagle"]
        head = ["--speculative-algorithm", "eagle3", "--speculative-draft-model-path",
                f"{model}-eagle3"]
        tree = ["--speculative-eagle-topk", 4, "--speculative-num-draft-tokens", 8]
        # What they were trained for: tokens a step, three of them drafted.
        for flags, least in ((layer, 3.4), (layer + tree, 3.4), (head, 2.5), (head + tree, 2.5),
                             (head + ["--page-size", 1], 2.5)):
            with self.subTest(flags=flags):
                drafted, run = told(*flags)
                self.assertEqual(drafted, texts)
                self.assertGreater(1 + run["accepted_tokens"] / run["drafts"], least)

    def test_one_text_is_a_prompt_for_the_model_that_a_flag_or_the_environment_names(self):
        expected = self.run_ok("generate", TINY_CHAT, "Hello", *self.greedy)
        self.assertEqual(self.run_ok("generate", "Hello", "--model", TINY_CHAT, *self.greedy),
                         expected)
        self.assertEqual(self.run_ok("generate", "--model", TINY_CHAT, "Hello", *self.greedy),
                         expected)
        self.assertEqual(self.run_ok("generate", "Hello", *self.greedy,
                                     env={"QUIRE_MODEL": str(TINY_CHAT)}), expected)
        # The flag wins over the variable, and so does MODEL.
        other = {"QUIRE_MODEL": str(self.folder / "none")}
        self.assertEqual(self.run_ok("generate", TINY_CHAT, "Hello", *self.greedy, env=other),
                         expected)
        self.assertEqual(self.run_ok("generate", "Hello", "--model", TINY_CHAT, *self.greedy,
                                     env=other), expected)
        self.assert_refused(["MODEL, --model", "both"], "generate", TINY_CHAT, "Hello", "--model",
                            TINY_CHAT)

    def test_what_looks_like_a_path_is_no_prompt(self):
        none = self.folder / "none"
        self.assert_refused([str(none), "does not exist"], "generate", none)
        self.assert_refused(["config.json"], "generate", self.folder)
        self.assert_refused(['"hello"', "does not exist"], "generate", "hello", "world")
        self.assert_refused(['"c"', "in quotes"], "generate", "a", "b", "c")

    def test_prompt_longer_than_the_context_is_refused_with_both_counts(self):
        self.assert_generate_refused([f"{TINY_CHAT_CONTEXT}", "6002 tokens"],
                                     stdin="word" + " word" * 5999)
        self.assert_generate_refused(
            ["length of 16 ", f"--context-length goes up to {TINY_CHAT_CONTEXT}"], "--context-length",
            16, stdin="word" * 100)

    def test_model_without_a_template_or_a_tokenizer(self):
        model = self.copy_model(TINY_CHAT)
        (model / "chat_template.jinja").unlink()
        args = ["generate", model, "Hello", *self.greedy]
        self.assert_refused(["no chat template"], *args, "--chat")
        self.assertEqual(self.without_newline(self.run_ok(*args)),
                         self.text("Hello", *self.greedy))
        self.assert_refused(["tokenizer.json"], "generate", V2_LITE, "Hello")

    def start_endless(self):
        model = self.copy_model(TINY_CHAT)
        self.change_config(model, max_position_embeddings=1 << 18)
        return start_quire("generate", model, "Hello", "--load-format", "dummy", "--ignore-eos",
                           "--context-length", 1 << 18, "--seed", 1)

    def test_interrupt_stops_the_answer_and_what_came_stays(self):
        with self.start_endless() as process:
            self.assertEqual(len(process.stdout.read(100)), 100)  # it is streamed
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"(cancelled)", stderr)

    def test_reader_that_goes_away_ends_it_without_a_word(self):
        with self.start_endless() as process:
            process.stdout.read(100)
            process.stdout.close()
            stderr = process.stderr.read()
            process.wait(timeout=300)
        self.assertEqual(process.returncode, -signal.SIGPIPE)
        self.assertTrue(stderr.splitlines()[-1].startswith(b"loaded "), stderr)

    def test_nothing_leaks(self):
        self.text("Hello", "--chat", *self.greedy, env={"ASAN_OPTIONS": "detect_leaks=1"})


class EvalTest(CliTest):
    def questions(self, count):
        file = self.folder / "questions.jsonl"
        file.write_text("".join(json.dumps({"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"})
                                + "\n" for i in range(count)))
        return file

    def closed_port(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    def test_a_server_that_is_not_there_is_an_error_and_no_accuracy(self):
        report = self.folder / "report.json"
        url = f"http://127.0.0.1:{self.closed_port()}"
        for to in (report, "-"):
            self.assert_refused(["no question was answered", url, "Connection refused"], "eval",
                                "--url", url, "--data", self.questions(100), "--concurrency", 4,
                                "--json", to, code=1)
        # It is given up early: nobody waits for so many time-outs.
        self.assertLess(json.loads(report.read_text())["questions"], 10)

    def test_what_the_other_mode_has_is_refused(self):
        data, url = self.questions(1), f"http://127.0.0.1:{self.closed_port()}"
        for flags, name in (([TINY_CHAT], "MODEL"), (["--model", TINY_CHAT], "--model"),
                            (["--page-size", 32], "--page-size"),
                            (["--speculative-algorithm", "ngram"], "--speculative-algorithm"),
                            (["--disable-radix-cache"], "--disable-radix-cache")):
            with self.subTest(name=name):
                self.assert_refused([f"{name}: expected without --url"], "eval", "--url", url,
                                    "--data", data, *flags)
        for flags in (["--served-model-name", "x"], ["--api-key", "x"]):
            with self.subTest(name=flags[0]):
                self.assert_refused([f"{flags[0]}: expected --url"], "eval", TINY_CHAT,
                                    "--load-format", "dummy", "--data", data, *flags)
        self.assert_refused(["url 'nowhere'", "expected http://"], "eval", "--url", "nowhere",
                            "--data", data)

    def test_interrupt_shows_what_there_is(self):
        # One question at a time: a server that never ends is asked the second.
        server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(server.close)
        report = self.folder / "report.json"
        body = json.dumps({"choices": [{"message": {"content": "#### 1"}}]}).encode()
        with start_quire("eval", "--url", f"http://127.0.0.1:{server.getsockname()[1]}", "--data",
                         self.questions(100), "--concurrency", 1, "--json", report) as process:
            self.addCleanup(process.kill)
            first, _ = server.accept()
            first.recv(65536)
            first.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" %
                          (len(body), body))
            first.close()
            second, _ = server.accept()
            second.recv(65536)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
            second.close()
        self.assertEqual(process.returncode, 130, stderr)
        self.assertIn(b"1 of 1 right", stdout)
        self.assertIn(b"interrupted after 1 of 100 questions", stderr)
        found = json.loads(report.read_text())
        self.assertEqual((found["interrupted"], found["questions"], found["accuracy"]), (True, 1, 1))

    def test_interrupt_stops_a_model_of_this_machine(self):
        model = self.copy_model(TINY_CHAT)
        self.change_config(model, max_position_embeddings=1 << 18)
        self.change_config(model, "generation_config.json", eos_token_id=[])
        with start_quire("eval", model, "--load-format", "dummy", "--context-length", 1 << 18,
                         "--max-tokens", 1 << 17, "--concurrency", 1, "--data",
                         self.questions(3)) as process:
            self.addCleanup(process.kill)
            for line in process.stderr:
                if line.startswith(b"loaded "):
                    break
            time.sleep(0.5)  # the answer takes minutes
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate(timeout=60)
        self.assertEqual((process.returncode, stdout), (130, b""), stderr)
        self.assertIn(b"interrupted after 0 of 3 questions", stderr)


class ColourTest(CliTest):
    def at_terminal(self, *args, **env):
        """What the program says to a terminal on stderr."""
        ours, theirs = os.openpty()
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith("QUIRE_") and k not in ("NO_COLOR", "TERM")}
        subprocess.run([BINARY, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=theirs, env={**NO_LEAK_CHECK, **clean, **env}, check=False, timeout=300)
        os.close(theirs)
        said = os.read(ours, 65536)
        os.close(ours)
        return said

    def test_errors_are_red_at_a_terminal_unless_no_colour_is_wanted(self):
        self.assertTrue(self.at_terminal("serv", TERM="xterm").startswith(
            b"\x1b[31mquire: error:\x1b[0m expected"))
        self.assertIn(b"\x1b[31m", self.at_terminal("serv", TERM="xterm", NO_COLOR=""))
        for env in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertNotIn(b"\x1b", self.at_terminal("serv", **env))
        self.assertNotIn("\x1b", quire("serv").stderr)

    def test_statistics_are_dimmed_at_a_terminal_unless_no_colour_is_wanted(self):
        args = ["generate", TINY_CHAT, "Hello", "--load-format", "dummy", "--max-tokens", 2]
        self.assertIn(b"\x1b[2mprompt ", self.at_terminal(*args, TERM="xterm"))
        self.assertNotIn(b"\x1b[2m", self.at_terminal(*args, TERM="xterm", NO_COLOR="1"))


class RanksTest(CliTest):
    def test_inspect_says_what_each_rank_would_hold(self):
        one = self.run_json("inspect", V2_LITE, "--json")["memory"]
        four = self.run_json("inspect", V2_LITE, "--json", "--tp-size", 4)["memory"]
        self.assertNotIn("rank_weights_bytes", one)
        self.assertEqual(len(four["rank_weights_bytes"]), 4)
        self.assertEqual(four["rank_weights_bytes"][0], four["weights_bytes"])
        self.assertEqual(four["rank_bytes"][0], four["total_bytes"])
        besides = [whole - weights for whole, weights in zip(four["rank_bytes"], four["rank_weights_bytes"])]
        self.assertEqual(besides, 4 * [four["total_bytes"] - four["weights_bytes"]])
        self.assertLess(max(four["rank_weights_bytes"]), one["weights_bytes"])
        self.assertEqual(four["kv_bytes_per_token"], one["kv_bytes_per_token"])
        text = self.run_ok("inspect", V2_LITE, "--tp-size", 4)
        for words in ("memory plan of each of 4 ranks", "rank 0 ", "rank 3 "):
            self.assertIn(words, text)

    def test_the_log_says_of_each_rank_what_inspect_says(self):
        args = [V3_GROUPS, "--tp-size", 4, "--context-length", 64, "--max-running-requests", 1,
                "--chunked-prefill-size", 16, "--max-total-tokens", 64]
        plan = self.run_ok("inspect", *args).partition("memory plan")[2]
        self.assertEqual(plan.count("\n  rank "), 4)
        self.assertIn("memory plan" + plan, quire("score", *args, "--tokens", "5,6,7").stderr)

    def test_inspect_plans_for_memory_that_is_elsewhere(self):
        # Under a sanitizer the names of all of the large one's tensors take half a minute.
        name, room, too_little = ("v2_lite", 64, 3) if IS_SANITIZED else ("deepseek_v3", 141, 80)
        model = SOURCE / "bench/models" / name
        args = ["inspect", model, "--json", "--tp-size", 8, "--max-running-requests", 256, "--rank-memory"]
        plan = self.run_json(*args, room)["memory"]
        self.assertLess(plan["total_bytes"], 0.85 * room * 1e9)
        self.assertGreater(plan["total_bytes"], 0.84 * room * 1e9)  # filled with the cache
        self.assertIn("exceed the limit", self.run_json(*args, too_little)["memory_error"])
        self.assert_refused(["--rank-memory", '"0"'], *args, 0)

    def test_an_answer_of_ranks_is_that_of_one(self):
        args = ["generate", TINY_CHAT, "Hello", "--load-format", "dummy", "--max-tokens", 8,
                "--temperature", 0]
        self.assertEqual(self.run_ok(*args, env={"QUIRE_TP_SIZE": "2"}), self.run_ok(*args))

    def test_an_answer_of_groups_is_that_of_one(self):
        args = ["generate", "Tom has 12 apples and eats 5. How many are left?", "--max-tokens", 16,
                "--temperature", 0]
        answer = self.run_ok(*args)
        self.assertEqual(self.run_ok(*args, "--dp-size", 2), answer)
        drafts = ["--speculative-algorithm", "eagle"]
        self.assertEqual(self.run_ok(*args, "--dp-size", 2, *drafts), answer)
        self.assertEqual(self.run_ok(*args, "--dp-size", 4, *drafts, "--speculative-num-steps", "auto"), answer)

    def test_inspect_says_what_each_group_would_hold(self):
        args = ["inspect", V2_LITE, "--json", "--max-running-requests", 8]
        one = self.run_json(*args)["memory"]
        two = self.run_json(*args, "--dp-size", 2)["memory"]
        self.assertEqual(len(two["rank_weights_bytes"]), 2)
        self.assertLess(max(two["rank_weights_bytes"]), one["weights_bytes"])
        self.assertGreater(sum(two["rank_weights_bytes"]), one["weights_bytes"])
        self.assertEqual(two["max_total_tokens"], 2 * two["pages"] * two["page_size"])
        self.assertEqual(two["max_total_tokens"], one["max_total_tokens"])
        self.assertEqual(two["kv_bytes_per_token"], one["kv_bytes_per_token"])
        self.assertEqual(two["max_running_requests"], 8)
        text = self.run_ok("inspect", V2_LITE, "--dp-size", 2)
        for words in ("memory plan of each of 2 ranks", "of 2 groups, which hold tokens of their own",
                      "rank 1 "):
            self.assertIn(words, text)

    def test_groups_that_cannot_be(self):
        name = "--dp-size"
        for flags, words in (([name, 0], [name, "1..1024", '"0"']),
                             ([name, 3], ["dp size", "8 experts", "1, 2, 4 or 8", "got 3"]),
                             ([name, 2, "--tp-size", 2], [name, "--tp-size 2", "one rank so far", "got 2"]),
                             ([name, 2, "--speculative-algorithm", "eagle3",
                               "--speculative-draft-model-path", V2_LITE],
                              [name, "--speculative-algorithm eagle3", "got 2"])):
            with self.subTest(flags=flags):
                self.assert_refused(words, "inspect", V2_LITE, *flags)
        score = ["score", V2_LITE, "--tokens", "1,2", name, 2]
        self.assert_refused([name, "fixed steps", "got 2"], *score)
        self.assert_refused([name, "expected 3", "as many ranks as processes", "got 2"], *score,
                            env={"OMPI_COMM_WORLD_SIZE": "3"})


class EnvironmentTest(CliTest):
    def test_variable_does_what_its_flag_does_and_the_flag_wins(self):
        args = ["inspect", V2_LITE, "--json"]
        env = {"QUIRE_PAGE_SIZE": "1"}
        self.assertEqual(self.run_json(*args, env=env)["memory"]["page_size"], 1)
        flagged = self.run_json(*args, "--page-size", 3, env=env)
        self.assertEqual(flagged["memory"]["page_size"], 3)

    def test_every_twin_is_read(self):
        changed = self.run_json("inspect", "--json", env={
            "QUIRE_MODEL": str(V2_LITE), "QUIRE_CONTEXT_LENGTH": "300",
            "QUIRE_MAX_RUNNING_REQUESTS": "3", "QUIRE_CHUNKED_PREFILL_SIZE": "77",
            "QUIRE_MAX_TOTAL_TOKENS": "640", "QUIRE_KV_CACHE_DTYPE": "fp8",
            "QUIRE_LOAD_FORMAT": "dummy", "QUIRE_THREADS": "1", "QUIRE_STEP_MODE": "eager",
            "QUIRE_DISABLE_CUDA_GRAPH": "1", "QUIRE_MEM_FRACTION_STATIC": "0.5"})
        memory = changed["memory"]
        self.assertEqual(changed["weights"], "dummy")
        self.assertEqual(memory["context_length"], 300)
        self.assertEqual(memory["max_running_requests"], 3)
        self.assertEqual(memory["chunked_prefill_size"], 77)
        self.assertEqual(memory["max_total_tokens"], 640)
        self.assertEqual(memory["kv_cache_dtype"], "fp8")

    def test_bad_value_is_refused_by_the_variables_name(self):
        for name, value, expected in (("PAGE_SIZE", "0", "1..256"), ("THREADS", "two", "1..1024"),
                                      ("KV_CACHE_DTYPE", "int4", "bf16"),
                                      ("MEM_FRACTION_STATIC", "1.5", "up to 1"),
                                      ("STEP_MODE", "lazy", "eager, graph"),
                                      ("DISABLE_CUDA_GRAPH", "maybe", "true"),
                                      ("LOAD_FORMAT", "gguf", "safetensors"),
                                      ("CONTEXT_LENGTH", "-1", "1 or more")):
            with self.subTest(name=name):
                self.assert_refused([f"QUIRE_{name}: ", expected, f'"{value}"'], "score", V2_LITE,
                                    "--tokens", "1", env={f"QUIRE_{name}": value})


class MemoryTest(CliTest):
    def test_a_small_model_takes_little_memory(self):
        with start_quire("serve", "--port", 0) as process:
            self.addCleanup(process.kill)
            for line in process.stderr:
                if re.search(rb"ready: (\S+)", line):
                    break
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            process.kill()
        peak, = re.findall(r"VmHWM:\s+(\d+) kB", status)
        if not IS_SANITIZED:
            self.assertLess(int(peak), 500_000)

    def test_what_is_asked_for_is_planned(self):
        memory = self.run_json("inspect", "--json")["memory"]
        self.assertLess(memory["kv_bytes"], 257 << 20)
        asked = self.run_json("inspect", "--json", "--max-total-tokens", 1 << 18)["memory"]
        self.assertEqual(asked["max_total_tokens"], 1 << 18)


class ModelNameTest(CliTest):
    def test_every_command_runs_the_bundled_model_where_none_is_named(self):
        self.assertIn("quire-grade-school", self.run_ok("inspect"))
        self.run_ok("score", "--tokens", "1,2,3")
        self.assertEqual(self.run_ok("chat", "--quiet", "--max-tokens", 2, stdin="hi\n").count("\n"), 1)

    def test_a_message_where_chat_wants_a_model_is_answered_with_the_way_to_send_it(self):
        self.assert_refused(['"hi"', "does not exist", "quire generate --chat"], "chat", "hi")

    def hub_cache(self, name="owner/tiny.chat"):
        """A cache with TINY_CHAT under this name."""
        model = self.folder / "hub" / ("models--" + name.replace("/", "--"))
        shutil.copytree(TINY_CHAT, model / "snapshots" / "c0ffee")
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text("c0ffee")
        return {"HF_HOME": str(self.folder), "HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": ""}

    def test_a_model_of_the_hugging_face_cache_is_found_by_its_name(self):
        env = self.hub_cache()
        flags = ["--load-format", "dummy", "--temperature", 0, "--max-tokens", 8]
        expected = self.run_ok("generate", TINY_CHAT, "Hello", *flags)
        for args in (["owner/tiny.chat", "Hello"], ["Hello", "--model", "owner/tiny.chat"]):
            self.assertEqual(self.run_ok("generate", *args, *flags, env=env), expected)
        self.assertEqual(self.run_ok("generate", "owner/tiny.chat", *flags, env=env, stdin="Hello"),
                         expected)

    def test_a_server_has_the_name_that_was_typed(self):
        with start_quire("serve", "owner/tiny.chat", "--load-format", "dummy", "--port", 0,
                         env=self.hub_cache()) as process:
            self.addCleanup(process.kill)
            for line in process.stderr:
                if found := re.search(rb"ready: (\S+)", line):
                    break
            with urllib.request.urlopen(found.group(1).decode() + "/v1/models") as response:
                self.assertEqual(json.load(response)["data"][0]["id"], "owner/tiny.chat")
            process.kill()

    def test_a_name_that_is_not_there_is_refused_with_the_command_that_downloads_it(self):
        env = self.hub_cache()
        for command in (["serve"], ["chat"], ["inspect"], ["generate"]):
            self.assert_refused(['"owner/other"', "hf download owner/other", str(self.folder / "hub")],
                                *command, "owner/other", env=env)


class RefusalTest(CliTest):
    def assert_score_refused(self, words, model, *flags, **kwargs):
        self.assert_refused(words, "score", model, "--tokens", "1,2,3", *flags, **kwargs)

    def test_missing_folder_and_config(self):
        self.assert_score_refused(["model: expected a folder", str(self.folder / "none"),
                                   "does not exist"], self.folder / "none")
        self.assert_score_refused(["config.json"], self.folder)

    def test_damaged_weights(self):
        model = self.copy_model()
        file = model / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        self.assert_score_refused(["model.safetensors"], model)
        file.write_bytes(b"")
        self.assert_score_refused(["model.safetensors"], model)

    def test_weights_that_are_not_there(self):
        model = self.copy_model()
        file = model / "model.safetensors"
        file.write_text("version https://git-lfs.github.com/spec/v1\n"
                        f"oid sha256:{'0' * 64}\nsize 123456789\n")
        self.assert_score_refused(["model.safetensors", "Git LFS", "git lfs pull"], model)
        file.unlink()
        file.symlink_to("nowhere")
        self.assert_score_refused(["model.safetensors"], model)
        file.unlink()
        file.symlink_to(file.name)
        self.assert_score_refused(["model.safetensors", "Too many levels"], model)

    def test_weights_that_are_no_numbers_are_refused_by_name(self):
        model = self.copy_model()
        file = model / "model.safetensors"
        content = bytearray(file.read_bytes())
        length, = struct.unpack_from("<Q", content)
        header = json.loads(content[8:8 + length])
        name = "model.layers.1.mlp.gate.weight"
        self.assertEqual(header[name]["dtype"], "BF16")
        begin = 8 + length + header[name]["data_offsets"][0]
        for bits in (0x7f80, 0xffc0):  # infinity, NaN
            struct.pack_into("<H", content, begin + 6, bits)
            file.write_bytes(content)
            self.assert_score_refused([name, "finite", "[0, 3]"], model)

    def test_paths_that_cannot_be_followed(self):
        loop = self.folder / "loop"
        loop.symlink_to(loop.name)
        long = "a" * 5000
        for path, why in ((loop, "Too many levels"), (long, "too long")):
            for command in (("score", path, "--tokens", 1), ("inspect", path), ("bench", path),
                            ("generate", path, "hi"), ("serve", path),
                            ("score", V2_LITE, "--tokens-file", path),
                            ("serve", V2_LITE, "--api-key-file", path),
                            ("generate", TINY_CHAT, "--prompt-file", path),
                            ("eval", TINY_CHAT, "--data", path)):
                with self.subTest(command=command[0], flag=command[2:3], why=why):
                    self.assert_refused([why], *command)

    def test_files_without_an_end_or_that_are_none(self):
        for command in (("score", V2_LITE, "--tokens-file"), ("eval", TINY_CHAT, "--data"),
                        ("serve", V2_LITE, "--api-key-file"),
                        ("generate", TINY_CHAT, "--prompt-file")):
            with self.subTest(command=command[0]):
                self.assert_refused([command[-1], "/dev/zero", "bytes, got more"], *command,
                                    "/dev/zero", limit_bytes=2 << 30)
                self.assert_refused([command[-1], "cannot read", "Is a directory"], *command,
                                    self.folder)
        self.assert_refused(["--tokens-file", "item 0", "integer"], "score", V2_LITE,
                            "--tokens-file", V2_LITE / "model.safetensors")

    def test_missing_shard(self):
        model = self.copy_model(V3_GROUPS)
        (model / "model-00002-of-00003.safetensors").unlink()
        self.assert_score_refused(["model-00002-of-00003.safetensors"], model)

    def test_missing_tensor(self):
        model = self.copy_model()
        self.change_config(model, num_hidden_layers=4)
        self.assert_score_refused(["model.layers.3.", "tensor"], model)

    def test_tensor_of_another_shape(self):
        model = self.copy_model()
        self.change_config(model, intermediate_size=80)
        self.assert_score_refused(["mlp.gate_proj.weight", "expected shape [80, 32]", "[72, 32]"],
                                  model)

    def test_config_value_that_is_not_supported(self):
        model = self.copy_model()
        self.change_config(model, hidden_act="gelu")
        self.assert_score_refused(["config.json", "hidden_act", "silu", "gelu"], model)
        self.change_config(model, hidden_act="silu", num_attention_heads="four")
        self.assert_score_refused(["config.json", "num_attention_heads", "four"], model)
        (model / "config.json").write_text("{")
        self.assert_score_refused(["config.json", "line 1"], model)

    def test_tokens_that_cannot_be(self):
        for text, words in (("1,101", ["--tokens", "item 1", "0..100", "101"]),
                            ("-1", ["--tokens", "item 0", "0..100", "-1"]),
                            ("1,x", ["--tokens", "item 1", "integer", '"x"']),
                            ("1,2.5", ["--tokens", "item 1", "integer", '"2.5"']),
                            ("1,,2", ["--tokens", "item 1", "integer"]),
                            (" ", ["--tokens", "none"]),
                            ("[]", ["--tokens", "none"]),
                            ("[1", ["--tokens", "line 1"])):
            with self.subTest(text=text):
                self.assert_refused(words, "score", V2_LITE, f"--tokens={text}")
        self.assert_refused(["--tokens-file", "no_such"], "score", V2_LITE, "--tokens-file",
                            self.folder / "no_such")
        self.assert_refused(["neither"], "score", V2_LITE)
        self.assert_refused(["both"], "score", V2_LITE, "--tokens", "1", "--tokens-file", "-")

    def test_more_tokens_than_the_context(self):
        self.assert_refused([f"{CONTEXT + 1} tokens", f"context length of {CONTEXT}"], "score",
                            V2_LITE, "--tokens", ids([1] * (CONTEXT + 1)))
        self.run_ok("score", V2_LITE, "--tokens", ids([1] * CONTEXT))
        self.assert_score_refused(["3 tokens", "context length of 2"], V2_LITE,
                                  "--context-length", 2)
        self.assert_score_refused(["3 tokens", "510 to continue", f"context length of {CONTEXT}"],
                                  V2_LITE, "--continue", 510)
        self.assert_score_refused(["context length", f"1..{CONTEXT}", "600"], V2_LITE,
                                  "--context-length", 600)

    def test_flags_that_cannot_be(self):
        for flags, words in ((["--page-size", 0], ["--page-size", "1..256", '"0"']),
                             (["--page-size", 257], ["--page-size", "1..256", '"257"']),
                             (["--page-size", "x"], ["--page-size", "1..256", '"x"']),
                             (["--page-size"], ["--page-size", "missing"]),
                             (["--pagesize", 3], ["score", '"--pagesize"']),
                             (["more"], ["score", '"more"']),
                             (["--kv-cache-dtype", "int4"], ["--kv-cache-dtype", "fp8", "int4"]),
                             (["--index-cache-dtype", "int4"],
                              ["--index-cache-dtype", "fp8", "int4"]),
                             (["--index-cache-layout", "x"],
                              ["--index-cache-layout", "preshuffled", '"x"']),
                             (["--index-topk", 0], ["--index-topk", '"0"']),
                             (["--index-topk", 3], ["index top-k", "sparse attention"]),
                             (["--load-format", "gguf"], ["--load-format", "dummy", "gguf"]),
                             (["--step-mode", "x"], ["--step-mode", "graph", '"x"']),
                             (["--device", "gpu"], ["--device", "cpu", "cuda", '"gpu"']),
                             (["--threads", 0], ["--threads", "1..1024", '"0"']),
                             (["--tp-size", 0], ["--tp-size", "1..1024", '"0"']),
                             (["--tp-size", 3], ["tp size", "4 heads", "1, 2 or 4", "got 3"]),
                             (["--tp-size", 4, "--ep-size", 2], ["ep size", "1 or 4", "got 2"]),
                             (["--ep-size", 2], ["ep size", "expected 1, or a tp size", "got 2 and one rank"]),
                             (["--ep-size", 2], ["ep size", "expected 1", "got 2"]),
                             (["--mem-fraction-static", 0], ["--mem-fraction-static", '"0"']),
                             (["--top", 21], ["--top", "0..20", '"21"']),
                             (["--max-total-tokens", 2], ["--max-total-tokens", "3", "2"]),
                             (["--max-total-tokens", 2**63 - 1],
                              ["--max-total-tokens", "1..68719476736", "9223372036854775807"]),
                             (["--disable-cuda-graph", "--step-mode", "graph"],
                              ["--disable-cuda-graph", "--step-mode graph"]),
                             (["--check", "--step-mode", "graph"],
                              ["--check", "--step-mode graph"])):
            with self.subTest(flags=flags):
                self.assert_score_refused(words, V2_LITE, *flags)

    def test_other_ranks_than_processes_are_refused_by_name(self):
        for variables in ({"OMPI_COMM_WORLD_SIZE": "4"}, {"PMI_SIZE": "4"},
                          {"SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "0"}):
            self.assert_score_refused(["--tp-size: expected 4", "processes", "got 2"], V2_LITE,
                                      "--tp-size", 2, env=variables)
        # Tasks of Slurm that do not look for each other.
        self.run_ok("score", V2_LITE, "--tokens", "1,2", env={"SLURM_STEP_NUM_TASKS": "4"})

    def test_speculation_that_cannot_be(self):
        name, steps, topk, nodes, path = (
            "--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk",
            "--speculative-num-draft-tokens", "--speculative-draft-model-path")
        for flags, words in (([name, "eagle"], ["drafting", "one draft layer", "layers 0"]),
                             ([name, "eagle3"], [name, "eagle3", path]),
                             ([path, HEAD], [path, f"{name} eagle3"]),
                             ([name, "eagle", path, HEAD], [path, f"{name} eagle3"]),
                             ([name, "eagle3", path, "/no/folder"],
                              ["draft model", '"/no/folder"', "does not exist"]),
                             ([name, "eagle3", path, V2_LITE],
                              ["config.json", "architectures", "Eagle3DeepseekV2ForCausalLM"]),
                             ([name, "eagle3", path, HEAD, "--tp-size", 2],
                              ["eagle3", "expected one rank", "got 2"]),
                             ([name, "nextn"], ["drafting", "one draft layer", "layers 0"]),
                             ([name, "medusa"], [name, "ngram", '"medusa"']),
                             ([steps, 3], [steps, f"{name} eagle, eagle3 or ngram", "none"]),
                             ([topk, 3], [topk, f"{name} eagle, eagle3 or ngram", "none"]),
                             ([nodes, 4], [nodes, f"{name} eagle, eagle3 or ngram", "none"]),
                             ([name, "eagle", topk, 9], [topk, "1..8", '"9"']),
                             ([name, "eagle", nodes, 65], [nodes, "2..64", '"65"']),
                             ([name, "eagle", topk, 2], [nodes, f"{topk} 2", "none"]),
                             ([name, "eagle", steps, 2, nodes, 4],
                              [nodes, "expected 3", steps, "got 4"]),
                             ([name, "eagle", steps, 2, topk, 2, nodes, 8],
                              [nodes, "2..7", f"{steps} 2", f"{topk} 2", "got 8"]),
                             ([name, "ngram", topk, 2], [topk, "expected 1", "ngram", "got 2"]),
                             ([name, "ngram", steps, 0], [steps, "1..8", '"0"']),
                             ([name, "ngram", steps, 9], [steps, "1..8", '"9"']),
                             ([name, "ngram", steps, "auto", topk, 2],
                              [topk, "expected 1", "ngram", "got 2"]),
                             ([name, "ngram", nodes, 10], [nodes, "expected 9", "got 10"]),
                             ([name, "ngram", steps, 3, nodes, 5],
                              [nodes, "expected 4", steps, "got 5"]),
                             ([name, "ngram", "--context-length", 5],
                              ["speculation", "context length", "5 tokens"])):
            with self.subTest(flags=flags):
                self.assert_refused(words, "inspect", V2_LITE, *flags)
        self.assert_score_refused([name, "expected none", "scores"], V2_LITE, name, "ngram")
        plain = self.run_json("inspect", V2_LITE, "--json")["memory"]
        for flags in ([nodes, 6], [steps, "auto"]):
            found = self.run_json("inspect", V2_LITE, "--json", name, "ngram", *flags)["memory"]
            self.assertGreater(found["workspace_bytes"], plain["workspace_bytes"], flags)

    def test_inspect_shows_a_draft_model(self):
        flags = ["inspect", V2_LITE, "--speculative-algorithm", "eagle3",
                 "--speculative-draft-model-path", HEAD]
        text = self.run_ok(*flags)
        for words in ("EAGLE-3, of the hidden state before layers 0, 1, 2", "40 of 101 tokens",
                      "of them are the draft model's", "48 B of each token's are of the layer"):
            self.assertIn(words, text)
        plain = self.run_json("inspect", V2_LITE, "--json")
        found = self.run_json(*flags, "--json")
        self.assertEqual(found["draft_model"]["draft_vocab_size"], 40)
        self.assertNotIn("draft_model", plain)
        memory, without = found["memory"], plain["memory"]
        self.assertEqual(memory["kv_bytes_per_token"], without["kv_bytes_per_token"] + 48)
        self.assertEqual(memory["draft_bytes_per_token"], 48)
        self.assertEqual(memory["weights_bytes"],
                         without["weights_bytes"] + memory["draft_weights_bytes"])

    def test_a_gpu_that_cannot_be_used_is_refused_with_why(self):
        cuda = self.run_json("doctor", "--json", "--quick")["backends"]["cuda"]
        if cuda["usable"]:
            self.skipTest("there is one")
        words = ["--device cuda"] + ([] if cuda["compiled_in"] else ["built without CUDA"])
        self.assert_score_refused(words, V2_LITE, "--device", "cuda")
        done = subprocess.run([BINARY, "doctor", "--device", "cuda", "--quick"], text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: --device cuda: ", done.stdout)

    def test_empty_value_is_refused_and_takes_nothing_else_for_it(self):
        for command, flag, following in (("serve", "--port", ["--host", "0.0.0.0"]),
                                         ("score", "--page-size", ["3"]),
                                         ("generate", "--temperature", ["--max-tokens=3"]),
                                         ("chat", "--max-tokens", []), ("inspect", "--page-size", []),
                                         ("eval", "--url", ["--model", "x"]),
                                         ("bench", "--batch", ["1"]), ("doctor", "--json", [])):
            with self.subTest(command=command):
                self.assert_refused([f"{flag}: expected a value behind the =, got none"], command,
                                    f"{flag}=", *following)
        # Behind -- it is a text like any other, and so is a value that is no name of a flag.
        self.run_ok("generate", "--load-format", "dummy", "--max-tokens", 1, "--stop", "--=", "--",
                    TINY_CHAT, "--port=")

    def test_too_little_memory_ends_with_1_and_every_part_of_the_need(self):
        self.assert_score_refused(["weights", "KV", "limit"], V2_LITE, "--mem-fraction-static",
                                  "0.0000001", code=1)

    def test_results_that_stdout_does_not_take_are_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([BINARY, "inspect", str(V2_LITE)], stdout=full,
                                  stderr=subprocess.PIPE, text=True, check=False,
                                  env={**os.environ, **NO_LEAK_CHECK})
        self.assertEqual(done.returncode, 1)
        self.assertIn("stdout", done.stderr)


class InspectTest(CliTest):
    def test_says_what_the_model_is(self):
        text = self.run_ok("inspect", V2_LITE)
        for words in ("deepseek_v2", "3: 0 dense, 1..2 MoE", "4 heads", "yarn x 40", "BF16",
                      "memory plan", "KV cache"):
            self.assertIn(words, text)
        self.assertNotIn("dummy", text)

    def test_json_has_the_same(self):
        for model in (V2_LITE, V3_GROUPS):
            found = self.run_json("inspect", model, "--json", "--page-size", 16)
            self.assertEqual(list(found), ["model", "config", "files", "weights", "memory"])
            config = json.loads((model / "config.json").read_text())
            self.assertEqual(found["config"]["family"], config["model_type"])
            self.assertEqual(found["config"]["layers"], ["dense", "moe", "moe"])
            self.assertEqual(found["config"]["moe"]["experts"], config["n_routed_experts"])
            self.assertEqual(found["weights"], "safetensors")
            memory = found["memory"]
            self.assertEqual(memory["page_size"], 16)
            self.assertEqual(memory["kv_bytes_per_token"], 3 * (24 + 16) * 2)
            parts = ("weights_bytes", "kv_bytes", "workspace_bytes", "step_tables_bytes")
            self.assertEqual(memory["total_bytes"], sum(memory[part] for part in parts))

    def test_a_sparse_model_shows_its_indexer_and_both_caches(self):
        text = self.run_ok("inspect", SPARSE, "--context-length", 1024)
        for words in ("4 heads of 128, 40 keys chosen, halves pairs", "2 full (0, 2), 1 shared",
                      "3.63 KiB per token", "264 B of each token's are index keys",
                      "for choosing keys, whatever the context"):
            self.assertIn(words, text)
        found = self.run_json("inspect", SPARSE, "--context-length", 1024, "--json",
                              "--index-cache-dtype", "bf16")
        self.assertEqual(found["config"]["indexer"]["layers"], ["full", "shared", "full"])
        self.assertEqual(found["memory"]["index_bytes_per_token"], 2 * 128 * 2)
        self.assertEqual(found["memory"]["kv_bytes_per_token"], 3 * 576 * 2 + 2 * 128 * 2)
        self.assertIsNone(self.run_json("inspect", V2_LITE, "--json")["config"]["indexer"])
        self.assert_refused(["page size that is a multiple of 16", "48 or 64", "61"], "inspect",
                            SPARSE, "--page-size", 61, "--index-cache-layout", "preshuffled",
                            "--context-length", 1024)

    def test_parameters_are_those_of_the_files(self):
        found = self.run_json("inspect", V2_LITE, "--json")
        self.assertEqual(found["config"]["parameters"] * 2, found["files"]["BF16"]["bytes"])

    def test_a_config_will_do(self):
        for name in ("dense_1b", "moe_1b"):
            model = SOURCE / "bench/models" / name
            self.assertIn("as --load-format dummy makes them",
                          self.run_ok("inspect", model, "--context-length", 1024))
            found = self.run_json("inspect", model, "--json", "--context-length", 1024)
            self.assertEqual(found["weights"], "dummy")
            self.assertEqual(found["files"], {})
            self.assertGreater(found["config"]["parameters"], 0.9e9)
            self.assertLess(found["config"]["parameters"], 1.1e9)

    def test_a_model_too_large_for_the_machine_can_be_looked_at(self):
        args = ["inspect", V2_LITE, "--mem-fraction-static", "0.0000001"]
        self.assertIn("no memory plan", self.run_ok(*args))
        found = self.run_json(*args, "--json")
        self.assertIsNone(found["memory"])
        self.assertIn("limit", found["memory_error"])


class BenchTest(CliTest):
    flags = ["--batch", "1,3", "--input-len", "20,40", "--output-len", 2, "--contexts", "8,200",
             "--repeats", 1, "--chunked-prefill-size", 16, "--quick"]

    def check_row(self, row, length_name):
        self.assertTrue(ROW_KEYS <= set(row), ROW_KEYS - set(row))
        for key in ROW_KEYS - {"ms_per_step_by_part"}:
            self.assertGreater(row[key], 0, key)
        self.assertGreater(row[length_name], 0)
        parts = row["ms_per_step_by_part"]
        self.assertTrue({"attention", "plan", "sampling", "other"} <= set(parts))
        self.assertAlmostEqual(sum(parts.values()), row["ms_per_step"],
                               delta=0.02 * row["ms_per_step"])

    def test_tables_and_json_of_a_tiny_run(self):
        file = self.folder / "bench.json"
        text = self.run_ok("bench", V2_LITE, *self.flags, "--json", file)
        for words in ("prefill", "decode", "where the time goes", "cost per token", "roofs"):
            self.assertIn(words, text)
        found = json.loads(file.read_text())
        self.assertIn("bench", found["command"])
        self.assertGreater(found["machine"]["read_gb_per_s"], 0)
        self.assertGreater(found["machine"]["multiply_add_gflop_per_s"], 0)
        self.assertNotEqual(found["machine"]["cpu"], "")
        self.assertEqual([(row["batch"], row["prompt"], row["tokens"]) for row in found["prefill"]],
                         [(1, 20, 20), (3, 20, 60), (1, 40, 40), (3, 40, 120)])
        self.assertEqual([row["steps"] for row in found["prefill"]], [2, 4, 3, 8])
        self.assertEqual([(row["batch"], row["context"], row["tokens"]) for row in found["decode"]],
                         [(1, 20, 2), (3, 20, 6), (1, 40, 2), (3, 40, 6)])
        self.assertEqual([row["context"] for row in found["contexts"]], [8, 200])
        for row in found["prefill"]:
            self.check_row(row, "prompt")
        for row in found["decode"] + found["contexts"]:
            self.check_row(row, "context")
        self.assertIsNone(found["decode"][0]["percent_of_scaling"])
        self.assertGreater(found["decode"][1]["percent_of_scaling"], 0)

    def test_two_models_in_one_table_and_a_plot(self):
        file, plot = self.folder / "bench.json", self.folder / "bench.svg"
        text = self.run_ok("bench", SPARSE, "--load-format", "dummy", *self.flags, "--compare", V2_LITE,
                           "--plot", plot, "--json", file)
        self.assertIn("ms per token, attention's part of them, and how many times as long", text)
        for model in (SPARSE, V2_LITE):
            self.assertIn(f"one sequence, {pathlib.Path(model).name}", text)
        found = json.loads(file.read_text())
        self.assertEqual(found["compared"]["model"], str(V2_LITE))
        self.assertEqual([row["context"] for row in found["compared"]["contexts"]], [8, 200])
        for row in found["contexts"] + found["compared"]["contexts"]:
            self.check_row(row, "context")
        # Three layers of rows of 1152 bytes; behind 40 keys two layers' index keys of 132, and 40 rows.
        for row, kept, keys in zip(found["contexts"], (10, 40), (0, 202)):
            self.assertAlmostEqual(row["kv_bytes"] / row["steps"], 3 * 1152 * kept + 2 * 132 * keys,
                                   delta=3 * 1152)
        drawn = xml.etree.ElementTree.parse(plot).getroot()
        lines = drawn.findall(".//{http://www.w3.org/2000/svg}polyline")
        self.assertEqual(len(lines), 4)  # two models, whole steps and attention

    def bench_drafts(self, model, *flags):
        text = self.run_ok("bench", model, "--batch", "1,3", "--input-len", 20, "--output-len", 8,
                           "--contexts", 8, "--repeats", 1, "--quick", *flags, "--json",
                           self.folder / "bench.json")
        found = json.loads((self.folder / "bench.json").read_text())
        rows = found["speculation"]["rows"]
        self.assertEqual([(row["batch"], row["context"]) for row in rows],
                         [(row["batch"], row["context"]) for row in found["decode"]])
        for row, plain in zip(rows, found["decode"]):
            self.assertEqual(row["steps"], 8)
            self.assertEqual(row["plain_ms_per_step"], plain["ms_per_step"])
            self.assertAlmostEqual(row["tokens_per_step"], row["tokens"] / 8 / row["batch"])
            self.assertAlmostEqual(row["speed_up"], row["tokens_per_s"] / plain["tokens_per_s"])
            self.assertEqual(row["tokens"], 8 * row["batch"] + sum(row["right_at"]))
        return text, found["speculation"]

    def test_steps_with_drafts_are_measured_beside_plain_ones(self):
        text, found = self.bench_drafts(DRAFTING, "--speculative-algorithm", "eagle")
        self.assertIn("decode with eagle 3-1-4\n", text)
        self.assertNotIn("SIMULATED", text)
        self.assertIsNone(found["simulated_accept_length"])
        for row in found["rows"]:  # one in every step of each sequence
            self.assertEqual(row["drafts"], 8 * row["batch"])

    def test_drafts_are_right_as_often_as_is_asked_for(self):
        for model, flags, shape in (
                (DRAFTING, ["eagle"], "eagle 3-1-4"),
                (DRAFTING, ["eagle", "--speculative-eagle-topk", 4, "--speculative-num-draft-tokens", 12],
                 "eagle 3-4-12"),
                (V2_LITE, ["ngram", "--speculative-num-steps", 3], "ngram 3-1-4")):
            with self.subTest(shape=shape):
                text, found = self.bench_drafts(
                    model, "--load-format", "dummy", "--simulate-accept-length", 2.5,
                    "--speculative-algorithm", *flags)
                self.assertIn(f"decode with {shape}, SIMULATED: 2.5 tokens a draft", text)
                self.assertIn("no guess is the model's", text)
                self.assertEqual(found["simulated_accept_length"], 2.5)
                for row in found["rows"]:
                    self.assertEqual(row["drafts"], 8 * row["batch"])
                    self.assertAlmostEqual(row["tokens_per_step"], 2.5, delta=0.2)

    def test_what_drafts_cannot_be_is_refused(self):
        name, simulated = "--speculative-algorithm", "--simulate-accept-length"
        for flags, words in (([simulated, 2], [simulated, name, "got none"]),
                             ([simulated, 2, name, "ngram"], [simulated, "--load-format dummy"]),
                             ([simulated, 5.5, name, "ngram", "--load-format", "dummy"],
                              [simulated, "1..5", "got 5.5"]),
                             ([simulated, 0.5, name, "ngram"], [simulated, '"0.5"']),
                             ([name, "eagle"], ["drafting", "one draft layer"]),
                             ([name, "eagle", "--speculative-num-steps", "auto"],
                              ["--speculative-num-steps", "a number", "got auto"])):
            with self.subTest(flags=flags):
                self.assert_refused(words, "bench", V2_LITE, *flags)

    def test_json_on_stdout_is_all_there_is(self):
        found = self.run_json("bench", V2_LITE, "--quick", "--batch", 2, "--contexts", 8, "--json",
                              "-", "--page-size", 1, "--step-mode", "graph")
        self.assertEqual(found["options"]["page_size"], 1)
        self.assertEqual(found["options"]["step_mode"], "graph")
        self.assertIsNone(found["decode"][0]["percent_of_scaling"])  # batch 1 was not measured

    def test_what_does_not_fit_is_refused(self):
        for flags, words in ((["--contexts", 600], ["--contexts 600", f"length of {CONTEXT}"]),
                             (["--input-len", 511], ["--input-len 511", f"length of {CONTEXT}"]),
                             (["--batch", "1,0"], ["--batch", "item 1", '"0"']),
                             (["--max-running-requests", 2], ["--max-running-requests", "16", "2"]),
                             (["--json", self.folder / "no/file"], ["--json", "no/file"]),
                             (["--plot", self.folder / "no/file"], ["--plot", "no/file"]),
                             (["--compare", self.folder / "no"], ["model", "no"])):
            with self.subTest(flags=flags):
                self.assert_refused(words, "bench", V2_LITE, *flags)


class DoctorTest(CliTest):
    def test_says_what_there_is_and_what_to_make_of_it(self):
        lines = self.run_ok("doctor").splitlines()
        names = [line[:13].strip() for line in lines]
        for name in ("quire", "build", "libraries", "CPU", "SIMD", "speed", "memory", "huge pages",
                     "open files", "backend cpu", "backend cuda"):
            self.assertIn(name, names)
        self.assertIn("GB/s read", lines[names.index("speed")])
        self.assertIn("Highway", lines[names.index("libraries")])
        built = self.run_json("doctor", "--json", "--quick")["backends"]["cuda"]["compiled_in"]
        self.assertEqual("not compiled in" in lines[names.index("backend cuda")], not built)
        verdicts = lines[lines.index("") + 1:]
        self.assertGreater(len(verdicts), 3)
        for line in verdicts:
            self.assertRegex(line, "^(ok|warning): ")

    def test_json_has_the_same(self):
        found = self.run_json("doctor", "--json", "--quick")
        self.assertEqual(list(found), ["build", "machine", "backends", "ranks", "findings"])
        version = self.run_ok("--version").split()[1]
        self.assertEqual(found["build"]["version"], version)
        self.assertNotEqual(found["build"]["type"], "")
        machine = found["machine"]
        self.assertGreater(machine["threads"], 0)
        self.assertGreater(len(machine["simd_targets"]), 0)
        self.assertGreater(machine["memory_available_bytes"], 0)
        self.assertIsNone(machine["read_gb_per_s"])  # --quick measures nothing
        self.assertTrue(found["backends"]["cpu"]["compiled_in"])
        for library in (found["ranks"]["mpi"], found["ranks"]["nccl"]):
            self.assertNotEqual(bool(library["version"]), bool(library["problem"]), library)
        text = self.run_ok("doctor", "--quick")
        for name in ("MPI", "NCCL", "topology"):
            self.assertRegex(text, rf"(?m)^{name}  +\S")
        cuda = found["backends"]["cuda"]
        self.assertIn(cuda["compiled_in"], (False, True))
        if not cuda["compiled_in"]:
            self.assertFalse(cuda["usable"])
        self.assertIn("not measured", self.run_ok("doctor", "--quick"))

    def test_few_open_files_are_a_warning(self):
        done = subprocess.run(["bash", "-c", f"ulimit -n 256; exec {BINARY} doctor --quick"],
                              env={**os.environ, **NO_LEAK_CHECK}, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("warning: at most 256 open files", done.stdout)

    def test_what_it_does_not_know_is_refused(self):
        self.assert_refused(["doctor", '"--fast"'], "doctor", "--fast")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
