"""The devices of this machine, found without torch: by the driver's tool, or from the kernel's files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from partrain.errors import Fault, SpecError
from partrain.launch.host import memory_bytes, num_cores
from partrain.spec.catalog import device_from_driver
from partrain.spec.facts import MachineFacts

_QUERY = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
_QUERY_LIMIT_S = 10
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NO_DEVICES = ("", "-1", "NoDevFiles")  # what people and Slurm write for none
_TOKEN = re.compile(r"[0-9]+|GPU-[0-9a-fA-F-]+|MIG-[0-9a-zA-Z/-]+")


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it."""

    index: int
    uuid: str
    name: str
    memory_bytes: int | None
    """None: the driver does not say (memory shared with the CPU)."""


def find_machine(environ: Mapping[str, str], *, cpu: bool = False) -> MachineFacts:
    """The devices that ranks started here with this environment would see: GPUs, else the CPU.

    With `cpu` it is the CPU, whatever GPUs there are.
    Raises SpecError if CUDA_VISIBLE_DEVICES cannot be understood.
    """
    if cpu:
        return _cpu("as the job asks")
    gpus, reason = list_gpus(environ)
    tokens = visible_tokens(environ)
    if tokens == ():
        return _cpu(f"no GPU: {_VISIBLE}={environ[_VISIBLE]!r}")
    if not gpus:
        return _cpu(f"no GPU: {reason}")
    return _gpu_machine(gpus, tokens)


def list_gpus(environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str]:
    """All GPUs of this machine, hidden ones too, and why there are none if so."""
    tool = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if tool is None:
        return (), "nvidia-smi is not there"
    try:
        found = subprocess.run(
            (os.path.abspath(tool), *_QUERY),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_QUERY_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (), f"nvidia-smi did not answer within {_QUERY_LIMIT_S} s"
    except OSError as error:
        return (), f"nvidia-smi cannot be run: {error}"
    said = (found.stdout.strip() or found.stderr.strip()).splitlines()
    if found.returncode:
        return (), f"nvidia-smi said: {said[-1] if said else f'exit code {found.returncode}'}"
    return parse_gpus(found.stdout)


def parse_gpus(text: str) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs in what nvidia-smi printed, and why there are none if so.

    >>> parse_gpus("0, GPU-1a2b, NVIDIA H200, 143771\\n")[0][0].memory_bytes // 2**20
    143771
    """
    gpus = []
    for line in filter(None, map(str.strip, text.splitlines())):
        words = [word.strip() for word in line.split(",")]
        if len(words) != 4 or not words[0].isdigit():
            return (), f"nvidia-smi said: {line}"
        mebibytes = int(words[3]) if words[3].isdigit() else None
        gpus.append(Gpu(int(words[0]), words[1], words[2], mebibytes * 2**20 if mebibytes else None))
    return tuple(gpus), "" if gpus else "nvidia-smi lists none"


def visible_tokens(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """What CUDA_VISIBLE_DEVICES names; None: it is not set, all are visible.

    Raises SpecError for anything that CUDA would cut short without a word.

    >>> visible_tokens({"CUDA_VISIBLE_DEVICES": "2,3"}), visible_tokens({"CUDA_VISIBLE_DEVICES": ""})
    (('2', '3'), ())
    """
    value = environ.get(_VISIBLE)
    if value is None or value.strip() in _NO_DEVICES:
        return None if value is None else ()
    tokens = tuple(token.strip() for token in value.split(","))
    wrong = [token for token in tokens if not _TOKEN.fullmatch(token)]
    if wrong:
        raise _fault(value, f"{wrong[0]!r} is no device")
    if len(set(tokens)) < len(tokens):
        raise _fault(value, "a device is named twice")
    return tokens


def _gpu_machine(gpus: Sequence[Gpu], tokens: tuple[str, ...] | None) -> MachineFacts:
    origin = "nvidia-smi" if tokens is None else f"nvidia-smi, {_VISIBLE}={','.join(tokens)}"
    if tokens and any(token.startswith("MIG-") for token in tokens):
        # A slice of a GPU: nvidia-smi's list has the whole GPU's memory, and no peak is published for slices.
        return MachineFacts(
            device="cuda",
            name="MIG",
            num_devices=len(tokens),
            memory_bytes=None,
            bf16_flops=None,
            fp32_flops=None,
            origin=origin,
        )
    seen = gpus if tokens is None else [_gpu_called(token, gpus, tokens) for token in tokens]
    names = {gpu.name for gpu in seen}
    device = device_from_driver(seen[0].name) if len(names) == 1 else None
    sizes = [gpu.memory_bytes for gpu in seen if gpu.memory_bytes is not None]
    return MachineFacts(
        device="cuda",
        name=device.name if device else " and ".join(sorted(names)),
        num_devices=len(seen),
        memory_bytes=min(sizes) if len(sizes) == len(seen) else None,
        bf16_flops=device.bf16_flops if device else None,
        fp32_flops=device.fp32_flops if device else None,
        origin=origin,
    )


def _gpu_called(token: str, gpus: Sequence[Gpu], tokens: tuple[str, ...]) -> Gpu:
    """The GPU with that index, or the one whose UUID begins so."""
    if token.isdigit():
        found = [gpu for gpu in gpus if gpu.index == int(token)]
    else:
        found = [gpu for gpu in gpus if gpu.uuid.lower().startswith(token.lower())]
    if len(found) != 1:
        there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
        raise _fault(",".join(tokens), f"{token!r} names {len(found)} GPUs of this machine", allowed=there)
    return found[0]


def _fault(value: str, message: str, *, allowed: str = "indices or UUIDs, separated by commas") -> SpecError:
    fix = f"set {_VISIBLE} to devices of this machine, or unset it"
    return SpecError([Fault(_VISIBLE, f"{value!r}: {message}", allowed=allowed, fix=fix)])


def _cpu(reason: str) -> MachineFacts:
    return MachineFacts(
        device="cpu",
        name=_cpu_name(),
        num_devices=num_cores(),
        memory_bytes=memory_bytes(),
        bf16_flops=None,
        fp32_flops=None,
        origin=f"this machine ({reason})",
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, os.uname().machine)
