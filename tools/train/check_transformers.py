#!/usr/bin/env python3
"""Compares the logits of the model's folder in transformers' deepseek_v3 with those of tools/train/model.py.

  python3 tools/train/check_transformers.py models/quire-grade-school [--tolerance 2e-4] [--long 1]

Both in float32 on the CPU, on questions of the evaluation files with their answers, and on a long text. A difference of
a log-probability above the tolerance fails. Also: transformers' tokenizer and chat template give the training format, and
transformers' own draft layer, where the installed version has one, drafts the same logits.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers

import checkpoint
import documents


def texts(folder, num_long):
    for file, count in (("heldout.jsonl", 6), ("unseen_phrasings.jsonl", 3), ("long.jsonl", num_long)):
        lines = (folder / "eval" / file).read_text().splitlines()[:count]
        yield from ((file, json.loads(line)) for line in lines)


def draft_model(reference):
    """transformers' multi-token-prediction model, or None where there is no such thing."""
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError:
        return None
    return MtpModel.from_pretrained(reference).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=2e-4)
    parser.add_argument("--long", type=int, default=1, help="how many texts of more than 4096 tokens")
    args = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    count = checkpoint.read_config(args.folder).num_hidden_layers
    # DeepSeek-V3's own draft layer is the 61st: transformers knows by the number which one is left out.
    transformers.DeepseekV3ForCausalLM._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{count}.*"]
    reference = transformers.DeepseekV3ForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    drafts = draft_model(reference)
    ours = checkpoint.load(args.folder).eval()
    worst = worst_draft = 0.0
    num_tokens = 0
    for file, line in texts(args.folder, args.long):
        messages = [{"role": "user", "content": line["question"]}, {"role": "assistant", "content": line["answer"]}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False)
        expected = "".join(text for text, _ in documents.chat([(line["question"], line["answer"])]))
        if rendered != expected:
            sys.exit(f"{file}: the chat template renders {rendered!r}, training has {expected!r}")
        tokens = torch.tensor([tokenizer(rendered, add_special_tokens=False)["input_ids"]])
        with torch.no_grad():
            theirs = reference(tokens).logits.log_softmax(-1)
            hidden, _ = ours(tokens)
            difference = (ours.logits(hidden).log_softmax(-1) - theirs).abs().max().item()
            if drafts is not None:
                last = reference.model(tokens).last_hidden_state[:, :-1]
                positions = torch.arange(1, tokens.shape[1])[None]
                drafted = drafts.forward_layer(0, last, positions, None, input_ids=tokens[:, 1:])
                own, _ = ours.draft(hidden[:, :-1], tokens[:, 1:])
                gap = (reference.lm_head(drafted).log_softmax(-1) - ours.logits(own).log_softmax(-1)).abs().max().item()
                worst_draft = max(worst_draft, gap)
        worst = max(worst, difference)
        num_tokens += tokens.shape[1]
    print(f"{num_tokens} tokens, transformers {transformers.__version__}: largest difference of a log-probability {worst:.2e}, "
          + (f"of the draft layer {worst_draft:.2e}" if drafts is not None else "no draft layer in this transformers"))
    if not max(worst, worst_draft) <= args.tolerance:
        sys.exit(f"expected at most {args.tolerance:.0e}")


if __name__ == "__main__":
    main()
