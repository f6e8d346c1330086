"""`partrain sample`."""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from partrain.cli import render
from partrain.cli.options import AsJson, RunsFolder

if TYPE_CHECKING:
    from partrain.checkpoint.shelf import Found
    from partrain.checkpoint.trained import Trained
    from partrain.run.runs import RunInfo
    from partrain.run.sampling import SampleRequest

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar='[RUN] "TEXT"',
        help="The run (its folder or name; left out, the newest), and the text to go on from.",
        show_default=False,
    ),
]
Run = Annotated[str | None, typer.Option("--run", metavar="RUN", help="The run, when one word is the text.")]
Tokens = Annotated[int, typer.Option("--tokens", min=1, help="How many tokens to write.")]
Temperature = Annotated[float, typer.Option(min=0, help="0 takes the likeliest token, 1 draws as learnt.")]
TopK = Annotated[
    int | None, typer.Option(min=1, help="Draw from the K likeliest tokens; left out, from all.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed writes the same text.")]
Step = Annotated[
    int | None,
    typer.Option("--checkpoint", metavar="STEP", min=1, help="Step of a checkpoint, not the newest."),
]
TokenIds = Annotated[
    str | None,
    typer.Option("--token-ids", metavar='"1 2 3"', help="Go on from these tokens, and write tokens."),
]


_DIGITS = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Asked:
    """What the words of the command line come to."""

    run: str | None
    """None: the newest."""
    text: str | None
    """None: token ids are given."""


