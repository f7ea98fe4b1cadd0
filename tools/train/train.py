#!/usr/bin/env python3
"""Trains the bundled model on one GPU.

  python3 tools/train/train.py models/quire-grade-school --out DIR --seconds 1100
  python3 tools/train/train.py models/quire-grade-school --out DIR --seconds 500 --from DIR --progress 0.5 1.0

The folder has the tokenizer and the evaluation files (make_tokenizer.py, make_eval.py). DIR gets the model's folder, rewritten
every minute, log.jsonl, and state.pt, the optimizer's state. The learning rate follows the share of the time that has gone.

Training may come in stretches: --from continues with the weights of DIR; with its optimizer where state.pt is still there, else
with a new one that is warmed up. --progress says which part of the schedule this stretch is.
"""

import argparse
import json
import pathlib
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F

import checkpoint
import data
import documents
import evaluate
import model as model_lib
import optimizer as optimizer_lib

PEAK_LR = 3e-3
WARM_UP_STEPS = 200
DECAY_FROM = 0.45  # of the schedule
PROMPT_WEIGHT = 0.1  # of the loss on a question's tokens; an answer's is 1
DRAFT_WEIGHT = 0.3
BIAS_STEP = 1e-3  # DeepSeek-V3's: how fast a router's bias moves toward an even load
LOG_EVERY = 50
CHECKPOINT_SECONDS = 60


def learning_rate(progress, step):
    rate = min(1.0, max(0.0, 1 - progress) / (1 - DECAY_FROM))
    return PEAK_LR * rate * min(1.0, (step + 1) / WARM_UP_STEPS)


