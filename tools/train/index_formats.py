"""What storing an index key does to it: formats of index keys, and how many keys are chosen as with keys in f32.

  python3 tools/train/index_formats.py models/quire-grade-school-sparse [--documents 8] [--device cuda]

Prints a table of recall for each format: the share of the keys chosen with keys in f32 that is chosen still, by layer, over
queries of long documents that see more than top_k keys. Ties aside it is 1 minus the share of keys that change.
"""

import argparse
import pathlib

import tokenizers
import torch

import checkpoint
import documents
import evaluate
import model as model_lib

E4M3_MAX = 448.0


def scale_of(x):
    """Of each row: its largest value becomes e4m3's."""
    return x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / E4M3_MAX


def to_fp8(x, is_power_of_two):
    """Rounded to e4m3 with one scale a row, plain or the next higher power of two."""
    scale = scale_of(x)
    if is_power_of_two:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return (x / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float() * scale


def to_two_codes(x):
    """Twice e4m3 with one plain scale a row: what the first code leaves out in the second."""
    scale = scale_of(x)
    first = (x / scale).to(torch.float8_e4m3fn).float()
    return (first + (x / scale - first).to(torch.float8_e4m3fn).float()) * scale


def hadamard(dim, device):
    """Sylvester's matrix, orthonormal: a scalar product of two vectors that both went through it stays as it was."""
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix * dim**-0.5


def fp8_format(is_power_of_two, is_rotated, with_queries):
    """(what becomes of keys, what becomes of queries)."""
    def turn(x):
        return x @ hadamard(x.shape[-1], x.device) if is_rotated else x

    def store(x):
        return to_fp8(turn(x), is_power_of_two)
    return store, store if with_queries else turn


def formats():
    """{name: (of keys, of queries)}; queries are in f32 or, as fp8 tensor cores want them, as the keys are or two codes."""
    def same(x):
        return x

    named = {"f32": (same, same), "bf16": (lambda x: x.bfloat16().float(), same)}
    for with_queries in (False, True):
        for is_power_of_two in (False, True):
            for is_rotated in (False, True):
                name = (f"fp8, {'powers of two' if is_power_of_two else 'plain scales'}{', Hadamard' if is_rotated else ''}"
                        f"{', queries too' if with_queries else ''}")
                named[name] = fp8_format(is_power_of_two, is_rotated, with_queries)
    named["fp8, plain scales, queries as two codes"] = (fp8_format(False, False, False)[0], to_two_codes)
    return named


def set_format(model, stored):
    for layer in model.layers:
        layer.self_attn.indexer.store_keys, layer.self_attn.indexer.store_queries = stored


@torch.no_grad()
def layer_inputs(model, tokens):
    """What the layers' attention and indexers read: (layer, normed input [batch, length, hidden]), the draft layer last."""
    angles = model_lib.rope_angles(model.config, torch.arange(tokens.shape[1], device=tokens.device)[None])
    x = model.embed_tokens(tokens)
    for layer in model.layers[:-1]:
        yield layer, layer.input_layernorm(x)
        x, _ = layer(x, angles)
    draft = model.layers[-1]
    yield draft, draft.input_layernorm(draft.joined(model.norm(x), model.embed_tokens(tokens.roll(-1, 1))))


def long_texts(folder, count):
    """The first long problems with their answers: (tokens, where the question about the text begins or a little before)."""
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    for problem in evaluate.read(folder, "long", count):
        (question, _), (answer, _) = documents.chat([(problem["question"], problem["answer"])])
        prompt, rest = (tokenizer.encode(text, add_special_tokens=False).ids for text in (question, answer))
        yield prompt + rest, len(prompt) - 64


@torch.no_grad()
def recalls(model, folder, count, every=16):
    """{format: [recall of each layer]} over every `every`-th query and all from the question on."""
    named, device = formats(), next(model.parameters()).device
    same = torch.zeros(len(named), len(model.layers), dtype=torch.float64)
    total = 0
    for ids, asked in long_texts(folder, count):
        tokens = torch.tensor([ids], device=device)
        positions = torch.arange(len(ids), device=device)
        rows = torch.cat([positions[model.config.index_topk:asked:every], positions[asked:]])
        angles = model_lib.rope_angles(model.config, positions[None])
        seen = (positions <= rows[:, None])[None]
        for i, (layer, x) in enumerate(layer_inputs(model, tokens)):
            indexer, latent = layer.self_attn.indexer, layer.self_attn.query_latent(x)
            chosen = []
            for indexer.store_keys, indexer.store_queries in named.values():
                q, weights = indexer.queries(x, latent, angles)
                chosen.append(indexer.choose(indexer.scores(q[:, rows], weights[:, rows], indexer.keys(x, angles)), seen))
            indexer.store_keys, indexer.store_queries = named["f32"]
            same[:, i] += torch.tensor([(mask & chosen[0]).sum().item() for mask in chosen])
        total += len(rows) * model.config.index_topk
    return {name: row.tolist() for name, row in zip(named, same / total)}


def recall_table(named):
    layers = len(named["f32"])
    yield "| index keys | " + " | ".join(f"layer {i}" for i in range(layers - 1)) + " | draft layer |"
    yield "|---|" + "--:|" * layers
    for name, row in named.items():
        yield f"| {name} | " + " | ".join(f"{recall:.4f}" for recall in row) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model = checkpoint.load(args.folder, args.device).eval()
    for layer in model.layers:
        layer.self_attn.is_sparse = False  # every format is asked about the same queries and keys
    print("\n".join(recall_table(recalls(model, args.folder, args.documents))))


if __name__ == "__main__":
    main()