def sample(
    words: Words = None,
    *,
    run: Run = None,
    tokens: Tokens = 200,
    temperature: Temperature = 0.8,
    top_k: TopK = None,
    seed: Seed = 0,
    step: Step = None,
    token_ids: TokenIds = None,
    runs_folder: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write text with the newest weights of a run, on the first GPU or the CPU.

    The weights come from a checkpoint of any layout. Text needs data whose
    tokens are bytes; for others there is --token-ids.
    """
    from partrain.checkpoint.trained import trained
    from partrain.data.text import text_to_tokens
    from partrain.run.sampling import SampleRequest

    if not math.isfinite(temperature):
        raise typer.BadParameter(f"--temperature {temperature} is no number of 0 or more")
    asked = asked_for(words or (), run, has_ids=token_ids is not None, is_run=_is_run(runs_folder))
    info = _run(runs_folder, asked.run)
    found = _checkpoint(info, step)
    model = trained(found.manifest)
    if asked.text is None:
        prompt = _ids(token_ids or "", model.vocabulary)
    else:
        prompt = text_to_tokens(asked.text, model.data)
    request = SampleRequest(
        checkpoint=str(found.path.absolute()),
        prompt=prompt,
        count=tokens,
        vocabulary=model.vocabulary,
        context=model.context,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
    )
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    written = _Written(info.name, found, is_text=asked.text is not None)
    if as_json:
        render.say_json(written.as_object(request, _notes(request, model)))
    else:
        written.show(request, _notes(request, model))


def asked_for(
    words: Sequence[str], run: str | None, *, has_ids: bool, is_run: Callable[[str], bool]
) -> Asked:
    """Which words are the run and the text. Raises BadParameter where they can be neither.

    One word is the text. If it is a run's name too, the text was left out more likely.

    >>> asked_for(("demo", "def "), None, has_ids=False, is_run=lambda word: True)
    Asked(run='demo', text='def ')
    >>> asked_for(("def ",), None, has_ids=False, is_run=lambda word: False)
    Asked(run=None, text='def ')
    """
    if has_ids:
        if len(words) + (run is not None) > 1:
            raise typer.BadParameter(
                "--token-ids stands in the place of the text; beside it there is one RUN"
            )
        return Asked(words[0] if words else run, None)
    if len(words) > 2 - (run is not None):
        said = "--run names the run, and one word is the text" if run else "there are a RUN and a text"
        raise typer.BadParameter(
            f'{said}, not {len(words)} words; a text with blanks goes in quotes: "def main"'
        )
    if not words:
        raise typer.BadParameter('no text to go on from: partrain sample RUN "text"')
    if not words[-1]:
        raise typer.BadParameter("the text is empty: there is nothing to go on from")
    if len(words) == 2:
        return Asked(*words)
    if run is None and is_run(words[0]):
        both = f'partrain sample {words[0]} "text", or --run {words[0]} with a text'
        raise typer.BadParameter(f"{words[0]} is a run, and no text is given: {both}")
    return Asked(run, words[0])


def _is_run(runs_folder: Path) -> Callable[[str], bool]:
    from partrain.run.runs import RunChoiceError, find_run

    def is_run(word: str) -> bool:
        try:
            find_run(runs_folder, word)
        except RunChoiceError:
            return False
        return True

    return is_run


def _run(runs_folder: Path, name: str | None) -> RunInfo:
    from partrain.run.runs import find_run, newest_run

    return find_run(runs_folder, name) if name is not None else newest_run(runs_folder)


def _checkpoint(info: RunInfo, step: int | None) -> Found:
    """The newest whole checkpoint, or the one of `step`.

    Raises RunError where none is whole, CheckpointError where the one that was named is not.
    """
    from partrain.checkpoint.shelf import Found, checkpoint_name, checkpoints, newest_whole, read_checkpoint
    from partrain.errors import CheckpointError, RunError

    folder = info.folder.checkpoints
    if step is None:
        found, skipped = newest_whole(folder)
        if found is not None:
            return found
        if skipped:
            raise RunError(f"no checkpoint of {info.name} is whole: {'; '.join(map(str, skipped))}")
        hint = "a file `save` in its folder has it saved" if info.state == "running" else ""
        raise RunError(f"{info.name} has no checkpoint yet ({folder})", hint=hint)
    path = folder / checkpoint_name(step)
    try:
        return Found(path, read_checkpoint(path))
    except CheckpointError as error:
        others = [
            other.name.removeprefix("step-").lstrip("0") for other in checkpoints(folder) if other != path
        ]
        hint = f"{info.name} has the steps {', '.join(others)}" if others else ""
        raise CheckpointError(f"{path}: {error.message}", hint=hint) from error


def _ids(text: str, vocabulary: int) -> tuple[int, ...]:
    """The tokens that `--token-ids` names. Raises BadParameter."""
    words = text.replace(",", " ").split()
    wrong = [word for word in words if not (_DIGITS.fullmatch(word) and int(word) < vocabulary)]
    if wrong or not words:
        came = f"{wrong[0][:20]!r} is none" if wrong else "none is given"
        raise typer.BadParameter(f"--token-ids are whole numbers from 0 to {vocabulary - 1}: {came}")
    return tuple(map(int, words))


def _notes(request: SampleRequest, model: Trained) -> list[str]:
    if len(request.prompt) + request.count - 1 <= model.context:
        return []
    return [
        f"the text gets longer than the {model.context} tokens that the model was trained on: past that the"
        f" oldest are out of view, {max(1, model.context // 2)} at a time"
    ]


class _Written:
    """What is written with a checkpoint."""

    def __init__(self, run: str, found: Found, *, is_text: bool) -> None:
        self._run, self._found, self._is_text = run, found, is_text

    def show(self, request: SampleRequest, notes: Sequence[str]) -> None:
        """The text as it comes; about it, on standard error."""
        from partrain.data.text import TextReader
        from partrain.launch.sample import Sampler

        for line in (f"step {self._found.manifest.step} of {self._run}", *notes):
            render.say((line, "dim"), file=sys.stderr)
        reader = TextReader()
        shown = reader.read if self._is_text else _spaced
        with Sampler(request) as sampler:
            ready = sampler.ready()
            render.say((f"on {ready.device}, {ready.precision}", "dim"), file=sys.stderr)
            try:
                render.stream(shown(*request.prompt), style="bold")
                for token in sampler.tokens():
                    render.stream(shown(token))
            finally:
                render.say(reader.end())

    def as_object(self, request: SampleRequest, notes: Sequence[str]) -> dict[str, Any]:
        """All of it, once it is written."""
        from dataclasses import asdict

        from partrain.data.text import TextReader
        from partrain.launch.sample import Sampler

        with Sampler(request) as sampler:
            ready = sampler.ready()
            drawn = list(sampler.tokens())
        reader = TextReader()
        return {
            "run": self._run,
            "step": self._found.manifest.step,
            **asdict(ready),
            **asdict(request),
            "tokens": drawn,
            "text": reader.read(*drawn) + reader.end() if self._is_text else None,
            "notes": list(notes),
        }


def _spaced(*tokens: int) -> str:
    return "".join(f"{token} " for token in tokens)
