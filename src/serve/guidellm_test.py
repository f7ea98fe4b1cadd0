"""The real GuideLLM package, unmodified, against a live `quire serve` of the bundled model.

usage: guidellm_test.py BINARY MODEL [unittest arguments]

Run by `make test-guidellm`, in a Python that has guidellm.
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

REQUESTS = 6
OUTPUT_TOKENS = 8


class GuideLlmTest(unittest.TestCase):
    def test_a_benchmark_counts_every_request_and_token(self):
        server = Server(load_format="auto")
        self.addCleanup(server.stop)
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            command = [pathlib.Path(sys.executable).parent / "guidellm", "run",
                       "--backend", f"kind=openai_http,target={server.url}",
                       "--profile", "kind=concurrent,streams=2",
                       "--constraint", f"kind=max_requests,count={REQUESTS}",
                       "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
                       "--tokenizer", f"kind=huggingface_auto,model={serve_client.MODEL}",
                       "--output", f"kind=json,path={report}", "--disable-console-interactive"]
            done = subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"},
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
            requests = json.loads(report.read_text())["benchmarks"][0]["requests"]
        self.assertEqual([len(requests[kind]) for kind in ("successful", "errored", "incomplete")],
                         [REQUESTS, 0, 0])
        for request in requests["successful"]:
            self.assertEqual(request["output_tokens"], OUTPUT_TOKENS)
            self.assertGreater(request["prompt_tokens"], 0)
            self.assertGreater(request["time_to_first_token_ms"], 0)


if __name__ == "__main__":
    serve_client.main()
