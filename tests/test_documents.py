"""What the documents say exists, exists: links lead somewhere, commands shown are commands tested."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_readme import SESSION

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("*/*.md"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)

# every command that README shows is run by tests/test_readme.py
COMMANDS = {"make demo", *SESSION}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def commands_in(text: str) -> Iterator[str]:
    """`partrain` and `make` commands of a document's shell blocks, without prompt and comment."""
    for language, block in _FENCE.findall(text):
        if language not in ("", "sh", "bash", "console", "shell"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            command = " ".join(line.removeprefix("$ ").split("  #")[0].split(" # ")[0].split())
            if command.split(" ")[0] in ("partrain", "make"):
                yield command


def anchors_of(document: Path) -> set[str]:
    """Names of a document's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", document.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_broken(link: str, document: Path) -> bool:
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors_of(target)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    links = _LINK.findall(_FENCE.sub("", document.read_text(encoding="utf-8")))
    local = [link for link in links if not link.startswith(("http://", "https://", "mailto:"))]
    assert [link for link in local if is_broken(link, document)] == []


def test_commands_are_found_in_shell_blocks_only() -> None:
    text = (
        "```sh\n$ partrain check job.yaml   # all faults at once\nmake demo # trains\nls\n"
        "partrain launch job.yaml \\\n  --new\n```\n```yaml\npartrain: no\n```\npartrain plan\n"
    )
    assert list(commands_in(text)) == [
        "partrain check job.yaml",
        "make demo",
        "partrain launch job.yaml --new",
    ]


def test_every_command_of_the_readme_is_tested() -> None:
    shown = set(commands_in((ROOT / "README.md").read_text(encoding="utf-8")))
    assert shown == COMMANDS
