"""TensorBoard on a run: a process on loopback, waited for until it answers, ended with the command."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from partrain.errors import RunError
from partrain.run.lifeline import dying_with
from partrain.run.module import module_command

LOOPBACK = "127.0.0.1"
_MOST_POINTS = 1_000_000
_PORTS_TRIED = 100
_ANSWER_S = 60.0
_POLL_S = 0.2
_GRACE_S = 5.0


def free_port(wanted: int) -> int:
    """`wanted`, or the next port on loopback that nobody listens on.

    Raises RunError when the next hundred are all taken.
    """
    for port in range(wanted, min(wanted + _PORTS_TRIED, 65536)):
        with socket.socket() as probe:
            # As servers do: a port that is merely cooling down after its last server can be had.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise RunError(f"the ports {wanted} to {wanted + _PORTS_TRIED - 1} are taken", hint="another --port")


def start_board(folder: Path, *, port: int, log: Path) -> subprocess.Popen[bytes]:
    """TensorBoard on the event files in `folder`; what it prints goes to the file `log`.

    Raises RunError when it is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise RunError("tensorboard is not installed", hint="pip install 'partrain[train]'")
    # The default would thin out a run of more than a thousand steps; 0, which should mean all, shows none
    # with TensorBoard's own data server.
    options = (
        "--logdir",
        str(folder),
        "--host",
        LOOPBACK,
        "--port",
        str(port),
        "--samples_per_plugin",
        f"scalars={_MOST_POINTS}",
    )
    with log.open("wb") as output:
        return subprocess.Popen(
            (*module_command("tensorboard.main"), *options),
            env={**os.environ, "PYTHONSAFEPATH": "1"},  # for what the board itself starts
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C at the terminal reaches the command alone, which ends the board
            preexec_fn=dying_with(os.getpid()),  # safe: a command has one thread
        )


def wait_for_answer(
    process: subprocess.Popen[bytes], *, port: int, log: Path, patience_s: float = _ANSWER_S
) -> str:
    """The address at which the started board answers.

    Raises RunError, with the end of its log, when it ends before or stays silent for `patience_s`.
    """
    address = f"http://{LOOPBACK}:{port}/"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy knows no loopback of ours
    deadline = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < deadline:
        try:
            direct.open(address, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)
        else:
            return address
    said = log.read_text(errors="replace").strip().splitlines()[-5:]
    how = "did not answer" if process.poll() is None else f"ended with exit code {process.returncode}"
    raise RunError("\n".join([f"TensorBoard {how}", *said]))


def end_board(process: subprocess.Popen[bytes]) -> None:
    """End the board and what it started, and wait for it."""
    _signal_group(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone; macOS says EPERM of a group of zombies
        os.killpg(group, number)


def tunnel(port: int, environ: Mapping[str, str]) -> str | None:
    """What to type on the own machine to see `port` of this one; None: nobody is here over ssh.

    >>> tunnel(6006, {"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.2 22", "USER": "ada"})
    'ssh -L 6006:127.0.0.1:6006 ada@10.0.0.2'
    """
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    _, _, address, ssh_port = words
    user = environ.get("USER") or environ.get("LOGNAME") or str(os.getuid())
    option = "" if ssh_port == "22" else f" -p {ssh_port}"
    return f"ssh -L {port}:{LOOPBACK}:{port}{option} {user}@{address}"
