"""Nothing in the working directory is taken for a module of partrain's or of its surroundings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from partrain.run.module import RUN_ON_3_10, module_command

ON_3_10 = (sys.executable, "-c", RUN_ON_3_10.format("json.tool"))


@pytest.mark.parametrize("command", [module_command("json.tool"), ON_3_10], ids=["this version", "3.10"])
def test_a_module_of_the_working_directory_is_not_run(tmp_path, command):
    for name in ("json", "runpy", "typing", "argparse", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working directory')")
    unsafe = ("PYTHONSAFEPATH", "PYTHONPATH")
    environ = {name: value for name, value in os.environ.items() if name not in unsafe}
    found = subprocess.run(
        (*command, "--indent", "1"),
        cwd=tmp_path,
        env=environ,
        input=b'{"a": 1}',
        capture_output=True,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, b'{\n "a": 1\n}\n', b"")
