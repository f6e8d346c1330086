"""Which rank failed first, and in which words."""

from __future__ import annotations

import pytest

from partrain.launch.host import disk_shortage
from partrain.launch.verdict import Host, Progress, RankEnd, judge
from partrain.run.records import Failure

RUNS, PART, WHOLE = None, Progress(4, 10), Progress(10, 10)


def end(rank, exit_code, *, at=1.0, kind="", message="E: x"):
    word = Failure(rank, at, kind, message) if kind else None
    return RankEnd(rank, f"dp {rank}, pp 0, tp 0", exit_code, at, word, "")


@pytest.mark.parametrize(
    ("ends", "first"),
    [
        ([end(0, 75, kind="peer"), end(1, -9, at=2.0), end(2, 75, kind="peer")], 1),
        ([end(0, 75, kind="peer"), end(1, RUNS, at=2.0, kind="error")], 1),
        ([end(0, -6), end(1, 1, at=2.0, kind="error")], 1),  # the abort followed, the error's word came late
        ([end(0, 75), end(1, -6, at=2.0)], 1),
        ([end(0, 1, at=2.0, kind="error"), end(1, 1, at=1.5, kind="error")], 1),
        ([end(0, -11, at=2.0), end(1, 1, kind="error")], 0),
        ([end(0, 1, kind="guard"), end(1, 1, at=2.0, kind="error")], 1),
        ([end(0, 75), end(1, 3, at=2.0)], 1),
        ([end(0, 75, at=3.0), end(1, 75, at=2.0)], 1),
        ([end(0, 1, kind="of a later version"), end(1, 75, at=2.0)], 1),
    ],
)
def test_the_first_failing_rank_is_the_cause(ends, first):
    assert judge(ends, PART, Host()).failure.rank == first


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (-9, "was killed by signal 9 (SIGKILL): often the kernel's out-of-memory killer; 1 GiB free"),
        (-11, "was killed by signal 11 (SIGSEGV): a crash in compiled code; its log shows where"),
        (-15, "was killed by signal 15 (SIGTERM)"),
        (-40, "was killed by signal 40"),
        (2, "left with exit code 2; the end of its log may say why; 0 B of disk"),
    ],
)
def test_an_end_is_put_in_words(exit_code, words):
    outcome = judge([end(0, RUNS), end(1, exit_code)], PART, Host("1 GiB free", "0 B of disk"))
    assert outcome.message == f"rank 1 (dp 1, pp 0, tp 0) {words}"
    assert outcome.failure.step == 5


def test_nothing_after_the_last_step_spoils_a_run():
    outcome = judge([end(0, 0), end(1, -9), end(2, 75)], WHOLE, Host())
    assert (outcome.state, outcome.exit_code) == ("done", 0)
    assert outcome.message == "all 10 steps; rank 1, 2 did not end by itself after the last step"


def test_a_rank_that_says_it_failed_after_the_last_step_is_heard():
    assert judge([end(0, 0), end(1, 1, kind="error")], WHOLE, Host()).exit_code == 5


def test_what_all_ranks_say_of_the_training_stands_alone():
    ends = [end(0, 75), end(1, 1, kind="guard", message="step 5: x"), end(2, 1, kind="guard")]
    outcome = judge(ends, PART, Host(disk="0 B of disk"))
    assert (outcome.exit_code, outcome.message) == (5, "step 5: x")
    assert judge([end(0, 1, kind="guard"), end(1, 0)], WHOLE, Host()).exit_code == 5


def test_ranks_that_all_leave_before_the_last_step_have_failed():
    outcome = judge([end(0, 0), end(1, 0)], PART, Host())
    assert (outcome.exit_code, outcome.message) == (5, "all ranks left without an error at step 4 of 10")


def test_a_full_disk_is_named_beside_an_error_and_beside_nothing_else():
    ends = [end(0, 1, kind="error"), end(1, 75, kind="peer"), end(2, -6)]
    outcome = judge(ends, PART, Host(disk="0 B of disk"))
    assert outcome.message == "rank 0 (dp 0, pp 0, tp 0): E: x; 0 B of disk"
    assert [failure.message for failure in outcome.other_failures] == [
        "E: x",
        "was killed by signal 6 (SIGABRT): compiled code gave up; its log says why",
    ]


def test_a_disk_is_spoken_of_when_it_has_too_little(tmp_path):
    assert disk_shortage(tmp_path, little_bytes=0) == ""
    assert disk_shortage(tmp_path, little_bytes=2**62).startswith(f"free disk space in {tmp_path} now ")
    assert disk_shortage(tmp_path / "gone", little_bytes=2**62) == ""
