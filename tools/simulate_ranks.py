#!/usr/bin/env python3
"""What a decode step of DeepSeek-V3 would take on 8 and 16 GPUs: a model, from times of one GPU.

usage: tools/simulate_ranks.py [--latency US,US] [--link GBPS,GBPS] [--check FILE]

Prints the table of docs/many-gpus.md, or fails if FILE has another one. Times of one H200 are those of
docs/results/cuda.md (five layers of V3's shape, 1024 tokens of context), taken apart by layer and put together
for all 61. A part that ranks share
out takes as much less as it reads fewer bytes of weights, but no less than a launch takes for each of its
kernels. Attention reads all keys at every rank, so it gains by fewer heads only as far as 16 heads against 128
did. What ranks say to each other has a latency for each call, and the link's time for the bytes; nothing
overlaps. --latency and --link are those of 8 GPUs of one machine and of 2 x 8.
"""

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# ms a step of one H200, default mode: docs/results/cuda.md, "ms a step".
MEASURED = {
    1: dict(projections=0.59, attention=0.14, mlp=0.73, head=0.44, rest=0.09),
    64: dict(projections=0.94, attention=0.29, mlp=4.34, head=0.52, rest=0.14),
}
SLICE = dict(dense=3, experts=2)  # layers of what was measured
CHOSEN = {1: 8, 64: 130}  # experts of a layer that had rows
FEWER_HEADS = 159 / 262  # attention of 16 heads against 128, 128 sequences of 4k: docs/results/cuda.md
LAUNCH_US = 2.5  # a small kernel in a graph
LAUNCHES = dict(projections=9, attention=2, mlp=5)  # of a layer


class Shape:
    def __init__(self, config):
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        rope, nope, value = (config[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        self.hidden, self.vocab = hidden, config["vocab_size"]
        self.out = heads * value
        self.dense_width, self.expert_width = config["intermediate_size"], config["moe_intermediate_size"]
        self.shared_width = self.expert_width * config["n_shared_experts"]
        self.top_k = config["num_experts_per_tok"]
        self.dense = config["first_k_dense_replace"]
        self.experts = config["num_hidden_layers"] - self.dense
        # Bytes of a layer's projections that all ranks have, and that they share out: e4m3, but for kv_b.
        self.kept = hidden * (config["q_lora_rank"] + config["kv_lora_rank"] + rope)
        self.cut = (config["q_lora_rank"] * heads * (nope + rope) + hidden * self.out +
                    2 * config["kv_lora_rank"] * heads * (nope + value))

    def mlp_bytes(self, batch, kind):
        width = self.dense_width if kind == "dense" else self.shared_width + CHOSEN[batch] * self.expert_width
        return 3 * self.hidden * width


def compute_ms(shape, batch, ranks):
    """Of all layers and the head, with what was measured of a few layers."""
    measured = MEASURED[batch]
    layers = sum(SLICE.values())

    def of_layer(part, time, share):
        return max(time * share, LAUNCHES[part] * LAUNCH_US / 1000)

    projections = of_layer("projections", measured["projections"] / layers,
                           (shape.kept + shape.cut / ranks) / (shape.kept + shape.cut))
    attention = of_layer("attention", measured["attention"] / layers, FEWER_HEADS if ranks > 1 else 1)
    total = (projections + attention) * (shape.dense + shape.experts)
    bytes_of = {kind: shape.mlp_bytes(batch, kind) for kind in SLICE}
    per_byte = measured["mlp"] / sum(SLICE[kind] * bytes_of[kind] for kind in SLICE)
    for kind, count in (("dense", shape.dense), ("experts", shape.experts)):
        total += count * of_layer("mlp", per_byte * bytes_of[kind], 1 / ranks)
    return total + measured["head"] / ranks + measured["rest"]


def calls(shape, exact):
    """The collective calls of a step: bytes of a token that each rank receives, but for its own share."""
    bf16, f32 = 2, 4
    for kind, count in (("dense", shape.dense), ("experts", shape.experts)):
        for _ in range(count):
            if exact:
                yield bf16 * shape.out
                yield bf16 * shape.hidden
                if kind == "dense":
                    yield bf16 * shape.dense_width
                else:
                    yield bf16 * shape.shared_width
                    yield bf16 * shape.top_k * shape.expert_width
                yield bf16 * shape.hidden
            else:  # sums: reduced and gathered
                yield 2 * bf16 * shape.hidden
                yield 2 * bf16 * shape.hidden
    yield 2 * f32 * shape.hidden  # the embedding
    yield f32 * shape.vocab


def talk_ms(shape, batch, ranks, exact, latency_us, gbps):
    """An exact gather is packed before and unpacked behind it."""
    around_us = 2 * LAUNCH_US if exact else 0
    return sum((latency_us + around_us) / 1e3 + batch * size * (ranks - 1) / ranks / gbps / 1e6
               for size in calls(shape, exact))


def table(shape, latencies, links):
    yield "| GPUs | ranks | batch | compute | calls | exact: gathers | step, tokens/s | if it summed | step, tokens/s |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for name, ranks, latency, link in (("one machine", 8, latencies[0], links[0]),
                                       ("two machines", 16, latencies[1], links[1])):
        for batch in MEASURED:
            compute = compute_ms(shape, batch, ranks)
            cells = []
            for exact in (True, False):
                talk = talk_ms(shape, batch, ranks, exact, latency, link)
                step = compute + talk
                cells.append(f"{talk:.1f} ms | {step:.1f} ms, {batch / step * 1000:.0f}")
            yield (f"| {name} | {ranks} | {batch} | {compute:.1f} ms | {sum(1 for _ in calls(shape, True))} | "
                   + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    pair = lambda text: tuple(float(part) for part in text.split(","))  # noqa: E731
    parser.add_argument("--latency", type=pair, default=(12, 30), help="us of a call (default: 12,30)")
    parser.add_argument("--link", type=pair, default=(450, 50), help="GB/s of a GPU (default: 450,50)")
    parser.add_argument("--check", type=pathlib.Path, help="a file that has the table")
    options = parser.parse_args()
    shape = Shape(json.loads((ROOT / "bench" / "models" / "deepseek_v3" / "config.json").read_text()))
    text = "\n".join(table(shape, options.latency, options.link))
    if options.check is None:
        print(text)
    elif text not in options.check.read_text():
        sys.exit(f"{options.check} has another table than this:\n{text}")


if __name__ == "__main__":
    main()
