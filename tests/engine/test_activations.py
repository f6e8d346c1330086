"""The tapes of the engine's layers against torch's own allocator: its events around each pass."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from partrain.cost.walk import walk
from partrain.engine.groups import ALONE
from partrain.engine.initial import materialise
from partrain.engine.loss import Loss
from partrain.engine.modules import weight_table
from partrain.engine.pipeline import decoder_parts
from partrain.engine.tensor_parallel import Region
from partrain.model.activations import LayerTapes, Share, layer_tapes
from partrain.model.profile import CPU
from partrain.spec.model import ModelSection, ModelSpec
from partrain.spec.resolve import resolve_model
from tests.engine.allocator import allocator_bytes

pytestmark = pytest.mark.torch

SEQUENCES, LENGTH = 2, 128
TOLERANCE = 0.002
"""The allocator counts the smallest tensors too: labels, sums, a norm's numbers a token."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
WISHES: dict[str, dict[str, object]] = {
    "llama": {"family": "llama"},
    "grouped": {"family": "llama", "num_kv_heads": 2},
    "gpt2": {"family": "gpt2"},
    "gemma": {"family": "gemma"},
    "qwen3": {"family": "qwen3", "num_kv_heads": 2},
    "gpt_neox": {"family": "gpt_neox"},
}


def model_of(name: str) -> ModelSpec:
    wish = {"num_layers": 1, "hidden_size": 128, "num_heads": 8, "vocab_size": 2048, **WISHES[name]}
    section = ModelSection(**wish)  # type: ignore[arg-type]
    model = resolve_model(section, sequence_length=LENGTH, vocab_size=None).model
    assert model is not None
    return replace(model, tie_embeddings=False)


class Pass:
    """What a layer's passes take of the allocator."""

    def __init__(self, layer: Callable[[Tensor], Tensor], x: Tensor, weights: list[nn.Parameter]) -> None:
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        made: list[Tensor] = []
        self.forward, self.held = allocator_bytes(lambda: made.append(layer(x)))
        output = made.pop()
        gradient = torch.ones_like(output)
        outputs = [output]
        del output
        beyond, _ = allocator_bytes(lambda: outputs.pop().backward(gradient))
        self.backward = self.held + beyond


def tapes_of(
    model: ModelSpec, precision: str, recompute: str = "none", chunk: int | None = None
) -> LayerTapes:
    share = Share(
        sequences=SEQUENCES,
        sequence_length=LENGTH,
        tp=1,
        sequence_parallel=False,
        precision=precision,
        recompute=recompute,
        loss_chunk_size=chunk or "none",
    )
    return layer_tapes(model, share, CPU)


def parts_of(model: ModelSpec, precision: str, recompute: str = "none") -> list[nn.Module]:
    made = [part.build() for part in decoder_parts(model, Region(ALONE), recompute)]
    for part in made:
        materialise(part, ALONE, seed=1, device=torch.device("cpu"), dtype=DTYPES[precision])
    return made


def hidden(model: ModelSpec, precision: str) -> Tensor:
    return torch.randn(SEQUENCES, LENGTH, model.hidden_size, dtype=DTYPES[precision], requires_grad=True)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", WISHES)
def test_a_block_takes_what_its_tape_says(name: str, precision: str, recompute: str) -> None:
    model = model_of(name)
    block = parts_of(model, precision, recompute)[-3]
    x = hidden(model, precision)
    block(x).sum().backward()  # makes rotary tables
    found = Pass(block, x, list(block.parameters()))
    tape = tapes_of(model, precision, recompute).block
    walked, size = walk(tape), tape.input_size
    keeps_input = recompute == "full" or any("x" in op.keeps for op in tape.ops)
    kept = size if keeps_input else 0
    # the allocator does not see the input, which was there; the output outlives the pass
    assert found.held == pytest.approx(walked.held - kept + tape.output_size, rel=TOLERANCE)
    if precision == "fp32":  # products of 16-bit numbers take scratch memory of their library on CPUs
        assert found.forward == pytest.approx(walked.forward.bytes - size, rel=TOLERANCE)
        assert found.backward == pytest.approx(walked.backward.bytes - kept, rel=TOLERANCE)


@pytest.mark.parametrize("chunk", [None, 64])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_head_and_loss_take_what_their_tape_says(precision: str, chunk: int | None) -> None:
    model = model_of("gpt2")
    *_, norm, head = parts_of(model, precision)
    loss = Loss(weight_table(model)["head.weight"], ALONE, chunk)
    labels = torch.randint(0, model.vocab_size, (SEQUENCES, LENGTH))
    weights = [*norm.parameters(), *head.parameters()]
    found = Pass(lambda x: loss(head(norm(x)), labels), hidden(model, precision), weights)
    tape = tapes_of(model, precision, chunk=chunk).head
    walked, size = walk(tape), tape.input_size
    assert found.held == pytest.approx(walked.held - size + tape.output_size, rel=TOLERANCE)
    if precision == "fp32":
        assert found.forward == pytest.approx(walked.forward.bytes - size, rel=0.01)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_embedding_takes_what_its_tape_says(name: str, precision: str) -> None:
    model = model_of(name)
    *layer, _, _, _ = parts_of(model, precision)
    embedding = nn.Sequential(*layer)
    tokens = torch.randint(0, model.vocab_size, (SEQUENCES, LENGTH))
    found = Pass(embedding, tokens, list(embedding.parameters()))
    tape = tapes_of(model, precision).embedding
    walked, ids = walk(tape), tape.input_size
    assert found.held == pytest.approx(walked.held - ids + tape.output_size, rel=TOLERANCE)
    assert found.forward == pytest.approx(walked.forward.bytes - ids, rel=TOLERANCE)
