"""A launch that takes a run when told to, and stays until told to end."""

from __future__ import annotations

import sys
from pathlib import Path

from partrain.run.relaunch import relaunch
from partrain.run.runs import RunChoiceError
from tests.run.plans import a_plan


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    say("ready")
    sys.stdin.readline()
    try:
        relaunch(Path(sys.argv[1]), a_plan(), "", new=False)
        say("taken")
    except RunChoiceError:
        say("refused")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
