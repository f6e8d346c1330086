"""What reaches a terminal, and what a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout

import pytest

from partrain.cli import render


class Terminal(io.StringIO):
    """A text stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)


def at_terminal(show: Callable[[], None]) -> str:
    """What `show` prints at a terminal."""
    with redirect_stdout(Terminal()) as stream:
        show()
    return stream.getvalue()


def test_a_terminal_gets_colour():
    assert at_terminal(lambda: render.say(("ok", "good"), ": fine")) == "\x1b[32mok\x1b[0m: fine\n"


def test_no_color_is_heard(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert at_terminal(lambda: render.say(("ok", "good"))) == "ok\n"


def test_a_pipe_gets_no_colour(capsys: pytest.CaptureFixture[str]):
    render.say(("ok", "good"))
    assert capsys.readouterr().out == "ok\n"


def test_control_characters_are_spelled_out():
    shown = at_terminal(lambda: render.say("a\x1b[2Jb", ("\u202ec", "bold")))
    assert shown == "a\\x1b[2Jb\x1b[1m\\u202ec\x1b[0m\n"


def test_long_texts_are_folded_at_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    notes = at_terminal(lambda: render.notes(["word " * 40]))
    tree = at_terminal(lambda: render.tree({"zero": 1}, {"zero": "why " * 40}))
    assert max(map(len, (notes + tree).splitlines())) <= 80


def test_nested_values_are_shown_as_yaml_with_their_origins(capsys: pytest.CaptureFixture[str]):
    render.tree({"training": {"steps": 5, "betas": (0.9, 0.95)}, "env": {}}, {"training.steps": "job.yaml:3"})
    assert (
        capsys.readouterr().out
        == "training:\n  steps: 5            # job.yaml:3\n  betas: [0.9, 0.95]\nenv: {}\n"
    )


def test_numbers_stand_to_the_right(capsys: pytest.CaptureFixture[str]):
    render.table(("run", "step"), [("a", "5"), ("long", "1000")], right=("step",))
    assert capsys.readouterr().out == "run   step\na        5\nlong  1000\n"


class Utf8Terminal(Terminal):
    """A terminal that shows more than ASCII."""

    encoding = "utf-8"  # type: ignore[assignment]


def bars(stream: Terminal) -> list[str]:
    """A table of four shares on `stream`."""
    rows = [["a"], ["bb"], ["c"], ["..."]]
    with redirect_stdout(stream):
        render.bars(["name"], rows, [0.5, 2.0, 0.001, None], of="of it")
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(("columns", "length"), [("19", 8), ("80", 30), ("120", 30)])
def test_bars_take_the_room_there_is(columns: str, length: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", columns)
    head, half, double, little, none = bars(Utf8Terminal())
    whole = length // 2  # the longest bar is of 2.0
    assert head == "name  of it"
    assert half == "a     " + "█" * round(whole / 2) + "░" * (length - round(whole / 2)) + " 50%"
    assert double == "bb    " + "█" * whole + "▓" * (length - whole) + " 200%"
    assert little == "c     " + "█" + "░" * (length - 1) + " <1%"
    assert none == "..."


def test_bars_have_signs_that_every_terminal_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert bars(Terminal())[2] == "bb    " + "#" * 15 + "!" * 15 + " 200%"


def test_what_is_too_much_is_red():
    double = bars(Utf8Terminal())[2]
    assert double == "bb    \x1b[32m" + "█" * 15 + "\x1b[0m\x1b[31m" + "▓" * 15 + "\x1b[0m 200%"


def test_a_text_that_comes_in_parts_keeps_its_lines_and_nothing_else_that_a_terminal_acts_on(
    capsys: pytest.CaptureFixture[str],
):
    for part in ("a\x1b[31m", "\n\t", "\r\x9b\u202eb", "\u20ac"):
        render.stream(part, style="bold")
    assert capsys.readouterr().out == "a\\x1b[31m\n\t\\r\\x9b\\u202eb\u20ac"
