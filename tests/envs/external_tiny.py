"""A tiny environment for tests of the protocol: a point that actions move. It needs numpy alone.

Its first instruction says what goes wrong in the second step, if anything.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOAL = 0.5


class Tiny:
    """A point in the plane, which succeeds where its x is larger than `GOAL`."""

    def __init__(self, fault: str, cameras: Sequence[str], size: Sequence[int]) -> None:
        self._fault, self._cameras, self._size = fault, cameras, size
        self._point, self._steps = np.zeros(2), 0

    def describe(self) -> Mapping[str, Any]:
        return {
            "instructions": [self._fault],
            "observed": {"point": 2},
            "scene": {"goal": 1},
            "action_size": 7,
            "state_size": 4,
            "horizon": 20,
            "versions": {"tiny": "1.0"},
        }

    def reset(self, seed: int) -> None:
        self._point, self._steps = np.random.default_rng(seed).uniform(-0.1, 0.1, 2), 0

    def step(self, action: NDArray[np.float64]) -> None:
        self._point, self._steps = self._point + 0.1 * action[:2], self._steps + 1
        match self._fault if self._steps == 2 else "":
            case "die":
                print("out of luck", file=sys.stderr)
                os._exit(3)
            case "crash":
                raise RuntimeError("a bug")
            case "hang":
                time.sleep(600)
            case "refuse":
                raise ValueError("not\nso")
            case "garbage":
                os.write(int(sys.argv[1]), b"\x03\0\0\0abc")
            case "long":
                os.write(int(sys.argv[1]), b"\xff\xff\xff\xff")
            case "leave":
                os.close(int(sys.argv[1]))
                time.sleep(600)

    def observe(self, images: bool, scene: bool) -> Mapping[str, Any]:
        fault = self._fault if self._steps == 2 else ""
        pixels = bytes(self._size[0] * self._size[1] * 3 - (fault == "small image"))
        observed = {"point": [*self._point.tolist()]}
        if fault == "nan":
            observed["point"][1] = float("nan")
        if fault == "shape":
            observed["point"].append(0.0)
        if fault == "name":
            observed["other"] = observed.pop("point")
        return {
            "instruction": "another" if fault == "instruction" else self._fault,
            "success": "yes" if fault == "type" else bool(self._point[0] > GOAL),
            "steps": -1 if fault == "negative" else self._steps,
            "observed": observed,
            "images": dict.fromkeys(self._cameras, pixels),
            "scene": {"goal": [GOAL]} if scene else {},
        }

    def get_state(self) -> NDArray[np.float64]:
        return np.array([0, *self._point, self._steps])

    def set_state(self, state: NDArray[np.float64]) -> None:
        self._point, self._steps = state[1:3].copy(), int(state[3])


def build(
    suite: str, instructions: Sequence[str], cameras: Sequence[str], size: Sequence[int], **_: Any
) -> Tiny:
    if suite == "unknown":
        raise ValueError(f"there is no {suite}")
    return Tiny(instructions[0], cameras, size)
