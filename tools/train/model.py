"""The model in plain PyTorch: DeepSeek-V3's layers (latent attention, routed experts, one multi-token-prediction layer).

Parameters have the names of the published checkpoints, but that the experts of a layer lie in three tensors
(checkpoint.py translates). Written for training at this size: every token goes through all experts and the unchosen
ones are multiplied with 0, which for experts this small is faster than moving tokens around.

With index_topk, attention has an indexer (DeepSeek-V3.2): it sees the layer's input and the query's latent, and leaves
each query that many keys. Nothing else knows of it.
"""

import contextlib
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Config:
    vocab_size: int = 2304
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    q_lora_rank: int = 128
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    intermediate_size: int = 1024
    first_k_dense_replace: int = 1
    moe_intermediate_size: int = 64
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 3
    n_group: int = 4
    topk_group: int = 2
    routed_scaling_factor: float = 2.0
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 8192
    index_n_heads: int | None = None  # these three: of sparse attention alone
    index_head_dim: int | None = None
    index_topk: int | None = None


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight, self.eps)


def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(inputs))
    return layer


def rotate(x, angles):
    """Pairs (x0, x1), (x2, x3)... by the angles of their positions. Even results first: a scalar product of two such
    vectors does not see the order."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = angles
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1).to(x.dtype)


def rope_angles(config, positions):
    """cos and sin: [..., 1, rope / 2] for positions [...]; the 1 is for heads."""
    half = torch.arange(0, config.qk_rope_head_dim, 2, dtype=torch.float32, device=positions.device)
    frequencies = 1.0 / config.rope_theta ** (half / config.qk_rope_head_dim)
    angles = (positions.float()[..., None] * frequencies).unsqueeze(-2)
    return angles.cos(), angles.sin()


def rotate_halves(x, angles):
    """As rotate(), but pairs are (x0, x[half]), (x1, x[half + 1])..., and only as many as there are angles; the rest stays."""
    cos, sin = angles
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


class Indexer(nn.Module):
    """Chooses the keys that a query attends to. Everything is in float32, whatever the model runs in."""

    CHUNK = 512  # queries of a prompt that are scored at once
    # What becomes of keys when they are stored, and of queries before they meet them: see index_formats.py.
    store_keys = store_queries = staticmethod(lambda x: x)

    def __init__(self, config):
        super().__init__()
        self.heads, self.dim, self.top_k = config.index_n_heads, config.index_head_dim, config.index_topk
        self.wq_b = linear(config.q_lora_rank, self.heads * self.dim)
        self.wk = linear(config.hidden_size, self.dim)
        self.k_norm = nn.LayerNorm(self.dim, eps=1e-6)
        self.weights_proj = linear(config.hidden_size, self.heads)

    def keys(self, x, angles):
        """[batch, length, dim] of the layer's normed input."""
        cos, sin = (part.squeeze(-2) for part in angles)
        return self.store_keys(rotate_halves(self.k_norm(self.wk(x)), (cos, sin)))

    def queries(self, x, latent, angles):
        """[batch, length, heads, dim], and the heads' weights, [batch, length, heads]."""
        q = rotate_halves(self.wq_b(latent).unflatten(-1, (self.heads, self.dim)), angles)
        return self.store_queries(q), self.weights_proj(x) * (self.heads * self.dim) ** -0.5

    @staticmethod
    def scores(q, weights, k):
        """[batch, queries, keys]."""
        batch, count, heads, dim = q.shape
        dots = (q.reshape(batch, count * heads, dim) @ k.mT).view(batch, count, heads, -1)
        return (F.relu(dots) * weights.unsqueeze(-1)).sum(2)

    def choose(self, scores, seen):
        """A mask like `seen` that keeps the top_k of each query's best scores."""
        if scores.shape[-1] <= self.top_k:
            return seen.expand(scores.shape)
        best = scores.masked_fill(~seen, float("-inf")).topk(self.top_k, dim=-1).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & seen

    def mask(self, x, latent, angles, cache, seen):
        """[batch, 1, queries, keys]: which keys attention sees. `seen` is the cache's mask, None of a prompt."""
        with torch.autocast(x.device.type, enabled=False):
            x, latent = x.float(), latent.float()
            k = self.keys(x, angles)
            q, weights = self.queries(x, latent, angles)
            if cache is not None:
                k = cache.extend_index(k)
            if seen is not None:
                return self.choose(self.scores(q, weights, k), seen[:, 0]).unsqueeze(1)
            positions = torch.arange(k.shape[1], device=k.device)
            parts = [self.choose(self.scores(q_part, weights_part, k), (positions <= rows[:, None])[None])
                     for q_part, weights_part, rows in zip(*(part.split(self.CHUNK, dim) for part, dim in ((q, 1), (weights, 1), (positions, 0))))]
        return torch.cat(parts, dim=1).unsqueeze(1)


