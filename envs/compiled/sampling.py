"""Sampling of robosuite's observables, and the observation dict that a step returns.

Each substep advances the timer of every observable, in floating point. An observable computes its sensor
in the first substep of its period, which drifts against the control step. Here the timers advance
without robosuite's calls up to the next substep in which an observable computes. Usually all timers are
equal, and one is advanced for all.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
from robosuite import macros
from robosuite.environments.base import MujocoEnv
from robosuite.utils.observables import NO_CORRUPTION, NO_DELAY, NO_FILTER, Observable

from robot_rl.envs.compiled.sensors import fast_sensor
from robot_rl.envs.current_sensors import RecordingCache, Sensor


class Sampler:
    """Splits control steps at the substeps in which observables compute, and computes them."""

    def __init__(self, env: MujocoEnv) -> None:
        """Valid until the environment replaces its simulation."""
        self._env = env
        self._sim = env.sim
        self._fast_sensors: dict[Sensor, Sensor | None] = {}

    def split(self, substeps: int) -> Iterator[int]:
        """Splits a control step of `substeps` substeps.

        Yields:
            the number of substeps to run next; the first is 1. Resumed after that, it computes what is due.
        """
        env = self._env
        timestep = env.model_timestep
        common = _Common.of(env._observables.values())
        passed = 0
        while passed < substeps:
            limit = substeps - passed if passed else 1
            if common:
                ahead, due = common.skip(timestep, limit)
            else:
                ahead, due = skip_to_sample(env._observables.values(), timestep, limit)
            yield ahead
            if due and common and common.sampled:
                self._compute(common.observables)
            elif due:
                env._update_observables()  # advances all timers by a substep and computes what is due
                common = _Common.of(env._observables.values())
            passed += ahead
        if common:
            common.store()

    def _compute(self, observables: "list[Observable]") -> None:
        """Does what `Observable.update` does for observables without noise, filter and delay."""
        cache, fast_sensors = self._env._obs_cache, self._fast_sensors
        for observable in observables:
            sensor = observable._sensor
            if sensor not in fast_sensors:
                fast_sensors[sensor] = fast_sensor(sensor, self._sim, cache)
            quick = fast_sensors[sensor]
            value = quick(cache) if quick else np.array(sensor(cache))
            single = value.shape == (1,)
            observable._current_observed_value = value[0] if single else value
            cache[observable.name] = np.array(value[0]) if single else value.copy()


class _Common:
    """The common timer of enabled observables that have equal timers and no noise, filter or delay."""

    def __init__(self, observables: "list[Observable]") -> None:
        first = observables[0]
        self.observables = observables
        self.elapsed: float = first._time_since_last_sample
        self.sampled: bool = first._sampled
        self.period: float = first._sampling_timestep

    @classmethod
    def of(cls, observables: "Iterable[Observable]") -> "_Common | None":
        enabled = [observable for observable in observables if observable._enabled]
        if not enabled:
            return None
        common = cls(enabled)
        elapsed, sampled, period = common.elapsed, common.sampled, common.period
        for observable in enabled:
            if (
                observable._time_since_last_sample != elapsed
                or observable._sampled != sampled
                or observable._sampling_timestep != period
                or observable._current_delay
                or observable._delayer is not NO_DELAY
                or observable._filter is not NO_FILTER
                or observable._corrupter is not NO_CORRUPTION
            ):
                return None
        return common

    def skip(self, timestep: float, limit: int) -> tuple[int, bool]:
        """As `skip_to_sample`, but if due and `sampled`, the last substep has been advanced too.

        If due and not `sampled`, the timers of the observables are one substep before it, for robosuite's
        own update.
        """
        for substep in range(1, limit + 1):
            before = self.elapsed
            self.elapsed += timestep
            wraps = self.elapsed >= self.period
            if not self.sampled:
                if wraps:
                    self.elapsed = before
                    self.store()
                else:
                    self.sampled = True
                return substep, True
            if wraps:
                self.elapsed %= self.period
                self.sampled = False
        return limit, False

    def store(self) -> None:
        """Writes the common timer to the observables."""
        elapsed, sampled = self.elapsed, self.sampled
        for observable in self.observables:
            observable._time_since_last_sample = elapsed
            observable._sampled = sampled


def skip_to_sample(observables: Iterable[Observable], timestep: float, limit: int) -> tuple[int, bool]:
    """Advances the timers to the next substep at which an observable computes its sensor.

    Args:
        observables: all observables of the environment.
        timestep: of the simulation, s.
        limit: maximum number of substeps to look ahead, >= 1.

    Returns:
        (substeps, due): if `due`, some observable computes at the end of that many substeps, and
        the timers are one substep before that, since robosuite's own update advances the last;
        otherwise substeps == limit, nothing is due and the timers have advanced by all of them.
    """
    groups: dict[tuple[float, bool, float, float], list[Observable]] = {}
    last = None
    for observable in observables:
        if observable._enabled:
            timers = (
                observable._time_since_last_sample,
                observable._sampled,
                observable._current_delay,
                observable._sampling_timestep,
            )
            if timers != last:
                members, last = groups.setdefault(timers, []), timers
            members.append(observable)

    substeps, due = limit, False
    for elapsed, sampled, delay, period in groups:
        for substep in range(1, substeps + 1):
            elapsed += timestep
            wraps = elapsed >= period
            if not sampled and (period - delay >= elapsed or wraps):
                substeps, due = substep, True
                break
            if wraps:
                elapsed %= period
                sampled = False

    if substeps > due:
        for (elapsed, sampled, _, period), members in groups.items():
            for _ in range(substeps - due):
                elapsed += timestep
                if elapsed >= period:
                    elapsed %= period
                    sampled = False
            for observable in members:
                observable._time_since_last_sample = elapsed
                observable._sampled = sampled
    return substeps, due


def observations(env: MujocoEnv) -> "OrderedDict[str, np.ndarray]":
    """A faster `env._get_observations()`."""
    values: OrderedDict[str, np.ndarray] = OrderedDict()
    by_modality: dict[str, list[np.ndarray]] = {}
    modality, parts = "", list[np.ndarray]()
    for name, observable in env._observables.items():
        if observable._enabled and observable._active:
            values[name] = value = observable._current_observed_value
            found = observable._sensor.__modality__
            if found != modality or not parts:
                modality, parts = found, by_modality.setdefault(found, [])
            parts.append(value if type(value) is np.ndarray and value.ndim else np.atleast_1d(value))
    for modality, parts in by_modality.items():
        if modality != "image" or macros.CONCATENATE_IMAGES:
            values[modality + "-state"] = np.concatenate(parts, axis=-1)
    return values


def observe_only(env: MujocoEnv, names: Iterable[str]) -> None:
    """Disables all observables except these and those that they are computed from.

    Args:
        env: a robosuite environment after a reset, so that every observable has a value.
        names: names of observables, or of modalities such as "object-state" for all active
            observables of a modality. Only these remain in the observation dict.

    Raises:
        ValueError: if the environment has no such observable.
    """
    observables = env._observables
    wanted: set[str] = set()
    for name in names:
        members = {n for n, o in observables.items() if o.modality + "-state" == name and o.is_active()}
        if name in observables:
            members = {name}
        if not members:
            raise ValueError(f"no observable {name!r}; this environment has {', '.join(observables)}")
        wanted |= members

    reads: dict[str, set[str]] = {}
    makers: dict[str, set[str]] = {name: {name} for name in observables}
    for name, observable in observables.items():
        cache = RecordingCache(env._obs_cache)
        observable._sensor(cache)
        reads[name] = cache.read
        for key in cache.written:
            makers.setdefault(key, set()).add(name)
    needed: set[str] = set()
    pending = set(wanted)
    while pending:
        name = pending.pop()
        needed.add(name)
        pending |= set().union(*(makers.get(key, ()) for key in reads[name])) - needed

    for name, observable in observables.items():
        if observable.is_enabled() != (name in needed):
            observable.set_enabled(name in needed)
        observable.set_active(name in wanted)
