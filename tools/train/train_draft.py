#!/usr/bin/env python3
"""Trains what drafts for the bundled model on its own drafts: the model's draft layer, or an EAGLE-3 head.

  python3 tools/train/train_draft.py layer models/quire-grade-school --out DIR
  python3 tools/train/train_draft.py head models/quire-grade-school --out models/quire-grade-school-eagle3

The trunk stays as it is. From every place of an answer four tokens are drafted behind each other, as decoding does it (EAGLE-3's
training-time test): the first row takes the trunk's state, each other one the drafter's own of the row before, and a row sees the
rows of the text up to that place, which took the trunk's states, and those of its own path. Each row learns what the trunk says
of the next token: the divergence of the two, over the trunk's likeliest tokens. Texts are training's, with the answers that training has or those
that the trunk itself writes, greedy and drawn; nothing of the evaluation files.

`layer` writes the trunk's weight files with other bytes of the draft layer, and looks that no other byte changed; `head` writes a
folder that --speculative-draft-model-path takes. Both leave training_log.jsonl. The rate follows the clock or the steps,
whichever is further.
"""

import argparse
import collections
import dataclasses
import json
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
import model as model_lib
import optimizer as optimizer_lib
import problems
import reword

PEAK_LR = {"layer": 2.5e-3, "head": 4e-3}
WARM_UP_STEPS = 20
NUM_STEPS = 4  # drafts behind each other
NUM_BEST = 8  # of the trunk's tokens that a row learns from
KINDS = 16  # of so many batches one has answers of the trunk's own, and one is a long document
LOG_EVERY = 20
# The head's own sizes: 1.5 MB of bf16 are 750 thousand parameters, of which fc takes 197 thousand and lm_head 131 thousand.
HEAD = dict(num_hidden_layers=1, num_attention_heads=4, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32,
            v_head_dim=32, intermediate_size=344)
HEAD_VOCABULARY = 512
HEAD_LAYERS = [0, 2, 3]  # before which the trunk's residual stream is read


@dataclasses.dataclass
class Batch:
    """Texts and what the trunk makes of them. An anchor is the last place that the trunk has seen when a draft begins."""
    tokens: torch.Tensor  # [texts, length], filled up behind their ends
    anchors: torch.Tensor  # [texts, anchors]
    is_drafted: torch.Tensor  # [steps, texts, anchors]: whether the text has that many tokens more of the answer
    states: torch.Tensor  # [texts, length, hidden]: after the last norm
    inputs: list  # the same before each of the head's layers
    best: torch.Tensor  # [texts, length, NUM_BEST]: the trunk's tokens for the next place
    shares: torch.Tensor  # and their probabilities


def alike(tokenizer, rng, new_document, count):
    """[(ids, roles)] of documents of about the same length."""
    drawn = sorted(data.encode(tokenizer, [new_document(rng) for _ in range(4 * count)]), key=lambda doc: len(doc[0]))
    first = int(rng.random() * (3 * count + 1))
    return drawn[first:first + count]


def asked(rng):
    """A question in the chat format, half of them with words that mean nothing: there the trunk writes what no training text has."""
    problem = problems.training_problem(rng)
    is_noisy = rng.random() < 0.5
    return documents.chat([(reword.noisy(rng, problem.question, problem.answer) if is_noisy else problem.question, "")])[:1]


def anchors_of(roles):
    """Places before two tokens of an answer, and for each how many tokens of it follow behind the next one."""
    found = []
    for place in range(len(roles) - 2):
        following = roles[place + 1:place + 2 + NUM_STEPS]
        count = next((i for i, role in enumerate(following) if role != documents.TARGET), len(following))
        if count >= 2:
            found.append((place, count - 1))
    return found


