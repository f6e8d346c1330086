"""All ranks on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from partrain.checkpoint.size import expected_bytes, exported_bytes, shortage
from partrain.errors import Fault, LaunchError, SpecError
from partrain.launch.script import HostScript, LaunchScript, Limits, RankCommand
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder
from partrain.run.module import module_command
from partrain.spec.facts import MachineFacts
from partrain.spec.optimizers import OPTIMIZERS
from partrain.units import format_bytes

SAVE_S = 600.0
"""Longest wait for a run that was told to stop; who does not want to wait says it twice."""
LOOPBACK = "127.0.0.1"
_IMPORTED = ("torch", "deepspeed", "tensorboard", "numpy")
_WORKER = "partrain.engine.worker"
OLDEST_DEEPSPEED = (0, 19, 4)
CUDA_HINT = "pip install --force-reinstall torch"
COMPILERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cuda": ("CC", ("gcc", "clang")),
    "cpu": ("CXX", ("g++", "clang++")),
}
"""Device -> the variable that names a compiler, and the names that triton (runtime/build.py) or torch
(_inductor/config.py) look for where it is not set."""

# What Slurm, Open MPI, PMIx and torchrun say is about the world that they started, not about this one.
INHERITED = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "PMI2_", "MPI_", "TORCHELASTIC_", "GROUP_", "ROLE_")

_IDENTITY = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "DS_ACCELERATOR",
)


def local_script(plan: Plan, folder: RunFolder, *, python: str, environ: Mapping[str, str]) -> LaunchScript:
    """Every rank of `plan` on this machine, run by the interpreter `python`.

    A value that the user has set in `environ` is kept, one in the plan's `env` wins over both.
    Raises SpecError for variables that cannot be the user's, LaunchError for a plan on several machines.
    """
    if plan.nodes > 1:
        raise LaunchError(
            f"the plan is for {plan.nodes} machines; launching on several is planned, not in this version",
            hint="hardware: {nodes: 1}",
        )
    _check_env(plan.env, environ)
    world_size = plan.layout.world_size
    ranks = tuple(
        RankCommand(
            rank=rank,
            label=rank_label(plan, rank),
            argv=(*module_command(_WORKER, python=python), str(folder.plan)),
            env={"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world_size)
    )
    host = HostScript(
        host="localhost",
        folder=str(folder.path),
        plan=plan.to_json(),
        steps=plan.training.steps,
        evaluates=plan.evaluation is not None,
        ranks=ranks,
        env={**_missing(_defaults(plan), environ), **plan.env, **_world(plan)},
        drop=INHERITED,
        choose_port=True,
        limits=Limits(save_s=SAVE_S if plan.checkpoint.every != "none" else 0.0),
    )
    return LaunchScript((host,))


def rank_label(plan: Plan, rank: int) -> str:
    """The place of a rank in words: `dp 0, pp 1, tp 0`."""
    return str(coordinate_of(rank, plan.layout))


def _world(plan: Plan) -> dict[str, str]:
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_SIZE", "LOCAL_WORLD_SIZE"), str(plan.layout.world_size))
    return {
        **sizes,
        # An address, not a name: a name may resolve to IPv6 first, and to an address that nobody listens on.
        "MASTER_ADDR": LOOPBACK,
        "DS_ACCELERATOR": plan.machine.device,
        "PYTHONSAFEPATH": "1",  # for what the ranks themselves start
        "PYTHONUNBUFFERED": "1",
    }


def _defaults(plan: Plan) -> dict[str, str]:
    """What ranks get unless the user has set it."""
    every = {"TOKENIZERS_PARALLELISM": "false", "PYTHONFAULTHANDLER": "1"}
    if plan.machine.device != "cpu":
        return {**every, "OMP_NUM_THREADS": "1"}  # the work is on the GPU; torchrun's default too
    threads = max(1, plan.machine.num_devices // plan.layout.world_size)
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return {**every, **loopback, "OMP_NUM_THREADS": str(threads)}


def _missing(defaults: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in defaults.items() if name not in environ}


def _check_env(env: Mapping[str, str], environ: Mapping[str, str]) -> None:
    faults = [
        Fault(f"launch.env.{name}", f"{name} is set by partrain for each rank", fix="leave it out")
        for name in _IDENTITY
        if name in env
    ]
    interface = env.get("GLOO_SOCKET_IFNAME", environ.get("GLOO_SOCKET_IFNAME", ""))
    if interface.startswith("^"):
        message = f"GLOO_SOCKET_IFNAME={interface}: gloo takes names of interfaces, no list of exceptions"
        faults.append(Fault("launch.env.GLOO_SOCKET_IFNAME", message, fix="name one interface, or unset it"))
    if faults:
        raise SpecError(faults)


def check_ready(plan: Plan, machine: MachineFacts) -> None:
    """Refuse a launch that cannot work on this `machine`, before anything is created or started.

    Raises LaunchError: a package of the `train` extra is missing or too old, or one of another extra that the
    plan needs is missing, blocks are to be compiled without a compiler, there are too few GPUs, or they are
    others than the plan's.
    """
    check_packages()
    _check_optimizer(plan)
    _check_compiler(plan)
    if plan.machine.device != "cuda":
        return
    num_gpus = machine.num_devices if machine.device == "cuda" else 0
    if plan.layout.world_size > num_gpus:
        at = plan.layout
        degrees = f"dp {at.dp} x pp {at.pp} x tp {at.tp} = {at.world_size} ranks"
        raise LaunchError(
            f"the plan has {degrees}, this machine {num_gpus} GPUs ({machine.origin})",
            hint=f"give degrees whose product is at most {num_gpus}" if num_gpus else "hardware: {node: cpu}",
        )
    if not is_as_planned(plan.machine, machine):
        raise LaunchError(
            f"the plan is for {_device_words(plan.machine)}, this machine has {_device_words(machine)}",
            hint="plan the job for this machine: leave hardware.node out",
        )
    if not torch_has_cuda():
        raise LaunchError("the installed torch is built without CUDA", hint=CUDA_HINT)


def check_room(plan: Plan, runs_folder: Path) -> None:
    """Raise LaunchError where the disk that keeps the runs has no room for a checkpoint and its export."""
    if plan.checkpoint.every == "none":
        return
    export = exported_bytes(plan)
    what = "a checkpoint and its export take" if export else "a checkpoint takes"
    lacking = shortage(runs_folder, expected_bytes(plan) + export, what)
    if lacking:
        raise LaunchError(lacking, hint="run: {dir: ...} on a larger disk, or checkpoint: {every: none}")


def check_packages() -> None:
    """Raise LaunchError where a package of the `train` extra is missing or too old."""
    missing = [name for name in _IMPORTED if importlib.util.find_spec(name) is None]
    if missing:
        are = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        raise LaunchError(are, hint="pip install 'partrain[train]'")
    found = package_version("deepspeed")
    if version_numbers(found or "") < OLDEST_DEEPSPEED:
        oldest = ".".join(map(str, OLDEST_DEEPSPEED))
        raise LaunchError(
            f"deepspeed {found} is installed, {oldest} or later is needed", hint="pip install -U deepspeed"
        )


def _check_optimizer(plan: Plan) -> None:
    needs = OPTIMIZERS[plan.training.optimizer.name].needs
    if needs and importlib.util.find_spec(needs[0]) is None:
        package, extra = needs
        raise LaunchError(
            f"{package} is not installed, which the optimizer {plan.training.optimizer.name} needs",
            hint=f"pip install 'partrain[train,{extra}]'",
        )


def _check_compiler(plan: Plan) -> None:
    variable, names = COMPILERS[plan.machine.device]
    named = {**os.environ, **plan.env}.get(variable)
    if not plan.training.compile or named or any(shutil.which(name) for name in names):
        return
    raise LaunchError(
        f"there is no C compiler ({' or '.join(names)}), which training.compile needs",
        hint="install gcc, or training: {compile: false}",
    )


def is_as_planned(planned: MachineFacts, found: MachineFacts) -> bool:
    """Whether the devices `found` may be those of the plan, with no less memory.

    A device that the catalogue does not know has the driver's name, which must have the words of the planned
    one: `NVIDIA H100 SXM5 80GB` may be an h100, an L40 is no l4.
    """
    words = planned.name.lower().split("-")
    is_alike = all(re.search(rf"\b{re.escape(word)}b?\b", found.name.lower()) for word in words)
    may_be = planned.name == found.name or (found.bf16_flops is None and is_alike)
    return may_be and (found.memory_bytes or math.inf) >= (planned.memory_bytes or 0)


def _device_words(machine: MachineFacts) -> str:
    memory = f" with {format_bytes(machine.memory_bytes)}" if machine.memory_bytes else ""
    return f"{machine.name}{memory} ({machine.origin})"


def torch_has_cuda() -> bool:
    """Whether the installed torch is built for CUDA, without importing it; True where it does not say."""
    found = importlib.util.find_spec("torch")
    try:
        text = Path(found.origin).with_name("version.py").read_text() if found and found.origin else ""
    except OSError:
        text = ""
    return re.search(r"^cuda\b.*= *None *$", text, re.MULTILINE) is None


def package_version(name: str) -> str | None:
    """Version of an installed package, without importing it; None: not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> version_numbers("0.19.8+cpu"), version_numbers("2.13.0rc1")
    ((0, 19, 8), (2, 13, 0))
    """
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in leading[0].split(".")) if leading else ()
