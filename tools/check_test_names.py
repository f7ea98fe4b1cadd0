#!/usr/bin/env python3
"""Checks that each pattern of a filter stands for a test: one that was renamed would drop out silently.

usage: tools/check_test_names.py TEST_BINARY PATTERN...
"""

import fnmatch
import subprocess
import sys


def names_of(binary):
    """The full names of a Google Test binary's tests."""
    listed = subprocess.run([binary, "--gtest_list_tests"], capture_output=True, text=True, check=True)
    names, suite = [], ""
    for line in listed.stdout.splitlines():
        name = line.partition("#")[0].strip()  # behind it, what a parameter is
        if not line.startswith(" "):
            suite = name
        else:
            names.append(suite + name)
    return names


def stands_for(patterns, name):
    """Whether one of the patterns does."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def lost_patterns(names, patterns):
    """Those that stand for none of the names."""
    return [pattern for pattern in patterns
            if not any(stands_for([pattern], name) for name in names)]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    binary, patterns = sys.argv[1], sys.argv[2:]
    lost = lost_patterns(names_of(binary), patterns)
    for pattern in lost:
        print(f"{pattern}: expected a test of {binary} with such a name, got none")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
