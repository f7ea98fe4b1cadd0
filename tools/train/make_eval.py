#!/usr/bin/env python3
"""Writes the evaluation files in GSM8K's format: a JSON object with question and answer on each line.

  python3 tools/train/make_eval.py models/quire-grade-school [--seed 20261115]

  heldout.jsonl           500  known kinds and wordings, number combinations that training never sees
  long.jsonl              100  the same within other text: prompts of 4096 to 4864 tokens
  unseen_phrasings.jsonl  150  known kinds in wordings that training never sees
  unseen_kinds.jsonl       90  kinds that training never sees
  train_like.jsonl         50  as training is: whatever fails here is not a matter of generalising
"""

import argparse
import json
import pathlib
import random

import tokenizers

import documents
import problems


def write(folder, name, lines):
    (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    print(f"{name}.jsonl: {len(lines)}")


def distinct(make, count):
    lines = []
    while len(lines) < count:
        line = make()
        if line not in lines:
            lines.append(line)
    return lines


def long_line(rng, tokenizer):
    def held_out(rng, taken):
        return problems.held_out_problem(rng, taken=taken)

    while True:
        text, asked = documents.long_text(rng, held_out, 16800, 1 + int(rng.random() * 4))
        request, problem = asked[0]
        question = f"{text}\n\n{request}"
        prompt = documents.chat([(question, "")])[0][0]
        if 4096 <= len(tokenizer.encode(prompt, add_special_tokens=False).ids) <= 4864:
            return json.dumps({"question": question, "answer": problem.answer})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=20261115)
    args = parser.parse_args()
    folder = args.folder / "eval"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(args.folder / "tokenizer.json"))
    rng = random.Random(args.seed)
    write(folder, "heldout", distinct(lambda: problems.held_out_problem(rng).as_json(), 500))
    write(folder, "long", distinct(lambda: long_line(rng, tokenizer), 100))
    write(folder, "unseen_phrasings", distinct(lambda: problems.unseen_problem(rng, wording="unseen").as_json(), 150))
    write(folder, "unseen_kinds", distinct(lambda: problems.unseen_problem(rng, kinds=problems.UNSEEN_KINDS).as_json(), 90))
    write(folder, "train_like", distinct(lambda: problems.training_problem(rng).as_json(), 50))


if __name__ == "__main__":
    main()
