#!/usr/bin/env python3
"""Trains small tokenizers of every family, and writes what their own libraries make of many texts.

  python3 tools/make_tokenizer_goldens.py              all of src/text/testdata/tokenizers/
  python3 tools/make_tokenizer_goldens.py kimi ...     these only

Needs tokenizers, transformers and tiktoken; expected.json says which versions made it. Each folder
has the files of a model as it is published, with the steps, patterns and kinds of special tokens of
the family, and a vocabulary of its own (training breaks ties at random, so another run gives other
tokens); and

  expected.json  encode  one for each text of ../texts.json:
                           ids      of the text
                           framed   with add_special_tokens, if it differs; of some texts
                           plain    with special tokens left as text, if it differs
                           text     of the ids decoded, if not the text itself
                           skipped  without special tokens, if it differs from text
                 decode  ids drawn at random, and their text and skipped
                 made_with

A text is {"text": "..."}, {"hex": "..."} if it is not UTF-8, or {"repeat": "...", "times": n}. What
is not UTF-8 is encoded as Python decodes it with errors="replace".
"""

import base64
import json
import pathlib
import random
import sys

import tiktoken
import tokenizers
import transformers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_texts

ROOT = pathlib.Path(__file__).resolve().parent.parent / "src/text/testdata/tokenizers"
VOCAB_SIZE = 900
NUM_RANDOM_TEXTS = 250
NUM_RANDOM_IDS = 60

V3_PATTERNS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
]
# Letters with case, as DeepSeek-V2's file lists them (there as the characters themselves).
V2_LETTERS = """41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C
38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77
1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE
1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126
2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D
A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943""".split()


def character_class(ranges):
    return "[" + "".join("-".join(chr(int(end, 16)) for end in r.split("-")) for r in ranges) + "]"


V2_PATTERNS = [
    "[\r\n]",
    "\\s?" + character_class(V2_LETTERS) + "+",
    "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "\\s+$",
    "[一-龥ࠀ-一가-퟿]+",
]
GLM_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI_PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
KIMI_NUM_SPECIAL = 256
KIMI_MAX_TEXT = 400_000
KIMI_MAX_RUN = 25_000


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def byte_level(**options):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "use_regex": False, **options})


def train(pre_tokenizer, first_tokens=(), normalizer=None, alphabet="bytes", **model_options):
    """A BPE tokenizer of VOCAB_SIZE tokens, of which first_tokens have the lowest ids."""
    tokenizer = tokenizers.Tokenizer(models.BPE(**model_options))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    initial = pre_tokenizers.ByteLevel.alphabet() if alphabet == "bytes" else []
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, initial_alphabet=initial, show_progress=False,
                                  special_tokens=list(first_tokens), limit_alphabet=300)
    tokenizer.train_from_iterator(tokenizer_texts.corpus(1, 400), trainer)
    return tokenizer


def merges_as_text(tokenizer):
    """The older spelling: "a b" for ["a", "b"]."""
    parsed = json.loads(tokenizer.to_str())
    parsed["model"]["merges"] = [" ".join(merge) for merge in parsed["model"]["merges"]]
    return tokenizers.Tokenizer.from_str(json.dumps(parsed)), parsed


def plain_token(content, **options):
    return AddedToken(content, **{"normalized": True, "special": False, **options})


def special_token(content, **options):
    return AddedToken(content, **{"normalized": False, "special": True, **options})


