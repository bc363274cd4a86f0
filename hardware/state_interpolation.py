"""Interpolates the arm's state at a past time from recorded states."""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from robot_rl.hardware.core import rotation
from robot_rl.hardware.protocol.messages import State


def interpolate_state(states: Sequence[State], t: int, max_gap: int) -> State | str:
    """The state at `t` [ns], or the reason why it is unknown.

    Joint positions and velocities and the tool pose are interpolated; the other fields are those of the last
    state before `t`.

    Args:
        states: states with measurements, sorted by time.
        t: time on the server's clock; not after the newest state.
        max_gap: maximum time between the two states around `t`, ns.
    """
    after = bisect_right(states, t, key=lambda state: state.t_sample)
    if after == 0:
        return f"{(states[0].t_sample - t) * 1e-6:.0f} ms before the oldest state kept"
    before = states[after - 1]
    if before.t_sample == t:
        return before
    assert after < len(states), "later than the newest state"
    gap = states[after].t_sample - before.t_sample
    if gap > max_gap:
        return (
            f"in a gap of {gap * 1e-6:.0f} ms between two states, at most {max_gap * 1e-6:g} ms are allowed"
        )
    return _interpolated(before, states[after], t, (t - before.t_sample) / gap)


def _interpolated(before: State, after: State, t: int, part: float) -> State:
    turned = rotation.between(before.quaternion, after.quaternion)
    turn = rotation.exponential([part * value for value in turned])
    return msgspec.structs.replace(
        before,
        t_sample=t,
        q=_line(before.q, after.q, part),
        dq=_line(before.dq, after.dq, part),
        position=_line(before.position, after.position, part),
        quaternion=rotation.product(turn, before.quaternion),
    )


def _line(a: Sequence[float], b: Sequence[float], part: float) -> tuple[float, ...]:
    return tuple(x + part * (y - x) for x, y in zip(a, b, strict=True))
