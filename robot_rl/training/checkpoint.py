"""Checkpoints: directories with the full state of a run, from which it is resumed.

A state is a tree (`robot_rl/files/state_tree.py`). Tensors and arrays are stored in `state.safetensors` under
their path in the tree, everything else in `state.json`. Nothing is pickled. The directory for step 12000,
`checkpoints/00012000/`, appears by rename, so it is complete. Each training loop says what its state holds;
that of off-policy methods is in `Updater.save` (`robot_rl/training/updater.py`).
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from robot_rl.files.durable import atomic_directory
from robot_rl.files.state_tree import DAMAGES, join, split
from robot_rl.runs import list_checkpoints

FORMAT_VERSION = 1
KEEP = 2


def save_checkpoint(
    directory: Path,
    step: int,
    state: dict[str, Any],
    extra: Callable[[Path], None] | None = None,
    *,
    replace: bool = False,
) -> Path:
    """Write a checkpoint of `step`, and delete all but the newest `KEEP`.

    An existing checkpoint of that step is kept, unless it is to be replaced.
    `extra` writes further files into the directory before it appears.
    """
    final = directory / f"{step:08d}"
    if final.exists() and not replace:
        return final
    for leftover in directory.glob(".*-[0-9]*"):
        shutil.rmtree(leftover)
    with atomic_directory(final) as building:
        arrays: dict[str, np.ndarray] = {}
        tree = split(state, "", arrays)
        # safetensors' own writer hides the OSError, for example of a full disk.
        (building / "state.safetensors").write_bytes(save(arrays))
        (building / "state.json").write_text(
            json.dumps({"format_version": FORMAT_VERSION, "step": step, "state": tree})
        )
        if extra:
            extra(building)
    for old in list_checkpoints(directory)[:-KEEP]:
        # Renamed first, so that a crash does not leave half a checkpoint.
        removing = directory / f".removing-{old.name}"
        os.replace(old, removing)
        shutil.rmtree(removing)
    return final


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load the state of a checkpoint: tensors as CPU tensors, arrays as arrays.

    Raises:
        ValueError: if the checkpoint is damaged or has a newer format.
    """
    try:
        header = json.loads((path / "state.json").read_text())
        if header["format_version"] > FORMAT_VERSION:
            raise ValueError(
                f"checkpoint {path} has format {header['format_version']}; "
                f"this program reads up to {FORMAT_VERSION}"
            )
        with safe_open(path / "state.safetensors", framework="numpy") as arrays:
            state = join(header["state"], arrays.get_tensor)
            if not isinstance(state, dict):
                raise TypeError("its state is not a dict")
            return state
    except DAMAGES as error:
        raise ValueError(
            f"checkpoint {path} is damaged ({error}); remove it to resume from an older one"
        ) from error
