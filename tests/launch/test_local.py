"""The script of a launch on this machine, as a value."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from partrain.errors import LaunchError, SpecError
from partrain.launch.agent import rank_environment
from partrain.launch.local import (
    check_ready,
    check_room,
    is_as_planned,
    local_script,
    package_version,
    torch_has_cuda,
)
from partrain.launch.machine import parse_gpus
from partrain.launch.script import HostScript
from partrain.run.folder import RunFolder
from partrain.run.module import module_command
from partrain.spec.catalog import device_from_driver, node
from partrain.spec.checkpoint import CheckpointSection
from partrain.spec.facts import MachineFacts
from tests.run.plans import a_plan, machine

FOLDER = RunFolder(Path("/runs/my demo"))


def script(environ=None, **changed):
    return local_script(a_plan(**changed), FOLDER, python="/usr/bin/python3", environ=environ or {}).hosts[0]


def test_every_rank_runs_the_worker_on_the_runs_plan():
    ranks = script().ranks
    module = module_command("partrain.engine.worker", python="/usr/bin/python3")
    worker = (*module, "/runs/my demo/plan.json")
    assert [rank.argv for rank in ranks] == [worker] * 4
    assert [rank.env for rank in ranks] == [{"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(4)]
    assert [rank.label for rank in ranks] == [f"dp 0, pp {p}, tp {t}" for p in (0, 1) for t in (0, 1)]


def test_the_script_travels_as_one_line():
    sent = script().to_json()
    assert "\n" not in sent
    assert HostScript.from_json(sent) == script()


@pytest.mark.parametrize(
    "sent", ["", "{}", "[]", "{", '{"ranks": 3}', json.dumps({**json.loads(script().to_json()), "x": 1})]
)
def test_what_is_no_script_is_refused(sent):
    with pytest.raises((ValueError, KeyError, TypeError)):
        HostScript.from_json(sent)


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback interface is called lo on Linux")
def test_ranks_on_a_cpu_share_its_cores_and_talk_over_loopback():
    env = script().env
    assert env["OMP_NUM_THREADS"] == "2"  # 8 cores, 4 ranks
    assert (env["DS_ACCELERATOR"], env["GLOO_SOCKET_IFNAME"], env["MASTER_ADDR"]) == (
        "cpu",
        "lo",
        "127.0.0.1",
    )
    assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == env["LOCAL_SIZE"] == "4"


def test_ranks_on_gpus_choose_nothing_for_the_user():
    env = script(device="cuda").env
    assert not {"GLOO_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES"} & env.keys()


@pytest.mark.parametrize(("device", "other"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_an_accelerator_set_by_hand_does_not_contradict_the_plan(device, other):
    mine = {"DS_ACCELERATOR": other}
    assert rank_environment(script(mine, device=device), mine, port=None)["DS_ACCELERATOR"] == device
    with pytest.raises(SpecError, match=r"launch\.env\.DS_ACCELERATOR"):
        script(device=device, env=mine)


def test_a_plan_for_several_machines_is_not_started_on_one():
    with pytest.raises(LaunchError, match=r"the plan is for 2 machines; .* planned, not in this version"):
        script(nodes=2)


def test_what_the_user_has_set_is_kept_and_the_plan_wins():
    mine = {"OMP_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}
    assert not mine.keys() & script(mine).env.keys()
    assert script(mine, env={"OMP_NUM_THREADS": "5"}).env["OMP_NUM_THREADS"] == "5"


def test_the_words_of_other_launchers_do_not_reach_the_ranks():
    theirs = {
        "RANK": "7",
        "WORLD_SIZE": "99",
        "SLURM_PROCID": "7",
        "OMPI_COMM_WORLD_RANK": "7",
        "HOME": "/root",
    }
    env = rank_environment(script(), theirs, port=29500)
    assert (env["WORLD_SIZE"], env["MASTER_PORT"], env["HOME"]) == ("4", "29500", "/root")
    assert not {"SLURM_PROCID", "OMPI_COMM_WORLD_RANK"} & env.keys()


def test_a_value_reaches_the_ranks_byte_for_byte():
    value = 'a"b$HOME`id` %h * \n é'
    sent = HostScript.from_json(script(env={"TOKEN": value}).to_json())
    assert rank_environment(sent, {}, port=None)["TOKEN"] == value


def test_what_tells_ranks_apart_is_not_the_users_to_set():
    with pytest.raises(SpecError) as caught:
        script(env={"RANK": "0", "MASTER_PORT": "1"})
    assert [fault.path for fault in caught.value.faults] == ["launch.env.RANK", "launch.env.MASTER_PORT"]


def test_gloo_is_not_given_a_list_of_exceptions():
    with pytest.raises(SpecError, match=r"\^lo,docker"):
        script({"GLOO_SOCKET_IFNAME": "^lo,docker"})


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("torch", "deepspeed") else name
    )
    with pytest.raises(LaunchError) as caught:
        check_ready(a_plan(), machine())
    assert (
        str(caught.value) == "torch and deepspeed are not installed\n      fix: pip install 'partrain[train]'"
    )
    assert caught.value.exit_code == 4


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None or importlib.util.find_spec("bitsandbytes") is not None,
    reason="asks about an extra when the other packages are there and it is not",
)
def test_a_missing_package_of_an_optimizer_names_its_extra():
    plan = a_plan(device="cuda")
    wish = replace(plan.training.optimizer, name="adamw8bit")
    with pytest.raises(LaunchError) as caught:
        check_ready(replace(plan, training=replace(plan.training, optimizer=wish)), machine("cuda"))
    assert str(caught.value) == (
        "bitsandbytes is not installed, which the optimizer adamw8bit needs\n"
        "      fix: pip install 'partrain[train,8bit]'"
    )


@pytest.mark.skipif(
    package_version("deepspeed") is None, reason="asks about a compiler only when the packages are there"
)
@pytest.mark.parametrize(("device", "names"), [("cpu", "g++ or clang++"), ("cuda", "gcc or clang")])
def test_blocks_are_not_compiled_without_a_compiler(tmp_path, monkeypatch, device, names):
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    plan = a_plan(device=device)
    compiling = replace(plan, training=replace(plan.training, compile=True))
    with pytest.raises(LaunchError) as caught:
        check_ready(compiling, machine(device))
    assert str(caught.value) == (
        f"there is no C compiler ({names}), which training.compile needs\n"
        "      fix: install gcc, or training: {compile: false}"
    )
    if device == "cpu":  # on GPUs more is asked for
        check_ready(plan, machine())
        check_ready(replace(compiling, env={"CXX": "/opt/c++"}), machine())


@pytest.mark.skipif(
    package_version("deepspeed") is None, reason="asks about GPUs only when the packages are there"
)
def test_a_disk_without_room_for_a_checkpoint_is_refused(tmp_path):
    few, many = a_plan(), a_plan(parameters=10**18)  # 12 bytes each
    check_room(few, tmp_path / "not" / "there" / "yet")
    with pytest.raises(LaunchError, match=r"a checkpoint takes 10658\.1 PiB"):
        check_room(many, tmp_path)
    check_room(replace(many, checkpoint=CheckpointSection(every="none")), tmp_path)


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(LaunchError, match=r"dp 1 x pp 2 x tp 2 = 4 ranks, this machine 3 GPUs \(a test\)"):
        check_ready(a_plan(device="cuda"), machine("cuda", 3))
    with pytest.raises(LaunchError, match="this machine 0 GPUs"):
        check_ready(a_plan(device="cuda"), machine("cpu", 64))


def seen(line: str) -> MachineFacts:
    """Eight GPUs as the driver tells of one."""
    ((gpu,), _) = parse_gpus(f"0, GPU-1, {line}")
    known = device_from_driver(gpu.name)
    peak = known.bf16_flops if known else None
    found = replace(machine("cuda"), name=known.name if known else gpu.name, bf16_flops=peak)
    return replace(found, memory_bytes=gpu.memory_bytes)


@pytest.mark.parametrize(
    ("planned", "driver", "fits"),
    [
        ("8xh100", "NVIDIA H100 80GB HBM3, 81559", True),
        ("8xh100", "NVIDIA L4, 23034", False),
        ("8xh100", "NVIDIA H100 PCIe, 81559", False),  # known by that name, and slower
        ("8xh100", "NVIDIA H200, 143771", False),
        ("8xh100", "NVIDIA H100 SXM5 80GB, 81559", True),  # a name that the catalogue does not have
        ("8xh100", "NVIDIA H100 80GB HBM3, 40000", False),  # part of its memory
        ("8xa100-80g", "NVIDIA A100-SXM-80GB, 81251", True),
        ("8xa100-80g", "NVIDIA A100-SXM-40GB, 40537", False),
        ("8xh800", "NVIDIA H800, 81559", True),
        ("8xl4", "NVIDIA L40, 46068", False),
        ("8xh100", "Some Future GPU, [N/A]", False),
    ],
)
def test_a_plan_is_for_the_devices_that_it_names(planned, driver, fits):
    assert is_as_planned(node(planned), seen(driver)) == fits


def test_a_plan_made_for_this_machine_fits_it_whatever_it_has():
    for line in ("NVIDIA L4, 23034", "Some Future GPU, [N/A]"):
        assert is_as_planned(seen(line), seen(line))


@pytest.mark.skipif(
    package_version("deepspeed") is None, reason="asks about GPUs only when the packages are there"
)
def test_a_plan_for_other_devices_is_refused_with_both_names():
    plan = a_plan(device="cuda", machine=node("8xh100"))
    with pytest.raises(LaunchError) as caught:
        check_ready(plan, seen("NVIDIA L4, 23034"))
    said = "the plan is for h100 with 79.1 GiB (catalogue: h100), this machine has l4 with 22.5 GiB (a test)"
    assert said in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("version", "has_cuda"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", True),
        ("cuda = None\nhip = '6.4'\n", False),
        ("git_version = 'x'\n", True),
    ],
)
def test_torch_says_what_it_is_built_for_without_being_imported(tmp_path, monkeypatch, version, has_cuda):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(version)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert torch_has_cuda() == has_cuda
