"""Megatron-LM's layers as tapes, with Transformer Engine's fused operators or with single ones.

Facts from megatron/core (transformer_layer.py, attention.py, mlp.py, fusions/) and transformer_engine/pytorch
(layernorm_linear.py, linear.py, attention); for the single operators Megatron-LM v2.4 of 2021.
Units of Korthikanti et al. 2022, table 2: N tokens, h hidden size, 2 bytes a number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.memory_model.rows import Row, Shape, Unusable
from partrain.model.tape import INPUT, Op, Tape


@dataclass(frozen=True)
class Kernels:
    """Which operators are fused."""

    fused_norm: bool
    """A norm and the matrix after it are one operator, which keeps the normed input once."""
    scripted: bool
    """Whether bias, dropout and sum are one function of torch's script compiler, whose node keeps its tensors
    until the whole layer is done; and checkpointing is the reentrant one, which holds the layer's output."""
    fused_loss: str
    """none: in place on a copy in fp32; native: torch.compile makes a third one, of the exponentials in fp32
    (the note in megatron/core/fusions/fused_cross_entropy.py); te: over the 16-bit logits."""
    fuses_gradients: bool
    """A matrix product adds its weight's gradient to the fp32 sum. Transformer Engine then hands autograd a
    tensor without meaning in its place, one for each shape, that is never freed (get_dummy_wgrad in
    transformer_engine/pytorch/module/base.py); Megatron's own head makes one each time
    (LinearWithGradAccumulationAndAsyncCommunication in megatron/core/tensor_parallel/layers.py)."""


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2 2024, section 2.1)."""

    query_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Experts:
    """Experts of a layer's MLP."""

    count: int
    top_k: int
    width: int
    shared: int
    tp: int


def mla_of(row: Row) -> Mla | None:
    """The five sizes that the column gives, q rank / kv rank / head / rotary / value."""
    if not row["mla"]:
        return None
    parts = row["mla"].split("/")
    if len(parts) != 5 or not all(part.isdigit() for part in parts):
        raise Unusable(f"mla is {row['mla']!r}, not five sizes")
    return Mla(*map(int, parts))


def experts_of(row: Row) -> Experts | None:
    if not row["experts"]:
        return None
    return Experts(
        count=row.count("experts"),
        top_k=row.count("top_k"),
        width=row.count("ffn_expert", row.count("ffn_dense")),
        shared=row.count("ffn_shared", 0),
        tp=row.count("expert_tp", row.count("tp")),
    )


