#!/usr/bin/env python3
"""Compares a template as Quire renders it with transformers, on generated conversations.

    tools/check_template.py FILE [--render build/src/text/quire_render] [--cases 300] [--seed 1]

FILE is a .jinja file or a tokenizer_config.json. Prints the first difference; ends with 1 if there
is one.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys

from make_template_goldens import conversation, render_case


def templates(path):
    """[(name, source)] of a file."""
    text = path.read_text()
    if path.suffix != ".json":
        return [(path.name, text)]
    entry = json.loads(text)["chat_template"]
    if isinstance(entry, str):
        return [("chat_template", entry)]
    return [(item["name"], item["template"]) for item in entry]


def render(program, source, cases):
    done = subprocess.run([program], input=json.dumps({"template": source, "cases": cases}),
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def same(ours, theirs):
    """Texts and raised messages have to be equal; of other failures, that there is one."""
    if "error" in theirs:
        return "error" in ours
    return ours == theirs


def check(program, name, source, cases):
    answer = render(program, source, cases)
    if "refused" in answer:
        print(f"{name}: refused: {answer['refused']}")
        return False
    counts = {}
    for case, ours in zip(cases, answer["results"]):
        theirs = render_case(source, case)
        kind = next(iter(theirs))
        counts[kind] = counts.get(kind, 0) + 1
        if not same(ours, theirs):
            print(f"{name}: differs for {json.dumps(case, ensure_ascii=False)}")
            print(f"  transformers: {json.dumps(theirs, ensure_ascii=False)}")
            print(f"  quire:        {json.dumps(ours, ensure_ascii=False)}")
            return False
    print(f"{name}: {len(cases)} conversations agree {counts}")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=pathlib.Path, nargs="+")
    parser.add_argument("--render", default="build/src/text/quire_render")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    cases = [conversation(rng) for _ in range(args.cases)]
    results = [check(args.render, f"{path}: {name}", source, cases)
               for path in args.file for name, source in templates(path)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
