"""Models, devices and machines by name, from the files in `catalog/`; each number has its source there."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from partrain.spec.facts import MachineFacts
from partrain.spec.hardware import NodeSection

_FOLDER = Path(__file__).with_suffix("")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COUNT_OF_DEVICES = re.compile(r"([1-9][0-9]{0,3})x(.+)")
_MAKERS = ("nvidia ", "tesla ")


class UnknownName(ValueError):
    """No such name; `known` are the names there are, `nearest` the ones spelled most alike."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.known = tuple(known)
        self.nearest = tuple(difflib.get_close_matches(name.lower(), self.known, n=3, cutoff=0.5))
        super().__init__(f"no {kind} is called {name!r}")


@dataclass(frozen=True)
class ModelPreset:
    """A named model: values for fields of the `model` section."""

    name: str
    fields: Mapping[str, Any]
    parameters: int
    """Parameters of the published weights, each counted once."""
    source: str


@dataclass(frozen=True)
class Device:
    """A named accelerator; None: not known."""

    name: str
    memory_bytes: int | None
    """What the driver reports as usable."""
    bf16_flops: float | None
    """Dense bf16 peak in FLOP/s."""
    fp32_flops: float | None
    """fp32 peak (not TF32) in FLOP/s."""


def model_names() -> tuple[str, ...]:
    """Names of the models, in the catalogue's order."""
    return tuple(_entries("models"))


def model_preset(name: str) -> ModelPreset:
    """The named model.

    Raises UnknownName.
    """
    fields = dict(_entry("models", "model", name))
    return ModelPreset(name, parameters=fields.pop("parameters"), source=fields.pop("source"), fields=fields)


def device(name: str) -> Device:
    """The named accelerator.

    Raises UnknownName.
    """
    entry = _entry("devices", "device", name)
    return Device(
        name=name,
        memory_bytes=_scaled(entry.get("memory_gib"), 2**30, int),
        bf16_flops=_scaled(entry.get("bf16_tflops"), 1e12, float),
        fp32_flops=_scaled(entry.get("fp32_tflops"), 1e12, float),
    )


def device_from_driver(name: str) -> Device | None:
    """The accelerator that the driver calls `name`; None: not in the catalogue.

    A part of a device (MIG) has a name of its own and is not found.

    >>> found = device_from_driver("NVIDIA H100 80GB HBM3")
    >>> found and found.name
    'h100'
    """
    wanted = name.lower()
    for maker in _MAKERS:
        wanted = wanted.removeprefix(maker)
    for known, entry in _entries("devices").items():
        if wanted in (driver.lower() for driver in entry.get("driver", ())):
            return device(known)
    return None


def node(text: str) -> MachineFacts:
    """The machine that `hardware.node` names: `8xa100-80g`, `dgx-h100`, or `cpu` (this machine's cores).

    Raises UnknownName.

    >>> node("8xa100-80g").num_devices, node("dgx-h100").name
    (8, 'h100')
    """
    if text == "cpu":
        return _cpu()
    nodes = _entries("nodes")
    if text in nodes:
        return _of_devices(device(nodes[text]["device"]), nodes[text]["num_devices"])
    counted = _COUNT_OF_DEVICES.fullmatch(text)
    if counted and counted[2] in _entries("devices"):
        return _of_devices(device(counted[2]), int(counted[1]))
    count = counted[1] if counted else "8"
    raise UnknownName("machine", text, ("cpu", *nodes, *(f"{count}x{name}" for name in _entries("devices"))))


def given_node(given: NodeSection) -> MachineFacts:
    """The machine whose numbers a job gives."""
    return MachineFacts(
        device="cuda",
        name=given.name,
        num_devices=given.num_devices,
        memory_bytes=int(given.memory_gib * 2**30),
        bf16_flops=_scaled(given.bf16_tflops, 1e12, float),
        fp32_flops=_scaled(given.fp32_tflops, 1e12, float),
        origin="numbers of the job",
    )


def _cpu() -> MachineFacts:
    return MachineFacts(
        device="cpu",
        name="cpu",
        num_devices=os.cpu_count() or 1,
        memory_bytes=None,
        bf16_flops=None,
        fp32_flops=None,
        origin="this machine's cores",
    )


def _of_devices(kind: Device, num_devices: int) -> MachineFacts:
    return MachineFacts(
        device="cuda",
        name=kind.name,
        num_devices=num_devices,
        memory_bytes=kind.memory_bytes,
        bf16_flops=kind.bf16_flops,
        fp32_flops=kind.fp32_flops,
        origin=f"catalogue: {kind.name}",
    )


def _scaled(value: float | None, unit: float, kind: type) -> Any:
    return None if value is None else kind(value * unit)


def _entry(file: str, kind: str, name: str) -> Mapping[str, Any]:
    entries = _entries(file)
    if name not in entries:
        raise UnknownName(kind, name, entries)
    return entries[name]


@cache
def _entries(file: str) -> Mapping[str, Mapping[str, Any]]:
    with (_FOLDER / f"{file}.yaml").open(encoding="utf-8") as text:
        entries: dict[str, dict[str, Any]] = yaml.load(text, _Loader)
    return entries
