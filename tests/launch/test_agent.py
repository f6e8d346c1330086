"""The agent alone, as a remote shell would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from partrain.launch.channel import Channel
from partrain.run.runs import read_outcome
from tests.launch.launched import gone, script_of

AGENT = [sys.executable, "-m", "partrain.launch.agent"]


@pytest.mark.parametrize(
    "request_line", [b"", b"\n", b"{}\n", b"no json\n", b'{"stop": "SIGINT"}\n', b"\xff\n"]
)
def test_a_request_that_cannot_be_read_starts_nothing(request_line):
    found = subprocess.run(AGENT, input=request_line, capture_output=True, check=False)
    assert (found.returncode, found.stdout) == (4, b"")
    assert b"the request cannot be read" in found.stderr
    assert b"Traceback" not in found.stderr


def test_an_agent_that_nobody_listens_to_ends_its_ranks(folder, nothing_left):
    with subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(script_of(folder, ["work", "work"]).hosts[0].to_json().encode() + b"\n")
        agent.stdin.flush()
        pids = json.loads(agent.stdout.readline())["pids"]
        agent.stdout.close()  # its input stays open; the first record meets a broken pipe
        assert agent.wait(timeout=10) == 130
    assert gone(list(pids.values()))
    assert read_outcome(folder).state == "interrupted"


def test_a_folder_with_another_plan_is_left_alone(folder):
    folder.plan.write_text('{"name": "another"}')
    request = script_of(folder, ["train"]).hosts[0].to_json().encode() + b"\n"
    with subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        agent.stdin.write(request)
        agent.stdin.flush()
        ended = json.loads(agent.stdout.readline())
        assert agent.wait(timeout=10) == 4
    assert "holds another plan" in ended["outcome"]["message"]
    assert folder.plan.read_text() == '{"name": "another"}'


def events_of(folder, behaviours, order=b"", **limits):
    """What is told of ranks that get an `order` once a step is recorded; a file asks them to stop without."""
    events = []
    with subprocess.Popen(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        agent.stdin.write(script_of(folder, behaviours, **limits).hosts[0].to_json().encode() + b"\n")
        agent.stdin.flush()
        for line in agent.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "recorded" and order:
                agent.stdin.write(order)
                agent.stdin.flush()
            elif events[-1]["event"] == "recorded":
                folder.stop.touch()
        agent.wait(timeout=10)
    return events


def test_ranks_that_are_told_to_stop_save_and_leave(folder, nothing_left):
    found = events_of(folder, ["saver", "saver"], b'{"stop": "SIGTERM"}\n', save_s=8.0)[-1]["outcome"]
    assert (found["state"], found["exit_code"]) == ("interrupted", 143)
    assert found["message"] == "ended by SIGTERM after step 1 of 3; saved"


def test_a_file_stops_a_run_too(folder, nothing_left):
    found = events_of(folder, ["saver", "saver"], save_s=8.0)[-1]["outcome"]
    assert (found["state"], found["exit_code"]) == ("interrupted", 130)
    assert found["message"] == "stopped after step 1 of 3; saved"


def test_ranks_that_do_not_leave_when_told_are_ended(folder, nothing_left):
    found = events_of(folder, ["work", "work"], b'{"stop": "SIGINT"}\n', save_s=1.0)[-1]["outcome"]
    assert (found["state"], found["exit_code"]) == ("interrupted", 130)
    assert found["message"] == "ended by SIGINT after step 1 of 3"


def test_steps_of_earlier_launches_are_not_told_again(folder, nothing_left):
    earlier = {"loss": 2.5, "lr": 1e-3, "grad_norm": 1.0, "step_s": 0.1, "tokens": 1, "tokens_per_s": 1.0}
    earlier |= {"flops": 1.0, "mfu": None, "peak_bytes": 1, "time": 1.0}
    folder.metrics.write_text("".join(json.dumps({"step": step, **earlier}) + "\n" for step in (1, 2, 3)))
    events = events_of(folder, ["idle", "idle"])
    assert [event["event"] for event in events] == ["started", "ended"]
    assert (events[-1]["outcome"]["state"], events[-1]["outcome"]["message"]) == ("done", "all 3 steps")


def test_orders_come_in_whole_lines_and_the_end_is_noticed():
    orders_out, orders_in = os.pipe()
    events_out, events_in = os.pipe()
    channel = Channel(orders=orders_out, events=events_in)
    os.write(orders_in, b"request\none\ntw")
    assert channel.first_line() == b"request"
    assert channel.exchange(0) == (b"one",)
    os.write(orders_in, b"o\n")
    assert channel.exchange(1) == (b"two",)
    channel.send(b"event\n")
    assert os.read(events_out, 100) == b"event\n"
    os.close(orders_in)
    assert channel.exchange(1) == ()
    assert channel.lost
    for descriptor in (orders_out, events_out, events_in):
        os.close(descriptor)
