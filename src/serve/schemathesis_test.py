"""The server against its own OpenAPI document, by the real schemathesis package.

usage: schemathesis_test.py BINARY MODEL [unittest arguments]

Run by `make test-clients`, in a Python that has schemathesis. It makes up bodies that the document
allows and bodies that it does not, and holds the answers against it.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import serve_client
from serve_client import Server

# Not positive_data_acceptance: fields that are right one by one may not be together ("min_tokens" above
# "max_tokens"), and tokens may be none of the model's.
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_headers_conformance", "response_schema_conformance", "negative_data_rejection",
          "unsupported_method", "allow_header_conformance")
EXAMPLES = 40  # of each operation


class SchemathesisTest(unittest.TestCase):
    def test_answers_are_as_the_document_says(self):
        # Short answers: the server is tested, not the model.
        server = Server("--max-output-tokens", 4)
        self.addCleanup(server.stop)
        command = [pathlib.Path(sys.executable).parent / "schemathesis", "run",
                   f"{server.url}/openapi.json", "--checks", ",".join(CHECKS),
                   "--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing",
                   "--seed", "15", "--continue-on-failure", "--suppress-health-check", "all"]
        with tempfile.TemporaryDirectory() as folder:  # it keeps what it found
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-8000:] + done.stderr[-2000:])
        self.assertIn("fuzzing", done.stdout.lower())


if __name__ == "__main__":
    serve_client.main()
