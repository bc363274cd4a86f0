"""Observations of robosuite 1.5 that would be one control step old, computed from the present instead.

robosuite computes its observables in order, each from what the ones before it have written into a cache.
PickPlace and NutAssembly compute an object's pose in the hand's frame before the object's own pose, so from
that of the sample before, and at an episode's start from none: then it is 0, or where the last episode ended.
"""

from collections.abc import Callable, Iterator
from functools import update_wrapper
from typing import Any

import numpy as np

Sensor = Callable[[dict[str, Any]], Any]


class CurrentSensor:
    """A sensor that first computes those that it reads and that robosuite computes after it."""

    def __init__(self, sensor: Sensor, reads: dict[str, Sensor]) -> None:
        self.sensor, self.reads = sensor, reads

    def __call__(self, cache: dict[str, Any]) -> Any:
        for name, read in self.reads.items():
            cache[name] = np.array(read(cache))
        return self.sensor(cache)


class RecordingCache(dict[str, Any]):
    """An observation cache that records the keys that a sensor reads and writes."""

    def __init__(self, cache: dict[str, Any]) -> None:
        super().__init__(cache)
        self.read: set[str] = set()
        self.written: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        self.written.add(key)
        super().__setitem__(key, value)


def use_current_sensors(sim: Any) -> None:
    """Replace the sensors of a new environment that would read what was observed one sample before."""
    cache: dict[str, Any] = {}
    for name, observable in sim._observables.items():
        if observable.modality not in ("image", "depth"):
            cache[name] = np.array(observable._sensor(cache))
    sensors: dict[str, Sensor] = {name: one._sensor for name, one in _of_objects(sim)}
    later = dict(sensors)
    for name, observable in _of_objects(sim):
        del later[name]
        recording = RecordingCache(cache)
        sensors[name](recording)
        if reads := {other: sensor for other, sensor in later.items() if other in recording.read}:
            # With the name and modality that robosuite looks at.
            observable.set_sensor(update_wrapper(CurrentSensor(sensors[name], reads), sensors[name]))


def observe_start(sim: Any) -> None:
    """Compute the observations of objects at an episode's start.

    Saved states have those of their time, which may be from before they were corrected.
    """
    if any(isinstance(one._sensor, CurrentSensor) for _, one in _of_objects(sim)):
        for _, observable in _of_objects(sim):
            observable.update(0.0, sim._obs_cache, force=True)


def _of_objects(sim: Any) -> Iterator[tuple[str, Any]]:
    return ((name, one) for name, one in sim._observables.items() if one.modality == "object")