class Attention(nn.Module):
    # Whether values are filled up to the width of keys: the flash kernels want one width.
    pad_values = False
    # Whether attention with a mask is written out: on a CPU a step of train_draft.py takes 1.0 s with it, 1.4 to 1.6 with the kernels.
    is_plain = False
    is_sparse = True  # where there is an indexer; False: it has no say

    def __init__(self, config, inputs=None):
        """Reads `inputs` values of a token, as many as it writes unless said otherwise."""
        super().__init__()
        inputs = inputs or config.hidden_size
        self.heads, self.nope, self.rope = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
        self.latent, self.value = config.kv_lora_rank, config.v_head_dim
        self.q_a_proj = linear(inputs, config.q_lora_rank)
        self.q_a_layernorm = RMSNorm(config.q_lora_rank, 1e-6)
        self.q_b_proj = linear(config.q_lora_rank, self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = linear(inputs, self.latent + self.rope)
        self.kv_a_layernorm = RMSNorm(self.latent, 1e-6)
        self.kv_b_proj = linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = linear(self.heads * self.value, config.hidden_size)
        self.scale = (self.nope + self.rope) ** -0.5
        self.indexer = Indexer(config) if config.index_topk else None

    def query_latent(self, x):
        return self.q_a_layernorm(self.q_a_proj(x))

    def queries(self, latent, angles):
        """[batch, heads, length, nope + rope]."""
        q = self.q_b_proj(latent).unflatten(-1, (self.heads, self.nope + self.rope))
        q_nope, q_rope = q.split([self.nope, self.rope], dim=-1)
        return torch.cat([q_nope, rotate(q_rope, angles)], dim=-1).transpose(1, 2)

    def keys_and_values(self, x, angles):
        """[batch, heads, length, nope + rope] and [batch, heads, length, value]."""
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.latent, self.rope], dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (self.heads, self.nope + self.value))
        k_nope, v = kv.split([self.nope, self.value], dim=-1)
        k_rope = rotate(k_rope.unsqueeze(2), angles).expand(-1, -1, self.heads, -1)
        return torch.cat([k_nope, k_rope], dim=-1).transpose(1, 2), v.transpose(1, 2)

    def forward(self, x, angles, cache=None):
        latent = self.query_latent(x)
        q = self.queries(latent, angles)
        k, v = self.keys_and_values(x, angles)
        mask = None
        if cache is not None:
            k, v, mask = cache.extend(k, v)
        if self.indexer is not None and self.is_sparse:
            mask = self.indexer.mask(x, latent, angles, cache, mask)
        out = self.attend(q, k, v, mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def attend(self, q, k, v, mask):
        """[batch, heads, queries, value]: causal, or what the mask lets see."""
        if self.is_plain and mask is not None:
            return (q @ k.mT * self.scale).masked_fill(~mask, float("-inf")).softmax(-1).to(v.dtype) @ v
        if self.pad_values:
            v = F.pad(v, (0, q.shape[-1] - self.value))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale)
        return out[..., : self.value]


class Mlp(nn.Module):
    def __init__(self, hidden, width):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(hidden, width), linear(hidden, width), linear(width, hidden)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(config.n_routed_experts, config.hidden_size) / math.sqrt(config.hidden_size))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_routed_experts))


def rank(scores):
    """How many of the last dimension come before each: higher ones, and equal ones that stand earlier."""
    a, b = scores.unsqueeze(-1), scores.unsqueeze(-2)  # [.., i, 1], [.., 1, j]
    count = scores.shape[-1]
    earlier = torch.ones(count, count, dtype=torch.bool, device=scores.device).tril(-1)
    return ((b > a) | ((b == a) & earlier)).sum(-1)


