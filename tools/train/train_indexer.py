#!/usr/bin/env python3
"""Trains indexers for the bundled model: makes a folder with sparse attention of one with dense attention.

  python3 tools/train/train_indexer.py models/quire-grade-school --out models/quire-grade-school-sparse

The trunk stays as it is. In every layer, the draft layer's too, the indexer's softmax learns to be the attention, summed over
heads (the Kullback-Leibler divergence of the two), at queries of long documents. The folder gets the indexers' weights, links to the
trunk's files, and training_log.jsonl; report.json has what is measured at the end: how much of the attention the chosen keys
hold, and accuracy on the long file, each with the indexers as they are, with untrained ones and with the last top_k keys alone.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import pathlib
import random
import time

import tokenizers
import torch
import torch.nn.functional as F

import checkpoint
import data
import documents
import evaluate
import index_formats
import model as model_lib
import optimizer as optimizer_lib

PEAK_LR = 1e-2  # 120 steps in little came to a divergence of 0.15 with this, of 0.75 with 3e-3
WARM_UP_STEPS = 20
TAIL = 64  # tokens before the first answer: the question about the text
LONG_CHARS, SHORT_CHARS = (15500, 18000), (1200, 15500)
SHORT_EVERY = 4  # every fourth batch has shorter documents
LOG_EVERY = 20


def make_batch(tokenizer, args, index):
    """(tokens [documents, length], queries [documents, rows]): a document a row, filled up behind its end. Of the queries half
    are in the part with questions and answers. Depends on the seed and the index alone."""
    rng = random.Random(f"indexer {args.seed} {index}")
    low, high = (int(chars * args.scale) for chars in (SHORT_CHARS if index % SHORT_EVERY == SHORT_EVERY - 1 else LONG_CHARS))
    ids, queries = [], []
    while len(ids) < args.documents:
        (tokens, roles), = data.encode(tokenizer, [documents.long_document(rng, low + int(rng.random() * (high - low)))])
        if len(tokens) > args.length:
            continue
        count, tail = len(tokens) - 1, max(0, roles.index(documents.TARGET) - TAIL)  # behind the last token nothing is drafted
        first = min(args.top_k, count // 2)  # before it a query sees no more keys than it may
        ids.append(tokens)
        queries.append([begin + int(rng.random() * (count - begin)) for begin in (first, max(first, tail)) for _ in range(args.rows // 2)])
    longest = -(-max(map(len, ids)) // 64) * 64
    pad = documents.SPECIAL_TOKENS.index(documents.PAD)
    return torch.tensor([row + [pad] * (longest - len(row)) for row in ids]), torch.tensor(queries)


def _work(folder, args, first, queue):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    for index in range(first, args.steps, args.workers):
        tokens, queries = make_batch(tokenizer, args, index)
        queue.put((tokens.numpy(), queries.numpy()))


class Batches:
    """Batches 0, 1, ... Must be started before CUDA is: the workers are forks."""

    def __init__(self, args):
        context = multiprocessing.get_context("fork")
        self.queues = [context.Queue(maxsize=6) for _ in range(args.workers)]
        self.workers = [context.Process(target=_work, args=(args.folder, args, i, queue), daemon=True)
                        for i, queue in enumerate(self.queues)]
        for worker in self.workers:
            worker.start()

    def get(self, index):
        tokens, queries = self.queues[index % len(self.queues)].get()
        return torch.from_numpy(tokens), torch.from_numpy(queries)

    def stop(self):
        for worker in self.workers:
            worker.terminate()


def rows_of(x, queries):
    """x [documents, length, ...] at queries [documents, rows]."""
    return x[torch.arange(len(x), device=x.device)[:, None], queries]


def attention_at(attention, x, latent, angles, queries, seen):
    """[documents, rows, length]: the attention that the queries pay, the mean over heads."""
    k, _ = attention.keys_and_values(x, angles)
    q = rows_of(attention.queries(latent, angles).transpose(1, 2), queries).transpose(1, 2)
    total = 0.0
    for head in range(attention.heads):  # one at a time: a matrix each, not eight
        dots = (q[:, head] @ k[:, head].mT) * attention.scale
        total = total + dots.masked_fill_(~seen, float("-inf")).softmax(-1)
    return total / attention.heads


def divergence(indexer, x, latent, angles, queries, seen, target):
    """KL(target || the indexer's softmax), [documents, rows]."""
    q, weights = indexer.queries(x, latent, angles)
    scores = indexer.scores(rows_of(q, queries), rows_of(weights, queries), indexer.keys(x, angles))
    guess = scores.masked_fill(~seen, float("-inf")).log_softmax(-1).masked_fill(~seen, 0.0)
    return (torch.xlogy(target, target) - target * guess).sum(-1)


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        config = dataclasses.replace(
            checkpoint.read_config(args.folder), index_n_heads=args.heads, index_head_dim=args.head_dim, index_topk=args.top_k)
        self.model = checkpoint.load(args.folder, args.device, config).eval()
        self.model.requires_grad_(False)
        self.indexers = torch.nn.ModuleList([layer.self_attn.indexer for layer in self.model.layers]).requires_grad_()
        self.optimizer = optimizer_lib.Optimizer(self.indexers)
        self.device = torch.device(args.device)

    def layers(self, tokens, queries):
        """(attention, normed input, query latent, angles, which keys the queries see, what they pay attention to) of each layer."""
        positions = torch.arange(tokens.shape[1], device=self.device)
        angles = model_lib.rope_angles(self.model.config, positions[None])
        seen = positions <= queries.unsqueeze(-1)
        for layer, x in index_formats.layer_inputs(self.model, tokens):
            attention = layer.self_attn
            with torch.no_grad():
                latent = attention.query_latent(x)
                target = attention_at(attention, x, latent, angles, queries, seen)
            yield attention, x, latent, angles, seen, target

    def train_step(self, tokens, queries, rate):
        """The mean divergence of each layer."""
        shown = []
        for attention, x, latent, angles, seen, target in self.layers(tokens, queries):
            loss = divergence(attention.indexer, x, latent, angles, queries, seen, target).mean()
            loss.backward()
            shown.append(loss.detach())
        for indexer in self.indexers:  # layers learn apart: what one does must not scale another's steps
            torch.nn.utils.clip_grad_norm_(indexer.parameters(), 1.0)
        self.optimizer.step(rate, clip=float("inf"))
        return torch.stack(shown)

    @torch.no_grad()
    def coverage(self, folder, count):
        """{who chooses: [share of the attention that the top_k chosen keys hold, of each layer]}."""
        top_k = self.model.config.index_topk
        sums, total = {"indexer": [], "best": [], "last": []}, 0
        for ids, asked in index_formats.long_texts(folder, count):
            tokens = torch.tensor([ids], device=self.device)
            queries = torch.tensor([[*range(top_k, asked, 16), *range(asked, len(ids) - 1)]], device=self.device)
            total += queries.numel()
            for i, (attention, x, latent, angles, seen, target) in enumerate(self.layers(tokens, queries)):
                indexer = attention.indexer
                q, weights = indexer.queries(x, latent, angles)
                scores = indexer.scores(rows_of(q, queries), rows_of(weights, queries), indexer.keys(x, angles))
                last = seen & (torch.arange(len(ids), device=self.device) > queries.unsqueeze(-1) - top_k)
                masks = {"indexer": indexer.choose(scores, seen), "best": indexer.choose(target, seen), "last": last}
                for name, mask in masks.items():
                    sums[name] += [0.0] * (i + 1 - len(sums[name]))
                    sums[name][i] += (target * mask).sum().item()
        return {name: [round(part / total, 4) for part in parts] for name, parts in sums.items()}


class LastKeys(torch.nn.Module):
    """In an indexer's place: the last top_k keys."""

    def __init__(self, top_k):
        super().__init__()
        self.top_k = top_k

    def mask(self, x, latent, angles, cache, seen):
        if seen is not None:
            keys = torch.arange(seen.shape[-1], device=x.device)
            return seen & (keys > cache.positions[:, None, None, None] - self.top_k)
        at = torch.arange(x.shape[1], device=x.device)
        return ((at <= at[:, None]) & (at > at[:, None] - self.top_k))[None, None]


def set_indexers(model, indexers):
    for layer, indexer in zip(model.layers, indexers):
        layer.self_attn.indexer = indexer


def set_sparse(model, is_sparse):
    for layer in model.layers:
        layer.self_attn.is_sparse = is_sparse


def evaluate_all(trainer, args, write):
    """What the docstring promises of report.json."""
    model, config = trainer.model, trainer.model.config
    tokenizer = tokenizers.Tokenizer.from_file(f"{args.folder}/tokenizer.json")
    problems = evaluate.read(args.folder, "long", args.questions)
    trained, untrained = list(trainer.indexers), [model_lib.Indexer(config).to(trainer.device) for _ in trainer.indexers]

    def solved(name):
        begin = time.time()
        share, _ = evaluate.accuracy(model, tokenizer, problems)
        write(event="long", indexer=name, n=len(problems), accuracy=round(share, 4), seconds=round(time.time() - begin, 1))
        return round(share, 4)

    report = {"coverage": trainer.coverage(args.folder, args.checked)}
    write(event="coverage", **report["coverage"])
    set_indexers(model, untrained)
    report["coverage of untrained ones"] = trainer.coverage(args.folder, args.checked)["indexer"]
    write(event="untrained", coverage=report["coverage of untrained ones"])
    set_indexers(model, trained)
    report["recall"] = index_formats.recalls(model, args.folder, args.checked)
    print("\n".join(index_formats.recall_table(report["recall"])), flush=True)
    if problems:
        long = report["long"] = {"dense": solved("none: dense")}
        set_sparse(model, True)
        for name, stored in index_formats.formats().items():
            if name in ("f32", "bf16", "fp8, plain scales"):
                index_formats.set_format(model, stored)
                long[name] = solved(name)
        index_formats.set_format(model, index_formats.formats()["f32"])
        set_indexers(model, untrained)
        long["untrained"] = solved("untrained")
        set_indexers(model, [LastKeys(config.index_topk) for _ in trained])
        long["last"] = solved("last keys alone")
        set_indexers(model, trained)
    return report


def run(args):
    batches = Batches(args)
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    log = open(out / "training_log.jsonl", "w", buffering=1)

    def write(**line):
        print(json.dumps(line), file=log)
        print(json.dumps(line), flush=True)

    trainer = Trainer(args)
    set_sparse(trainer.model, False)
    write(event="begin", parameters=sum(p.numel() for p in trainer.indexers.parameters()), torch=torch.__version__, peak_lr=args.lr,
          **{name: getattr(args, name) for name in ("documents", "rows", "length", "steps", "seconds", "seed")})
    begin, tokens_seen, shown_sum = time.time(), 0, 0.0
    for step in range(args.steps):
        progress = max(step / args.steps, (time.time() - begin) / args.seconds)
        if progress >= 1:
            break
        rate = args.lr * (1 - progress) * min(1.0, (step + 1) / WARM_UP_STEPS)
        tokens, queries = (part.to(trainer.device) for part in batches.get(step))
        shown_sum = shown_sum + trainer.train_step(tokens, queries, rate)
        tokens_seen += tokens.numel()
        if (step + 1) % LOG_EVERY == 0:
            shown = (shown_sum / LOG_EVERY).tolist()
            write(step=step + 1, tokens=tokens_seen, seconds=round(time.time() - begin, 1), progress=round(progress, 4),
                  lr=round(rate, 6), kl=[round(value, 4) for value in shown])
            shown_sum = 0.0
    batches.stop()
    write(event="trained", step=step + 1, tokens=tokens_seen, seconds=round(time.time() - begin, 1))
    with torch.no_grad():
        for parameter in trainer.indexers.parameters():  # as they are stored
            parameter.copy_(parameter.bfloat16().float())
    checkpoint.save_indexers(trainer.model, pathlib.Path(args.folder), out)
    report = evaluate_all(trainer, args, write)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="the trunk")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seconds", type=float, default=200, help="of training; the rate follows whichever is further, these or the steps")
    parser.add_argument("--documents", type=int, default=8, help="of a step")
    parser.add_argument("--rows", type=int, default=1024, help="queries of a document")
    parser.add_argument("--length", type=int, default=5120, help="of the longest document")
    parser.add_argument("--scale", type=float, default=1.0, help="of the documents' lengths: for a try in little")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=256)
    parser.add_argument("--lr", type=float, default=PEAK_LR)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--checked", type=int, default=16, help="long texts on which coverage and recall are measured at the end")
    parser.add_argument("--questions", type=int, default=100, help="of the long file that are answered at the end, each way; 0: none")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
