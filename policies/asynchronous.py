"""Options of asynchronous execution, in which the next chunk is computed while the current one is executed.

`robot_rl.policies.async_runner` executes so; docs/asynchronous.md has the equations and where they come from.
"""

from dataclasses import dataclass
from typing import Final

from robot_rl.policies.bases.base_policy import BasePolicy

MODES: Final = ("naive", "blend", "prefix", "guided")
_MODES: Final = f"{', '.join(MODES[:-1])} or {MODES[-1]}"


@dataclass(frozen=True)
class AsyncOptions:
    """The options `asynchronous` and `delay` of a command, also saved with a policy that was trained so.

    Raises:
        ValueError: if the mode is unknown, or the delay is negative or without a mode.
    """

    asynchronous: str = "off"
    """`off`, or what happens at a new chunk. `naive`: it replaces the old one. `blend`: it is mixed in over h
    steps. `prefix`: the base was conditioned on the actions that are executed until its chunk arrives.
    `guided`: the flow was guided to go on from the old chunk."""
    delay: int = 0
    """Control steps from a request to its chunk."""

    def __post_init__(self) -> None:
        if self.asynchronous not in ("off", *MODES):
            raise ValueError(f"asynchronous={self.asynchronous}: choose off, {_MODES}")
        if self.delay < 0:
            raise ValueError(f"delay={self.delay}: it cannot be negative")
        if self.delay and not self:
            raise ValueError(f"delay={self.delay} is for asynchronous={_MODES}")

    def __bool__(self) -> bool:
        return self.asynchronous != "off"

    def __str__(self) -> str:
        return f"asynchronous={self.asynchronous}" + (f" delay={self.delay}" if self else "")


SYNCHRONOUS: Final = AsyncOptions()


def check_asynchronous(base: BasePolicy, options: AsyncOptions, execute: int) -> None:
    """Check that a base can be executed asynchronously.

    Args:
        base: the base policy.
        options: mode and delay d.
        execute: executed steps h of a chunk.

    Raises:
        ValueError: if its chunks do not reach as far as needed, or it was not trained with prefixes of d
            steps; says what to do.
    """
    delay, spec = options.delay, base.spec
    needed = delay + max(delay, execute) + spec.execute
    if spec.horizon < needed:
        raise ValueError(
            f"delay={delay}: the base predicts {spec.horizon} steps and executes {execute} of them; it needs "
            f"{needed} (delay + the larger of delay and {execute} + {spec.execute}): use a base with "
            f"base.horizon={needed} or more, fewer executed steps or a shorter delay"
        )
    if options.asynchronous == "prefix" and delay > base.max_prefix:
        raise ValueError(
            f"asynchronous=prefix delay={delay}: the base was trained with prefixes of at most "
            f"{base.max_prefix} steps: train it with base.max_prefix={delay}, or use blend"
        )
    if options.asynchronous == "guided" and not base.takes_guidance:
        raise ValueError(
            "asynchronous=guided is for base=flow and base=vla, which run in this process: use blend"
        )