def deepseek_v3():
    first = [special_token(t) for t in ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")]
    tokenizer = train(pre_tokenizers.Sequence([split(p) for p in V3_PATTERNS] + [byte_level()]), first,
                      normalizers.Sequence([]))
    tokenizer.add_special_tokens([special_token(f"<｜place▁holder▁no▁{i}｜>") for i in range(3)])
    tokenizer.add_tokens([plain_token(t) for t in ("<｜fim▁hole｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>")])
    tokenizer.add_special_tokens([special_token(t) for t in ("<｜User｜>", "<｜Assistant｜>")])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, {"add_bos_token": True, "add_eos_token": False,
                       "bos_token": {"__type": "AddedToken", "content": "<｜begin▁of▁sentence｜>"},
                       "eos_token": {"__type": "AddedToken", "content": "<｜end▁of▁sentence｜>"},
                       "pad_token": {"__type": "AddedToken", "content": "<｜end▁of▁sentence｜>"}, "unk_token": None}


def deepseek_v2():
    tokenizer = train(pre_tokenizers.Sequence([split(p) for p in V2_PATTERNS] +
                                              [pre_tokenizers.Digits(individual_digits=True), byte_level()]),
                      normalizer=normalizers.Sequence([]))
    tokenizer.add_tokens([plain_token(t) for t in ("ø", "ö", "ú", "ÿ")])
    tokenizer.add_special_tokens([AddedToken(t, normalized=True, special=True) for t in
                                  ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")])
    tokenizer.add_tokens([plain_token(t) for t in ("<｜fim▁hole｜>", "<|EOT|>")])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, {"add_bos_token": True, "bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}


def glm4():
    tokenizer = train(pre_tokenizers.Sequence([split(GLM_PATTERN), byte_level()]), ignore_merges=True)
    tokenizer.add_special_tokens([special_token(t) for t in (
        "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
        "<|observation|>")])
    tokenizer.add_tokens([plain_token(t, normalized=False) for t in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}


def llama_style(pre_tokenizer, normalizer):
    """Characters with "▁" for a space, and a token for every byte: as converted from sentencepiece."""
    first = [special_token(t) for t in ("<unk>", "<s>", "</s>")]
    first += [AddedToken(f"<0x{b:02X}>", normalized=False, special=False) for b in range(256)]
    trained = train(pre_tokenizers.Metaspace(), first, alphabet="characters")
    model = json.loads(trained.to_str())["model"]
    tokenizer = tokenizers.Tokenizer(models.BPE(model["vocab"], [tuple(m) for m in model["merges"]],
                                                unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.add_special_tokens(first[:3])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def minicpm3():
    tokenizer = llama_style(None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
    tokenizer.add_special_tokens([special_token(t) for t in ("<|im_start|>", "<|im_end|>", "<|tool_call|>", "<|fim_prefix|>")])
    tokenizer.add_tokens([plain_token("<|thought_start|>", normalized=False), plain_token("zebra")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def metaspace():
    """What newer conversions make of the same models; and the decoder of that name."""
    tokenizer = llama_style(pre_tokenizers.Metaspace(prepend_scheme="first", split=False), None)
    tokenizer.add_special_tokens([special_token("<|im_end|>"), special_token("[CLS]", lstrip=True),
                                  special_token("[SEP]", rstrip=True), special_token("[BOTH]", lstrip=True, rstrip=True)])
    tokenizer.add_tokens([plain_token("word", single_word=True), plain_token("number", single_word=True, normalized=False)])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(), processors.TemplateProcessing(single="<s> <s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])])
    return tokenizer, None


def splits():
    """What no model of ours has, but the formats do."""
    tokenizer = train(pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "merged_with_previous"), split(r"[.:]", "merged_with_next"), split(r"[\n]", "removed"),
        split(r"[=+]", "contiguous"), split(r"[^@#]+", "isolated", invert=True), pre_tokenizers.Digits(individual_digits=False),
        byte_level(add_prefix_space=True, use_regex=True)]), normalizer=normalizers.Sequence([
            normalizers.Replace(Regex(r"\d\d\d\d+"), "0000"), normalizers.Replace("teh", "the"), normalizers.Prepend("^")]))
    tokenizer.add_special_tokens([special_token("<|end|>"), special_token("<|end|>x"), special_token("<|"),
                                  special_token("\n\n", lstrip=True)])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    return tokenizer, None


FAMILIES = {f.__name__: f for f in (deepseek_v3, deepseek_v2, glm4, minicpm3, metaspace, splits)}
OLD_MERGES = {"deepseek_v3", "deepseek_v2"}


class Huggingface:
    """A folder with tokenizer.json, by its own libraries."""

    def __init__(self, folder):
        path = str(folder / "tokenizer.json")
        self.tokenizer = tokenizers.Tokenizer.from_file(path)
        self.plain = tokenizers.Tokenizer.from_file(path)
        self.plain.encode_special_tokens = True
        config = {}
        if (folder / "tokenizer_config.json").exists():
            config = json.loads((folder / "tokenizer_config.json").read_text())
        # tokenizer_class may name one that is built from other files.
        config = {k: v for k, v in config.items() if k.endswith("_token")}
        config = {k: v["content"] if isinstance(v, dict) else v for k, v in config.items()}
        self.framed = transformers.PreTrainedTokenizerFast(tokenizer_file=path, **config)
        self.added = {i: t.content for i, t in self.tokenizer.get_added_tokens_decoder().items()}
        self.vocab_size = max(self.tokenizer.get_vocab().values()) + 1

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_framed(self, text):
        return self.framed(text).input_ids

    def encode_plain(self, text):
        return self.plain.encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip):
        return self.tokenizer.decode(ids, skip_special_tokens=skip)


class Kimi:
    """A folder with tiktoken.model, as the program that comes with Kimi's weights uses it."""

    def __init__(self, folder):
        ranks = {}
        for line in (folder / "tiktoken.model").read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        named = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
        ids = range(len(ranks), len(ranks) + KIMI_NUM_SPECIAL)
        self.added = {i: named.get(str(i), {"content": f"<|reserved_token_{i}|>"})["content"] for i in ids}
        self.skipped = {int(i) for i, token in named.items() if token["special"]}
        self.encoding = tiktoken.Encoding(name="kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks,
                                          special_tokens={t: i for i, t in self.added.items()})
        self.vocab_size = self.encoding.n_vocab

    @staticmethod
    def pieces(text):
        for begin in range(0, len(text), KIMI_MAX_TEXT):
            part = text[begin:begin + KIMI_MAX_TEXT]
            start = run = 0
            for i, c in enumerate(part):
                run = run + 1 if i and c.isspace() == part[i - 1].isspace() else 1
                if run > KIMI_MAX_RUN:
                    yield part[start:i]
                    start, run = i, 1
            yield part[start:]

    def encode(self, text):
        return [i for piece in self.pieces(text) for i in self.encoding.encode(piece, allowed_special="all")]

    def encode_framed(self, text):
        return self.encode(text)

    def encode_plain(self, text):
        return [i for piece in self.pieces(text) for i in self.encoding.encode(piece, disallowed_special=())]

    def decode(self, ids, skip):
        return self.encoding.decode([i for i in ids if not (skip and i in self.skipped)], errors="replace")


def open_reference(folder):
    return Kimi(folder) if (folder / "tiktoken.model").exists() else Huggingface(folder)


def write_huggingface(folder, make):
    tokenizer, config = make()
    text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    if folder.name in OLD_MERGES:
        text = json.dumps(merges_as_text(tokenizer)[1], ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n")


def bytes_of(spelling):
    table = transformers.convert_slow_tokenizer.bytes_to_unicode()
    back = {c: b for b, c in table.items()}
    return bytes(back[c] for c in spelling)


def write_kimi(folder):
    trained = train(pre_tokenizers.Sequence([split(KIMI_PATTERN), byte_level()]))
    tokens = [bytes_of(t) for t, _ in sorted(trained.get_vocab().items(), key=lambda item: item[1])]
    single = [t for t in tokens if len(t) == 1]
    random.Random(3).shuffle(single)  # the order of bytes must not be taken for granted
    tokens = single + [t for t in tokens if len(t) > 1]
    lines = [base64.b64encode(t) + b" %d\n" % i for i, t in enumerate(tokens)]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    named = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
             9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>", 13: "<|tool_call_begin|>",
             17: "<|im_middle|>", 22: "<think>", 254: "[UNK]", 255: "[PAD]"}
    plain = {"<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<think>"}
    decoder = {str(len(tokens) + i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                                      "single_word": False, "special": t not in plain} for i, t in named.items()}
    config = {"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]",
              "unk_token": "[UNK]", "tokenizer_class": "TikTokenTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n")


ALL_SPECIALS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<think>", "</think>", "<｜fim▁hole｜>", "<|im_end|>",
                "<|im_user|>", "<|user|>", "[gMASK]", "<sop>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[BOTH]", "<|end|>",
                "<|end|>x", "<|", "[BOS]", "zebra", "word", "number", "<|reserved_token_1160|>", "<|tool_call_begin|>"]

HAND_PICKED = ["", " ", "  ", "\n", "a", " a", "a ", "  a  ", "Hello, world!", "I'm can't won't IT'S we'LL 'tis", "x='s'",
               "snake_case camelCase PascalCase UPPER", "1234567890 12 345 6", "１２３４ ٣٤٥٦ Ⅷ½", "3.14159e-10", "foo\r\nbar\rbaz\n\n\nqux",
               "   \n   \n x", "\t\tif (a && b) { return c; }\n", "你好，世界！今天是2024年。", "東京タワー ひらがな カタカナ 漢字", "안녕하세요 세계",
               "مرحبا بالعالم ٣", "नमस्ते दुनिया", "สวัสดีชาวโลก", "e\u0301 é n\u0303 \u0301 a", "👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪", "\u0000\u0001\u001f\u007f",
               "\ue000\uf8ff\U0010fffd", "\u0378\uffff\U0010ffff", "<think>\nLet me see.\n</think>\n\nYes", "<｜User｜>Hi<｜Assistant｜>",
               "<|im_start|>user\nhi<|im_end|>\n", "  <s>  [CLS]  x [SEP]  y  [BOTH]  z </s>", "word words word. wordnumber number",
               "<|end|>x<|end|> <|en", "zebra zebras ▁zebra", "a-b--c-. d:e..f", "x==y+=z=+1", "@@a#b@", "teh 12345 123", "<0x41><0xE4>▁Ġ",
               "\u180e a\u200bb\u00a0c\u3000d\u0085e\u2028f", "'ſ 'S 'ſs", "Ǆǅǆ ǈ ªº ʰ ℌ", "\ufeffBOM"]

LONG_RUNS = [(" ", 700), ("a", 1200), ("1", 400), ("-", 600), ("\n", 300), ("你", 300), ("👍", 60), (" \n", 200), ("\u0301", 150),
             ("A", 500), ("aB", 300), ("\t ", 200), ("ก", 150), ("= ", 200), ("<", 300)]


def make_texts():
    rng = random.Random(7)
    texts = [{"text": t} for t in HAND_PICKED] + [{"repeat": t, "times": n} for t, n in LONG_RUNS]
    texts += [{"hex": t.hex()} for t in tokenizer_texts.ILL_FORMED]
    for _ in range(NUM_RANDOM_TEXTS):
        raw = tokenizer_texts.random_text(rng, ALL_SPECIALS)
        try:
            texts.append({"text": raw.decode()})
        except UnicodeDecodeError:
            texts.append({"hex": raw.hex()})
    return texts


def text_of(entry):
    if "hex" in entry:
        return bytes.fromhex(entry["hex"]).decode(errors="replace")
    return entry["text"] if "text" in entry else entry["repeat"] * entry["times"]


def expect_encode(reference, text, with_frame):
    ids = reference.encode(text)
    expected = {"ids": ids}
    if with_frame and reference.encode_framed(text) != ids:
        expected["framed"] = reference.encode_framed(text)
    if reference.encode_plain(text) != ids:
        expected["plain"] = reference.encode_plain(text)
    decoded, skipped = reference.decode(ids, False), reference.decode(ids, True)
    if decoded != text:
        expected["text"] = decoded
    if skipped != decoded:
        expected["skipped"] = skipped
    return expected


def expect_decode(reference, rng):
    ids = [rng.randrange(reference.vocab_size) for _ in range(rng.randint(0, 20))]
    return {"ids": ids, "text": reference.decode(ids, False), "skipped": reference.decode(ids, True)}


def one_per_line(entries):
    return "[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in entries) + "\n]"


def write_expected(folder, texts):
    reference = open_reference(folder)
    rng = random.Random(11)
    versions = {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__, "tiktoken": tiktoken.__version__}
    encode = one_per_line([expect_encode(reference, text_of(t), i % 16 == 0) for i, t in enumerate(texts)])
    decode = one_per_line([expect_decode(reference, rng) for _ in range(NUM_RANDOM_IDS)])
    (folder / "expected.json").write_text(
        f'{{"made_with": {json.dumps(versions)},\n"encode": {encode},\n"decode": {decode}}}\n')


def main(names):
    texts = make_texts()
    ROOT.mkdir(parents=True, exist_ok=True)
    (ROOT / "texts.json").write_text(one_per_line(texts) + "\n")
    for name in names or [*FAMILIES, "kimi"]:
        folder = ROOT / name
        folder.mkdir(exist_ok=True)
        if name == "kimi":
            write_kimi(folder)
        else:
            write_huggingface(folder, FAMILIES[name])
        write_expected(folder, texts)
        print(name, {p.name: p.stat().st_size for p in sorted(folder.iterdir())})


if __name__ == "__main__":
    main(sys.argv[1:])
