"""Replaces the section `latency` of a robot's file and keeps everything else, including comments."""

from typing import Any

import msgspec
import yaml

from robot_rl.hardware.config import strict_yaml
from robot_rl.hardware.spec import Delay, Latency

_HEAD = "latency: # written by robot-rl robot latency"


def merged(old: Latency, new: Latency) -> Latency:
    """The new latencies, completed by the old ones."""
    return Latency(
        action=new.action or old.action,
        state=new.state or old.state,
        cameras={**old.cameras, **new.cameras},
    )


def with_latency(text: str, latency: Latency) -> str:
    """The text of a robot's file with its section `latency` replaced or added.

    Raises:
        ValueError: if the section contains comments, or cannot be replaced without changing anything else.
    """
    lines = text.splitlines(keepends=True)
    begin = next((i for i, line in enumerate(lines) if line.startswith("latency:")), len(lines))
    end = begin + 1
    while end < len(lines) and (lines[end][:1] in " \t" or not lines[end].strip()):
        end += 1
    while end > begin + 1 and not lines[end - 1].strip():
        end -= 1
    if "#" in "".join(lines[begin:end]).removeprefix(_HEAD):
        raise ValueError("its section latency has comments, which would be lost: move them above it")
    before = "".join(lines[:begin])
    if begin == len(lines):
        before = before.rstrip("\n") + "\n\n"
    edited = before + _section(latency) + "".join(lines[end:])
    wanted = {**strict_yaml(text), "latency": _plain(latency)}
    try:
        alone = strict_yaml(edited) == wanted
    except (ValueError, yaml.YAMLError):
        alone = False
    if not alone:
        raise ValueError(
            "its section latency cannot be replaced without changing the rest: write it as an indented block"
        )
    return edited


def _section(latency: Latency) -> str:
    plain = _plain(latency)
    lines = [_HEAD if plain else "latency: {}"]
    for name, value in plain.items():
        if name == "cameras":
            lines += ["  cameras:", *(f"    {_scalar(camera)}: {_flow(it)}" for camera, it in value.items())]
        else:
            lines.append(f"  {name}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _plain(latency: Latency) -> dict[str, Any]:
    """Plain values for the file, without unknown ones."""

    def of(delay: Delay) -> dict[str, Any]:
        return {key: value for key, value in msgspec.structs.asdict(delay).items() if value is not None}

    own = {name: of(delay) for name in ("action", "state") if (delay := getattr(latency, name))}
    cameras = {name: of(delay) for name, delay in latency.cameras.items()}
    return {**own, **({"cameras": cameras} if cameras else {})}


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).strip()


def _scalar(name: str) -> str:
    """A YAML key, quoted if it would be read as another type, like `on`."""
    return yaml.safe_dump(name, width=1000).partition("\n")[0]
