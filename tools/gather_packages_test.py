#!/usr/bin/env python3
"""What tools/gather_packages.sh and tools/install_packages.sh do without a network."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent
CONTROL = """Package: planted
Version: 1
Architecture: amd64
Maintainer: nobody <nobody@example.com>
Description: planted by a test
"""


def run(tool, *arguments, **variables):
    return subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})


class GatherPackagesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="with space ")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def plant_package(self, library):
        """Makes debs/planted.deb, which holds `library`."""
        tree = self.folder / "tree"
        file = tree / library
        file.parent.mkdir(parents=True)
        file.write_text("planted\n")
        (tree / "DEBIAN").mkdir()
        (tree / "DEBIAN" / "control").write_text(CONTROL)
        (self.folder / "debs").mkdir()
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree,
                        self.folder / "debs" / "planted.deb"], check=True, capture_output=True)
        shutil.rmtree(tree)

    @unittest.skipUnless(shutil.which("dpkg-deb"), "not a Debian-like system")
    def test_unpacks_and_prints_an_environment_that_a_shell_can_read(self):
        self.plant_package("usr/lib/x86_64-linux-gnu/libplanted.so")
        result = run("gather_packages.sh", "--unpack", self.folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        unpacked = self.folder / "usr" / "lib" / "x86_64-linux-gnu" / "libplanted.so"
        self.assertEqual(unpacked.read_text(), "planted\n")
        shell = subprocess.run(
            ["bash", "-euc", 'eval "$1"; printf "%s\\n" "$QUIRE_PACKAGES" "$CMAKE_PREFIX_PATH" '
             '"$CPLUS_INCLUDE_PATH"', "-", result.stdout],
            capture_output=True, text=True, check=True)
        self.assertEqual(shell.stdout.splitlines(), [
            str(self.folder), f"{self.folder}/usr", f"{self.folder}/usr/include/x86_64-linux-gnu"])
        # And with it, nothing has to be installed.
        installed = run("install_packages.sh", TOOLS / "packages.txt",
                        QUIRE_PACKAGES=str(self.folder))
        self.assertEqual(installed.returncode, 0, installed.stderr)
        self.assertIn("nothing is installed", installed.stdout)

    def test_a_folder_without_packages_is_named(self):
        result = run("gather_packages.sh", "--unpack", self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{self.folder}/debs holds no packages", result.stderr)
        result = run("install_packages.sh", TOOLS / "packages.txt",
                     QUIRE_PACKAGES=str(self.folder))
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"QUIRE_PACKAGES names '{self.folder}'", result.stderr)

    def test_what_is_there_already_is_not_overwritten(self):
        (self.folder / "mine").write_text("mine\n")
        result = run("gather_packages.sh", "amd64", self.folder)
        self.assertEqual(result.returncode, 1)
        self.assertIn("there already", result.stderr)

    def test_arguments_that_are_missing_or_unknown(self):
        for arguments in [(), ("amd64",), ("--unpak", self.folder)]:
            result = run("gather_packages.sh", *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertTrue(result.stderr.startswith("Usage: tools/gather_packages.sh"),
                            result.stderr)


if __name__ == "__main__":
    unittest.main()