class Moe(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        count, width, hidden = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
        self.gate = Gate(config)
        self.experts = nn.ParameterDict({
            "gate_proj": torch.randn(count, width, hidden) / math.sqrt(hidden),
            "up_proj": torch.randn(count, width, hidden) / math.sqrt(hidden),
            "down_proj": torch.randn(count, hidden, width) / math.sqrt(width)})
        self.shared_experts = Mlp(hidden, width * config.n_shared_experts)

    def route(self, x):
        """[.., experts] each: the weights, 0 for experts that are not chosen; and which are chosen."""
        config = self.config
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(x.float(), self.gate.weight.float()).sigmoid()
        biased = (scores + self.gate.e_score_correction_bias).detach()
        groups = biased.unflatten(-1, (config.n_group, -1))
        best_two = (groups * (rank(groups) < 2)).sum(-1)
        in_group = (rank(best_two) < config.topk_group).unsqueeze(-1).expand_as(groups).flatten(-2)
        chosen = in_group & (rank(torch.where(in_group, biased, float("-inf"))) < config.num_experts_per_tok)
        weights = torch.where(chosen, scores, 0.0)
        return weights / (weights.sum(-1, keepdim=True) + 1e-20) * config.routed_scaling_factor, chosen

    def forward(self, x):
        weights, chosen = self.route(x)
        up = F.linear(x, self.experts["up_proj"].flatten(0, 1))
        act = F.silu(F.linear(x, self.experts["gate_proj"].flatten(0, 1))) * up
        act = (act.unflatten(-1, (self.config.n_routed_experts, -1)) * weights.unsqueeze(-1).to(act.dtype)).flatten(-2)
        routed = F.linear(act, self.experts["down_proj"].transpose(0, 1).flatten(1))
        load = chosen.float().mean(dim=tuple(range(chosen.dim() - 1)))
        return routed + self.shared_experts(x), load


class Layer(nn.Module):
    def __init__(self, config, is_dense):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size) if is_dense else Moe(config)
        self.is_dense = is_dense

    def forward(self, x, angles, cache=None):
        """The new hidden states, and how much of the tokens each expert got (None of a dense layer)."""
        x = x + self.self_attn(self.input_layernorm(x), angles, cache)
        out = self.mlp(self.post_attention_layernorm(x))
        out, load = (out, None) if self.is_dense else out
        return x + out, load


class DraftLayer(Layer):
    """Multi-token prediction: from the hidden state after token i and token i + 1, the hidden state for token i + 2."""

    def __init__(self, config):
        super().__init__(config, is_dense=False)
        self.enorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = linear(2 * config.hidden_size, config.hidden_size)
        self.shared_head = nn.ModuleDict({"norm": RMSNorm(config.hidden_size, config.rms_norm_eps)})

    def joined(self, hidden, embedded):
        return self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], dim=-1)).float()

    def draft(self, hidden, embedded, angles, cache=None):
        x, load = self(self.joined(hidden, embedded), angles, cache)
        return self.shared_head["norm"](x), load


