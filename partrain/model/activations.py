"""The engine's layers as tapes: which tensors each operator of `engine/modules.py` makes and keeps.

Shapes as there: B sequences, T tokens, S of them on this rank outside a tensor-parallel region, H hidden
size, Q and K widths of this rank's queries and of its keys, F of its part of the MLP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from partrain.model.decoder import decoder_weights, num_layers
from partrain.model.profile import BYTES, AttentionKernel, RuntimeProfile
from partrain.model.tape import INPUT, Op, Tape
from partrain.model.weights import local_numel
from partrain.spec.model import GATED, ModelSpec
from partrain.spec.training import ChunkSize


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's share of a micro-batch, and in which numbers."""

    sequences: int
    """Of a micro-batch."""
    sequence_length: int
    tp: int
    sequence_parallel: bool
    precision: str
    recompute: str
    loss_chunk_size: ChunkSize
    label_smoothing: bool = False

    @property
    def each(self) -> int:
        """Bytes of a number."""
        return BYTES[self.precision]

    @property
    def inside(self) -> int:
        """Tokens inside a region."""
        return self.sequences * self.sequence_length

    @property
    def outside(self) -> int:
        """Tokens outside of one."""
        return self.inside // self.tp if self.sequence_parallel else self.inside


@dataclass(frozen=True)
class LayerTapes:
    """The tapes of the three kinds of layer."""

    embedding: Tape
    block: Tape
    head: Tape


@lru_cache(maxsize=64)
def layer_tapes(model: ModelSpec, share: Share, profile: RuntimeProfile) -> LayerTapes:
    """What each layer of `model` keeps on a rank."""
    made = _Layers(model, share, profile)
    return LayerTapes(made.embedding(), made.block(), made.head())