@dataclass(frozen=True)
class Layers:
    """Tapes and parameters of a model's layers on one rank."""

    shape: Shape
    kernels: Kernels
    mla: Mla | None = None
    experts: Experts | None = None

    @property
    def narrow(self) -> int:
        """Bytes of the residual stream outside a region."""
        return self.shape.outside * self.shape.hidden * self.shape.each

    @property
    def wide(self) -> int:
        """Bytes of it inside."""
        return self.shape.tokens * self.shape.hidden * self.shape.each

    @property
    def gathered(self) -> int:
        """Bytes of the gathered sequence, where it is split."""
        return self.wide if self.shape.sequence_parallel and self.shape.tp > 1 else 0

    @property
    def statistics(self) -> int:
        return self.shape.outside * (4 if self.shape.rms else 8)

    def weight(self, numel: int) -> int:
        """Bytes of a weight's gradient in a tensor of its own."""
        return 0 if self.kernels.fuses_gradients else numel * self.shape.each

    def norm_linear(self, name: str, reads: str, makes: str, width: int) -> tuple[Op, ...]:
        """A norm, the sequence gathered, and a matrix cut over its outputs."""
        shape = self.shape
        size = shape.tokens * width * shape.each
        normed = self.narrow
        if not self.kernels.fused_norm:
            return (
                Op(f"{name} norm", (reads,), f"{makes} normed", normed, keeps=(reads,),
                   extra=self.statistics),
                Op(name, (f"{makes} normed",), makes, size, keeps=(f"{makes} normed",),
                   forward_work=self.gathered, backward_work=self.gathered * 2,
                   weight=self.weight(shape.hidden * width)),
            )  # fmt: skip
        back = self.gathered * 2 + normed if self.gathered else normed
        return (
            Op(name, (reads,), makes, size, keeps=(reads,), extra=normed + self.statistics,
               forward_work=self.gathered, backward_work=back, weight=self.weight(shape.hidden * width)),
        )  # fmt: skip

    def row_linear(self, name: str, reads: str, makes: str, width: int) -> Op:
        """A matrix cut over its inputs, and the sum over the group."""
        shape = self.shape
        return Op(name, (reads,), makes, self.narrow, keeps=(reads,), forward_work=self.gathered,
                  backward_work=self.gathered, weight=self.weight(shape.hidden * width))  # fmt: skip

    def residual(self, name: str, reads: tuple[str, str], makes: str) -> Op:
        """Bias, dropout and sum: the mask is one byte an element."""
        mask = self.narrow // self.shape.each if self.shape.dropout else 0
        passes = (reads[0],) if mask else reads
        kept = 0 if self.kernels.scripted else mask
        return Op(name, reads, makes, self.narrow, extra=kept, passes=passes)

    def scripted(self, ops: list[Op]) -> list[Op]:
        """`ops`, where what is kept to the end of the layer's backward pass is kept by the first of them."""
        if not self.kernels.scripted:
            return ops
        masks = 2 * self.narrow // self.shape.each if self.shape.dropout else 0
        output = self.narrow if self.shape.recompute == "full" else 0
        return [replace(ops[0], extra=ops[0].extra + masks + output), *ops[1:]]

    def core(self, reads: tuple[str, ...], makes: str, width: int) -> tuple[Op, ...]:
        """Softmax attention, fused or of single operators."""
        shape = self.shape
        heads = shape.heads // shape.tp
        size = shape.tokens * width * shape.each
        if shape.flash:
            back = shape.tokens * width * 4
            # The result is kept as the kernel made it and as the projection reads it, where these differ:
            # the kernel has sequences first and, in a context-parallel group, another order of tokens.
            differs = shape.cp > 1 or shape.sequences > 1
            inner = f"{makes} as made" if differs else makes
            found = Op("core attention", reads, inner, size, keeps=(*reads, inner),
                       extra=shape.tokens * heads * 4, backward_work=back)  # fmt: skip
            return (found, Op("order", (inner,), makes, size)) if differs else (found,)
        scores = shape.tokens * heads * shape.sequence * shape.each
        dropped = scores // shape.each + scores if shape.dropout else 0
        if shape.recompute == "selective":
            again = scores + dropped
            return (
                Op("core attention", reads, makes, size, keeps=reads, forward_work=again,
                   backward_work=again + 2 * scores),
            )  # fmt: skip
        return (
            Op("core attention", reads, makes, size, keeps=reads, extra=scores + dropped,
               forward_work=scores, backward_work=2 * scores),
        )  # fmt: skip

    def attention(self) -> tuple[Op, ...]:
        """From the block's input to the projection's output."""
        if self.mla is not None:
            return self.latent_attention(self.mla)
        shape = self.shape
        query = shape.heads * shape.head_dim // shape.tp
        key = shape.kv_heads * shape.head_dim // shape.tp
        each = shape.tokens * shape.each
        ops = [*self.norm_linear("qkv", INPUT, "qkv", query + 2 * key)]
        if shape.learned:
            parts: tuple[str, ...] = ("qkv",)
        else:
            ops += [
                Op("rotary", ("qkv",), "qk", each * (query + key), forward_work=0, backward_work=0),
                Op("value", ("qkv",), "v", each * key),
            ]
            parts = ("qk", "v")
        ops += self.core(parts, "attended", query)
        return (*ops, self.row_linear("projection", "attended", "attention", query))

    def latent_attention(self, mla: Mla) -> tuple[Op, ...]:
        """Queries and keys through narrow matrices; keys and values of every head are made of a latent."""
        shape = self.shape
        heads, each = shape.heads // shape.tp, shape.tokens * shape.each
        query = heads * (mla.nope + mla.rope)
        value = heads * mla.value
        norm = Op("norm", (INPUT,), "normed", self.narrow, keeps=(INPUT,), extra=self.statistics)
        return (
            norm,
            Op("query down", ("normed",), "q latent", each * mla.query_rank, keeps=("normed",)),
            *self.latent("query up", "q latent", "q", query),
            Op("kv down", ("normed",), "kv latent", each * (mla.kv_rank + mla.rope), keeps=("normed",)),
            *self.latent("kv up", "kv latent", "kv", heads * (mla.nope + mla.value)),
            Op("rotary query", ("q",), "q turned", each * query),
            Op("key", ("kv",), "k", each * query),
            Op("value", ("kv",), "v", each * value),
            *self.core(("q turned", "k", "v"), "attended", value),
            self.row_linear("projection", "attended", "attention", value),
        )

    def latent(self, name: str, reads: str, makes: str, width: int) -> tuple[Op, ...]:
        shape = self.shape
        sizes = {"q latent": self.mla.query_rank, "kv latent": self.mla.kv_rank} if self.mla else {}
        latent = shape.tokens * sizes[reads] * shape.each
        return (Op(name, (reads,), makes, shape.tokens * width * shape.each, keeps=(reads,), extra=latent),)

    def mlp(self, reads: str, makes: str, width: int) -> tuple[Op, ...]:
        """Two matrices and an activation that keeps its input."""
        shape = self.shape
        inner = width * (2 if shape.gated else 1)
        size = shape.tokens * width * shape.each
        return (
            *self.norm_linear("fc1", reads, "fc1", inner),
            Op("activation", ("fc1",), "act", size, keeps=("fc1",)),
            self.row_linear("fc2", "act", makes, width),
        )

    def dummies(self, *, dense: bool, experts: bool) -> int:
        """Bytes of Transformer Engine's tensors that stand for gradients, one a shape of weight."""
        shape, h, gate = self.shape, self.shape.hidden, 2 if self.shape.gated else 1
        if not self.kernels.fuses_gradients:
            return 0
        if self.mla is None:
            query, key = shape.heads * shape.head_dim // shape.tp, shape.kv_heads * shape.head_dim // shape.tp
            shapes = {(query + 2 * key, h), (h, query)}
        else:
            mla, heads = self.mla, shape.heads // shape.tp
            shapes = {(mla.query_rank, h), (heads * (mla.nope + mla.rope), mla.query_rank)}
            shapes |= {(mla.kv_rank + mla.rope, h), (heads * (mla.nope + mla.value), mla.kv_rank)}
            shapes |= {(h, heads * mla.value)}
        widths = [shape.mlp // shape.tp] if dense else []
        if experts and self.experts is not None:
            widths += [self.experts.width // self.experts.tp, self.experts.shared // shape.tp]
        for width in filter(None, widths):
            shapes |= {(gate * width, h), (h, width)}
        return sum(rows * columns for rows, columns in shapes) * shape.each

    def block(self, *, dense: bool = True) -> Tape:
        """A decoder block; not `dense`: with experts."""
        ops = [*self.attention(), self.residual("attention residual", (INPUT, "attention"), "between")]
        if dense or self.experts is None:
            ops += self.mlp("between", "mlp", self.shape.mlp // self.shape.tp)
        else:
            ops += self.expert_mlp(self.experts)
        ops.append(self.residual("mlp residual", ("between", "mlp"), "y"))
        full = self.shape.recompute == "full"
        name = "block" if dense else "expert block"
        return Tape(name, tuple(self.scripted(ops)), self.narrow, recompute=full)

    def expert_mlp(self, experts: Experts) -> tuple[Op, ...]:
        """Router, tokens sent to their experts and back, and the experts that all tokens have."""
        shape = self.shape
        each = shape.each
        routed = shape.outside * experts.top_k
        if experts.tp > 1:
            routed *= experts.tp
        rows = routed * shape.hidden * each
        inner = experts.width // experts.tp
        gate = 2 if shape.gated else 1
        router = shape.outside * experts.count * 4
        ops = [
            Op("mlp norm", ("between",), "normed", self.narrow, keeps=("between",), extra=self.statistics),
            Op("router", ("normed",), "probabilities", router, keeps=("normed", "probabilities"),
               extra=router),
            Op("dispatch", ("normed",), "sent", rows, extra=routed * 8),
            Op("expert fc1", ("sent",), "expert fc1", routed * inner * gate * each, keeps=("sent",)),
            # a gated activation is fused with the product by the router's probabilities
            Op("expert act", ("expert fc1",), "expert act", routed * inner * each, keeps=("expert fc1",),
               extra=0 if shape.gated else routed * inner * each),
            Op("expert fc2", ("expert act",), "back", rows, keeps=("expert act",)),
            Op("combine", ("back", "probabilities"), "combined", self.narrow, forward_work=rows),
        ]  # fmt: skip
        if not experts.shared:
            return (*ops[:-1], replace(ops[-1], makes="mlp"))
        width = experts.shared // shape.tp
        return (
            *ops,
            Op(
                "shared fc1", ("normed",), "shared fc1", shape.tokens * width * gate * each, keeps=("normed",)
            ),
            Op(
                "shared act",
                ("shared fc1",),
                "shared act",
                shape.tokens * width * each,
                keeps=("shared fc1",),
            ),
            self.row_linear("shared fc2", "shared act", "shared", width),
            Op("sum", ("combined", "shared"), "mlp", self.narrow, passes=("combined", "shared")),
        )

    def embedding(self) -> Tape:
        """Look-up, learned positions, dropout."""
        shape, ids = self.shape, self.shape.tokens * 8
        mask = self.narrow // shape.each if shape.dropout else 0
        table = shape.vocab // shape.tp * shape.hidden * shape.each
        return Tape(
            "embedding",
            (Op("lookup", (INPUT,), "embedded", self.narrow, keeps=(INPUT,), extra=mask, constant=(INPUT,),
                weight=table, forward_work=self.wide if shape.tp > 1 else 0),),
            ids,
        )  # fmt: skip

    def head(self) -> Tape:
        """Final norm, logits, loss."""
        shape = self.shape
        logits = shape.tokens * shape.vocab // shape.tp
        table = shape.vocab // shape.tp * shape.hidden * shape.each
        norm = Op("final norm", (INPUT,), "normed", self.narrow, keeps=(INPUT,), extra=self.statistics)
        matrix = Op("logits", ("normed",), "logits", logits * shape.each, keeps=("normed",),
                    forward_work=self.gathered, backward_work=self.gathered * 2, weight=table)  # fmt: skip
        if self.kernels.fused_loss == "te":
            loss = Op("loss", ("logits",), "loss", 4, keeps=("logits",), passes=())
            # the gradient is written over the logits
            loss = replace(
                loss, keeps=(), extra=logits * shape.each, forward_work=-logits * shape.each, ready=True
            )
            return Tape("head", (norm, matrix, loss), self.narrow)
        third = logits * 4 if self.kernels.fused_loss == "native" else 0
        loss = Op("loss", ("logits",), "loss", 4, extra=logits * 4, forward_work=third)
        return Tape("head", (norm, matrix, loss), self.narrow, held=("logits",))


def layers_of(row: Row, shape: Shape) -> Layers:
    """Raises Unusable for layers that have no tapes."""
    if row["mlp"] not in ("gelu", "swiglu", "relu", "geglu"):
        raise Unusable(f"no tape for an MLP of {row['mlp'] or 'unstated kind'}")
    local, remarks = row["profile"] == "megatron", row["remarks"]
    fused_loss = "none"
    if shape.fused_loss:
        fused_loss = "te" if "TE fused cross entropy" in remarks else "native"
    kernels = Kernels(
        fused_norm=not local,
        scripted=local and row.is_of_2021,
        fused_loss=fused_loss,
        fuses_gradients="no grad-accumulation fusion" not in remarks and not local,
    )
    return Layers(shape, kernels, mla_of(row), experts_of(row))
