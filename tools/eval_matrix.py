#!/usr/bin/env python3
"""The bundled model's accuracy at every page size, mode, cache and concurrency: one table.

usage: tools/eval_matrix.py QUIRE [--faulty QUIRE_WITH_FAULTS] [--cuda QUIRE_WITH_CUDA] [--device cuda] [--quick]
                            [--output FILE]

Every cell answers the same questions, 100 short and 10 long ones, greedily; the answers must be the
same texts everywhere, or this fails. One cell answers all of both files. With --faulty, a build with
QUIRE_FAULTS, the experiment that this project grew out of follows: the planner counts pages where
the kernel reads tokens (fault 25556), at page sizes 1 and 64. It fails too if fp8 KV costs more than
0.01 of accuracy, if the fault does not show, or if no answer is preempted where so little KV fits that
some must be. On a GPU (--device cuda) steps are --deterministic. Several ranks answer all questions of the short
file, and some with preemptions, sparse attention and drafts besides; on the CPU also with sequences of their own.

The sparse model answers the long file with every type of index keys, and with indexers that cannot
know: it fails if sparse attention costs more than 0.03, if a type of keys costs more than 0.01, or if
an untrained indexer or the last keys alone solve half of the questions. The same rows follow on a GPU where
QUIRE, or the build named by --cuda, can use one; a line says so where not.
"""

import argparse
import array
import itertools
import json
import math
import os
import pathlib
import platform
import random
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "quire-grade-school"
SPARSE_MODEL = ROOT / "models" / "quire-grade-school-sparse"
INDEXER_FILE = "model-indexer.safetensors"
FILES = {"short": MODEL / "eval" / "heldout.jsonl", "long": MODEL / "eval" / "long.jsonl"}
PAGE_SIZES = (1, 16, 64, 128)
TREES = ((3, 1, 4), (3, 4, 8), (5, 8, 32))  # steps, branches and nodes of drafts
FP8_TOLERANCE = 0.01
INDEX_KEYS = ("fp8", "bf16", "f32")
INDEX_KEYS_TOLERANCE = 0.01
SPARSE_TOLERANCE = 0.03
CONTEXT = 5632  # the longest prompt of the long file, and room for its answer


