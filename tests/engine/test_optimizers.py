"""Optimizers in one process: the steps that the layout tests build on."""

from __future__ import annotations

import pytest
import torch

from partrain.engine.groups import ALONE
from partrain.engine.muon import Muon, Piece, orthogonalised, spans
from partrain.engine.optimizer import Clipping, build_optimizer
from partrain.model.weights import ZEROS, Weight
from partrain.spec.optimizers import OptimizerSection, resolve_optimizer
from tests.engine.plain_optimizers import by_singular_values
from tests.engine.plans import Case, plan_of

pytestmark = pytest.mark.torch


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16), (1, 8)])
def test_products_of_matrices_do_what_the_quintic_does_to_singular_values(shape: tuple[int, int]) -> None:
    matrix = normal(*shape)
    assert torch.allclose(orthogonalised(matrix, torch.float32), by_singular_values(matrix), atol=1e-4)
    # Jordan et al. 2024: within about 0.3 of 1, for values that are not tiny beside the largest.
    found = torch.linalg.svdvals(orthogonalised(normal(1, 1) * torch.eye(8), torch.float32))
    assert ((found - 1).abs() < 0.35).all()


def test_a_matrix_without_a_gradient_does_not_move() -> None:
    assert not orthogonalised(torch.zeros(4, 6), torch.float32).any()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it from 2.9 on")
def test_muon_is_torchs_own_on_a_whole_matrix() -> None:
    mine, theirs = (torch.nn.Parameter(normal(24, 40)) for _ in range(2))
    mine.entry = Weight("layers.0.mlp.up.weight", 1, (24, 40), ZEROS, decay=True)  # type: ignore[attr-defined]
    wish = resolve_optimizer(OptimizerSection(name="muon", lr=0.1))
    groups = [{"params": [mine], "weight_decay": wish.weight_decay}]
    ours = Muon(groups, wish, group=ALONE, replicas=None, dtype=torch.bfloat16)
    other = torch.optim.Muon(
        [theirs], lr=0.1, weight_decay=wish.weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(3):
        mine.grad = normal(24, 40, seed=step)
        theirs.grad = mine.grad.clone()
        ours.step()
        other.step()
    # Both orthogonalise in bf16, rounded in another order: 2^-8 of updates of 0.1 x 0.2 x sqrt(40) x O.
    assert torch.allclose(mine, theirs, atol=5e-3)
    assert not torch.allclose(mine, normal(24, 40), atol=1e-1)


def test_spans_of_all_shares_are_the_row() -> None:
    row = Piece((2, 3), None, True), Piece((4,), None, False), Piece((5, 2), 0, True)
    shares = [spans(row, first, 7) for first in (0, 7, 14)]
    assert [(span.begin, span.first, span.end) for share in shares for span in share] == [
        (0, 0, 6),
        (6, 6, 7),
        (6, 7, 10),
        (10, 10, 14),
        (10, 14, 20),
    ]


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_an_update_whose_norm_is_not_finite_changes_neither_weights_nor_states(name: str) -> None:
    plan = plan_of(Case(zero=0, optimizer=name))  # type: ignore[arg-type]
    found = []
    for gradients in ([1, 2], [1, None, 2]):
        weight = torch.nn.Parameter(normal(4, 6))
        weight.entry = Weight("layers.0.mlp.up.weight", 1, (4, 6), ZEROS, decay=True)  # type: ignore[attr-defined]
        optimizer = build_optimizer(
            plan, [{"params": [weight], "weight_decay": 0.1}], group=ALONE, replicas=None
        )
        Clipping(1.0, ALONE).before_steps_of(optimizer)
        for seed in gradients:
            weight.grad = torch.full((4, 6), float("nan")) if seed is None else normal(4, 6, seed=seed)
            optimizer.step()
        found.append(weight)
    assert torch.equal(*found)
