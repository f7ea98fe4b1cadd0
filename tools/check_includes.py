#!/usr/bin/env python3
"""Checks every #include under src/ against the layers of src/LAYERS.

  A file of folder X includes X and what LAYERS allows X. Tests (*_test.cc, *_test.cu, *_fuzz.cc) and
  what is theirs alone (*_cases.h, *_testing.h, test_*) may include testing, device and io besides;
  nothing else outside testing includes testing or such a file.
  Quotes are for project files, as "folder/file", and for "hwy/..." in kernels; project files are
  never in angle brackets.
  LAYERS lists folders bottom up: a folder is allowed only what stands above its line.
  A file of X/cuda includes X and what LAYERS allows X/cuda, or X where it has no line for that. Only
  files of cuda folders include CUDA's headers and files of cuda folders; of the latter, local's may.
"""

import argparse
import pathlib
import re
import sys

SUFFIXES = (".h", ".cc", ".cu", ".cuh")
TEST_FILE = re.compile(r".*_(test|fuzz)\.(cc|cu)|.*_(cases|testing)\.h|test_.*\.(cc|cu|h)")
TEST_LAYERS = {"testing", "device", "io"}
THIRD_PARTY = {"hwy": "kernels"}  # quoted by its own convention, in one folder
CUDA_HEADER = re.compile(r"cu(da|blas)\w*\.h")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')


def read_layers(path, errors):
    """{folder: set of folders it may include, itself among them}"""
    layers = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        folder, colon, allowed = line.partition(":")
        allowed = allowed.split()
        if not colon or folder in layers:
            errors.append(f"src/LAYERS:{number}: expected one 'folder: allowed ...' per folder")
        if allowed == ["*"]:
            allowed = layers
        for layer in allowed:
            if layer not in layers:
                errors.append(f"src/LAYERS:{number}: {folder} is allowed {layer}, "
                              f"which has no line above")
        layers[folder] = {folder.removesuffix("/cuda"), *allowed}
    return layers


def in_cuda_folder(path):
    return path.parts[1:2] == ("cuda",) and len(path.parts) > 2


def rule_broken(layers, file, bracket, include):
    """What is wrong with `include` in `file` (relative to src/), or None."""
    folder = file.parts[0]
    target, slash, _ = include.partition("/")
    if not in_cuda_folder(file):
        if bracket == "<" and CUDA_HEADER.fullmatch(include):
            return f"<{include}>: only files of cuda folders may include CUDA's headers"
        if bracket == '"' and in_cuda_folder(pathlib.PurePath(include)) and folder != "local":
            return f'"{include}": only files of cuda folders and of local may include those of others'
    if bracket == "<":
        if slash and target in layers:
            return f"<{include}> is a file of this project: include it in quotes"
        return None
    if target in THIRD_PARTY:
        if folder != THIRD_PARTY[target]:
            return f'"{include}": only {THIRD_PARTY[target]} may include {target}'
        return None
    if not slash:
        return f'"{include}" is not of the form "folder/file"'
    if target not in layers:
        return f'"{include}": folder {target} has no line in src/LAYERS'
    allowed = layers[folder]
    if in_cuda_folder(file):
        allowed = layers.get(f"{folder}/cuda", allowed)
    if TEST_FILE.fullmatch(file.name):
        allowed = allowed | TEST_LAYERS
    elif TEST_FILE.fullmatch(pathlib.PurePath(include).name) and folder != "testing":
        return f'"{include}": only tests and their headers may include it'
    if target not in allowed:
        return f'"{include}": {folder} may include only {", ".join(sorted(allowed))}'
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent,
                        help="the folder that holds src/")
    src = parser.parse_args().root / "src"

    errors = []
    layers = read_layers(src / "LAYERS", errors)
    files = sorted(path for path in src.rglob("*") if path.suffix in SUFFIXES)
    num_includes = 0
    for path in files:
        file = path.relative_to(src)
        if len(file.parts) < 2 or file.parts[0] not in layers:
            errors.append(f"src/{file}:1: is in no folder that has a line in src/LAYERS")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            num_includes += 1
            broken = rule_broken(layers, file, *match.groups())
            if broken:
                errors.append(f"src/{file}:{number}: {broken}")
    if not files:
        errors.append(f"{src}: no sources")
    if errors:
        print("\n".join(errors))
        print(f"layering: {len(errors)} broken; the rules: tools/check_includes.py --help")
        return 1
    print(f"layering: {num_includes} includes of {len(files)} files keep to src/LAYERS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
