"""Stands in for an interpreter that has lerobot: the same messages over real pipes, a policy that adds up.

An action is the sum of the state and of the first pixel, and of the noise or the seed where there is one.
Certain first numbers of a state make it fail in some way.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.policy_server.lerobot_worker import receive, send

STATE, STEPS, ACTION, SIZE = 3, 4, 2, (16, 24)
CAMERA = "observation.images.front"
DESCRIPTION: dict[str, Any] = {
    "type": "adds",
    "features": {"observation.state": ["STATE", [STATE]], CAMERA: ["VISUAL", [3, *SIZE]]},
    "obs_steps": 1,
    "prompt": False,
    "shape": [STEPS, ACTION],
    "execute": 2,
    "noise": None,
    "deterministic": True,
    "device": "cpu",
}
FAILS, DIES, WRONG_SHAPE, NO_MESSAGE, CLOSES, SLEEPS = 101, 102, 103, 104, 105, 106


def saved(directory: Path, **description: Any) -> Path:
    """The directory of a policy for the stand-in."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"type": "adds"}))
    (directory / "model.safetensors").write_bytes(b"weights")
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        (directory / name).write_text("{}")
    (directory / "description").write_text(json.dumps({**DESCRIPTION, **description}))
    return directory


def interpreter(folder: Path, *, has_lerobot: bool = True) -> str:
    """A program that is called as a Python interpreter, and runs this file instead of what it is given."""
    path, root = folder / "python", Path(__file__).resolve().parents[3]
    path.write_text(
        f'#!/bin/sh\n[ "$2" = -c ] && exit {int(not has_lerobot)}\nshift 2\n'
        f'PYTHONPATH={root} exec {sys.executable} {__file__} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


def actions(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> np.ndarray:
    sums = arrays["observation.state"].sum((1, 2)) + len("".join(header["prompts"]))
    if CAMERA in arrays:
        sums = sums + arrays[CAMERA][:, -1, 0, 0, 0]
    if "noise" in arrays:
        sums = np.repeat(sums, len(arrays["noise"]) // len(sums)) + arrays["noise"].sum((1, 2))
    elif header["seed"] is not None:
        sums = sums + header["seed"] % 1000
    return np.tile(sums.astype("<f4")[:, None, None], (1, STEPS, ACTION))


def main() -> None:
    described = json.loads((Path(sys.argv[1]) / "description").read_text())
    if "error" in described:
        send(sys.stdout.buffer, {"error": described["error"]})
        return
    send(sys.stdout.buffer, {"policy": described})
    while (message := receive(sys.stdin.buffer)) is not None:
        header, arrays = message
        what = arrays["observation.state"].flat[0]
        if what == FAILS:
            send(sys.stdout.buffer, {"error": "ValueError: it fails"})
            continue
        if what == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == NO_MESSAGE:
            sys.stdout.buffer.write(b"hello, world")
            sys.stdout.buffer.flush()
        if what == CLOSES:
            os.close(1)
        if what in (CLOSES, SLEEPS):
            time.sleep(600)
        found = actions(arrays, header)
        send(sys.stdout.buffer, {}, {"actions": found[:, 1:] if what == WRONG_SHAPE else found})


if __name__ == "__main__":
    main()
