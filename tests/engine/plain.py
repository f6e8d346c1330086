"""A decoder and its training loop in plain PyTorch: one process, no engine, nothing split.

The independent reference of the layout tests. It shares the names and first values of the weights with
the product, and the data order; every operation is written out here again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from partrain.data.order import sample_index
from partrain.data.sources import TokenSource, open_source
from partrain.engine.groups import ALONE
from partrain.engine.initial import initial_values
from partrain.model.decoder import decoder_weights
from partrain.plan.learning_rate import learning_rate
from partrain.plan.plan import Plan
from tests.engine.plain_optimizers import PLAIN

Weights = dict[str, torch.Tensor]
DTYPES = {"fp32": (torch.float32, 1.0), "bf16": (torch.bfloat16, 1.0), "fp16": (torch.float16, 1024.0)}
"""Precision -> its dtype, and a factor of the loss."""


@dataclass(frozen=True)
class Step:
    loss: float
    grad_norm: float
    evaluated: float
    """Loss of the validation set afterwards."""


def first_weights(plan: Plan) -> Weights:
    weights = [weight for weight in decoder_weights(plan.model) if weight.tied_to is None]
    values = {w.name: initial_values(w, ALONE, seed=plan.training.seed, dtype=torch.float32) for w in weights}
    if plan.model.tie_embeddings:
        values["head.weight"] = values["embedding.weight"]
    return {
        name: value[: plan.model.vocab_size] if name in ("embedding.weight", "head.weight") else value
        for name, value in values.items()
    }


def norm(x: torch.Tensor, w: Weights, name: str, plan: Plan) -> torch.Tensor:
    x32 = x.float()
    if plan.model.norm == "rmsnorm":
        y = x32 * (x32.pow(2).mean(-1, keepdim=True) + plan.model.norm_eps).rsqrt()
        weight = w[f"{name}.weight"].float()
        return (y * (1 + weight if plan.model.zero_centered_norm else weight)).to(x.dtype)
    y = (x32 - x32.mean(-1, keepdim=True)) / (
        x32.var(-1, unbiased=False, keepdim=True) + plan.model.norm_eps
    ).sqrt()
    return (y * w[f"{name}.weight"].float() + w[f"{name}.bias"].float()).to(x.dtype)


def rotate(whole: torch.Tensor, theta: float, fraction: float) -> torch.Tensor:
    """Each pair (x[i], x[i + R/2]) of the first R elements turned by position * theta^(-2i/R), as complex
    numbers."""
    length, size = whole.shape[1], round(whole.shape[-1] * fraction)
    x = whole[..., :size]
    angle = torch.arange(length).float()[:, None] * theta ** (-torch.arange(0, size, 2).float() / size)[None]
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    pair = torch.complex(x[..., : size // 2].float(), x[..., size // 2 :].float()) * turn
    return torch.cat((pair.real.to(x.dtype), pair.imag.to(x.dtype), whole[..., size:]), -1)


def attention(x: torch.Tensor, w: Weights, prefix: str, plan: Plan) -> torch.Tensor:
    model, (batch, length) = plan.model, x.shape[:2]
    q, k, v = (
        linear(x, w, f"{prefix}.{name}").view(batch, length, -1, model.head_size)
        for name in ("query", "key", "value")
    )
    if model.qk_norm:
        q, k = norm(q, w, f"{prefix}.query_norm", plan), norm(k, w, f"{prefix}.key_norm", plan)
    if model.position == "rotary":
        q, k = (rotate(x, model.rope_theta, model.rotary_fraction) for x in (q, k))
    share = model.num_heads // model.num_kv_heads
    k, v = k.repeat_interleave(share, 2), v.repeat_interleave(share, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).float() / math.sqrt(model.head_size)
    scores = scores + torch.full((length, length), float("-inf")).triu(1)
    if model.sliding_window:
        scores = scores + torch.full((length, length), float("-inf")).tril(-model.sliding_window)
    y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).to(x.dtype), v)
    return linear(y.flatten(2), w, f"{prefix}.output")


def linear(x: torch.Tensor, w: Weights, name: str) -> torch.Tensor:
    y = x @ w[f"{name}.weight"].t()
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def mlp(x: torch.Tensor, w: Weights, prefix: str, plan: Plan) -> torch.Tensor:
    up = linear(x, w, f"{prefix}.up")
    if plan.model.activation == "swiglu":
        gate = linear(x, w, f"{prefix}.gate")
        return linear(gate * gate.sigmoid() * up, w, f"{prefix}.down")
    if plan.model.activation == "geglu_tanh":
        return linear(F.gelu(linear(x, w, f"{prefix}.gate"), approximate="tanh") * up, w, f"{prefix}.down")
    kind = {"gelu": "none", "gelu_tanh": "tanh"}[plan.model.activation]
    return linear(F.gelu(up, approximate=kind), w, f"{prefix}.down")


U64, U32 = np.uint64, np.uint32
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def kept(shape: tuple[int, ...], plan: Plan, step: int, site: int) -> torch.Tensor:
    """The mask law over a whole global batch [B, T, H], in unsigned numbers."""
    first = places(plan, step).start
    start = mix(np.full(1, (plan.training.seed + GOLDEN) % 2**64, U64))
    sample = mix(start + np.arange(first, first + shape[0], dtype=U64) + U64(GOLDEN))
    token = mix(sample[:, None] + np.arange(shape[1], dtype=U64) + U64(GOLDEN))
    row = mix(token + U64((site + 1) * GOLDEN % 2**64))[..., None]
    column = mix(np.arange(1, shape[2] + 1, dtype=U64) * U64(GOLDEN)).astype(U32)
    x = (column ^ row.astype(U32)) * U32(0x7FEB352D)
    spread = (x.astype(np.int32) >> 15).astype(U32)
    bits = ((x ^ spread) + (row >> U64(32)).astype(U32)) * U32(0x846CA68B)
    return torch.from_numpy(bits.astype(np.int32) / 2**32 + 0.5 >= plan.model.dropout)


def dropped(x: torch.Tensor, plan: Plan, step: int | None, site: int) -> torch.Tensor:
    if step is None or not plan.model.dropout:
        return x
    return x * kept(tuple(x.shape), plan, step, site) / (1 - plan.model.dropout)


def logits_of(w: Weights, plan: Plan, tokens: torch.Tensor, step: int | None = None) -> torch.Tensor:
    x = w["embedding.weight"][tokens[:, :-1]]
    if plan.model.scale_embeddings:
        x = x * plan.model.hidden_size**0.5
    if plan.model.position == "learned":
        x = x + w["positions.weight"][: x.shape[1]]
    x = dropped(x, plan, step, 0)
    for block in range(plan.model.num_layers):
        prefix = f"layers.{block}"
        y = attention(norm(x, w, f"{prefix}.attention_norm", plan), w, f"{prefix}.attention", plan)
        y = x + dropped(y, plan, step, 2 * block + 1)
        read = x if plan.model.block == "parallel" else y
        z = mlp(norm(read, w, f"{prefix}.mlp_norm", plan), w, f"{prefix}.mlp", plan)
        x = y + dropped(z, plan, step, 2 * block + 2)
    return (norm(x, w, "final_norm", plan) @ w["head.weight"].t()).float().flatten(0, 1)


def loss_of(w: Weights, plan: Plan, tokens: torch.Tensor, step: int | None = None) -> torch.Tensor:
    logits, wish = logits_of(w, plan, tokens, step), plan.training
    loss = F.cross_entropy(logits, tokens[:, 1:].flatten(), label_smoothing=wish.label_smoothing)
    return loss + wish.z_loss * logits.exp().sum(-1).log().pow(2).mean()


def source_of(plan: Plan) -> TokenSource:
    return open_source(
        plan.data,
        sequence_length=plan.training.sequence_length,
        vocab_size=plan.model.vocab_size,
        seed=plan.training.seed,
    )


@torch.no_grad()
def evaluated(w: Weights, plan: Plan) -> float:
    """The mean over all tokens of the validation set, of cross-entropy alone."""
    assert plan.evaluation is not None
    first, source = plan.evaluation.first, source_of(plan)
    rows = [source.sample(first + index) for index in range(plan.evaluation.num_sequences)]
    tokens = torch.stack([torch.from_numpy(row) for row in rows])
    return F.cross_entropy(logits_of(w, plan, tokens), tokens[:, 1:].flatten()).item()


def batch_size(plan: Plan, consumed: int) -> int:
    full, ramp = plan.layout.global_batch_size, plan.training.batch_ramp
    if ramp is None or consumed >= ramp.samples:
        return full
    return (
        ramp.start + int(consumed / (ramp.samples / ((full - ramp.start) // ramp.increment))) * ramp.increment
    )


def places(plan: Plan, step: int) -> range:
    done = 0
    for _ in range(step):  # as Megatron-LM looks at the samples consumed before each step
        size = batch_size(plan, done)
        done += size
    return range(done - size, done)


def global_batch(plan: Plan, step: int) -> torch.Tensor:
    source = source_of(plan)
    indices = (sample_index(p, num_samples=source.num_samples, seed=source.seed) for p in places(plan, step))
    rows = [source.sample(index) for index in indices]
    return torch.stack([torch.from_numpy(row) for row in rows])


def cast(masters: Weights, dtype: torch.dtype) -> Weights:
    return {name: value.to(dtype) for name, value in masters.items()}


def train(plan: Plan, steps: int, *, left_out: tuple[int, ...] = ()) -> list[Step]:
    """Losses and gradient norms of a loop over whole global batches, with fp32 master weights.

    The updates of the steps `left_out` are not made. In fp16 the loss is scaled by a thousand, so that no
    gradient vanishes or overflows; norms are those of the loss itself.
    """
    torch.set_num_threads(1)  # the products are small, and a second thread waits for any other process
    wish, masters = plan.training.optimizer, first_weights(plan)
    dtype, scale = DTYPES[plan.training.precision]
    masters = {name: value.to(dtype).float().requires_grad_() for name, value in masters.items()}
    if plan.model.tie_embeddings:
        masters["head.weight"] = masters["embedding.weight"]
    unique = {
        name: v for name, v in masters.items() if name != "head.weight" or not plan.model.tie_embeddings
    }
    optimizer = PLAIN[wish.name](wish)
    result = []
    for step in range(1, steps + 1):
        weights = cast(masters, dtype)
        loss = loss_of(weights, plan, global_batch(plan, step), step)
        for value in unique.values():
            value.grad = None
        (loss * scale).backward()
        for value in unique.values():
            value.grad.div_(scale)
        grad_norm = torch.nn.utils.clip_grad_norm_(list(unique.values()), wish.grad_clip or float("inf"))
        lr = learning_rate(step, steps=plan.training.steps, optimizer=wish, schedule=plan.training.schedule)
        if step not in left_out:
            optimizer.step(unique, lr)
        result.append(Step(loss.item(), grad_norm.item(), evaluated(cast(masters, dtype), plan)))
    return result
