"""Real processes: stand-in ranks, a real agent, a real supervisor; nothing is left, whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import partrain.launch.supervise as supervise_module
from partrain.launch.events import Ended, Evaluated, Event, Failed, Recorded, Started
from partrain.launch.script import LaunchScript
from partrain.launch.supervise import supervise
from partrain.run.failures import ranks_alike
from partrain.run.folder import RunFolder
from partrain.run.runs import read_outcome, run_info, state_of
from tests.launch.launched import gone, script_of

pytestmark = [
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc to see what is left"),
]


def run(folder: RunFolder, *behaviours: str, **limits: float) -> tuple[list[Event], object]:
    events: list[Event] = []
    outcome = supervise(script_of(folder, list(behaviours), **limits), folder, on_event=events.append)
    assert outcome == read_outcome(folder)
    assert isinstance(events[-1], Ended)
    return events, outcome


def test_a_run_that_ends_well_is_done_with_every_step_told(folder):
    events, outcome = run(folder, "train", "train")
    assert (outcome.state, outcome.exit_code, outcome.message) == ("done", 0, "all 3 steps")
    assert isinstance(events[0], Started)
    assert [event.record.step for event in events if isinstance(event, Recorded)] == [1, 2, 3]
    assert folder.log(1).read_text() == "rank 1 trains\n"
    assert folder.plan.read_text() == "{}"
    info = run_info(folder)
    assert (info.state, info.last_step, info.last_loss) == ("done", 3, 2.5)


@pytest.mark.parametrize("victim", range(4))
def test_a_killed_rank_is_named_and_nothing_is_left(launch, folder, victim):
    launched = launch(["family"] + 3 * ["work"])
    pids = launched.ranks()
    family = json.loads((folder.path / "family-0.json").read_text())
    start = time.monotonic()
    os.kill(pids[victim], signal.SIGKILL)
    failed = launched.event("failed")
    assert launched.end() == 5
    assert time.monotonic() - start < 15
    assert gone([*pids.values(), *family])
    place = f"rank {victim} (dp 0, pp {victim}, tp 0)"
    killed = "was killed by signal 9 (SIGKILL): often the kernel's out-of-memory killer; free host memory now"
    assert failed["message"].startswith(f"{place} {killed}")
    outcome = read_outcome(folder)
    assert (outcome.state, outcome.failure.rank, outcome.failure.kind) == ("failed", victim, "signal")
    assert outcome.failure.step == 2


def test_a_killed_launcher_takes_all_with_it(launch, folder):
    launched = launch(["work", "stubborn"])
    pids, agent = launched.ranks(), launched.agent
    assert state_of(folder) == "running"
    launched.process.kill()
    assert gone([agent, *pids.values()])
    outcome = read_outcome(folder)
    assert (outcome.state, outcome.message) == ("interrupted", "the launcher went away after step 1 of 3")


def test_a_killed_agent_is_named_and_takes_all_with_it(launch, folder):
    launched = launch(["family", "stubborn"])
    pids = launched.ranks()
    children = json.loads((folder.path / "family-0.json").read_text())
    agent = launched.agent
    launched.process.send_signal(signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    assert gone([pids[1]])  # by the kernel: there is nobody else to do it
    launched.process.send_signal(signal.SIGCONT)
    assert launched.end() == 5
    assert gone([*pids.values(), *children])
    outcome = read_outcome(folder)
    assert outcome.message.startswith("the agent that watches the ranks was killed by signal 9 (SIGKILL)")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_launcher_ends_all(launch, folder, number, code):
    launched = launch(["work", "stubborn"])
    pids = launched.ranks()
    launched.process.send_signal(number)
    assert launched.event("stopping")["signal"] == number.name
    assert launched.end() == code
    assert gone(list(pids.values()))
    outcome = read_outcome(folder)
    assert (outcome.state, outcome.exit_code) == ("interrupted", code)
    assert outcome.message == f"ended by {number.name} after step 1 of 3"


def test_a_signal_while_the_agent_starts_ends_the_run(folder, monkeypatch):
    start = supervise_module._start_agent

    def start_late(folder: RunFolder) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return start(folder)

    monkeypatch.setattr(supervise_module, "_start_agent", start_late)
    outcome = supervise(script_of(folder, ["work"]), folder, on_event=lambda event: None)
    assert (outcome.state, outcome.exit_code) == ("interrupted", 143)
    assert read_outcome(folder) == outcome


def test_a_second_ctrl_c_does_not_wait(launch, folder):
    launched = launch(["stubborn"])
    pids = launched.ranks()
    os.kill(launched.agent, signal.SIGSTOP)  # it would never end its ranks
    launched.process.send_signal(signal.SIGINT)
    launched.event("stopping")
    start = time.monotonic()
    launched.process.send_signal(signal.SIGINT)
    assert launched.end() == 130
    assert time.monotonic() - start < 3
    assert gone(list(pids.values()))
    assert read_outcome(folder).state == "interrupted"


def test_a_launcher_that_is_halted_does_not_halt_the_watch(launch, folder):
    launched = launch(["chatter", "leave"])
    launched.event("started")
    launched.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while read_outcome(folder) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert read_outcome(folder).state == "done"
    launched.process.send_signal(signal.SIGCONT)
    assert launched.event("ended")["outcome"]["state"] == "done"
    assert launched.end() == 0


def test_the_rank_with_an_error_of_its_own_is_named_before_its_peers(folder):
    events, outcome = run(folder, "peer", "peer", "error", settle_s=5)
    assert outcome.exit_code == 5
    assert outcome.message == "rank 2 (dp 0, pp 2, tp 0): ValueError: the loss is NaN"
    assert (outcome.failure.kind, outcome.failure.traceback) == ("error", "at ValueError: the loss is NaN")
    assert [failure.rank for failure in outcome.other_failures] == [0, 1]
    assert [event.message for event in events if isinstance(event, Failed)] == [outcome.message]


def test_one_error_on_every_rank_is_one_error(folder):
    _, outcome = run(folder, "error", "error", "error", settle_s=5)
    assert ranks_alike(outcome) == (0, 1, 2)


def test_a_rank_that_leaves_without_a_word_is_named_with_the_end_of_its_log(folder):
    _, outcome = run(folder, "work", "crash")
    assert outcome.message.startswith("rank 1 (dp 0, pp 1, tp 0) left with exit code 3")
    assert outcome.failure.traceback == "something is wrong here\n"


def test_a_rank_that_leaves_early_without_an_error_fails_the_run(folder):
    _, outcome = run(folder, "work", "leave", hang_s=0.3)
    assert (outcome.exit_code, outcome.message) == (5, "rank 1 left without an error at step 1 of 3")


def test_a_rank_that_hangs_after_the_last_step_does_not_spoil_the_run(folder):
    _, outcome = run(folder, "linger", "leave", hang_s=0.3)
    assert (outcome.state, outcome.exit_code) == ("done", 0)
    assert outcome.message == "all 3 steps; rank 0 did not end by itself after the last step"


def test_the_evaluation_after_the_last_step_is_waited_for(folder):
    script = script_of(folder, ["evaluate", "evaluate"], hang_s=0.3)
    events: list[Event] = []
    hosts = tuple(replace(host, evaluates=True) for host in script.hosts)
    outcome = supervise(LaunchScript(hosts), folder, on_event=events.append)
    assert (outcome.state, outcome.message) == ("done", "all 3 steps")
    assert [event.record.step for event in events if isinstance(event, Evaluated)] == [3]


def test_ranks_get_their_own_world_and_one_free_port(folder, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "7")
    monkeypatch.setenv("RANK", "5")
    run(folder, "environment", "environment")
    worlds = [json.loads((folder.path / f"environment-{rank}.json").read_text()) for rank in range(2)]
    assert [world["RANK"] for world in worlds] == ["0", "1"]
    assert worlds[0]["MASTER_PORT"] == worlds[1]["MASTER_PORT"]
    assert "SLURM_PROCID" not in worlds[0]


def test_an_exception_of_the_listener_ends_the_run(folder):
    def broken(event: Event) -> None:
        raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError):
        supervise(script_of(folder, ["work", "work"]), folder, on_event=broken)
    assert read_outcome(folder).state == "interrupted"


def test_a_program_that_is_not_there_is_a_failed_launch(folder):
    script = script_of(folder, ["train"])
    missing = str(Path(folder.path) / "no-such-python")
    broken = script.hosts[0].to_json().replace(sys.executable, missing)
    host = type(script.hosts[0]).from_json(broken)
    outcome = supervise(type(script)((host,)), folder, on_event=lambda event: None)
    assert (outcome.state, outcome.exit_code) == ("failed", 4)
    assert "no-such-python" in outcome.message
