"""Checks the options of `hil=on` against the method."""

from pathlib import Path

from robot_rl.hardware.protocol.endpoints import parse
from robot_rl.hardware.protocol.security import list_clients
from robot_rl.hil.actor_check import check_actor
from robot_rl.hil.config import HilConfig
from robot_rl.learning.config import DECISIONS, ChunkConfig, OffPolicyConfig
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.methods.registry import METHODS, MethodConfig


def check_hil_config(config: HilConfig, method: MethodConfig) -> None:
    """Raises ValueError if the options contradict each other or the method."""
    if not isinstance(method, OffPolicyConfig):
        raise ValueError(
            f"method={method.name} does not learn from a replay, so not from interventions: hil=on supports "
            + ", ".join(name for name, kind in METHODS.items() if issubclass(kind, OffPolicyMethod))
        )
    if isinstance(method, ChunkConfig) and method.windows == DECISIONS:
        raise ValueError(
            "method.windows=decisions learns from chunks that are executed whole, and a person may take over "
            "within one: leave it out with hil=on"
        )
    if counts := method.one_actor_only:
        raise ValueError(
            f"{counts} counts the steps of one acting policy, and an actor may be replaced: leave it out "
            "with hil=on"
        )
    check_actor(config)
    if method.num_envs != config.actors:
        raise ValueError(
            f"method.num_envs={method.num_envs}: an operator watches one arm; "
            f"leave it out with hil=on, or set it to {config.actors}"
        )
    # One of several actors may make all steps.
    needed = method.steps * config.actors
    if method.uses_demonstrations and method.replay_capacity < needed:
        steps = f"method.steps={method.steps}"
        steps += f" times hil.actors={config.actors}" if config.actors > 1 else ""
        raise ValueError(
            f"method.replay_capacity={method.replay_capacity} is less than {steps}: "
            "interventions would be overwritten; make it as large"
        )
    if config.link and not parse(config.link).is_loopback and not config.keys:
        raise ValueError(
            f"hil.link={config.link} is reachable from a network: give hil.keys=…, a directory made by "
            "`robot-rl robot keys`"
        )
    if config.keys and not config.remote:
        raise ValueError("hil.keys is for a network: give hil.link=tcp://…, or leave it out")
    if config.keys and config.actors > 1:
        _check_names(config.actor_names, Path(config.keys))


def _check_names(names: tuple[str, ...], keys: Path) -> None:
    """Raises ValueError if an actor has no key."""
    clients = {client.name for client in list_clients(keys)}
    if missing := [name for name in names if name not in clients]:
        raise ValueError(
            f"hil.keys={keys} has no key of {' and '.join(missing)}: make one with "
            f"`robot-rl robot keys name={missing[0]} keys={keys}`"
        )
