"""Generation against transformers' own, with keys and values kept against none kept, and what is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from partrain.engine.generate import Decoder, drawn, pick
from partrain.engine.groups import ALONE
from partrain.engine.tensor_parallel import Region
from partrain.errors import RunError
from partrain.model.huggingface import stored_weights
from partrain.run.sampling import SampleRequest, first_in_view
from partrain.spec.model import ModelSpec
from tests.engine.families import CONFIGS, ours, published, spec_of, taken, theirs

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
PROMPT = (5, 60, 17, 3, 3, 44, 9)
COUNT = 24
CONTEXT = 40


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Matrices as small as these are multiplied before a second thread is awake."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def request(**changes: Any) -> SampleRequest:
    wish: dict[str, Any] = {
        "checkpoint": "",
        "prompt": PROMPT,
        "count": COUNT,
        "vocabulary": 61,
        "context": CONTEXT,
        "temperature": 0.0,
        "top_k": None,
        "seed": 0,
    }
    return SampleRequest(**{**wish, **changes})


def steps_of(module: Any) -> tuple[ModelSpec, list[Any]]:
    """Ours with the weights of theirs."""
    model = spec_of(module)
    values = {published(name, model): value.detach() for name, value in module.named_parameters()}
    wholes = {name: taken(entry, values, model) for name, entry in stored_weights(model).items()}
    return model, ours(model, wholes, Region(ALONE))[1]


def logits_anew(model: ModelSpec, steps: list[Any], tokens: list[int]) -> Tensor:
    """Logits [V] of the token after `tokens`, by the modules as they train, over all of them at once."""
    x: Any = torch.tensor([tokens])
    for step in steps:
        x = step(x)
    return F.linear(x[0][0, -1], x[1])[: model.vocab_size].detach()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_likeliest_tokens_are_those_of_transformers(name: str) -> None:
    module: Any = theirs(name)
    model, steps = steps_of(module)
    wanted = module.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=COUNT,
        min_new_tokens=COUNT,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    found = list(drawn(Decoder(model, steps, context=CONTEXT), request(), CPU))
    assert found == wanted[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_read_in_pieces_has_the_logits_of_the_modules_that_train(name: str) -> None:
    model, steps = steps_of(theirs(name))
    text = torch.randint(61, (30,), generator=torch.Generator().manual_seed(4))
    wanted = {end: logits_anew(model, steps, text[:end].tolist()) for end in (11, 12, 25, 30)}
    decoder = Decoder(model, steps, context=CONTEXT)
    for _ in range(2):
        decoder.forget()
        with torch.no_grad():
            found = [decoder.logits(piece) for piece in text.split([11, 1, 13, 5])]
        differences = [float((a - b).abs().max()) for a, b in zip(found, wanted.values(), strict=True)]
        assert max(differences) <= 1e-5


@pytest.mark.parametrize("context", [1, 9])
@pytest.mark.parametrize("name", ["llama-3", "mistral", "gpt2"])
def test_past_the_context_the_oldest_tokens_are_out_of_view(name: str, context: int) -> None:
    model, steps = steps_of(theirs(name))
    text = list(PROMPT)
    for _ in range(COUNT):
        in_view = text[first_in_view(len(text), context) :]
        assert max(1, context - context // 2) <= len(in_view) <= context
        text.append(int(logits_anew(model, steps, in_view).argmax()))
    assert list(drawn(Decoder(model, steps, context=context), request(context=context), CPU)) == text[7:]


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    shares = torch.tensor([0.5, 0.25, 0.125, 0.125])
    for temperature, power in ((1.0, 1.0), (0.5, 2.0)):
        wanted = shares**power / (shares**power).sum()
        wish, generator = request(temperature=temperature), torch.Generator().manual_seed(1)
        found = [pick(shares.log(), wish, generator) for _ in range(4000)]
        counts = torch.bincount(torch.tensor(found), minlength=4) / 4000
        # six standard deviations of a share of 4000 draws: 6 * sqrt(0.25 / 4000) = 0.047
        assert float((counts - wanted).abs().max()) < 0.047


def test_only_the_k_likeliest_are_drawn() -> None:
    logits, generator = torch.tensor([1.0, 3.0, 2.0, 2.5]), torch.Generator().manual_seed(2)
    found = {pick(logits, request(temperature=5.0, top_k=2), generator) for _ in range(200)}
    assert found == {1, 3}
    assert pick(logits, request(temperature=5.0, top_k=1), generator) == 1
    assert {pick(logits, request(temperature=5.0, top_k=99), generator) for _ in range(200)} == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-12])
def test_next_to_no_temperature_takes_the_likeliest(temperature: float) -> None:
    logits, generator = torch.tensor([1.0, 3.0, 2.0]), torch.Generator().manual_seed(3)
    assert {pick(logits, request(temperature=temperature), generator) for _ in range(50)} == {1}


def test_a_seed_draws_the_same_again_and_another_something_else() -> None:
    model, steps = steps_of(theirs("llama-2"))
    decoder = Decoder(model, steps, context=CONTEXT)
    texts = []
    for seed in (7, 7, 8):
        decoder.forget()
        texts.append(list(drawn(decoder, request(temperature=1.0, seed=seed), CPU)))
    assert texts[0] == texts[1] != texts[2]


def test_what_the_data_cannot_have_is_never_drawn() -> None:
    model, steps = steps_of(theirs("gpt2"))
    wish = request(vocabulary=5, temperature=3.0, prompt=(1,))
    assert set(drawn(Decoder(model, steps, context=CONTEXT), wish, CPU)) <= set(range(5))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_has_diverged_is_told(value: float) -> None:
    with pytest.raises(RunError, match="not finite"):
        pick(torch.tensor([0.0, value]), request(), torch.Generator())
