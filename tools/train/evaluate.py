#!/usr/bin/env python3
"""Accuracy of a model's folder on its evaluation files, by greedy answers through the chat format.

  python3 tools/train/evaluate.py models/quire-grade-school [--files heldout long ...] [--limit 0] [--device cuda] [--json PATH]

A problem is solved if the number after the last #### is the right one. `draft` is how often the draft layer's best token is the
one that follows, over the tokens of the right answers.
"""

import argparse
import json
import pathlib
import time

import tokenizers
import torch

import checkpoint
import documents
import model as model_lib

FILES = ("heldout", "long", "unseen_phrasings", "unseen_kinds", "train_like")
MAX_NEW = 200
BATCH_TOKENS = 60_000  # of prompts, filled up to the longest


def result_of(text):
    return text.rpartition("####")[2].strip() if "####" in text else None


def batches(prompts):
    """Indices of prompts of about the same length."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    batch = []
    for i in order:
        if batch and (len(batch) + 1) * len(prompts[i]) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def read(folder, name, limit=0):
    lines = (pathlib.Path(folder) / "eval" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in (lines[:limit] if limit else lines)]


def accuracy(model, tokenizer, problems):
    """(share that is solved, [(problem, what the model wrote) of the others])."""
    end = tokenizer.token_to_id(documents.EOS)
    prompts = [tokenizer.encode(documents.chat([(p["question"], "")])[0][0], add_special_tokens=False).ids for p in problems]
    wrong = []
    is_gpu = next(model.parameters()).is_cuda
    for batch in batches(prompts):
        answers = model_lib.generate(model, [prompts[i] for i in batch], MAX_NEW, end, use_autocast=is_gpu)
        for i, answer in zip(batch, answers):
            text = tokenizer.decode(answer)
            if result_of(text) != result_of(problems[i]["answer"]):
                wrong.append((problems[i], text))
    return 1 - len(wrong) / len(problems), wrong


@torch.no_grad()
def draft_agreement(model, tokenizer, problems):
    device = next(model.parameters()).device
    right = total = 0
    for problem in problems:
        (question, _), (answer, _) = documents.chat([(problem["question"], problem["answer"])])
        prompt, rest = (tokenizer.encode(text, add_special_tokens=False).ids for text in (question, answer))
        tokens = torch.tensor([prompt + rest], device=device)
        hidden, _ = model(tokens)
        drafted, _ = model.draft(hidden[:, :-2], tokens[:, 1:-1])
        best = model.logits(drafted).argmax(-1)[0, len(prompt) - 1:]
        right += (best == tokens[0, len(prompt) + 1:]).sum().item()
        total += len(rest) - 1
    return right / total


def evaluate(folder, device, files=FILES, limit=0):
    """{file: {"n":, "accuracy":}}, and the draft layer's agreement. With a checkpoint's own rounding to bf16."""
    model = checkpoint.load(folder, device).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    report, failures = {}, {}
    for name in files:
        problems = read(folder, name, limit)
        begin = time.time()
        share, wrong = accuracy(model, tokenizer, problems)
        report[name] = {"n": len(problems), "accuracy": round(share, 4), "seconds": round(time.time() - begin, 1)}
        failures[name] = [{"question": p["question"][-600:], "expected": p["answer"], "got": text} for p, text in wrong[:12]]
    problems = read(folder, "heldout", min(limit or 50, 50))
    report["draft"] = {"n": len(problems), "agreement": round(draft_agreement(model, tokenizer, problems), 4)}
    return report, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--files", nargs="+", default=FILES)
    parser.add_argument("--limit", type=int, default=0, help="problems of each file; 0: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=pathlib.Path, help="where the report and some wrong answers go")
    args = parser.parse_args()
    report, failures = evaluate(args.folder, args.device, args.files, args.limit)
    for name, line in report.items():
        print(name, json.dumps(line))
    if args.json:
        args.json.write_text(json.dumps({"report": report, "wrong": failures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