@dataclass(frozen=True)
class _Layers:
    model: ModelSpec
    share: Share
    profile: RuntimeProfile

    def weight(self, layer: int, *parts: str) -> int:
        """Bytes of the weights of `layer` that have one of `parts` in their names."""
        return self.share.each * sum(
            local_numel(weight, self.share.tp)
            for weight in decoder_weights(self.model)
            if weight.layer == layer and any(f"{part}." in weight.name for part in parts)
        )

    @property
    def residual(self) -> int:
        """Bytes of the residual stream outside of a region."""
        return self.share.outside * self.model.hidden_size * self.share.each

    @property
    def whole(self) -> int:
        """Bytes of the residual stream inside a region."""
        return self.share.inside * self.model.hidden_size * self.share.each

    def norm(self, name: str, layer: int, *, reads: str, makes: str, per_head: int = 0) -> Op:
        """A norm over H; `per_head`: over each of that many heads on this rank."""
        model, share = self.model, self.share
        kind = "zero_centered" if model.zero_centered_norm else model.norm
        kernel = self.profile.norms[kind, share.precision]
        rows = share.inside * per_head if per_head else share.outside
        elements = rows * (model.head_size if per_head else model.hidden_size)
        return Op(
            name,
            (reads,),
            makes,
            elements * share.each,
            keeps=(reads,) if kernel.keeps_input else (),
            extra=elements * kernel.copies + rows * kernel.statistics,
            forward_work=elements * kernel.forward_work,
            backward_work=elements * kernel.backward_work,
            weight=self.weight(layer, name.rpartition(".")[2] if per_head else name),
        )

    def enter(self, reads: str, makes: str) -> Op:
        """Every rank of the group gets all tokens; backward sums the gradients."""
        share = self.share
        if share.tp == 1:
            return Op("enter", (reads,), makes, 0, passes=(reads,))
        if not share.sequence_parallel:
            return Op("enter", (reads,), makes, 0)
        shuffled = self.whole if share.sequences > 1 else 0
        return Op("gather", (reads,), makes, self.whole, forward_work=shuffled, backward_work=shuffled)

    def leave(self, reads: str, makes: str) -> tuple[Op, ...]:
        """The sum over the ranks of the group."""
        share = self.share
        if share.tp == 1:
            return ()
        if not share.sequence_parallel:
            return (Op("sum", (reads,), makes, self.whole, passes=(reads,)),)
        shuffled = self.whole if share.sequences > 1 else 0
        return (
            Op(
                "scatter",
                (reads,),
                makes,
                self.residual,
                forward_work=shuffled,
                backward_work=shuffled,
            ),
        )

    def linear(self, name: str, layer: int, *, reads: str, makes: str, width: int) -> Op:
        """A matrix product; its weight is a parameter, and kept anyway."""
        size = self.share.inside * width * self.share.each
        return Op(name, (reads,), makes, size, keeps=(reads,), weight=self.weight(layer, name))

    def row(self, name: str, layer: int, *, reads: str, makes: str) -> Iterator[Op]:
        """A matrix product that leaves the region; its bias is added after the sum."""
        made = f"{makes} summed" if self.model.bias and self.share.tp > 1 else makes
        summed = self.leave(f"{makes} local", made)
        first = f"{makes} local" if summed else makes
        yield self.linear(name, layer, reads=reads, makes=first, width=self.model.hidden_size)
        yield from summed
        if made != makes:
            yield Op(f"{name} bias", (made,), makes, self.residual, passes=(made,))

    def embedding(self) -> Tape:
        """Layer 0."""
        model, share = self.model, self.share
        ids = share.inside * 8
        ops = []
        looked_up = "rows" if share.tp > 1 else "embedded"
        lookup = Op(
            "lookup", (INPUT,), looked_up, self.whole, keeps=(INPUT,) if share.tp == 1 else (),
            extra=0 if share.tp == 1 else ids, constant=(INPUT,), weight=self.weight(0, "embedding"),
        )  # fmt: skip
        ops.append(lookup)
        if share.tp > 1:
            ops.append(Op("mask", ("rows",), "masked", self.whole, extra=share.inside))
            ops += self.leave("masked", "embedded")
        last = "embedded"
        if model.scale_embeddings:
            ops.append(Op("scale", (last,), "scaled", self.residual))
            last = "scaled"
        if model.position == "learned":
            # backward makes the gradient of the positions that are used, then of the whole table
            weight = self.weight(0, "positions")
            ops.append(
                Op("positions", (last,), "placed", self.residual, passes=(last,), weight=weight,
                   backward_work=self.residual // max(share.sequences, 1))
            )  # fmt: skip
        ops += self.dropout(ops[-1].makes, "dropped")
        return Tape("embedding", tuple(ops), ids)

    def block(self) -> Tape:
        """A decoder block."""
        model, full = self.model, self.share.recompute == "full"
        ops = [self.norm("attention_norm", 1, reads=INPUT, makes="normed"), self.enter("normed", "entered")]
        ops += [*self.attention("entered", "attended"), *self.dropout("attended", "attended dropped")]
        added = ops[-1].makes
        ops.append(self.add("attention residual", (INPUT, added), "between"))
        read, normed = "between" if model.block == "sequential" else INPUT, "entered"
        if model.block != "parallel_one_norm":
            ops += [
                self.norm("mlp_norm", 1, reads=read, makes="normed again"),
                self.enter("normed again", "entered again"),
            ]
            normed = "entered again"
        ops += [*self.mlp(normed, "expanded"), *self.dropout("expanded", "expanded dropped")]
        ops.append(self.add("mlp residual", ("between", ops[-1].makes), "y"))
        return Tape("block", tuple(ops), self.residual, held=(normed, added), recompute=full)

    def dropout(self, reads: str, makes: str) -> Iterator[Op]:
        """`dropped`: a mask of a byte an element is kept, made of three times 4 bytes of bits."""
        elements = self.residual // self.share.each
        if self.model.dropout:
            yield Op("dropout", (reads,), makes, self.residual, extra=elements,
                     forward_work=12 * elements, backward_work=self.residual)  # fmt: skip

    def add(self, name: str, reads: tuple[str, str], makes: str) -> Op:
        """A sum: both gradients are the one that comes."""
        return Op(name, reads, makes, self.residual, passes=reads)

    def attention(self, reads: str, makes: str) -> Iterator[Op]:
        """Queries, keys and values to the output projection."""
        model, tp = self.model, self.share.tp
        heads, kv_heads = model.num_heads // tp, model.num_kv_heads // tp
        names = {"query": heads, "key": kv_heads, "value": kv_heads}
        for name, count in names.items():
            width = count * model.head_size
            yield self.linear(f"attention.{name}", 1, reads=reads, makes=name, width=width)
        last = {name: name for name in names}
        for name in ("query", "key"):
            if model.qk_norm:
                made, part = f"{name} normed", f"attention.{name}_norm"
                yield self.norm(part, 1, reads=last[name], makes=made, per_head=names[name])
                last[name] = made
        for name in ("query", "key"):
            if model.position == "rotary":
                made, width = f"{name} turned", names[name] * model.head_size
                yield self.rotation(last[name], made, self.share.inside * width * self.share.each)
                last[name] = made
        if self.repeats_heads():
            # the one kernel that takes a mask knows no shared heads (engine/attention.py)
            for name in ("key", "value"):
                made = f"{name} repeated"
                size = self.share.inside * heads * model.head_size * self.share.each
                yield Op("repeat", (last[name],), made, size)
                last[name] = made
        yield self.core(tuple(last.values()), "heads")
        yield from self.row("attention.output", 1, reads="heads", makes=makes)

    def rotation(self, reads: str, makes: str, size: int) -> Op:
        """`rotated`: forward the turned half, two products and their sum; nothing is kept."""
        model = self.model
        turned = size * model.rotary_size // model.head_size
        if turned < size:
            forward, backward = max(turned * 4 - size, turned), turned + size
            return Op("rotation", (reads,), makes, size, forward_work=forward, backward_work=backward)
        return Op("rotation", (reads,), makes, size, forward_work=3 * size, backward_work=size * 5 // 2)

    def core(self, reads: tuple[str, ...], makes: str) -> Op:
        """Softmax attention by the first kernel that can take it."""
        model, share, kernel = self.model, self.share, self.kernel()
        elements = share.inside * model.num_heads // share.tp * model.head_size
        grouped = 0 if self.repeats_heads() else model.num_heads - model.num_kv_heads
        repeated = share.inside * grouped // share.tp * model.head_size * share.each * 2
        extra, backward = share.inside * model.num_heads // share.tp * 4, elements * kernel.backward_work
        if kernel.keeps_scores:
            scores = share.inside * model.num_heads // share.tp * share.sequence_length * share.each
            extra, backward = scores + 2 * elements * share.each + repeated, 2 * scores + repeated
            if model.attention_dropout:
                extra += scores + scores // share.each  # the dropped probabilities and their mask
        if kernel.repeats_backward:
            backward += repeated + (2 * elements * share.each if grouped else 0) - repeated
        keeps = (*reads, makes)
        if share.recompute == "selective":
            # the kernel runs again, beside its first result
            return Op("attention core", reads, makes, elements * share.each, keeps=reads,
                      forward_work=extra, backward_work=backward + extra + elements * share.each)  # fmt: skip
        return Op(
            "attention core", reads, makes, elements * share.each, keeps=keeps, extra=extra,
            backward_work=backward,
        )  # fmt: skip

    def is_windowed(self) -> bool:
        """Whether a mask stands in the place of the causal one."""
        window = self.model.sliding_window
        return window is not None and window < self.share.sequence_length

    def repeats_heads(self) -> bool:
        """Whether keys and values are repeated for every query head before the kernel: for a mask, or where
        no kernel but one that keeps all scores takes shared heads in this precision."""
        kernels = (kernel for kernel in self.profile.attention if not kernel.keeps_scores)
        known = any(k.takes_groups and self.share.precision in k.precisions for k in kernels)
        return self.model.num_heads != self.model.num_kv_heads and (self.is_windowed() or not known)

    def kernel(self) -> AttentionKernel:
        """What torch picks."""
        model, share = self.model, self.share
        grouped = model.num_heads != model.num_kv_heads and not self.repeats_heads()
        for kernel in self.profile.attention:
            fits = (kernel.takes_mask or not self.is_windowed()) and (kernel.takes_groups or not grouped)
            drops = kernel.takes_dropout or not model.attention_dropout
            if fits and drops and share.precision in kernel.precisions:
                return kernel
        raise ValueError(f"{self.profile.name} has no attention kernel for {share.precision}")

    def mlp(self, reads: str, makes: str) -> Iterator[Op]:
        """Two or three matrices around a non-linearity."""
        model, share = self.model, self.share
        width = model.mlp_size // share.tp
        size = share.inside * width * share.each
        first = "gate" if model.activation in GATED else "up"
        yield self.linear(f"mlp.{first}", 1, reads=reads, makes=first, width=width)
        yield Op("activation", (first,), "activated", size, keeps=(first,))
        last = "activated"
        if model.activation in GATED:
            yield self.linear("mlp.up", 1, reads=reads, makes="up", width=width)
            yield Op("gate", ("activated", "up"), "gated", size, keeps=("activated", "up"))
            last = "gated"
        yield from self.row("mlp.down", 1, reads=last, makes=makes)

    def head(self) -> Tape:
        """The final norm, the head's matrix and the loss, whose gradients are made on the way forward."""
        layer = num_layers(self.model) - 1
        norm = self.norm("final_norm", layer, reads=INPUT, makes="normed")
        return Tape("head", (norm, self.enter("normed", "entered"), self.loss("entered")), self.residual)

    def loss(self, reads: str) -> Op:
        """Logits exist a slice at a time; the next slice's are made while a variable still has the last's."""
        share, model = self.share, self.model
        vocabulary = next(weight for weight in decoder_weights(model) if weight.name == "embedding.weight")
        rows = local_numel(vocabulary, share.tp) // model.hidden_size
        size = share.inside if share.loss_chunk_size == "none" else min(share.loss_chunk_size, share.inside)
        slices, each = -(-share.inside // size), share.each
        low = 0 if each == 4 else each
        first = size * rows * (4 + low)
        work = first + (size * rows * (4 + low) if slices > 1 else 0)
        weight = rows * model.hidden_size
        summed = 4 if slices > 1 else each
        product = weight * (each + self.profile.mixed_sum_work) if summed != each else 0
        return Op(
            "loss",
            (reads,),
            "loss",
            4,
            extra=self.whole + weight * summed,
            forward_work=max(work, first + product),
            weight=weight * each,
            ready=True,
        )
