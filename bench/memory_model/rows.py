"""A measured row as numbers; a row that lacks what an estimate needs says which."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30


class Unusable(ValueError):
    """Why no estimate can be made of a row."""


@dataclass(frozen=True)
class Row:
    """One row of a table of measured memory."""

    fields: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "").strip()

    @property
    def id(self) -> str:
        """Its name."""
        return self["id"]

    @property
    def source(self) -> str:
        """First part of the name: where it was published."""
        return self.id.rpartition("-")[0]

    @property
    def is_of_2021(self) -> bool:
        """Whether torch, Megatron-LM and DeepSpeed were those of the V100 runs of 2021."""
        return "V100" in self["hardware"]

    @property
    def measured(self) -> int:
        """Bytes."""
        return round(self.number("measured_gib") * GIB)

    def number(self, name: str, default: float | None = None) -> float:
        """A number; `default` where nothing stands.

        Raises Unusable for what is no number, and where there is neither.
        """
        text = self[name]
        if not text and default is not None:
            return default
        if not re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text):
            raise Unusable(f"{name} is {text!r}" if text else f"{name} is not stated")
        return float(text)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        return round(self.number(name, default))

    def flag(self, name: str) -> bool:
        """Whether 1 stands there."""
        return self[name] == "1"


@dataclass(frozen=True)
class Shape:
    """What of a row decides how much of everything there is."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    """Padded."""
    sequence: int
    sequences: int
    """Of a micro-batch."""
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    micro_batches: int
    chunks: int
    """Virtual stages a rank."""
    sequence_parallel: bool
    tied: bool
    gated: bool
    rms: bool
    dropout: bool
    learned: bool
    bias: bool
    flash: bool
    fused_loss: bool
    recompute: str
    each: int
    """Bytes of an activation."""

    @property
    def tokens(self) -> int:
        """Of a micro-batch on a rank, before tensor parallelism."""
        return self.sequence * self.sequences // self.cp

    @property
    def outside(self) -> int:
        """Tokens of a rank outside the tensor-parallel regions."""
        return self.tokens // self.tp if self.sequence_parallel and self.tp > 1 else self.tokens


def shape_of(row: Row) -> Shape:
    """Raises Unusable with the columns that are missing."""
    cp, dp, pp = row.count("cp", 1), row.count("dp", 1), row.count("pp", 1)
    tp = row.count("tp", 1)
    if row["dp"] == "" and row["zero_stage"] not in ("", "0"):
        raise Unusable("dp is not stated while states are shared over it")
    micro = row.count("micro_batch", 0)
    steps = row.count("num_micro_batches", 0)
    batch = row.count("global_batch", 0)
    if not micro and batch and steps:
        micro = -(-batch // (dp * steps))
    if not micro:
        raise Unusable("micro_batch is not stated")
    if not steps:
        steps = max(1, batch // (dp * micro)) if batch else 1
    hidden, heads = row.count("hidden"), row.count("heads")
    if min(row.count(name) for name in ("layers", "seq", "vocab_padded")) < 1:
        raise Unusable("a model without layers, tokens or vocabulary")
    return Shape(
        hidden=hidden,
        layers=row.count("layers"),
        heads=heads,
        kv_heads=row.count("kv_heads", heads),
        head_dim=row.count("head_dim", hidden // heads),
        mlp=row.count("ffn_dense"),
        vocab=row.count("vocab_padded"),
        sequence=row.count("seq"),
        sequences=micro,
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        ep=row.count("ep", 1),
        micro_batches=steps,
        chunks=row.count("vpp", 1),
        sequence_parallel=row.flag("sequence_parallel"),
        tied=row.flag("tied"),
        gated=row["mlp"] in ("swiglu", "geglu"),
        rms=row["norm"] == "rmsnorm",
        dropout=row.flag("dropout"),
        learned=row["position"] == "learned",
        bias=row["norm"] == "layernorm" and "no bias" not in row["remarks"],
        flash=row.flag("flash"),
        fused_loss=row.flag("fused_ce"),
        recompute=row["recompute_std"] or "none",
        each=4 if row["precision"] == "fp32" else 2,
    )


def read_rows(paths: list[Path]) -> Iterator[Row]:
    """All rows of all tables."""
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            for fields in csv.DictReader(file):
                yield Row({key: value or "" for key, value in fields.items() if key})
