"""Saves and loads policies.

A policy is a directory of two files, read without unpickling:

    policy.json           format version, kind, configuration, spec, fingerprint, and the
                          metadata of the caller (meta: the environment, …)
    weights.safetensors   the state dict, normalisers included
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from robot_rl.files.durable import write_file
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.registry import BASES, LOADERS, base_kind, names_hint

FORMAT_VERSION = 1
_LATER: dict[str, Any] = {
    "max_prefix": 0,
    "draws": 1,
    "vision": None,
    "text": None,
    "pretrained": {},
    "encoder": "conv",
}
"""Options that policies of earlier versions do not have, and how these are."""
RECORD_FILE = "policy.json"
WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True)
class Record:
    """Content of `policy.json`."""

    kind: str
    """Registered name."""
    config: dict[str, Any]
    spec: dict[str, Any]
    meta: dict[str, Any]
    fingerprint: str
    """Fingerprint of the weights file; files of two different saves are refused."""
    format_version: int = FORMAT_VERSION


def fingerprint(policy: nn.Module) -> str:
    """First 16 hex digits of the sha256 of the names, shapes, types and bytes of all weights."""
    return _fingerprint(policy.state_dict())


def save_policy(policy: BasePolicy, directory: Path, meta: Mapping[str, Any]) -> None:
    """Write a base policy to a directory, which is created if it does not exist.

    Raises:
        ValueError: if the class is not registered or JSON cannot hold `meta`.
    """
    if not isinstance(policy, ImitationPolicy):
        policy.save(directory, meta)
        return
    write_files(
        directory,
        kind=base_kind(policy),
        config=asdict(policy.config),
        spec=policy.spec.as_dict(),
        meta=meta,
        weights=policy.state_dict(),
    )


def load_policy_files(directory: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Load the policy in a directory, on the CPU, and its meta.

    Raises:
        FileNotFoundError: if the directory or one of its files is missing.
        ValueError: if the files are damaged, of another version or kind, or do not fit each other.
    """
    record = read_record(directory)
    if record.kind in LOADERS:
        return LOADERS[record.kind](directory, record), record.meta
    return _build_base(directory, record), record.meta


def load_base(directory: Path) -> tuple[BasePolicy, dict[str, Any]]:
    """Load a base policy; errors as in `load_policy_files`.

    Raises:
        ValueError: also if the directory holds a finetuned policy, whose base is in `base/`.
    """
    policy, meta = load_policy_files(directory)
    if not isinstance(policy, BasePolicy):
        raise ValueError(
            f"{directory} holds a {type(policy).__name__}, no base policy; try {Path(directory) / 'base'}"
        )
    return policy, meta


def write_files(
    directory: Path,
    *,
    kind: str,
    config: Mapping[str, Any],
    spec: Mapping[str, Any],
    meta: Mapping[str, Any],
    weights: Mapping[str, Tensor],
) -> None:
    """Write the two files of a policy, each by an atomic rename, `policy.json` last.

    Both files are synced; the caller syncs the folders that contain the directory.
    """
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    record = Record(kind, dict(config), dict(spec), dict(meta), _fingerprint(stored))
    try:
        text = json.dumps(asdict(record), indent=2, allow_nan=False)
    except TypeError as error:
        raise ValueError(
            f"policy.json cannot hold this: {error}; use plain numbers, texts, lists and dicts"
        ) from error
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # Not by `save_file`, which hides the OS error of a full disk.
    write_file(directory / WEIGHTS_FILE, save(stored))
    write_file(directory / RECORD_FILE, (text + "\n").encode())


def read_record(directory: Path) -> Record:
    """Read and check `policy.json`; errors as in `load_policy_files`."""
    path = Path(directory) / RECORD_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the directory of a saved policy")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; save the policy again") from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if version is None:
        raise ValueError(f"{path} is no policy of this program: it has no format_version")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {version!r}, this program reads {FORMAT_VERSION}; save it again"
        )
    try:
        record = Record(**content)
    except TypeError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    types = {"kind": str, "config": dict, "spec": dict, "meta": dict, "fingerprint": str}
    for name, expected in types.items():
        if not isinstance(getattr(record, name), expected):
            raise ValueError(f"{path} is damaged: {name} is no {expected.__name__}")
    return record


def read_weights(directory: Path, record: Record, module: nn.Module, skip: str | None = None) -> None:
    """Load the weights of a directory into a module; errors as in `load_policy_files`.

    Names that begin with `skip` are not in the file and keep their values.
    """
    path = Path(directory) / WEIGHTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; copy the whole directory of the policy")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}; save the policy again") from error
    if _fingerprint(weights) != record.fingerprint:
        raise ValueError(f"{path} holds other weights than {RECORD_FILE} says (damaged, or of another save)")
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(
                f"{path} has NaN or infinity in {name}; take an earlier policy, or train it again"
            )
    expected = {
        name: (tuple(t.shape), t.dtype)
        for name, t in module.state_dict().items()
        if skip is None or not name.startswith(skip)
    }
    found = {name: (tuple(t.shape), t.dtype) for name, t in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"{path} does not fit a {record.kind!r} policy of this configuration: {name} is "
                f"{found.get(name, 'missing')}, expected {expected.get(name, 'nothing')}"
            )
    module.load_state_dict(weights, strict=skip is None)


def _build_base(directory: Path, record: Record) -> BasePolicy:
    path = Path(directory) / RECORD_FILE
    if record.kind not in BASES:
        valid = {**BASES, **LOADERS}
        raise ValueError(f"{path} is of the unknown kind {record.kind!r}; {names_hint(record.kind, valid)}")
    base = BASES[record.kind]
    known = {f.name for f in fields(base.config)}
    config = {name: value for name, value in _LATER.items() if name in known} | record.config
    if config.keys() != known:
        odd = ", ".join(sorted(config.keys() ^ known))
        raise ValueError(f"{path} was written by another version of the program: its config differs in {odd}")
    # Policies saved by versions without cameras have no image_size, and without instructions none of those.
    spec = {"image_size": None, "instruction": False, **record.spec}
    try:
        policy = base.policy(
            base.config(**config),
            spec["state_size"],
            spec["action_size"],
            spec["cameras"],
            spec["image_size"],
        )
    # The sizes and names of a file are untrusted: torch fails on them with a RuntimeError.
    except (AttributeError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    # JSON turns tuples into lists.
    if json.loads(json.dumps(policy.spec.as_dict())) != spec:
        raise ValueError(f"{path} is damaged: its spec is not what its config says")
    read_weights(directory, record, policy)
    return policy


def _fingerprint(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
