"""All ranks on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Mapping

from partrain.errors import Fault, LaunchError, SpecError
from partrain.launch.script import HostScript, LaunchScript, RankCommand
from partrain.layout.ranks import coordinate_of
from partrain.plan.plan import Plan
from partrain.run.folder import RunFolder
from partrain.spec.facts import MachineFacts

LOOPBACK = "127.0.0.1"
_IMPORTED = ("torch", "deepspeed", "tensorboard", "numpy")
WORKER = ("-m", "partrain.engine.worker")
OLDEST_DEEPSPEED = (0, 19, 4)

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
)


def local_script(plan: Plan, folder: RunFolder, *, python: str, environ: Mapping[str, str]) -> LaunchScript:
    """Every rank of `plan` on this machine, run by the interpreter `python`.

    A value that the user has set in `environ` is kept, one in the plan's `env` wins over both.
    Raises SpecError for variables that cannot be the user's.
    """
    _check_env(plan.env, environ)
    world_size = plan.layout.world_size
    ranks = tuple(
        RankCommand(
            rank=rank,
            label=rank_label(plan, rank),
            argv=(python, *WORKER, str(folder.plan)),
            env={"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world_size)
    )
    host = HostScript(
        host="localhost",
        folder=str(folder.path),
        plan=plan.to_json(),
        steps=plan.training.steps,
        ranks=ranks,
        env={**_missing(_defaults(plan), environ), **plan.env, **_world(world_size)},
        drop=INHERITED,
        choose_port=True,
    )
    return LaunchScript((host,))


def rank_label(plan: Plan, rank: int) -> str:
    """The place of a rank in words: `dp 0, pp 1, tp 0`."""
    at = coordinate_of(rank, plan.layout)
    return f"dp {at.dp}, pp {at.pp}, tp {at.tp}"


def _world(world_size: int) -> dict[str, str]:
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_SIZE", "LOCAL_WORLD_SIZE"), str(world_size))
    # An address, not a name: a name may resolve to IPv6 first, and to an address that nobody listens on.
    # PYTHONSAFEPATH: a torch.py in the working directory is not torch.
    return {**sizes, "MASTER_ADDR": LOOPBACK, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def _defaults(plan: Plan) -> dict[str, str]:
    """What ranks get unless the user has set it."""
    every = {"TOKENIZERS_PARALLELISM": "false", "PYTHONFAULTHANDLER": "1"}
    if plan.machine.device != "cpu":
        return {**every, "OMP_NUM_THREADS": "1"}  # the work is on the GPU; torchrun's default too
    threads = max(1, plan.machine.num_devices // plan.layout.world_size)
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return {**every, **loopback, "OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": "cpu"}


def _missing(defaults: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    # An accelerator set by hand would contradict the plan's device; the others are the user's to choose.
    return {
        name: value for name, value in defaults.items() if name == "DS_ACCELERATOR" or name not in environ
    }


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

    Raises LaunchError: a package of the `train` extra is missing or too old, there are too few GPUs.
    """
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
