#!/usr/bin/env python3
"""Compares Quire's tokenizer with the library a model's tokenizer was made for, on random texts.

  python3 tools/check_tokenizer.py FOLDER... [--texts 20000] [--seed 1] [--binary PATH]

FOLDER has tokenizer.json, or tiktoken.model and tokenizer_config.json. For every text: the ids, the
ids with add_special_tokens (of one text in ten) and with special tokens left as text, what the ids
decode to with special tokens and without, the same for ids drawn at random, and that a stream of
single tokens adds up to it. The first differences are printed, and their number. At the end, how fast
both are on text as it is mostly, in processor time.

Needs tokenizers, transformers and tiktoken, and quire_tokenize from a build.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time

import make_tokenizer_goldens
import tokenizer_texts

NUM_SHOWN = 5


class Quire:
    def __init__(self, binary, folder):
        self.process = subprocess.Popen([binary, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"quire_tokenize ended with {self.process.wait()}")
        return json.loads(line)


class Comparison:
    def __init__(self):
        self.num_compared = 0
        self.num_different = 0

    def compare(self, what, given, ours, theirs):
        self.num_compared += 1
        if ours == theirs:
            return
        self.num_different += 1
        if self.num_different <= NUM_SHOWN:
            print(f"  {what} of {given!r}\n    ours   {ours!r}\n    theirs {theirs!r}")


def compare_text(comparison, quire, reference, raw, with_frame):
    text = raw.decode(errors="replace")
    ids = reference.encode(text)
    comparison.compare("ids", raw, quire.ask(hex=raw.hex()).get("ids"), ids)
    comparison.compare("ids without special tokens", raw, quire.ask(hex=raw.hex(), parse=False).get("ids"),
                       reference.encode_plain(text))
    if with_frame:
        comparison.compare("ids in a frame", raw, quire.ask(hex=raw.hex(), special=True).get("ids"),
                           reference.encode_framed(text))
    compare_ids(comparison, quire, reference, ids)


def compare_ids(comparison, quire, reference, ids):
    ours = quire.ask(ids=ids)
    comparison.compare("text", ids, ours.get("text"), reference.decode(ids, False))
    comparison.compare("text without special tokens", ids, ours.get("skipped"), reference.decode(ids, True))
    comparison.compare("stream", ids, ours.get("streamed"), True)


def check(binary, folder, num_texts, seed):
    quire, reference = Quire(binary, folder), make_tokenizer_goldens.open_reference(folder)
    specials = sorted(set(reference.added.values()))
    rng = random.Random(seed)
    comparison = Comparison()
    for i in range(num_texts):
        compare_text(comparison, quire, reference, tokenizer_texts.random_text(rng, specials), i % 10 == 0)
        compare_ids(comparison, quire, reference,
                    [rng.randrange(reference.vocab_size) for _ in range(rng.randint(0, 12))])
    print(f"{folder}: {num_texts} texts, {comparison.num_compared} comparisons, {comparison.num_different} differ")
    return comparison.num_different, quire, reference


def measure(quire, reference):
    text = "\n".join(tokenizer_texts.corpus(5, 4000))
    num_bytes = len(text.encode())
    begin = time.process_time()
    ids = reference.encode(text)
    theirs = num_bytes / (time.process_time() - begin)
    same = quire.ask(hex=text.encode().hex()).get("ids") == ids
    ours = 5 * num_bytes / quire.ask(repeat=5)["seconds"]
    print(f"  {num_bytes / 1e6:.1f} MB of text: ours {ours / 1e6:.1f} MB/s, theirs {theirs / 1e6:.1f} MB/s, "
          f"{'the same ids' if same else 'other ids'}")
    return not same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", default="build/dev/src/text/quire_tokenize")
    options = parser.parse_args()
    num_different = 0
    for folder in options.folders:
        different, quire, reference = check(options.binary, folder, options.texts, options.seed)
        num_different += different + measure(quire, reference)
    sys.exit(num_different != 0)


if __name__ == "__main__":
    main()
