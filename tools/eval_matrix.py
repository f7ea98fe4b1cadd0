#!/usr/bin/env python3
"""The bundled model's accuracy at every page size, mode, cache and concurrency: one table.

usage: tools/eval_matrix.py QUIRE [--faulty QUIRE_WITH_FAULTS] [--device cuda] [--quick] [--output FILE]

Every cell answers the same questions, 100 short and 10 long ones, greedily; the answers must be the
same texts everywhere, or this fails. One cell answers all of both files. With --faulty, a build with
QUIRE_FAULTS, the experiment that this project grew out of follows: the planner counts pages where
the kernel reads tokens (fault 25556), at page sizes 1 and 64. It fails too if fp8 KV costs more than
0.01 of accuracy, if the fault does not show, or if no answer is preempted where so little KV fits that
some must be. On a GPU (--device cuda) steps are --deterministic, and nothing speculates yet.
"""

import argparse
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "quire-grade-school"
FILES = {"short": MODEL / "eval" / "heldout.jsonl", "long": MODEL / "eval" / "long.jsonl"}
PAGE_SIZES = (1, 16, 64, 128)
TREES = ((3, 1, 4), (3, 4, 8), (5, 8, 32))  # steps, branches and nodes of drafts
FP8_TOLERANCE = 0.01
CONTEXT = 5632  # the longest prompt of the long file, and room for its answer


