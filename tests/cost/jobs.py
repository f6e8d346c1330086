"""Small jobs whose memory the tests estimate."""

from dataclasses import replace

from partrain.cost.estimate import Estimate
from partrain.cost.memory import Work, estimate
from partrain.cost.quantities import Buckets
from partrain.layout.layout import Layout
from partrain.layout.stages import balanced_bounds
from partrain.model.shape import layer_flops
from partrain.spec.catalog import node
from partrain.spec.facts import MachineFacts
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import resolve_model

CPU = replace(node("cpu"), num_devices=4)
H100 = node("8xh100")
LENGTH = 256


def model_of(**fields: object) -> ModelSpec:
    wish = {
        "family": "llama",
        "num_layers": 4,
        "hidden_size": 128,
        "num_heads": 8,
        "vocab_size": 1024,
        **fields,
    }
    model = resolve_model(ModelSection(**wish), sequence_length=LENGTH, vocab_size=None).model  # type: ignore[arg-type]
    assert model is not None
    return model


def layout_of(model: ModelSpec, **changes: object) -> Layout:
    wish: dict[str, object] = {
        "dp": 1, "pp": 1, "tp": 1, "zero": 1, "sequence_parallel": False, "micro_batch_size": 2,
        "num_micro_batches": 4, "recompute": "none", **changes,
    }  # fmt: skip
    stages = int(str(wish["pp"]))
    bounds = balanced_bounds(layer_flops(model, LENGTH), stages, min_first=2)
    return Layout(stage_bounds=bounds, **wish)  # type: ignore[arg-type]


def estimate_of(
    model: ModelSpec, *, machine: MachineFacts = CPU, work: dict[str, object] | None = None, **changes: object
) -> Estimate:
    wish: dict[str, object] = {
        "sequence_length": LENGTH,
        "precision": "fp32",
        "buckets": Buckets(reduce=200_000),
    }
    made = Work(**{**wish, **(work or {})})  # type: ignore[arg-type]
    return estimate(model, made, layout_of(model, **changes), machine=machine)
