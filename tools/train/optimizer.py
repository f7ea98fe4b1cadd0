"""Muon for the matrices, AdamW for the rest (embedding, norms, routers)."""

import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration, Keller Jordan's


def orthogonalized(matrices):
    """[n, a, b] with all singular values brought near 1."""
    x = matrices.bfloat16()
    is_tall = x.shape[-2] > x.shape[-1]
    if is_tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon:
    """Matrices of one shape are stepped together. The step's size is AdamW's (Moonlight: 0.2 * sqrt(the longer side))."""

    def __init__(self, parameters, momentum=0.95, weight_decay=0.05):
        self.momentum, self.weight_decay = momentum, weight_decay
        self.groups = {}
        for p in parameters:
            self.groups.setdefault(p.shape[-2:], []).append(p)
        self.buffers = {}

    @torch.no_grad()
    def step(self, lr):
        for shape, parameters in self.groups.items():
            grads = torch.cat([p.grad.reshape(-1, *shape) for p in parameters]).float()
            buffer = self.buffers.get(shape)
            if buffer is None:
                buffer = self.buffers[shape] = torch.zeros_like(grads)
            buffer.lerp_(grads, 1 - self.momentum)
            update = orthogonalized(grads.lerp(buffer, self.momentum)).float()
            scale = -lr * 0.2 * max(shape) ** 0.5
            parts = update.split([p.numel() // (shape[0] * shape[1]) for p in parameters])
            torch._foreach_mul_(parameters, 1 - lr * self.weight_decay)
            torch._foreach_add_(parameters, [part.view_as(p) for part, p in zip(parts, parameters)], alpha=scale)

    def state(self):
        return {tuple(shape): buffer for shape, buffer in self.buffers.items()}

    def restore(self, state):
        self.buffers = {torch.Size(shape): buffer for shape, buffer in state.items()}


class Optimizer:
    def __init__(self, model):
        self.parameters = [p for p in model.parameters()]
        matrices = [p for name, p in model.named_parameters() if p.dim() >= 2 and "embed_tokens" not in name and "mlp.gate." not in name]
        chosen = set(map(id, matrices))
        rest = [p for p in self.parameters if id(p) not in chosen]
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0, fused=rest[0].is_cuda)

    def step(self, lr, clip=1.0):
        torch.nn.utils.clip_grad_norm_(self.parameters, clip)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self.muon.step(lr)
        for p in self.parameters:
            p.grad = None

    def state(self):
        return {"adam": self.adam.state_dict(), "muon": self.muon.state()}

    def restore(self, state):
        self.adam.load_state_dict(state["adam"])
        self.muon.restore(state["muon"])