class Matrix:
    def __init__(self, options):
        self.options = options
        self.texts = {}  # (kind, number of questions) -> the texts of the first cell
        self.done = 0

    def ask(self, kind, count, *, page, mode="eager", cache=True, concurrency=64, kv="bf16",
            tree=None, fault=None, same=True, context=CONTEXT, pool=400_000):
        """One run of `quire eval`; its JSON."""
        binary = self.options.faulty if fault else self.options.quire
        flags = ["--page-size", page, "--step-mode", mode, "--concurrency", concurrency,
                 "--context-length", context, "--max-total-tokens", pool, "--kv-cache-dtype", kv,
                 "--max-tokens", 256, "--device", self.options.device]
        if self.options.device == "cuda":
            flags.append("--deterministic")
        if not cache:
            flags.append("--disable-radix-cache")
        if tree:
            steps, branches, nodes = tree
            flags += ["--speculative-algorithm", "eagle", "--speculative-num-steps", steps,
                      "--speculative-eagle-topk", branches, "--speculative-num-draft-tokens", nodes]
        if count:
            flags += ["--num-questions", count]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "run.json"
            environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
            if fault:
                environment["QUIRE_REVERT"] = str(fault)
            begin = time.monotonic()
            done = subprocess.run([str(part) for part in (binary, "eval", MODEL, "--data", FILES[kind],
                                                          *flags, "--json", out)],
                                  env=environment, check=False, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
            if done.returncode != 0:
                sys.exit(f"quire eval ended with {done.returncode}:\n{done.stderr}")
            run = json.loads(out.read_text())
            if run["errors"]:
                sys.exit(f"{run['errors']} questions were not answered:\n{done.stderr}")
        self.done += 1
        print(f"[{self.done}] {kind} x {run['questions']}, page {page}, {mode}, cache "
              f"{'on' if cache else 'off'}, concurrency {concurrency}, {kv}"
              f"{', drafts ' + tree_name(tree) if tree else ''}"
              f"{', fault ' + str(fault) if fault else ''}: {run['accuracy']:.3f} in "
              f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        if same:
            self.check_same(kind, count, run)
        return run

    def check_same(self, kind, count, run):
        texts = [answer["text"] for answer in run["answers"]]
        expected = self.texts.setdefault((kind, count), texts)
        if texts != expected:
            where = next(i for i, (a, b) in enumerate(zip(texts, expected)) if a != b)
            sys.exit(f"{kind} question {where} has two answers:\n{expected[where]}\n---\n{texts[where]}")


def cpu_name():
    """"Neoverse-V1", or what kind of machine this is."""
    try:
        listed = subprocess.run(["lscpu", "-J"], check=True, capture_output=True, text=True).stdout
        return next(row["data"] for row in json.loads(listed)["lscpu"]
                    if row["field"] == "Model name:")
    except (OSError, subprocess.CalledProcessError, StopIteration, ValueError):
        return platform.machine()


def tree_name(tree):
    return "-".join(str(part) for part in tree)


def prefill_rate(run):
    return (run["prompt_tokens"] - run["cached_tokens"]) / run["seconds"]


def cells(matrix, sizes):
    """A row for each cell. Long questions are nearly all prefill, short ones nearly all decode."""
    yield "| page size | steps | prefix cache | concurrency | short | long | prefill tokens/s | decode tokens/s |"
    yield "|--:|---|---|--:|--:|--:|--:|--:|"
    for page, mode, cache, concurrency in itertools.product(sizes.pages, ("eager", "graph"),
                                                            (True, False), (1, 64)):
        setup = dict(page=page, mode=mode, cache=cache, concurrency=concurrency)
        short = matrix.ask("short", sizes.short, **setup)
        long = matrix.ask("long", sizes.long, **setup) if sizes.long else None
        yield (f"| {page} | {mode} | {'on' if cache else 'off'} | {concurrency} | "
               f"{short['accuracy']:.3f} | {long['accuracy'] if long else float('nan'):.3f} | "
               f"{prefill_rate(long) if long else float('nan'):.0f} | "
               f"{short['output_tokens'] / short['seconds']:.0f} |")


def crowded(matrix, sizes):
    """The same texts where all answers together do not fit, and are preempted and computed again."""
    count = max(sizes.short, 24)  # enough that some must be preempted
    matrix.ask("short", count, page=64)
    yield "| page size | room for tokens | preemptions | short |"
    yield "|--:|--:|--:|--:|"
    for page in (1, 16):
        run = matrix.ask("short", count, page=page, mode="graph", context=256, pool=256)
        if run["preemptions"] == 0:
            sys.exit(f"page size {page}: no answer was preempted")
        yield f"| {page} | 256 | {run['preemptions']} | {run['accuracy']:.3f} |"


def speculating(matrix, sizes):
    """The same texts with drafts of the model's own layer: "none" is the row to compare with."""
    yield "| drafts (steps-branches-nodes) | page size | concurrency | short | tokens a draft gives | decode tokens/s |"
    yield "|---|--:|--:|--:|--:|--:|"
    for page, concurrency, tree in itertools.product((1, 64), (1, 64), (None, *TREES)):
        run = matrix.ask("short", sizes.short, page=page, concurrency=concurrency, tree=tree)
        if tree and run["accepted_tokens"] == 0:
            sys.exit(f"drafts {tree_name(tree)}: none was right")
        given = f"{1 + run['accepted_tokens'] / run['drafts']:.2f}" if tree else ""
        yield (f"| {tree_name(tree) if tree else 'none'} | {page} | {concurrency} | "
               f"{run['accuracy']:.3f} | {given} | {run['output_tokens'] / run['seconds']:.0f} |")


def whole(matrix, sizes):
    """All questions, and those that fp8 is asked against bf16."""
    yield "| KV cache | file | questions | solved | 95% interval |"
    yield "|---|---|--:|--:|---|"
    asked = [("bf16", "short", sizes.all), ("fp8", "short", sizes.all)]
    if sizes.long:
        asked += [("bf16", "long", sizes.all), ("fp8", "long", sizes.long)]
    solved = {}
    for kv, kind, count in asked:
        run = matrix.ask(kind, count, page=64, kv=kv, same=False)
        solved[kv, kind] = [answer["right"] for answer in run["answers"]]
        low, high = run["interval_95"]
        yield (f"| {kv} | {FILES[kind].name} | {run['questions']} | {run['accuracy']:.3f} | "
               f"{low:.3f} - {high:.3f} |")
    for kind in ("short", "long") if sizes.long else ("short",):
        narrow = solved["fp8", kind]
        wide = solved["bf16", kind][:len(narrow)]  # the same questions
        if abs(sum(narrow) - sum(wide)) > FP8_TOLERANCE * len(narrow):
            sys.exit(f"fp8 KV solves {sum(narrow)} of {len(narrow)} {kind} questions, bf16 {sum(wide)}")


def experiment(matrix, num_short):
    yield "| page size | as it is | with fault 25556 |"
    yield "|--:|--:|--:|"
    for page in (1, 64):
        right = matrix.ask("short", num_short, page=page)
        wrong = matrix.ask("short", num_short, page=page, fault=25556, same=page == 1)
        if page == 64 and wrong["accuracy"] > right["accuracy"] / 2:
            sys.exit(f"fault 25556 does not show: {wrong['accuracy']} of {right['accuracy']}")
        yield f"| {page} | {right['accuracy']:.3f} | {wrong['accuracy']:.3f} |"


class Sizes:
    """Of the whole matrix, or of a check of this script."""

    def __init__(self, quick):
        self.pages = (1, 64) if quick else PAGE_SIZES
        self.short = 6 if quick else 100
        self.long = 0 if quick else 10
        self.all = 12 if quick else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quire")
    parser.add_argument("--faulty", help="a quire of a build with QUIRE_FAULTS (the preset dev)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="few questions: a check of this script")
    parser.add_argument("--output", type=pathlib.Path, help="write the tables here, not to stdout")
    options = parser.parse_args()
    sizes = Sizes(options.quick)

    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    matrix = Matrix(options)
    begin = time.monotonic()
    version = subprocess.run([options.quire, "--version"], check=True, text=True,
                             capture_output=True).stdout.strip()
    lines = ["# The bundled model, everywhere the same", "",
             f"Greedy answers of `quire eval` ({version}) to the first {sizes.short} questions of "
             f"`heldout.jsonl` and the first {sizes.long} of", "`long.jsonl`. **The texts of all answers are "
             "the same in every row.** `make eval-matrix` makes this page.", ""]
    lines += cells(matrix, sizes)
    lines += ["", "The same texts again where so little KV fits that answers are preempted:", ""]
    lines += crowded(matrix, sizes)
    if options.device == "cpu":
        lines += ["", "The same texts with `--speculative-algorithm eagle`:", ""]
        lines += speculating(matrix, sizes)
    lines += ["", "All questions of both files, and fp8 KV against bf16, at page size 64:", ""]
    lines += whole(matrix, sizes)
    if options.faulty:
        lines += ["", "## The bug that began it", "",
                  "SGLang #25556: a planner counted pages while its kernel read tokens. GSM8K fell from "
                  "0.970 to 0.005, without an error.", "The same fault, put back here:", ""]
        lines += experiment(matrix, sizes.short)
    lines += ["", f"{matrix.done} runs in {(time.monotonic() - begin) / 60:.0f} minutes on "
              f"{os.cpu_count()} CPUs ({cpu_name()})."]
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
