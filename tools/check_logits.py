#!/usr/bin/env python3
"""Compares the log-probabilities of `quire score` with those of transformers.

usage: tools/check_logits.py QUIRE FOLDER TEXTS.jsonl... [--count 8] [--tolerance 1e-4]

TEXTS.jsonl have lines with "question" and "answer", as the files of models/quire-grade-school/eval
do; the first --count of each are put through the folder's chat template. Both sides compute in
float32 with the folder's weights, and Quire's cache holds float32, so that rounding is all that
differs. For each text: the log-probability of every token, and the 20 most likely ones after it.
Needs torch and transformers.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

TOP = 20


def read_texts(tokenizer, files, count):
    """(where it stands, tokens)"""
    for file in files:
        for number, line in enumerate(file.read_text().splitlines()[:count], start=1):
            item = json.loads(line)
            messages = [{"role": "user", "content": item["question"]},
                        {"role": "assistant", "content": item["answer"]}]
            rendered = tokenizer.apply_chat_template(messages, tokenize=False)
            yield f"{file.name}:{number}", tokenizer(rendered, add_special_tokens=False)["input_ids"]


def load(folder):
    """The model in float32, without the draft layers that transformers does not load."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config).__class__
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{config.num_hidden_layers}\..*"]
    return model.from_pretrained(folder, dtype=torch.float32).eval()


def score(quire, folder, tokens):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(tokens, file)
        file.flush()
        done = subprocess.run([quire, "score", folder, "--tokens-file", file.name, "--top", str(TOP),
                               "--kv-cache-dtype", "f32", "--index-cache-dtype", "f32", "--json"],
                              check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"quire score ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def difference(scores, logprobs, tokens):
    """The largest one, of a token that follows or of the most likely ones."""
    worst = 0.0
    for i in range(1, len(tokens)):
        theirs = logprobs[i - 1]
        worst = max(worst, abs(scores["logprobs"][i] - theirs[tokens[i]].item()))
        ours = {int(token): value for token, value in scores["top_logprobs"][i].items()}
        if len(ours) != min(TOP, len(theirs)):
            sys.exit(f"expected the {TOP} most likely tokens, got {len(ours)}")
        worst = max(worst, *(abs(value - theirs[token].item()) for token, value in ours.items()))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("texts", type=pathlib.Path, nargs="+")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    options = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.folder)
    reference = load(options.folder)
    worst = 0.0
    for name, tokens in read_texts(tokenizer, options.texts, options.count):
        with torch.no_grad():
            logprobs = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
        gap = difference(score(options.quire, options.folder, tokens), logprobs, tokens)
        print(f"{name}: {len(tokens)} tokens, largest difference {gap:.2e}", flush=True)
        worst = max(worst, gap)
    print(f"largest difference of a log-probability from transformers {transformers.__version__}: {worst:.2e}")
    if not worst <= options.tolerance:
        sys.exit(f"expected at most {options.tolerance:.0e}")


if __name__ == "__main__":
    main()
