"""The devices of this machine, by a driver's tool that prints what a real one did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from partrain.errors import SpecError
from partrain.launch.check import check_machine
from partrain.launch.host import num_cores
from partrain.launch.machine import find_machine

H100 = "\n".join(f"{index}, GPU-{index}aaa-11, NVIDIA H100 80GB HBM3, 81559" for index in range(4))


@pytest.fixture
def driver(tmp_path):
    """Puts an nvidia-smi on the path that prints a text and ends with a code."""

    def put(prints: str, code: int = 0, **environ: str) -> dict[str, str]:
        (tmp_path / "printed").write_text(prints + "\n")
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\ncat {tmp_path / 'printed'}\nexit {code}\n")
        tool.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin", **environ}

    return put


def test_gpus_are_counted_and_known_by_name(driver):
    found = find_machine(driver(H100))
    assert (found.device, found.name, found.num_devices) == ("cuda", "h100", 4)
    assert found.memory_bytes == 81559 * 2**20
    assert found.bf16_flops == pytest.approx(989e12, rel=0.01)  # NVIDIA's H100 data sheet, dense


@pytest.mark.parametrize(
    ("visible", "count"),
    [("2,3", 2), (" 0 , 1 ", 2), ("GPU-0aaa-11", 1), ("GPU-0,GPU-1,GPU-2", 3), ("MIG-1b2c,MIG-GPU-1/1/0", 2)],
)
def test_visible_devices_are_counted(driver, visible, count):
    found = find_machine(driver(H100, CUDA_VISIBLE_DEVICES=visible))
    assert (found.device, found.num_devices) == ("cuda", count)


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_no_visible_device_is_a_cpu(driver, visible):
    found = find_machine(driver(H100, CUDA_VISIBLE_DEVICES=visible))
    assert (found.device, found.bf16_flops, found.num_devices) == ("cpu", None, num_cores())
    assert f"CUDA_VISIBLE_DEVICES={visible!r}" in found.origin


@pytest.mark.parametrize("visible", ["0,,1", "0,x", "0,0", "4", "GPU-f", "GPU-", "0 1", "0;1", "-2"])
def test_visible_devices_that_cuda_would_cut_short_are_refused(driver, visible):
    with pytest.raises(SpecError, match="CUDA_VISIBLE_DEVICES") as caught:
        find_machine(driver(H100, CUDA_VISIBLE_DEVICES=visible))
    assert repr(visible) in str(caught.value)


@pytest.mark.parametrize(
    ("prints", "code", "reason"),
    [
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            9,
            "couldn't communicate",
        ),
        ("No devices were found", 0, "No devices were found"),
        ("", 6, "exit code 6"),
        ("", 0, "lists none"),
    ],
)
def test_a_driver_that_fails_leaves_the_cpu_and_the_reason(driver, prints, code, reason):
    found = find_machine(driver(prints, code))
    assert found.device == "cpu"
    assert reason in found.origin


def test_a_gpu_that_nobody_knows_has_no_peak(driver):
    found = find_machine(driver("0, GPU-1, Some Future GPU, [N/A]"))
    assert (found.name, found.memory_bytes, found.bf16_flops) == ("Some Future GPU", None, None)


def test_unlike_gpus_promise_only_what_each_has(driver):
    found = find_machine(driver("0, GPU-1, NVIDIA H100 80GB HBM3, 81559\n1, GPU-2, NVIDIA L4, 23034"))
    assert (found.num_devices, found.memory_bytes, found.bf16_flops) == (2, 23034 * 2**20, None)


def test_the_check_of_this_machine_names_what_is_wrong(driver):
    rows = {row.name: row for row in check_machine(driver(H100, CUDA_VISIBLE_DEVICES="0,,1"))}
    assert rows["Python"].ok
    assert not rows["GPUs"].ok
    assert "'0,,1'" in rows["GPUs"].value
    assert all(row.ok or row.hint for row in rows.values())
    assert str(Path(os.getcwd())) in rows["disk"].value