class Matrix:
    def __init__(self, options):
        self.options = options
        self.first = {}  # (kind, number of questions, name of texts) -> the first run
        self.done = 0

    def binary_for(self, device):
        return self.options.cuda if device == "cuda" and self.options.cuda else self.options.quire

    def gpu_problem(self):
        """Why no GPU answers here; "" if one can."""
        told = subprocess.run([str(self.binary_for("cuda")), "doctor", "--json"], check=True, text=True,
                              capture_output=True).stdout
        cuda = json.loads(told)["backends"]["cuda"]
        if not cuda["compiled_in"]:
            return "this build has no CUDA"
        return "" if cuda["usable"] else cuda["problem"]

    def ask(self, kind, count, *, page, mode="eager", cache=True, concurrency=64, kv="bf16",
            tree=None, fault=None, same=True, context=CONTEXT, pool=400_000, model=MODEL,
            index_keys=None, top_k=None, texts="dense", device=None, ranks=(1, 1), groups=1):
        """One run of `quire eval`; its JSON. Runs that name the same `texts` must give the same ones."""
        device = device or self.options.device
        binary = self.options.faulty if fault else self.binary_for(device)
        flags = ["--page-size", page, "--step-mode", mode, "--concurrency", concurrency,
                 "--context-length", context, "--max-total-tokens", pool, "--kv-cache-dtype", kv,
                 "--max-tokens", 256, "--device", device]
        if device == "cuda":
            flags.append("--deterministic")
        if not cache:
            flags.append("--disable-radix-cache")
        if tree:
            steps, branches, nodes = tree
            flags += ["--speculative-algorithm", "eagle", "--speculative-num-steps", steps,
                      "--speculative-eagle-topk", branches, "--speculative-num-draft-tokens", nodes]
        if ranks != (1, 1):
            flags += ["--tp-size", ranks[0], "--ep-size", ranks[1]]
        if groups > 1:
            flags += ["--dp-size", groups]
        if index_keys:
            flags += ["--index-cache-dtype", index_keys]
        if top_k:
            flags += ["--index-topk", top_k]
        if count:
            flags += ["--num-questions", count]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "run.json"
            environment = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
            if fault:
                environment["QUIRE_REVERT"] = str(fault)
            begin = time.monotonic()
            done = subprocess.run([str(part) for part in (binary, "eval", model, "--data", FILES[kind],
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
              f"{f', {model.name}' if model != MODEL else ''}"
              f"{f', {index_keys} index keys' if index_keys else ''}"
              f"{f', {top_k} keys' if top_k else ''}"
              f"{f', {ranks[0]} ranks' if ranks != (1, 1) else ''}"
              f"{f', {groups} groups' if groups > 1 else ''}"
              f"{', on cuda' if device == 'cuda' else ''}"
              f"{', fault ' + str(fault) if fault else ''}: {run['accuracy']:.3f} in "
              f"{time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        if same:
            self.check_same((kind, count, texts), run)
        return run

    def check_same(self, asked, run):
        kind = asked[0]
        texts, expected = ([answer["text"] for answer in told["answers"]]
                           for told in (run, self.first.setdefault(asked, run)))
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
    matrix.ask("short", sizes.crowd, page=64)
    yield "| page size | room for tokens | preemptions | short |"
    yield "|--:|--:|--:|--:|"
    for page in (1, 16):
        run = matrix.ask("short", sizes.crowd, page=page, mode="graph", context=256, pool=256)
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


def ranked(matrix, sizes):
    """The same texts of several ranks, behind whole(): all questions, and what the engine does besides."""
    yield "| ranks | experts of each | page size | besides | questions of heldout.jsonl | solved | decode tokens/s |"
    yield "|--:|---|--:|---|--:|--:|--:|"
    asked = [((2, 1), 64, "", sizes.all, {}), ((4, 4), 1, "", sizes.all, {}), ((8, 1), 64, "", sizes.all, {}),
             ((4, 1), 16, "preemptions", sizes.crowd, dict(mode="graph", context=256, pool=256)),
             ((2, 2), 64, "sparse attention", sizes.all, dict(model=SPARSE_MODEL)),
             ((4, 4), 64, f"drafts {tree_name(TREES[1])}", sizes.short, dict(tree=TREES[1])),
             ((1, 1), 64, "sequences of their own", sizes.all, dict(groups=4)),
             ((1, 1), 16, "sequences of their own, preemptions", sizes.crowd,
              dict(groups=2, context=256, pool=512)),
             ((1, 1), 64, f"sequences of their own, drafts {tree_name(TREES[1])}", sizes.short,
              dict(groups=4, tree=TREES[1]))]
    for ranks, page, besides, count, setup in asked[sizes.rank_rows]:
        run = matrix.ask("short", count, page=page, ranks=ranks, **setup)
        size = max(ranks[0], setup.get("groups", 1))
        if besides.endswith("preemptions") and run["preemptions"] == 0:
            sys.exit(f"{size} ranks: no answer was preempted")
        is_whole = ranks[1] > 1 or "groups" in setup
        yield (f"| {size} | {'whole ones' if is_whole else 'some of the width'} | {page} | {besides} | "
               f"{run['questions']} | {run['accuracy']:.3f} | {run['output_tokens'] / run['seconds']:.0f} |")


def whole(matrix, sizes):
    """All questions, and those that fp8 is asked against bf16."""
    yield "| KV cache | file | questions | solved | 95% interval |"
    yield "|---|---|--:|--:|---|"
    asked = [("bf16", "short", sizes.all), ("fp8", "short", sizes.all)]
    if sizes.long:
        asked += [("bf16", "long", sizes.all), ("fp8", "long", sizes.long)]
    solved = {}
    for kv, kind, count in asked:
        run = matrix.ask(kind, count, page=64, kv=kv, same=kv == "bf16")
        solved[kv, kind] = [answer["right"] for answer in run["answers"]]
        low, high = run["interval_95"]
        yield (f"| {kv} | {FILES[kind].name} | {run['questions']} | {run['accuracy']:.3f} | "
               f"{low:.3f} - {high:.3f} |")
    for kind in ("short", "long") if sizes.long else ("short",):
        narrow = solved["fp8", kind]
        wide = solved["bf16", kind][:len(narrow)]  # the same questions
        if abs(sum(narrow) - sum(wide)) > FP8_TOLERANCE * len(narrow):
            sys.exit(f"fp8 KV solves {sum(narrow)} of {len(narrow)} {kind} questions, bf16 {sum(wide)}")


def changed_model(folder, config, weights=None):
    """The sparse model in `folder` with other config entries, and other bytes in its indexers' file."""
    for file in SPARSE_MODEL.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    (folder / "config.json").unlink()
    stored = json.loads((SPARSE_MODEL / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | config))
    if weights:
        (folder / INDEXER_FILE).unlink()
        (folder / INDEXER_FILE).write_bytes(weights)
    return folder


def untrained_weights():
    """The bytes of the indexers' file with weights as they are before training."""
    stored = (SPARSE_MODEL / INDEXER_FILE).read_bytes()
    (size,) = struct.unpack("<Q", stored[:8])
    header, body = json.loads(stored[8:8 + size]), bytearray(stored[8 + size:])
    rng = random.Random(1)
    for name, tensor in header.items():
        if len(tensor.get("shape", ())) == 2:  # matrices; a key's norm is nearly as it was
            begin, end = tensor["data_offsets"]
            deviation = 1 / math.sqrt(tensor["shape"][1])
            wide = array.array("f", (rng.gauss(0, deviation) for _ in range((end - begin) // 2)))
            body[begin:end:2] = wide.tobytes()[2::4]  # bf16: the upper half of a little-endian f32
            body[begin + 1:end:2] = wide.tobytes()[3::4]
    return stored[:8 + size] + bytes(body)


def sparse_devices(matrix):
    """The device of the matrix, the GPU besides, and what to say where there is none."""
    device = matrix.options.device
    if device == "cuda":
        return [device], ""
    problem = matrix.gpu_problem()
    return ([device], f"No rows of a GPU: {problem}.") if problem else ([device, "cuda"], "")


def sparse(matrix, sizes):
    """The sparse model's texts and its accuracy on long questions, which whole() asked the dense one."""
    devices, missing = sparse_devices(matrix)
    run = matrix.ask("short", sizes.all, page=64, model=SPARSE_MODEL)  # the dense model's texts
    yield (f"It gives the dense model's texts to {run['questions']} questions of `heldout.jsonl`, whose queries see fewer keys "
           "than they may choose.")
    yield "Fewer keys, chosen at every query, give the same texts at page sizes 1 and 64, wrong as they may be."
    for device, page in itertools.product(devices, (1, 64)):
        matrix.ask("short", sizes.narrow, page=page, model=SPARSE_MODEL, top_k=32, device=device,
                   texts=f"32 keys on {device}")
    if missing:
        print(missing, file=sys.stderr)
        yield missing
    if sizes.long:
        yield from sparse_long(matrix, sizes, devices)


def sparse_long(matrix, sizes, devices):
    dense = matrix.first["long", sizes.all, "dense"]
    yield ""
    yield "| indexer | index keys | page size | device | questions of long.jsonl | solved | 95% interval |"
    yield "|---|---|--:|---|--:|--:|---|"

    def row(name, keys, run, page=64, device=devices[0]):
        low, high = run["interval_95"]
        return (f"| {name} | {keys} | {page} | {device} | {run['questions']} | {run['accuracy']:.3f} | "
                f"{low:.3f} - {high:.3f} |")

    yield row("none: dense attention", "", dense)
    solved = {}
    for device, (keys, page) in itertools.product(devices, [(keys, 64) for keys in INDEX_KEYS] + [("fp8", 1)]):
        run = matrix.ask("long", sizes.all, page=page, model=SPARSE_MODEL, index_keys=keys, device=device,
                         texts=f"{keys} keys on {device}")
        solved[device, keys, page] = run["accuracy"]
        yield row("trained", keys, run, page, device)
        if run["accuracy"] < dense["accuracy"] - SPARSE_TOLERANCE - 1e-9:
            sys.exit(f"sparse attention, {keys} keys on {device}: {run['accuracy']}; dense attention: "
                     f"{dense['accuracy']}")
    if max(solved.values()) - min(solved.values()) > INDEX_KEYS_TOLERANCE + 1e-9:
        sys.exit(f"types of index keys, page sizes and devices differ: {solved}")
    top_k = json.loads((SPARSE_MODEL / "config.json").read_text())["index_topk"]
    for name, config, weights in (("untrained", {}, untrained_weights()),
                                  (f"the last {top_k} keys alone", {"index_local_tokens": top_k}, None)):
        with tempfile.TemporaryDirectory() as folder:
            run = matrix.ask("long", sizes.blind, page=64, index_keys="fp8", same=False,
                             model=changed_model(pathlib.Path(folder), config, weights))
        yield row(name, "fp8", run)
        if run["accuracy"] >= 0.5:
            sys.exit(f"{name}: {run['accuracy']} of the long questions: they do not show what an indexer does")


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
        self.short = 3 if quick else 100
        self.crowd = 12 if quick else 100  # enough that some must be preempted
        self.long = 0 if quick else 10
        self.all = 6 if quick else None
        self.narrow = 2 if quick else 100  # with few keys, answers are long
        self.rank_rows = slice(1, 7, 5) if quick else slice(None)
        self.blind = 20  # with an indexer that cannot know


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("quire")
    parser.add_argument("--faulty", help="a quire of a build with QUIRE_FAULTS (the preset dev)")
    parser.add_argument("--cuda", help="a quire of a build with CUDA (the preset cuda), if QUIRE is none")
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
    maker = ("On a GPU, with `--deterministic`: `tools/eval_matrix.py build/cuda/quire --device cuda` makes this page."
             if options.device == "cuda" else "`make eval-matrix` makes this page.")
    lines = ["# The bundled model, everywhere the same", "",
             f"Greedy answers of `quire eval` ({version}) to the first {sizes.short} questions of "
             f"`heldout.jsonl` and the first {sizes.long} of", "`long.jsonl`. **The texts of all answers are "
             f"the same in every row.** {maker}", ""]
    lines += cells(matrix, sizes)
    lines += ["", "The same texts again where so little KV fits that answers are preempted:", ""]
    lines += crowded(matrix, sizes)
    lines += ["", "The same texts with `--speculative-algorithm eagle`:", ""]
    lines += speculating(matrix, sizes)
    lines += ["", "All questions of both files, and fp8 KV against bf16, at page size 64:", ""]
    lines += whole(matrix, sizes)
    lines += ["", "The same texts of several ranks, `--tp-size` and `--ep-size`, which [share the model out]"
              "(../many-gpus.md), and with sequences", "of their own, `--dp-size`:", ""]
    lines += ranked(matrix, sizes)
    lines += ["", "## Sparse attention", "",
              "[quire-grade-school-sparse](../../models/quire-grade-school-sparse/README.md) is the same model, but that "
              "each query attends", "to the 256 keys that an indexer chooses.", ""]
    lines += sparse(matrix, sizes)
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
