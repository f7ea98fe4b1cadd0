#!/usr/bin/env python3
"""What tools/sanitize_cuda.py makes of what compute-sanitizer says; a planted one says it here."""

import os
import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "sanitize_cuda.py"
PASSED = "[  PASSED  ] 3 tests."
CLEAN = "========= ERROR SUMMARY: 0 errors"


class SanitizeCudaTest(unittest.TestCase):
    def run_planted(self, says, code=0, only="memcheck plans", limit="60",
                    has_tests=True):
        """A compute-sanitizer that runs the shell commands `says`, whatever it is asked."""
        with tempfile.TemporaryDirectory() as folder:
            planted = pathlib.Path(folder) / "compute-sanitizer"
            planted.write_text(f"#!/bin/sh\n{says}\nexit {code}\n")
            planted.chmod(0o755)
            test = pathlib.Path(folder) / "src" / "attn" / "cuda_attn_test"
            if has_tests:
                test.parent.mkdir(parents=True)
                test.touch()
            return subprocess.run(
                [TOOL, "--build", folder, "--only", only, "--limit", limit],
                capture_output=True, text=True, check=False,
                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})

    def test_clean_is_said_of_tests_that_ran_and_a_tool_that_found_nothing(self):
        result = self.run_planted(f"echo '{PASSED}'; echo '{CLEAN}'")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("[2/2] memcheck plans", result.stdout)
        self.assertRegex(result.stdout, r"\| plans \| clean, \d+ s \| - \| - \| - \|")
        self.assertIn("| device | - | - | - | - |", result.stdout)

    def test_racecheck_counts_hazards(self):
        hazards = "========= RACECHECK SUMMARY: {} hazards displayed ({} errors, 0 warnings)"
        for count, code in ((0, 0), (2, 1)):
            says = f"echo '{PASSED}'; echo '{hazards.format(count, count)}'"
            result = self.run_planted(says, only="racecheck plans")
            self.assertEqual(result.returncode, code, result.stdout)

    def test_anything_else_is_not_clean(self):
        for says, code, verdict in (
                (f"echo '{PASSED}'; echo '========= ERROR SUMMARY: 1 error'", 9, "found something"),
                (f"echo '{PASSED}'; echo '{CLEAN}'", 9, "found something"),
                (f"echo '{PASSED}'", 0, "found something"),
                (f"echo '[  PASSED  ] 0 tests.'; echo '{CLEAN}'", 0, "no test passed"),
                (f"echo '[  SKIPPED ] X.Y'; echo '{PASSED}'; echo '{CLEAN}'", 0, "were skipped"),
                (f"echo '[  FAILED  ] X.Y'; echo '{PASSED}'; echo '{CLEAN}'", 1, "tests failed")):
            with self.subTest(says=says):
                result = self.run_planted(says, code)
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertRegex(result.stdout, rf"\| plans \| .*{verdict}")

    def test_what_does_not_end_is_not_waited_for(self):
        result = self.run_planted(f"echo '{PASSED}'; echo '{CLEAN}'; exec sleep 30", limit="1")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("| plans | not finished in 1 s", result.stdout)

    def test_what_cannot_be_is_refused(self):
        for arguments, message in (
                ({"only": "memchek"}, "no 'tool suite' has 'memchek' in it"),
                ({"limit": "0"}, "expected 1 or more, got 0"),
                ({"has_tests": False}, "src/attn/cuda_attn_test: not found")):
            with self.subTest(message=message):
                result = self.run_planted("", **arguments)
                self.assertEqual(result.returncode, 2)
                self.assertIn(message, result.stderr)


if __name__ == "__main__":
    unittest.main()
