"""What a run has to say to its user."""

from __future__ import annotations

from partrain.run.metrics import Tail
from partrain.run.notices import Notices, notice_from


def test_what_is_added_is_read(tmp_path):
    path = tmp_path / "notices.jsonl"
    notices = Notices(path)
    notices.add("goes on")
    notices.add("not saved", is_grave=True)
    with path.open("a") as file:
        file.write("no notice\n")
    found = Tail(path, notice_from).read()
    assert [(notice.message, notice.is_grave) for notice in found] == [
        ("goes on", False),
        ("not saved", True),
    ]


def test_a_notice_that_cannot_be_written_ends_nothing(tmp_path):
    Notices(tmp_path / "not there" / "notices.jsonl").add("lost")
    Notices(None).add("of a rank that does not write")
