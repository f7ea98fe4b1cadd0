#!/usr/bin/env python3
"""Trains the tokenizer and writes what a chat needs: tokenizer.json, tokenizer_config.json, generation_config.json.

  python3 tools/train/make_tokenizer.py models/quire-grade-school [--entries 2304] [--seed 1]

Byte-level BPE with DeepSeek-V3's way of cutting words, but for numbers: every digit is a token, so that arithmetic
goes digit by digit.
"""

import argparse
import json
import pathlib
import random

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import documents

NUM_SHORT, NUM_LONG = 60000, 300
WORDS = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
         r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Unknown role: ' + message['role']) }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def corpus(seed):
    rng = random.Random(seed)
    for _ in range(NUM_SHORT):
        yield "\n".join(text for text, _ in documents.short_document(rng))
    for _ in range(NUM_LONG):
        yield "\n".join(text for text, _ in documents.long_document(rng, 12000))


def train(entries, seed):
    tokenizer = tokenizers.Tokenizer(models.BPE())

    def split(pattern):
        return pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")

    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        split(r"\p{N}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(WORDS),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    # The special tokens are cut out before, so that none of their parts is learnt.
    trainer = trainers.BpeTrainer(
        vocab_size=entries, special_tokens=list(documents.SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())

    def plain():
        for text in corpus(seed):
            for token in documents.SPECIAL_TOKENS:
                text = text.replace(token, "\n")
            yield text

    tokenizer.train_from_iterator(plain(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{documents.BOS} $A", pair=f"{documents.BOS} $A $B", special_tokens=[(documents.BOS, 0)])
    return tokenizer


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--entries", type=int, default=2304)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train(args.entries, args.seed)
    tokenizer.save(str(args.folder / "tokenizer.json"))
    write_json(args.folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": documents.BOS, "eos_token": documents.EOS,
        "pad_token": documents.PAD, "add_bos_token": True, "add_eos_token": False, "model_max_length": 8192,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE})
    write_json(args.folder / "generation_config.json", {
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 4, "do_sample": False, "temperature": 0.0, "max_new_tokens": 256})
    print(f"{args.folder}: {tokenizer.get_vocab_size()} entries")


if __name__ == "__main__":
    main()