class HeadLayer(nn.Module):
    """The layer of an EAGLE-3 head: attention reads an embedding and a state, and adds to the state."""

    def __init__(self, config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm, self.hidden_norm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.self_attn = Attention(config, 2 * hidden)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = Mlp(hidden, config.intermediate_size)

    def forward(self, states, embedded, angles, cache=None):
        joined = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], dim=-1)
        x = states + self.self_attn(joined, angles, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleHead(nn.Module):
    """An EAGLE-3 head: from the trunk's residual stream before three of its layers after token i, and token i + 1, a state of which
    come the logits of token i + 2, over some of the vocabulary. `config` has the head's own sizes."""

    def __init__(self, config, draft_vocab_size, wanted_layers):
        super().__init__()
        self.config, self.wanted_layers = config, wanted_layers
        hidden = config.hidden_size
        self.fc_norm = nn.ModuleList([RMSNorm(hidden, config.rms_norm_eps) for _ in wanted_layers])
        self.fc = linear(len(wanted_layers) * hidden, hidden)
        self.midlayer = HeadLayer(config)
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = linear(hidden, draft_vocab_size)
        self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.int64))

    def fuse(self, inputs):
        """The trunk's states of what stood before its wanted layers, each [.., hidden]."""
        return self.fc(torch.cat([norm(x) for norm, x in zip(self.fc_norm, inputs)], dim=-1)).float()

    def draft(self, states, embedded, angles, cache=None):
        return self.midlayer(states, embedded, angles, cache)

    def logits(self, states):
        return self.lm_head(self.norm(states))

    def token_ids(self):
        """Which of the trunk's tokens each of the head's is."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        layers = [Layer(config, i < config.first_k_dense_replace) for i in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList([*layers, DraftLayer(config)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        for layer in self.layers:  # what a layer adds is small at first
            for part in (layer.self_attn.o_proj, *(m.down_proj for m in layer.modules() if isinstance(m, Mlp))):
                part.weight.data *= 0.3

    def forward(self, tokens, positions=None, caches=None):
        """Hidden states after the last norm, [batch, length, hidden], and the experts' loads, [moe layers, experts]."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        angles = rope_angles(self.config, positions)
        x, loads = self.embed_tokens(tokens), []
        for i in range(self.config.num_hidden_layers):
            x, load = self.layers[i](x, angles, caches[i] if caches else None)
            loads += [] if load is None else [load]
        return self.norm(x), loads

    def draft(self, hidden, next_tokens):
        """What the draft layer makes of forward()'s hidden states and the tokens that follow them."""
        positions = torch.arange(next_tokens.shape[1], device=next_tokens.device)[None]
        return self.layers[-1].draft(hidden, self.embed_tokens(next_tokens), rope_angles(self.config, positions))

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight)

    def gates(self):
        return [layer.mlp.gate for layer in self.layers if not layer.is_dense]


class Cache:
    """Keys and values of one layer, for sequences of different lengths that stand left in their rows."""

    def __init__(self, batch, heads, capacity, key, value, device, dtype):
        self.keys = torch.zeros(batch, heads, capacity, key, device=device, dtype=dtype)
        self.values = torch.zeros(batch, heads, capacity, value, device=device, dtype=dtype)
        self.capacity, self.index_keys = capacity, None
        self.positions = None  # [batch] of the one token that comes next; None: a prompt comes

    def extend(self, k, v):
        if self.positions is None:
            self.keys[:, :, : k.shape[2]] = k
            self.values[:, :, : k.shape[2]] = v
            return k, v, None
        rows = torch.arange(k.shape[0], device=k.device)
        self.keys[rows, :, self.positions] = k[:, :, 0].to(self.keys.dtype)
        self.values[rows, :, self.positions] = v[:, :, 0].to(self.values.dtype)
        seen = torch.arange(self.keys.shape[2], device=k.device)[None] <= self.positions[:, None]
        return self.keys, self.values, seen[:, None, None]

    def extend_index(self, k):
        """The index keys [batch, length, dim] that these queries are scored against, which `k` joins."""
        if self.positions is None:
            self.index_keys = F.pad(k, (0, 0, 0, self.capacity - k.shape[1]))
            return k
        self.index_keys[torch.arange(k.shape[0], device=k.device), self.positions] = k[:, 0]
        return self.index_keys


@torch.no_grad()
def generate(model, prompts, max_new, end, use_autocast, temperature=0.0):
    """Continuations of token lists, without the end token: greedy ones at temperature 0."""
    config, device = model.config, model.embed_tokens.weight.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    longest = max(map(len, prompts))
    tokens = torch.tensor([p + [end] * (longest - len(p)) for p in prompts], device=device)
    dtype = torch.bfloat16 if use_autocast else torch.float32
    caches = [Cache(len(prompts), config.num_attention_heads, longest + max_new, config.qk_nope_head_dim + config.qk_rope_head_dim,
                    config.v_head_dim, device, dtype) for _ in range(config.num_hidden_layers)]
    is_done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    made = []
    with torch.autocast(device.type, torch.bfloat16) if use_autocast else contextlib.nullcontext():
        hidden, _ = model(tokens, caches=caches)
        last = hidden[torch.arange(len(prompts), device=device), lengths - 1]
        for step in range(max_new):
            logits = model.logits(last).float()
            following = torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0] if temperature else logits.argmax(-1)
            made.append(torch.where(is_done, end, following))
            is_done |= following == end
            if is_done.all() or step == max_new - 1:
                break
            for cache in caches:
                cache.positions = lengths + step
            hidden, _ = model(following[:, None], positions=(lengths + step)[:, None], caches=caches)
            last = hidden[:, 0]
    rows = torch.stack(made, dim=1).tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]
