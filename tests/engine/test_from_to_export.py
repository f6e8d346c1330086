"""A folder of transformers -> a run that is killed and goes on without it -> a folder of transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from tests.engine.families import theirs
from tests.engine.test_resume import Runs

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes of a run in /proc"),
]

STEPS, TEXT = 60, "w7 w1 w30"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def published(folder: Path) -> None:
    """A model with its tokenizer."""
    module: Any = theirs("gpt2")
    module.generation_config.max_new_tokens = 17
    module.save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(61)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w60")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "modeling_own.py").touch()


def runs_in(folder: Path, weights: Path) -> Runs:
    runs = Runs(folder)
    (folder / "job.yaml").write_text(f"""
version: 1
name: resumed
model: {{from: {weights}}}
data: {{train: synthetic}}
training: {{sequence_length: 32, global_batch_size: 8, steps: {STEPS}, optimizer: {{lr: 1.0e-5}}}}
hardware: {{node: cpu}}
checkpoint: {{every: 5, export: hf}}
""")
    return runs


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    module: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return {name: value.detach() for name, value in module.named_parameters()}


def test_a_run_goes_on_without_the_folder_and_ends_in_one(tmp_path: Path) -> None:
    weights, away = tmp_path / "weights", tmp_path / "away"
    published(weights)
    start = weights_in(weights)
    runs = runs_in(tmp_path / "killed", weights)
    launch = runs.start()
    runs.wait_for(12, launch)
    runs.kill(launcher_too=False)
    assert launch.wait() == 5
    assert len(runs.records()) < STEPS
    assert not (runs.run / "hf").exists()

    weights.rename(away)
    refused = runs.start("--new")
    assert refused.wait(timeout=60) == 2
    output = runs.to_the_end()
    assert "goes on from step-000000" in output
    assert f"note: without the tokenizer's files: {weights}, which training started from, is gone" in output

    away.rename(weights)
    undisturbed = runs_in(tmp_path / "undisturbed", weights)
    assert f"starts from the weights of {weights}" in undisturbed.to_the_end()
    assert runs.records() == undisturbed.records()
    exported, alike = undisturbed.run / "hf", runs.run / "hf"
    names = {path.name for path in exported.iterdir()}
    assert names - {path.name for path in alike.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    assert "modeling_own.py" not in names
    assert f"exported     hf/, {len(names)} files" in undisturbed.output()

    trained = weights_in(exported)
    assert all(torch.equal(value, trained[name]) for name, value in weights_in(alike).items())
    moved = max(float((value - start[name]).abs().max()) for name, value in trained.items())
    assert 1e-5 < moved <= 2e-5 * STEPS  # AdamW moves an element by about its rate in a step
    again: Any = transformers.AutoTokenizer.from_pretrained(exported)
    assert again(TEXT)["input_ids"] == [7, 1, 30]
    assert (again.eos_token, again.chat_template) == ("w60", TEMPLATE)
    assert transformers.GenerationConfig.from_pretrained(exported).max_new_tokens == 17
