#!/usr/bin/env python3
"""Plants forbidden includes beside a copy of src/LAYERS and expects tools/check_includes.py to name them."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent


class PlantedIncludeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "src").mkdir()
        shutil.copy(TOOLS.parent / "src/LAYERS", self.root / "src/LAYERS")

    def check(self):
        return subprocess.run(
            [sys.executable, TOOLS / "check_includes.py", "--root", self.root],
            capture_output=True, text=True, check=False)

    def plant(self, file, *lines):
        path = self.root / "src" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def expect_refused(self, file, line, message):
        """Expects the check to print `message` for `line` in `file`, alone."""
        self.plant(file, line, "#include <vector>")
        result = self.check()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(result.stdout.splitlines()[0], f"src/{file}:1: {message}")
        self.assertEqual(len(result.stdout.splitlines()), 2, result.stdout)

    def test_without_sources(self):
        result = self.check()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("no sources", result.stdout)

    def test_upwards(self):
        self.expect_refused("base/units.h", '#include "attn/plan.h"',
                            '"attn/plan.h": base may include only base')

    def test_sideways(self):
        self.expect_refused("kernels/store.cc", ' # include "cache/page_pool.h"',
                            '"cache/page_pool.h": kernels may include only '
                            'attn, base, device, kernels')

    def test_testing_outside_tests(self):
        self.expect_refused("attn/plan.cc", '#include "testing/compare.h"',
                            '"testing/compare.h": attn may include only attn, base, device')

    def test_tests_may_not_include_everything(self):
        self.expect_refused("attn/planted_test.cc", '#include "kernels/store.h"',
                            '"kernels/store.h": attn may include only attn, base, '
                            'device, io, testing')

    def test_angle_brackets(self):
        self.expect_refused("base/units.h", "#include <attn/plan.h>",
                            "<attn/plan.h> is a file of this project: include it in quotes")

    def test_without_folder(self):
        self.expect_refused("attn/plan.cc", '#include "plan.h"',
                            '"plan.h" is not of the form "folder/file"')

    def test_unknown_folder(self):
        self.expect_refused("attn/plan.cc", '#include "utils/plan.h"',
                            '"utils/plan.h": folder utils has no line in src/LAYERS')

    def test_file_in_unknown_folder(self):
        self.expect_refused("utils/plan.cc", "", "is in no folder that has a line in src/LAYERS")

    def test_highway_outside_kernels(self):
        self.expect_refused("attn/plan.cc", '#include "hwy/highway.h"',
                            '"hwy/highway.h": only kernels may include hwy')

    def expect_accepted(self, file, *lines):
        self.plant(file, *lines)
        result = self.check()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_cuda_folders_use_what_is_below_them(self):
        self.expect_accepted("kernels/cuda/planted.cuh", "#include <cuda_bf16.h>",
                             '#include "kernels/store.h"', '#include "device/cuda/cuda.h"')

    def test_attention_lies_above_the_device(self):
        self.expect_accepted("attn/cuda/planted.cu", '#include "attn/plan.h"',
                             '#include "device/cuda/status.cuh"')
        self.expect_accepted("attn/planted.cc", '#include "device/arena.h"')
        self.expect_refused("attn/plan.cc", '#include "device/cuda/status.cuh"',
                            '"device/cuda/status.cuh": only files of cuda folders and of local may '
                            'include those of others')

    def test_the_device_does_not_know_attention(self):
        self.expect_refused("device/arena.cc", '#include "attn/plan.h"',
                            '"attn/plan.h": device may include only base, device')

    def test_cuda_folders_keep_to_the_layers(self):
        self.expect_refused("attn/cuda/planted.cuh", '#include "kernels/store.h"',
                            '"kernels/store.h": attn may include only attn, base, device')

    def test_tests_of_cuda_folders(self):
        self.expect_accepted("attn/cuda/planted_test.cu", '#include "testing/compare.h"')

    def test_headers_of_tests_are_for_tests(self):
        self.expect_accepted("attn/planted_cases.h", '#include "testing/compare.h"')
        self.expect_accepted("attn/planted_test.cc", '#include "attn/planted_cases.h"')
        self.expect_refused("attn/plan.cc", '#include "attn/planted_cases.h"',
                            '"attn/planted_cases.h": only tests and their headers may include it')

    def test_cuda_outside_cuda_folders(self):
        self.expect_refused("kernels/gemm.cc", '#include "kernels/cuda/gemm/gemm.h"',
                            '"kernels/cuda/gemm/gemm.h": only files of cuda folders and of local may '
                            'include those of others')

    def test_cuda_where_a_device_is_chosen(self):
        self.expect_accepted("local/planted.cc", '#include "device/cuda/device.h"')

    def test_headers_of_cuda_outside_cuda_folders(self):
        self.expect_refused("device/buffer.cc", "#include <cuda_runtime_api.h>",
                            "<cuda_runtime_api.h>: only files of cuda folders may include "
                            "CUDA's headers")


if __name__ == "__main__":
    unittest.main()
