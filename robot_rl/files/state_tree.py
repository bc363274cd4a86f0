"""Trees of dicts and lists whose leaves are tensors, arrays, numbers, strings, booleans and None.

`split` separates a tree into JSON values and arrays, so that it can be stored without pickle.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

DAMAGES = (
    OSError,
    UnicodeDecodeError,
    json.JSONDecodeError,
    KeyError,
    TypeError,
    RecursionError,
    SafetensorError,
)
"""What reading a damaged tree raises."""
_LEAF = "__tensor__"


def split(node: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """A tree of JSON values; the tensors and arrays are put into `arrays` under their paths."""
    if isinstance(node, dict):
        return {"dict": [[_key(key), split(value, f"{path}/{key}", arrays)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {"list": [split(value, f"{path}/{i}", arrays) for i, value in enumerate(node)]}
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


def join(node: dict[str, Any], array: Callable[[str], np.ndarray]) -> Any:
    """Inverse of `split`: tensors as CPU tensors; `array` gives what has a path.

    Raises one of `DAMAGES` if the tree is not one that `split` made.
    """
    if "dict" in node:
        return {key[0] if key[1] == "str" else int(key[0]): join(v, array) for key, v in node["dict"]}
    if "list" in node:
        return [join(value, array) for value in node["list"]]
    if _LEAF in node:
        found = array(node[_LEAF])
        return torch.from_numpy(found.copy()) if node["kind"] == "tensor" else found
    return node["value"]


def _key(key: Any) -> list[str]:
    """A key and its type: JSON keys are strings, the states of optimisers have ints."""
    assert isinstance(key, str | int), f"{key!r} is not a valid key"
    return [str(key), "str" if isinstance(key, str) else "int"]
