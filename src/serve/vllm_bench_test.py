"""vLLM's benchmark of servers, unmodified, against a live `quire serve` of the bundled model.

usage: vllm_bench_test.py BINARY MODEL [unittest arguments]

Run by `make test-vllm-bench`, in a Python that has vllm.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import serve_client
from serve_client import Server

REQUESTS = 8
INPUT_TOKENS = 24
OUTPUT_TOKENS = 8


class VllmBenchTest(unittest.TestCase):
    def bench(self, server, backend, endpoint):
        """What it writes of a run in which as many requests as it likes are open at a time."""
        with tempfile.TemporaryDirectory() as folder:
            command = [pathlib.Path(sys.executable).parent / "vllm", "bench", "serve",
                       "--backend", backend, "--base-url", server.url, "--endpoint", endpoint,
                       "--tokenizer", str(serve_client.MODEL),  # the model's name is asked for
                       "--dataset-name", "random", "--num-prompts", str(REQUESTS),
                       "--random-input-len", str(INPUT_TOKENS),
                       "--random-output-len", str(OUTPUT_TOKENS),
                       "--ignore-eos", "--num-warmups", "1", "--disable-tqdm",
                       "--save-result", "--save-detailed",
                       "--result-dir", folder, "--result-filename", "result.json"]
            done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"},
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
            return json.loads((pathlib.Path(folder) / "result.json").read_text())

    def test_a_benchmark_counts_every_request_and_token(self):
        server = Server(load_format="auto")
        self.addCleanup(server.stop)
        for backend, endpoint in (("openai", "/v1/completions"),
                                  ("openai-chat", "/v1/chat/completions")):
            with self.subTest(backend):
                result = self.bench(server, backend, endpoint)
                self.assertEqual((result["completed"], result["failed"]), (REQUESTS, 0))
                self.assertEqual(set(result["errors"]), {""})
                self.assertEqual(result["output_lens"], [OUTPUT_TOKENS] * REQUESTS)
                self.assertEqual(result["total_output_tokens"], REQUESTS * OUTPUT_TOKENS)
                for name in ("request_throughput", "output_throughput", "mean_ttft_ms",
                             "mean_tpot_ms", "mean_itl_ms"):
                    self.assertGreater(result[name], 0, name)


if __name__ == "__main__":
    serve_client.main()
