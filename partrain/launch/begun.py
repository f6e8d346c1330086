"""A run that goes on from a checkpoint no longer needs the folder it started from: its plan has the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from partrain.checkpoint.shelf import newest_whole
from partrain.plan.plan import Plan
from partrain.run.relaunch import latest_run_of
from partrain.spec.model import ModelSpec
from partrain.spec.resolve import CONFIG_ORIGIN
from partrain.spec.values import plain


def begun_with(runs_folder: Path, name: str, folder: str) -> Mapping[str, Any] | None:
    """What the config in `folder` stated when the newest run of the job called `name` was begun.

    None where that run started from elsewhere, or has no whole checkpoint to go on from.
    """
    info = latest_run_of(runs_folder, name)
    if info is None or newest_whole(info.folder.checkpoints)[0] is None:
        return None
    try:
        plan = Plan.from_json(info.folder.plan.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if plan.weights != os.path.abspath(folder):
        return None
    values = plain(plan.model)
    return {field.name: values[field.name] for field in fields(ModelSpec) if _is_stated(field.name, plan)}


def _is_stated(name: str, plan: Plan) -> bool:
    """Whether a field of the plan's model came from its config."""
    path = f"model.{name}"
    return any(
        origin.startswith(CONFIG_ORIGIN) and (key == path or key.startswith(f"{path}."))
        for key, origin in plan.origins.items()
    )