def attention_kernels(heads, key, value, shapes):
    """(kernel, whether values must be as wide as keys) of those that can do these shapes, the fastest first."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def random(rows, length, width):
        return torch.randn(rows, length, heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

    times = {}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        for padded in (False, True):
            try:
                total = 0.0
                for rows, length in shapes:
                    widths = (key, key, key if padded else value)
                    q, k, v = (random(rows, length, width).requires_grad_() for width in widths)
                    grad = random(rows, length, widths[2])
                    with sdpa_kernel(backend):
                        for i in range(4):
                            if i == 1:  # after one to warm up
                                torch.cuda.synchronize()
                                begin = time.time()
                            F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)
                    torch.cuda.synchronize()
                    total += time.time() - begin
                times[backend, padded] = total
                print(f"{backend} padded={padded}: {total * 1e3 / 3:.1f} ms", flush=True)
            except RuntimeError as error:
                print(f"{backend} padded={padded}: {str(error)[:100]}", flush=True)
    return sorted(times, key=times.get)


def enable_only(backend):
    from torch.nn.attention import SDPBackend
    torch.backends.cuda.enable_cudnn_sdp(backend in (None, SDPBackend.CUDNN_ATTENTION))
    torch.backends.cuda.enable_flash_sdp(backend in (None, SDPBackend.FLASH_ATTENTION))
    torch.backends.cuda.enable_mem_efficient_sdp(backend in (None, SDPBackend.EFFICIENT_ATTENTION))
    torch.backends.cuda.enable_math_sdp(backend is None)


def token_losses(hidden, embedding, targets):
    logits = F.linear(hidden, embedding).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


class Trainer:
    def __init__(self, args, config):
        self.args = args
        self.device = torch.device(args.device)
        self.is_gpu = self.device.type == "cuda"
        torch.manual_seed(args.seed)
        torch.set_float32_matmul_precision("high")
        source = args.resume
        self.model = (checkpoint.load(source) if source else model_lib.Model(config)).to(self.device)
        self.optimizer = optimizer_lib.Optimizer(self.model)
        self.step = self.tokens = 0
        state = pathlib.Path(source, "state.pt") if source else None
        if state and state.exists():
            saved = torch.load(state, map_location=self.device, weights_only=False)
            self.optimizer.restore(saved["optimizer"])
            self.model.load_state_dict(saved["model"])  # not rounded
        self.role_weights = torch.tensor([0.0, PROMPT_WEIGHT, 1.0], device=self.device)  # IGNORED, PROMPT, TARGET
        self.token_losses = token_losses
        if args.compile:
            torch._dynamo.config.recompile_limit = 64
            for layer in self.model.layers:
                layer.compile(dynamic=False)
            self.token_losses = torch.compile(token_losses, dynamic=False)

    def losses(self, tokens, roles):
        """Sums of the weighted losses and what the log shows."""
        weights = self.role_weights[roles.long()]
        following, after = tokens.roll(-1, 1), tokens.roll(-2, 1)
        weight, weight_after = weights.roll(-1, 1), weights.roll(-2, 1)
        weight[:, -1:], weight_after[:, -2:] = 0, 0
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_gpu):
            hidden, loads = self.model(tokens)
            losses = self.token_losses(hidden, self.model.embed_tokens.weight, following)
            drafted, load = self.model.draft(hidden, following)
            draft_losses = self.token_losses(drafted, self.model.embed_tokens.weight, after)
        answer, answer_after = (weight == 1).float(), (weight_after == 1).float()
        loss = (losses * weight).sum() / weight.sum()
        draft_loss = (draft_losses * weight_after).sum() / weight_after.sum()
        with torch.no_grad():
            shown = torch.stack([(losses * answer).sum() / answer.sum(), (draft_losses * answer_after).sum() / answer_after.sum()])
        return loss + DRAFT_WEIGHT * draft_loss, shown, torch.stack([*loads, load])

    def train_step(self, batch, progress):
        tokens, roles = batch
        loss, shown, loads = self.losses(tokens, roles)
        loss.backward()
        self.optimizer.step(learning_rate(progress, self.step))
        if progress < 0.9:
            self.balance(loads)
        self.step += 1
        self.tokens += tokens.numel()
        return shown, loads

    @torch.no_grad()
    def balance(self, loads):
        for gate, load in zip(self.model.gates(), loads):
            gate.e_score_correction_bias += BIAS_STEP * torch.sign(load.mean() - load)

    def to_device(self, batch):
        tokens, roles = (torch.from_numpy(part) for part in (batch[0].astype(np.int32), batch[1]))
        if self.is_gpu:
            tokens, roles = tokens.pin_memory(), roles.pin_memory()
        return tokens.to(self.device, non_blocking=True).long(), roles.to(self.device, non_blocking=True)

    def save(self, with_state=False):
        """The model's folder; by renaming, so that whoever reads it never sees half of it."""
        out = pathlib.Path(self.args.out)
        fresh = out / "model.new"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.copytree(self.args.folder, fresh, ignore=shutil.ignore_patterns("*.safetensors*"))
        checkpoint.save(self.model, fresh)
        if with_state:
            torch.save({"optimizer": self.optimizer.state(), "model": self.model.state_dict()}, fresh / "state.pt")
        shutil.rmtree(out / "model", ignore_errors=True)
        fresh.rename(out / "model")
        return out / "model"


def warm_up(trainer, shapes, write):
    """Compiles for both shapes before the clock runs."""
    started = time.time()
    for rows, length in shapes:
        tokens = torch.randint(5, trainer.model.config.vocab_size, (rows, length), device="cuda")
        for _ in range(2):
            loss, _, _ = trainer.losses(tokens, torch.full_like(tokens, documents.TARGET, dtype=torch.uint8))
            loss.backward()
        for p in trainer.model.parameters():
            p.grad = None
    torch.cuda.synchronize()
    write(event="compiled", seconds=round(time.time() - started, 1), gib=round(torch.cuda.max_memory_allocated() / 2**30, 1))


