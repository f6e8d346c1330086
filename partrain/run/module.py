"""How a module is run by a Python of its own: nothing is imported from the working directory."""

from __future__ import annotations

import sys

# `-m` puts the working directory first; `-c` puts an empty name there, which can be taken away.
RUN_ON_3_10 = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *, python: str = sys.executable) -> tuple[str, ...]:
    """Program and first arguments that run `module`: a torch.py lying about is not taken for torch.

    `python` is of the version that runs this.
    """
    if sys.version_info >= (3, 11):
        return (python, "-P", "-m", module)
    return (python, "-c", RUN_ON_3_10.format(module))
