"""A bundle: a policy's directory with a manifest, to be copied to the machine that runs the policy.

It is a policy directory (`robot_rl.policies.store`) with two additions:

    bundle.json     the manifest: what the policy observes and does, the robot that it is for, versions,
                    licences, the SHA-256 of every file, and a fingerprint of all of this
    classifier/     the policy directory of a success classifier, if it has one

A bundle with another content than its manifest says is refused.
"""

import hashlib
import json
import shutil
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

import msgspec

from robot_rl.errors import UserError
from robot_rl.files.durable import atomic_directory
from robot_rl.hardware.spec import Latency, RobotSpec
from robot_rl.machine import describe_versions
from robot_rl.policies.store import RECORD_FILE, WEIGHTS_FILE, read_record
from robot_rl.runs import now, write_text

MANIFEST: Final = "bundle.json"
CLASSIFIER: Final = "classifier"
"""Folder of the classifier in a bundle."""
_FORMAT: Final = 1
_AGAIN: Final = "copy the whole bundle again, or export it again"
_FILES: Final = frozenset(
    str(PurePosixPath(folder, name))
    for folder in ("", "base", CLASSIFIER)
    for name in (RECORD_FILE, WEIGHTS_FILE)
)
"""Files that a bundle may hold besides the manifest."""
_INFERENCE_PACKAGES: Final = ("robot-rl", "torch", "numpy", "safetensors", "pyzmq", "msgspec")

Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of `bundle.json`."""

    format_version: int = _FORMAT
    exported: str
    """Local time, ISO 8601."""
    kind: str
    """Registered name of the policy: diffusion, residual_chunk, …"""
    policy_fingerprint: str
    """Fingerprint of the policy's weights."""
    task: str
    control_freq: float
    """Control steps per second."""
    observation: dict[str, Any]
    """State keys and sizes, cameras and the size of their images."""
    action: list[dict[str, Any]]
    """Name, kind, unit, scale and frame of each dimension."""
    robot: RobotSpec | None = None
    """The robot that the bundle is for, with its calibration; None for any robot that fits."""
    latency: Latency | None = None
    """Its measured latencies, as a record: a deployment uses those that the server knows."""
    classifier: str | None = None
    """Fingerprint of the success classifier's weights; None without one."""
    versions: dict[str, str]
    """Versions of Python and of the packages that can change a result."""
    licences: dict[str, str]
    """Licence of the weights, and of each package that runs them."""
    files: dict[str, Sha256]
    """SHA-256 of every file, by its path in the bundle."""
    fingerprint: str = ""
    """SHA-256 of everything above."""


def is_bundle(directory: Path) -> bool:
    """Whether a directory is a bundle; its content is not checked."""
    return (directory / MANIFEST).is_file()


def write_bundle(
    policy: Path,
    out: Path,
    *,
    classifier: Path | None = None,
    robot: tuple[RobotSpec, Latency] | None = None,
    licence: str | None = None,
) -> Manifest:
    """Write a bundle, which appears complete or not at all.

    Args:
        policy: policy directory.
        out: directory of the bundle, which must not exist.
        classifier: policy directory of a success classifier.
        robot: spec and latencies of the robot that the bundle is for.
        licence: licence of the weights.

    Raises:
        UserError: if `out` exists.
        ValueError: if the policy's files are damaged.
        OSError: if the disk is full.
    """
    if out.exists():
        raise UserError(f"{out} exists; choose another out=…, or remove it")
    record = read_record(policy)
    environment = record.meta["environment"]
    with atomic_directory(out) as building:
        _copy_policy(policy, building)
        if (policy / "base").is_dir():
            _copy_policy(policy / "base", building / "base")
        if classifier:
            _copy_policy(classifier, building / CLASSIFIER)
        manifest = Manifest(
            exported=now(),
            kind=record.kind,
            policy_fingerprint=record.fingerprint,
            task=environment["task"],
            control_freq=environment["control_freq"],
            observation=environment["observation_spec"],
            action=environment["action_spec"],
            robot=robot[0] if robot else None,
            latency=robot[1] if robot else None,
            classifier=read_record(classifier).fingerprint if classifier else None,
            versions=describe_versions(),
            licences={"weights": licence or "not stated", **_package_licences()},
            files={
                path.relative_to(building).as_posix(): _sha256(path)
                for path in sorted(building.rglob("*"))
                if path.is_file()
            },
        )
        digest = _digest(msgspec.json.encode(manifest))
        manifest = msgspec.structs.replace(manifest, fingerprint=digest)
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2).decode()
        write_text(building / MANIFEST, text + "\n")
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """Read a bundle's manifest, without its other files.

    Raises:
        UserError: if it was changed, is missing, or is of another version.
    """
    path = directory / MANIFEST
    try:
        content = path.read_bytes()
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is damaged or of another version ({error}); {_AGAIN}") from error
    if manifest.format_version != _FORMAT:
        raise UserError(f"{path} has format version {manifest.format_version}, not {_FORMAT}; {_AGAIN}")
    if _digest(content) != manifest.fingerprint:
        raise UserError(f"{path} was changed after the export; {_AGAIN}")
    return manifest


def read_bundle(directory: Path) -> Manifest:
    """Read a bundle's manifest and check all of its files.

    Raises:
        UserError: if the bundle was changed, is incomplete, or is of another version.
    """
    manifest = read_manifest(directory)
    found = {name for name in _FILES if (directory / name).is_file()}
    for name in sorted(found ^ manifest.files.keys()):
        what = "was added after the export" if name in found else "is missing"
        raise UserError(f"{directory}: {name!r} {what}; {_AGAIN}")
    for name, expected in manifest.files.items():
        if _sha256(directory / name) != expected:
            raise UserError(f"{directory / name} was changed after the export; {_AGAIN}")
    return manifest


def check_same_robot(expected: RobotSpec, found: RobotSpec) -> None:
    """Check that a robot is the one that a bundle is for.

    Raises:
        UserError: if not; names what differs.
    """
    differing = [
        name for name in RobotSpec.__struct_fields__ if getattr(expected, name) != getattr(found, name)
    ]
    if differing:
        other = "" if found.name == expected.name else f", this one is {found.name}"
        raise UserError(
            f"the bundle is for the robot {expected.name}{other}: {', '.join(differing)} differ; "
            "export the policy for this robot"
        )


def _digest(manifest: bytes) -> str:
    """The fingerprint of a manifest in JSON, without the one that it has."""
    content = {name: value for name, value in json.loads(manifest).items() if name != "fingerprint"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _copy_policy(source: Path, to: Path) -> None:
    to.mkdir(exist_ok=True)
    for name in (RECORD_FILE, WEIGHTS_FILE):
        shutil.copyfile(source / name, to / name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _package_licences() -> dict[str, str]:
    """Licence of each package that runs a policy, as its distribution states it."""
    found = {}
    for package in _INFERENCE_PACKAGES:
        try:
            stated = metadata.metadata(package)
        except metadata.PackageNotFoundError:
            continue  # robot-rl run from its source
        classified = [name for name in stated.get_all("Classifier", []) if name.startswith("License ::")]
        texts = [
            *stated.get_all("License-Expression", []),
            *(name.rpartition(" :: ")[2] for name in classified),
        ]
        found[package] = next(iter(texts), "not stated")
    return found
