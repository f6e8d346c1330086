"""A run as it is seen while it goes on: one line a step, and at a terminal a progress bar below them."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

from partrain.cli import render
from partrain.cli.outcomes import evaluated_words
from partrain.cli.summary import Summary, evaluated, summed
from partrain.launch.events import Evaluated, Event, Failed, Noted, Recorded, Started, Stopping
from partrain.plan.plan import Plan
from partrain.run.records import EvaluationRecord, StepRecord, is_shown
from partrain.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_COLUMNS = (
    ("step", 11),
    ("loss", 8),
    ("tokens/s", 9),
    ("step time", 10),
    ("memory", 10),
    ("grad norm", 10),
    ("lr", 9),
    ("left", 8),
)
"""Of a step's line and their widths, 75 with nothing between them: a terminal has 80."""

_HEADER_EVERY = 40
"""Lines after which the columns are named again: what a screen holds."""

_RECENT = 20
"""Steps whose mean predicts the time left; the first step, which warms everything up, is not among them."""


class Console:
    """Prints the events of a run; as a context it holds the progress bar."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lines = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._bar: tuple[Progress, TaskID] | None = None
        self.summary: Summary | None = None

    def __enter__(self) -> Console:
        if render.at_terminal():
            self._bar = _progress_bar(self._plan.training.steps)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar[0].stop()

    def on_event(self, event: Event) -> None:
        """Print what happened."""
        if isinstance(event, Recorded):
            self._step(event.record)
        elif isinstance(event, Evaluated):
            self.summary = evaluated(self.summary, event.record)
            render.say(evaluation_line(event.record, steps=self._plan.training.steps))
        elif isinstance(event, Started):
            render.say(f"{len(event.pids)} processes started; {first_wait(self._plan)}")
        elif isinstance(event, Noted):
            render.say((event.notice.message, "bad" if event.notice.is_grave else "dim"))
        elif isinstance(event, Failed):
            who = "the training" if event.failure.kind == "guard" else f"rank {event.failure.rank}"
            render.say((f"{who} failed: ending all ranks", "bad"))
        elif isinstance(event, Stopping):
            saving = "" if self._plan.checkpoint.every == "none" or not self.summary else "saving and "
            render.say((f"{event.signal}: {saving}ending all ranks; once more kills them", "bold"))

    def _step(self, record: StepRecord) -> None:
        if self.summary:
            self._recent.append(record.step_s)
        self.summary = summed(self.summary, record)
        steps = self._plan.training.steps
        if self._bar:
            bar, task = self._bar
            bar.update(task, completed=record.step)
        if is_shown(record.step, log_every=self._plan.log_every, steps=steps):
            if self._lines % _HEADER_EVERY == 0:
                render.say(("".join(name.rjust(width) for name, width in _COLUMNS), "bold"))
            self._lines += 1
            render.say(step_line(record, steps=steps, left_s=self._left_s(record)))
        if record.warning:
            render.say((record.warning, "bad"))

    def _left_s(self, record: StepRecord) -> float | None:
        if not self._recent:
            return None
        return (self._plan.training.steps - record.step) * sum(self._recent) / len(self._recent)


def first_wait(plan: Plan) -> str:
    """Why it takes a while until the first line."""
    is_file = plan.data.source != "synthetic" and not plan.data.source.startswith("builtin:")
    if not is_file or plan.data.num_tokens is None:
        return "the first step takes longest"
    tokens = format_count(plan.data.num_tokens)
    return f"first all {tokens} tokens of the data are looked at, and the first step takes longest"


def step_line(record: StepRecord, *, steps: int, left_s: float | None) -> str:
    """A step in one line of at most 80 columns, under the names in `_COLUMNS`."""
    cells = (
        f"{record.step}/{steps}",
        f"{record.loss:.4f}",
        format_count(record.tokens_per_s),
        format_seconds(record.step_s),
        format_bytes(record.peak_bytes),
        f"{record.grad_norm:.4g}",
        f"{record.lr:.2e}",
        "" if left_s is None else format_seconds(left_s),
    )
    widths = (width for _, width in _COLUMNS)
    return "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def evaluation_line(record: EvaluationRecord, *, steps: int) -> str:
    """An evaluation in one line of at most 80 columns, below its step's."""
    step = f"{record.step}/{steps}".rjust(_COLUMNS[0][1])
    return f"{step}  validation {evaluated_words(record)}, {format_seconds(record.evaluation_s)}"


def _progress_bar(steps: int) -> tuple[Progress, TaskID]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TimeElapsedColumn

    progress = Progress(
        BarColumn(bar_width=40), TaskProgressColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )
    progress.start()
    return progress, progress.add_task("", total=steps)
