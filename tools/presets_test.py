#!/usr/bin/env python3
"""What the presets of CMakePresets.json do with a project that has no tests."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PRESETS = pathlib.Path(__file__).resolve().parent.parent / "CMakePresets.json"


class PresetsTest(unittest.TestCase):
    def test_no_test_found_is_a_failure(self):
        names = [preset["name"] for preset in json.loads(PRESETS.read_text())["testPresets"]
                 if not preset.get("hidden")]
        self.assertIn("dev", names)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(PRESETS, folder)
            (pathlib.Path(folder) / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(empty NONE)\nenable_testing()\n")
            for name in names:
                with self.subTest(preset=name):
                    subprocess.run(["cmake", "--preset", name], cwd=folder, check=True,
                                   capture_output=True)
                    done = subprocess.run(["ctest", "--preset", name], cwd=folder, text=True,
                                          capture_output=True, check=False)
                    self.assertIn("No tests were found", done.stdout + done.stderr)
                    self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
