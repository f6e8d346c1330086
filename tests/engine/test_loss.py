"""The loss against torch's own, in one process."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from partrain.engine.groups import ALONE
from partrain.engine.loss import Loss
from partrain.model.weights import ZEROS, Weight

pytestmark = pytest.mark.torch

VOCABULARY, PADDED, HIDDEN = 61, 64, 16
HEAD = Weight("head.weight", 1, (VOCABULARY, HIDDEN), ZEROS, split=0, padded=True)
SHAPED = {"label_smoothing": 0.1, "z_loss": 1e-2}


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(2, 13, HIDDEN, generator=generator)
    weight = torch.randn(PADDED, HIDDEN, generator=generator)
    labels = torch.randint(VOCABULARY, (2, 13), generator=generator)
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), labels


def plain_loss(
    x: Tensor, weight: Tensor, labels: Tensor, *, label_smoothing: float = 0, z_loss: float = 0
) -> Tensor:
    logits = (x @ weight[:VOCABULARY].t()).float().flatten(0, 1)
    loss = F.cross_entropy(logits, labels.flatten(), label_smoothing=label_smoothing)
    return loss + z_loss * logits.logsumexp(1).square().mean()


@pytest.mark.parametrize("size", [None, 1, 7, 13, 26, 1000])
@pytest.mark.parametrize("shape", [{}, {"label_smoothing": 0.1}, {"z_loss": 1e-2}, SHAPED], ids=str)
def test_loss_and_gradients_are_those_of_all_logits_at_once(
    size: int | None, shape: dict[str, float]
) -> None:
    x, weight, labels = inputs(torch.float64)
    found = Loss(HEAD, ALONE, chunk_size=size, **shape)((x, weight), labels)
    found_grads = torch.autograd.grad(3 * found, (x, weight))
    expected = plain_loss(x, weight, labels, **shape)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found_grads, torch.autograd.grad(3 * expected, (x, weight)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_uniform_logits_by_hand() -> None:
    x, weight, labels = inputs()
    loss = Loss(HEAD, ALONE, **SHAPED)((0 * x, weight), labels)
    # log 61 = 4.11087, with any smoothing; log(Z) is that too: 4.11087 + 0.01 x 4.11087^2
    assert loss.item() == pytest.approx(math.log(61) + 0.01 * math.log(61) ** 2, abs=1e-5)


def test_padding_gets_no_gradient() -> None:
    x, weight, labels = inputs()
    Loss(HEAD, ALONE, chunk_size=7, **SHAPED)((x, weight), labels).backward()
    assert weight.grad is not None
    assert not weight.grad[VOCABULARY:].any()


def test_many_slices_in_bf16_lose_no_more_than_one() -> None:
    x, weight, labels = inputs(torch.bfloat16)
    exact = inputs()
    plain_loss(*exact).backward()
    errors = []
    for size in (None, 1):
        weight.grad = None
        Loss(HEAD, ALONE, chunk_size=size)((x, weight), labels).backward()
        errors.append((weight.grad.float() - exact[1].grad).norm() / exact[1].grad.norm())  # type: ignore[union-attr]
    assert errors[0] < 1e-2
    assert errors[1] < 1.2 * errors[0]


def test_without_gradients_none_are_made() -> None:
    x, weight, labels = inputs()
    with torch.no_grad():
        loss = Loss(HEAD, ALONE, chunk_size=7)((x, weight), labels)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(plain_loss(x, weight, labels).item(), abs=1e-6)