class Batches:
    """Batch i depends on the seed and i alone. Each is made once, and kept: in memory, and in a folder where runs share one."""

    def __init__(self, args, trunk):
        self.args, self.trunk, self.kept = args, trunk, []
        self.tokenizer = tokenizers.Tokenizer.from_file(f"{args.folder}/tokenizer.json")
        self.end = self.tokenizer.token_to_id(documents.EOS)

    def get(self, step):
        index = step % self.args.batches
        if index == len(self.kept):
            path = self.args.kept / f"{self.args.seed}-{self.args.texts}-{index}.pt" if self.args.kept else None
            if path and path.exists():
                batch = Batch(**torch.load(path, map_location=self.trunk.embed_tokens.weight.device))
            else:
                batch = self.make(index)
            if path and not path.exists():
                own = path.with_suffix(f".{os.getpid()}")
                torch.save(vars(batch), own)
                own.rename(path)  # nobody sees half of it
            self.kept.append(batch)
        return self.kept[index]

    def make(self, index):
        rng = random.Random(f"draft {self.args.seed} {index}")
        if index % KINDS == KINDS - 1:
            low, high = data.LONG_CHARS
            texts = list(data.encode(self.tokenizer, [documents.long_document(rng, low + int(rng.random() * (high - low)))]))
        elif index % KINDS == KINDS // 2:
            texts = self.own_texts(rng, temperature=float(index // KINDS % 2), seed=index)
        else:
            texts = alike(self.tokenizer, rng, documents.short_document, self.args.texts)
        return self.seen_by_trunk(texts)

    def own_texts(self, rng, temperature, seed):
        prompts = [ids for ids, _ in alike(self.tokenizer, rng, asked, self.args.texts)]
        torch.manual_seed(seed)
        answers = model_lib.generate(self.trunk, prompts, evaluate.MAX_NEW, self.end, use_autocast=True, temperature=temperature)
        return [(prompt + answer + [self.end], [documents.PROMPT] * len(prompt) + [documents.TARGET] * (len(answer) + 1))
                for prompt, answer in zip(prompts, answers)]

    @torch.no_grad()
    def seen_by_trunk(self, texts):
        device = self.trunk.embed_tokens.weight.device
        longest = max(len(ids) for ids, _ in texts)
        tokens = torch.tensor([ids + [self.end] * (longest - len(ids)) for ids, _ in texts], device=device)
        found = [anchors_of(roles) for _, roles in texts]
        most = max(map(len, found))
        padded = torch.tensor([row + [(0, 0)] * (most - len(row)) for row in found], device=device)
        inputs = []
        hooks = [self.trunk.layers[i].register_forward_pre_hook(lambda _, args: inputs.append(args[0].bfloat16())) for i in HEAD_LAYERS]
        with torch.autocast(device.type, torch.bfloat16):
            states, _ = self.trunk(tokens)
            best = self.trunk.logits(states).float().softmax(-1).topk(NUM_BEST)
        for hook in hooks:
            hook.remove()
        return Batch(tokens=tokens, anchors=padded[..., 0],
                     is_drafted=padded[..., 1] > torch.arange(NUM_STEPS, device=device)[:, None, None], states=states.bfloat16(),
                     inputs=inputs, best=best.indices, shares=best.values / best.values.sum(-1, keepdim=True))


class Paths:
    """In a cache's place: the keys and values of the text's rows, which come first, and of the rows that each anchor's path has."""

    def __init__(self, anchors):
        self.anchors, self.keys, self.values, self.seen = anchors, None, None, None

    def extend(self, k, v):
        if self.keys is None:
            self.keys, self.values = k, v
            self.seen = (torch.arange(k.shape[2], device=k.device) <= self.anchors[..., None])[:, None]
            return k, v, None
        own = torch.eye(k.shape[2], dtype=torch.bool, device=k.device).expand(len(k), 1, -1, -1)
        self.keys, self.values = torch.cat([self.keys, k], dim=2), torch.cat([self.values, v], dim=2)
        self.seen = torch.cat([self.seen, own], dim=-1)
        return self.keys, self.values, self.seen


class LayerDrafter:
    """The trunk's own draft layer."""

    def __init__(self, trunk):
        self.trunk, self.module = trunk, trunk.layers[-1]
        self.config = trunk.config
        self.places = torch.arange(trunk.config.vocab_size, device=trunk.embed_tokens.weight.device)

    def states(self, batch):
        return batch.states.float()

    def draft(self, *args):
        return self.module.draft(*args)[0]

    def logits(self, states):
        return self.trunk.logits(states)

    def save(self, args):
        prefix = f"model.layers.{self.config.num_hidden_layers}."
        tensors = {name: value for name, value in checkpoint.published_tensors(self.trunk).items() if name.startswith(prefix)}
        checkpoint.with_tensors(args.folder, args.out, tensors)


class HeadDrafter:
    """An EAGLE-3 head. `places` says which of its tokens each of the trunk's is; -1: none."""

    def __init__(self, trunk, tokenizer, seed):
        device = trunk.embed_tokens.weight.device
        self.config = dataclasses.replace(trunk.config, **HEAD)
        self.module = model_lib.EagleHead(self.config, HEAD_VOCABULARY, HEAD_LAYERS).to(device)
        ids = most_written(tokenizer, HEAD_VOCABULARY, seed).to(device)
        self.places = torch.full((trunk.config.vocab_size,), -1, device=device).index_copy_(0, ids, torch.arange(len(ids), device=device))
        self.module.d2t.copy_(ids - torch.arange(len(ids), device=device))
        self.module.lm_head.weight.data.copy_(trunk.embed_tokens.weight[ids])

    def states(self, batch):
        return self.module.fuse([part.float() for part in batch.inputs])

    def draft(self, *args):
        return self.module.draft(*args)

    def logits(self, states):
        return self.module.logits(states)

    def save(self, args):
        checkpoint.save_head(self.module, args.out)


def most_written(tokenizer, count, seed):
    """The tokens that answers have most of, ascending."""
    rng, counts = random.Random(f"vocabulary {seed}"), collections.Counter()
    for ids, roles in data.encode(tokenizer, [documents.short_chat(rng) for _ in range(6000)]):
        counts.update(token for token, role in zip(ids, roles) if role == documents.TARGET)
    return torch.tensor(sorted(token for token, _ in counts.most_common(count)))


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        self.device = torch.device(args.device)
        self.trunk = checkpoint.load(args.folder, args.device).eval().requires_grad_(False)
        self.batches = Batches(args, self.trunk)
        if args.what == "layer":
            self.drafter = LayerDrafter(self.trunk)
        else:
            self.drafter = HeadDrafter(self.trunk, self.batches.tokenizer, args.seed)
        self.drafter.module.requires_grad_()
        self.optimizer = optimizer_lib.Optimizer(self.drafter.module)

    def drafted(self, batch):
        """For every step: (logits [texts, anchors, drafter's vocabulary], places of the tokens before those that they are for)."""
        config, drafter = self.drafter.config, self.drafter
        rows = torch.arange(len(batch.tokens), device=self.device)[:, None]
        last = batch.tokens.shape[1] - 1
        positions = torch.arange(last, device=self.device)[None]
        paths = Paths(batch.anchors)
        embedded = self.trunk.embed_tokens(batch.tokens)
        states = drafter.draft(drafter.states(batch)[:, :-1], embedded[:, 1:], model_lib.rope_angles(config, positions), paths)
        states = states[rows, batch.anchors]
        for step in range(NUM_STEPS):
            places = (batch.anchors + 1 + step).clamp(max=last)
            if step > 0:
                angles = model_lib.rope_angles(config, batch.anchors + step)
                states = drafter.draft(states, embedded[rows, places], angles, paths)
            yield drafter.logits(states).float(), places

    def losses(self, batch):
        """[steps] each: the mean divergence, and the share of drafts that are right with all before them."""
        rows = torch.arange(len(batch.tokens), device=self.device)[:, None]
        losses, accepted, is_right = [], [], True
        with torch.autocast(self.device.type, torch.bfloat16):
            for (logits, places), is_drafted in zip(self.drafted(batch), batch.is_drafted):
                best, shares = self.drafter.places[batch.best[rows, places]], batch.shares[rows, places]
                shares = shares * (best >= 0)
                guess = logits.log_softmax(-1).gather(-1, best.clamp(min=0))
                divergence = (torch.xlogy(shares, shares) - shares * guess).sum(-1)
                count = is_drafted.sum().clamp(min=1)
                losses.append((divergence * is_drafted).sum() / count)
                likeliest = logits.gather(-1, best[..., :1].clamp(min=0))[..., 0]
                is_right = is_right & (best[..., 0] >= 0) & (likeliest == logits.amax(-1))
                accepted.append((is_right & is_drafted).sum() / count)
        return torch.stack(losses), torch.stack(accepted)

    def train_step(self, batch, rate):
        losses, accepted = self.losses(batch)
        losses.mean().backward()
        self.optimizer.step(rate)
        return torch.stack([losses.detach(), accepted])


def run(args):
    args.out.mkdir(parents=True, exist_ok=True)
    log = open(args.out / "training_log.jsonl", "w", buffering=1)

    def write(**line):
        print(json.dumps(line), file=log)
        print(json.dumps(line), flush=True)

    if args.threads:
        torch.set_num_threads(args.threads)
    model_lib.Attention.is_plain = args.device == "cpu"
    trainer = Trainer(args)
    peak = args.lr or PEAK_LR[args.what]
    write(event="begin", what=args.what, parameters=sum(p.numel() for p in trainer.drafter.module.parameters()), torch=torch.__version__,
          peak_lr=peak, threads=torch.get_num_threads(),
          **{name: getattr(args, name) for name in ("device", "texts", "batches", "steps", "seconds", "seed")})
    begin, saved, done, tokens, drafts, shown_sum = time.time(), time.time(), 0, 0, 0, 0.0
    for step in range(args.steps):
        progress = max(step / args.steps, (time.time() - begin) / args.seconds)
        if progress >= 1:
            break
        rate = peak * (1 - progress) * min(1.0, (step + 1) / WARM_UP_STEPS)
        batch = trainer.batches.get(step)
        shown_sum = shown_sum + trainer.train_step(batch, rate)
        tokens += batch.tokens.numel()
        drafts += int(batch.is_drafted[0].sum())
        done += 1
        if done % LOG_EVERY == 0:
            losses, accepted = (shown_sum / LOG_EVERY).tolist()
            write(step=done, tokens=tokens, drafts=drafts, seconds=round(time.time() - begin, 1), progress=round(progress, 4),
                  lr=round(rate, 6), steps=[round(value, 4) for value in losses], accepted=[round(value, 4) for value in accepted])
            shown_sum = 0.0
        if time.time() - saved > args.save_every:
            trainer.drafter.save(args)
            saved = time.time()
    write(event="trained", step=done, tokens=tokens, drafts=drafts, seconds=round(time.time() - begin, 1), cpu_seconds=round(time.process_time(), 1))
    trainer.drafter.save(args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["layer", "head"])
    parser.add_argument("folder", type=pathlib.Path, help="the trunk")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=540, help="of training; the rate follows whichever is further, these or the steps")
    parser.add_argument("--texts", type=int, default=16, help="of a batch")
    parser.add_argument("--batches", type=int, default=4000, help="that differ; from then on they come again")
    parser.add_argument("--kept", type=pathlib.Path, help="a folder for batches with what the trunk makes of them, for other runs too")
    parser.add_argument("--lr", type=float, help="the highest rate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=float, default=120, help="seconds between what is written on the way")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
