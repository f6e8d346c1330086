"""Every family against transformers' own: logits and gradients, whole and on two tensor ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from partrain.engine.groups import ALONE, TensorGroup
from partrain.engine.loss import Loss
from partrain.engine.tensor_parallel import Region
from partrain.model.decoder import HEAD, decoder_weights
from partrain.model.huggingface import stored_weights
from partrain.model.weights import shard_range
from tests.engine.families import CONFIGS, ours, published, sharded, spec_of, taken, theirs, tokens_of
from tests.engine.processes import run_world

pytestmark = pytest.mark.torch

BOUND = 1e-5
Found = tuple[torch.Tensor, float, dict[str, torch.Tensor]]


def of_theirs(name: str) -> tuple[dict[str, torch.Tensor], Found]:
    """Weights under our names; logits, loss and gradients, these under our names too."""
    module = theirs(name)
    model = spec_of(module)
    inputs, labels = tokens_of(model)
    logits = module(inputs, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    stored = stored_weights(model)
    parameters = {published(key, model): value for key, value in module.named_parameters()}
    values = {key: value.detach() for key, value in parameters.items()}
    slopes = {key: value.grad for key, value in parameters.items()}
    wholes = {key: taken(entry, values, model) for key, entry in stored.items()}
    grads = {key: taken(entry, slopes, model) for key, entry in stored.items()}
    assert {entry.name for entry in stored.values()} == set(values)
    return wholes, (logits.detach(), loss.item(), grads)


def farthest(name: str, group: TensorGroup, *, sequence_parallel: bool = False) -> tuple[float, float, float]:
    """Largest difference of this rank's logits, of the loss, and of this rank's gradients."""
    wholes, (their_logits, their_loss, their_grads) = of_theirs(name)
    model = spec_of(theirs(name))
    modules, steps = ours(model, wholes, Region(group, sequence_parallel))
    inputs, labels = tokens_of(model)
    x = inputs
    for step in steps:
        x = step(x)
    head = {weight.name: weight for weight in decoder_weights(model)}[HEAD]
    loss = Loss(head, group)(x, labels)
    loss.backward()
    first, end = shard_range(head, group.size, group.rank)
    logits = F.linear(*x).detach()[..., : end - first] - their_logits[..., first:end]
    grads = [
        parameter.grad - sharded(their_grads[parameter.entry.name], parameter.entry, group)
        for parameter in modules.parameters()
    ]
    return float(logits.abs().max()), abs(loss.item() - their_loss), max(float(d.abs().max()) for d in grads)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_gradients_are_those_of_transformers(name: str) -> None:
    assert max(farthest(name, ALONE)) <= BOUND


def test_two_tensor_ranks_have_the_logits_and_gradients_of_transformers(tmp_path: Path) -> None:
    """Over every family, without and with sequence parallelism."""
    work = [{"name": name, "sequence_parallel": split} for name in CONFIGS for split in (False, True)]
    results = run_world("tests.engine.families_world", work, 2, tmp_path / "world")
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert [len(ranks) for ranks in found] == [2] * len(work)
    too_far = [(case, ranks) for case, ranks in zip(work, found, strict=True) if max(map(max, ranks)) > BOUND]
    assert too_far == []