def run(args):
    plan = data.BatchPlan(args.batch_tokens, args.short_length, args.long_length, args.first_long, args.long_every)
    batches = data.Batches(str(args.folder), plan, args.seed, args.first_batch, args.workers)
    config = model_lib.Config(**json.loads(args.config))
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    log = open(out / "log.jsonl", "a", buffering=1)

    def write(**line):
        print(json.dumps(line), file=log)
        print(json.dumps(line), flush=True)

    backend, trainer = None, None
    if args.device == "cuda":
        shapes = [plan.shape(False), plan.shape(True)]
        kernels = attention_kernels(
            config.num_attention_heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim, shapes)
        for backend, model_lib.Attention.pad_values in kernels:
            enable_only(backend)
            trainer = Trainer(args, config)
            try:
                warm_up(trainer, shapes, write)
                break
            except Exception as error:  # a kernel that the compiler cannot take: the next one
                print(f"{backend}: {error}"[:2000], flush=True)
                torch._dynamo.reset()
    else:
        trainer = Trainer(args, config)
    num_parameters = sum(p.numel() for p in trainer.model.parameters())
    shown = ("batch_tokens", "short_length", "long_length", "first_long", "long_every", "seconds", "progress", "seed")
    write(event="begin", parameters=num_parameters, attention=str(backend), pad=model_lib.Attention.pad_values,
          torch=torch.__version__, peak_lr=PEAK_LR, **{name: getattr(args, name) for name in shown})
    train(args, trainer, batches, backend, write)
    batches.stop()


def train(args, trainer, batches, backend, write):
    begin = last = saved = time.time()
    waited = paused = 0.0
    checks = [float(c) for c in args.check_at]
    shown_sum, logged = 0.0, 0
    while True:
        now = time.time()
        share = (now - begin) / args.seconds
        if share >= 1 or trainer.step == args.max_steps:
            break
        progress = args.progress[0] + (args.progress[1] - args.progress[0]) * share
        batch = batches.get()
        waited += time.time() - now
        shown, loads = trainer.train_step(trainer.to_device(batch), progress)
        shown_sum, logged = shown_sum + shown, logged + 1
        if trainer.step % LOG_EVERY == 0:
            mean = (shown_sum / logged).tolist()  # waits for the device
            now = time.time()
            write(step=trainer.step, tokens=trainer.tokens, seconds=round(now - begin, 1), progress=round(progress, 4),
                  loss=round(mean[0], 4), draft=round(mean[1], 4), lr=round(learning_rate(progress, trainer.step), 6),
                  rate=round(logged * batch[0].size / (now - last)), waited=round(waited, 1),
                  load=[round(v.item(), 2) for v in (loads / loads.mean()).aminmax()] if trainer.step % 500 == 0 else None)
            last, shown_sum, logged = now, 0.0, 0
        if time.time() - saved > CHECKPOINT_SECONDS:
            trainer.save()
            saved = time.time()
        if checks and progress >= checks[0]:
            checks.pop(0)
            folder = trainer.save()
            if trainer.is_gpu:
                enable_only(None)
            report, _ = evaluate.evaluate(folder, args.device, ("heldout", "long", "unseen_phrasings"), args.check_limit)
            write(event="check", step=trainer.step, **report)
            if trainer.is_gpu:
                enable_only(backend)
            saved = last = time.time()
    folder = trainer.save(with_state=True)
    write(event="trained", step=trainer.step, tokens=trainer.tokens, seconds=round(time.time() - begin, 1), waited=round(waited, 1))
    if trainer.is_gpu:
        enable_only(None)
    report, failures = evaluate.evaluate(folder, args.device, limit=args.limit)
    pathlib.Path(args.out, "wrong.json").write_text(json.dumps(failures, indent=1))
    write(event="end", **report)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--from", dest="resume", help="a model's folder to continue from")
    parser.add_argument("--progress", type=float, nargs=2, default=(0.0, 1.0))
    parser.add_argument("--first-batch", type=int, default=0, help="of this stretch: batches before it were used")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--batch-tokens", type=int, default=98304)
    parser.add_argument("--short-length", type=int, default=768)
    parser.add_argument("--long-length", type=int, default=5120)
    parser.add_argument("--first-long", type=int, default=400)
    parser.add_argument("--long-every", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("--check-at", nargs="*", default=[0.25, 0.5, 0.75])
    parser.add_argument("--check-limit", type=int, default=100)
    parser.add_argument("--limit", type=int, default=0, help="problems of each file at the end; 0: all")
    parser.add_argument("--config", default="{}", help="JSON: other sizes than the bundled model's")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
