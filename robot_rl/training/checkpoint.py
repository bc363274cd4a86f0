"""Checkpoints: directories with the full state of a run, from which it is resumed.

A state is a tree of dicts and lists whose leaves are tensors, arrays, numbers, strings, booleans and None.
Tensors and arrays are stored in `state.safetensors` under their path in the tree, everything else in
`state.json`. Nothing is pickled. The directory, `checkpoints/00012000/` for step 12000, appears by
rename, so it is complete.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from robot_rl.hardware.durable import atomic_directory
from robot_rl.runs import list_checkpoints

FORMAT_VERSION = 1
_LEAF = "__tensor__"
KEEP = 2
_DAMAGES = (
    OSError,
    UnicodeDecodeError,
    json.JSONDecodeError,
    KeyError,
    TypeError,
    RecursionError,
    SafetensorError,
)


def save_checkpoint(
    directory: Path, step: int, state: dict[str, Any], extra: Callable[[Path], None] | None = None
) -> Path:
    """Write a checkpoint of `step`, and delete all but the newest `KEEP`.

    An existing checkpoint of that step is kept, since a run is deterministic. `extra` writes further files
    into the directory before it appears.
    """
    final = directory / f"{step:08d}"
    if final.exists():
        return final
    for leftover in directory.glob(".*-[0-9]*"):
        shutil.rmtree(leftover)
    with atomic_directory(final) as building:
        arrays: dict[str, np.ndarray] = {}
        tree = _split(state, "", arrays)
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
            state = _join(header["state"], arrays)
            if not isinstance(state, dict):
                raise TypeError("its state is not a dict")
            return state
    except _DAMAGES as error:
        raise ValueError(
            f"checkpoint {path} is damaged ({error}); remove it to resume from an older one"
        ) from error


def _split(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(node, dict):
        return {"dict": [[_key(key), _split(value, f"{path}/{key}", arrays)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {"list": [_split(value, f"{path}/{i}", arrays) for i, value in enumerate(node)]}
    if isinstance(node, torch.Tensor | np.ndarray):
        assert path not in arrays, f"two leaves have the path {path}"
        kind = "tensor" if isinstance(node, torch.Tensor) else "array"
        array = node.detach().cpu().numpy() if isinstance(node, torch.Tensor) else node
        # Not `ascontiguousarray`, which makes a scalar an array of shape [1].
        arrays[path] = np.asarray(array, order="C")
        return {_LEAF: path, "kind": kind}
    if isinstance(node, np.generic):
        node = node.item()
    assert node is None or isinstance(node, bool | int | float | str), f"{path}: {type(node)} is not a leaf"
    return {"value": node}


def _join(node: dict[str, Any], arrays: Any) -> Any:
    if "dict" in node:
        return {key[0] if key[1] == "str" else int(key[0]): _join(v, arrays) for key, v in node["dict"]}
    if "list" in node:
        return [_join(value, arrays) for value in node["list"]]
    if _LEAF in node:
        array = arrays.get_tensor(node[_LEAF])
        return torch.from_numpy(array.copy()) if node["kind"] == "tensor" else array
    return node["value"]


def _key(key: Any) -> list[str]:
    """A key and its type: JSON keys are strings, the states of optimisers have ints."""
    assert isinstance(key, str | int), f"{key!r} is not a valid key"
    return [str(key), "str" if isinstance(key, str) else "int"]
