"""Proposals to judge: a small model on a machine, with some numbers changed."""

from dataclasses import replace
from typing import Any

from partrain.layout.proposal import Proposal
from partrain.spec.catalog import node
from partrain.spec.facts import MachineFacts
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import resolve_model

CPU = MachineFacts(
    device="cpu",
    name="cpu",
    num_devices=2,
    memory_bytes=None,
    bf16_flops=None,
    fp32_flops=None,
    origin="this machine",
)


def model(preset: str, **changed: Any) -> ModelSpec:
    section = ModelSection(preset=preset, **changed)
    found = resolve_model(section, sequence_length=128, vocab_size=None).model
    assert found is not None
    return found


LEGAL = Proposal(
    model=model("llama-3.1-8b"),
    machine=node("8xh100"),
    nodes=1,
    sequence_length=128,
    global_batch_size=64,
    precision="bf16",
    dp=1,
    pp=1,
    tp=1,
    zero=1,
    sequence_parallel=False,
    micro_batch_size=1,
)


def proposal(**changed: Any) -> Proposal:
    return replace(LEGAL, **changed)
