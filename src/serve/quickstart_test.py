"""What the README's quick start says, with the bundled model: quickstart_test.py BINARY MODEL SOURCE.

The answer that stands there is the one that is given; `quire eval` and `quire bench` find the same
server.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import serve_client

SOURCE = pathlib.Path(sys.argv[3]).resolve()
MODEL = SOURCE / "models" / "quire-grade-school"
QUESTIONS = MODEL / "eval" / "heldout.jsonl"


def quire(*arguments):
    done = subprocess.run([serve_client.BINARY, *map(str, arguments)], check=False, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True,
                          env=serve_client.environment(), timeout=1800)
    if done.returncode != 0:
        raise AssertionError(f"quire {arguments} ended with {done.returncode}: {done.stderr}")
    return done.stdout


class QuickStartTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve_client.Server("--max-running-requests", 16, "--context-length", 2048,
                                         model=MODEL, load_format="auto")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_the_first_request_gets_the_answer_that_stands_in_the_readme(self):
        readme = (SOURCE / "README.md").read_text()
        command, expected = re.search(r"^(curl [^\n]*)\n```\n```json\n([^\n]*)\n```", readme,
                                      re.MULTILINE).groups()
        command = command.replace("http://127.0.0.1:8080", self.server.url)
        done = subprocess.run(command + " --silent --show-error", shell=True, check=True, text=True,
                              capture_output=True, timeout=serve_client.WAIT_S)
        given, expected = json.loads(done.stdout), json.loads(expected)
        for key in ("id", "created"):
            given.pop(key), expected.pop(key)
        # Asked once more, the prompt is cached; the answer is the same.
        for answer in (given, expected):
            answer["usage"].pop("prompt_tokens_details")
        self.assertEqual(given, expected)

    def test_the_tool_of_the_readme_is_called(self):
        readme = (SOURCE / "README.md").read_text()
        command = re.search(r"^(curl [^\n]*\"tools\"[^\n]*)\n", readme, re.MULTILINE)[1]
        flags = re.search(r"SERVE_FLAGS='([^']*)'", readme)[1].split()
        server = serve_client.Server(*flags, model=MODEL, load_format="auto")
        self.addCleanup(server.stop)
        done = subprocess.run(
            command.replace("http://127.0.0.1:8080", server.url) + " --silent --show-error",
            shell=True, check=True, text=True, capture_output=True, timeout=serve_client.WAIT_S)
        choice = json.loads(done.stdout)["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls", done.stdout)
        call, = choice["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "add")
        arguments = json.loads(call["function"]["arguments"])
        self.assertEqual(sorted(arguments), ["a", "b"])
        self.assertTrue(all(0 <= number <= 99 for number in arguments.values()), arguments)

    def test_eval_gets_the_same_answers_from_a_server_and_from_the_model(self):
        with tempfile.TemporaryDirectory() as folder:
            runs = {}
            for name, where in (("server", ["--url", self.server.url]), ("model", [MODEL]),
                                ("page 1", [MODEL, "--page-size", 1, "--concurrency", 3])):
                file = pathlib.Path(folder) / "run.json"
                quire("eval", *where, "--data", QUESTIONS, "--num-questions", 40, "--json", file)
                runs[name] = json.loads(file.read_text())
        texts = {name: [answer["text"] for answer in run["answers"]] for name, run in runs.items()}
        self.assertEqual(texts["server"], texts["model"])
        self.assertEqual(texts["page 1"], texts["model"])
        self.assertGreaterEqual(runs["model"]["right"], 38)

    def test_bench_loads_it(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "load.json"
            plot = pathlib.Path(folder) / "load.svg"
            table = quire("bench", "--url", self.server.url, "--concurrency", "1,4", "--num-requests",
                          8, "--input-len", "20-40", "--output-len", 8, "--json", file, "--plot",
                          plot)
            self.assertIn("TTFT", table)
            self.assertIn("<svg", plot.read_text())
            runs = json.loads(file.read_text())["runs"]
        self.assertEqual(len(runs), 2)


if __name__ == "__main__":
    serve_client.main(num_arguments=3)
