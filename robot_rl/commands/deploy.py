"""Run a policy on a robot and measure its success rate.

Each episode prints a line and is written to a file: success, steps, seconds, late steps, the largest age of
each kind of observation. An interrupted episode counts as a failure. If the robot does not measure success, a
classifier does (success=runs/…), or you: press s for success, f for failure.

With operator=… a person at a device may take over, and the episodes are recorded for `robot-rl data derive`.
After a fault of the robot, an operator has to acknowledge it; then the episodes go on.

Ctrl-C leaves the arm at rest and disarmed.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from robot_rl.cli.signals import stop_on_signal
from robot_rl.envs.action import repeated_in_hold, spec_from_list
from robot_rl.envs.instruction import INSTRUCTION
from robot_rl.envs.real_arm import asked_instruction
from robot_rl.errors import UserError, as_user_errors
from robot_rl.hardware.cameras.reader import camera_reader
from robot_rl.hardware.client import RobotClient
from robot_rl.hardware.connection import RobotError
from robot_rl.hardware.protocol.endpoints import default_address
from robot_rl.hardware.protocol.messages import Role
from robot_rl.hardware.protocol.security import load_own_keys
from robot_rl.hardware.recording.recorder import RecorderError
from robot_rl.hardware.recording.recorder_process import RecorderProcess
from robot_rl.hardware.teleop.device import DeviceError
from robot_rl.hardware.teleop.motion import Speed
from robot_rl.hardware.teleop.operator_display import OperatorDisplay
from robot_rl.hil.config import SCRIPTED
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.async_runner import execute_asynchronously
from robot_rl.policies.asynchronous import AsyncOptions
from robot_rl.policies.bases.base_policy import BasePolicy
from robot_rl.policies.chunk_request import compute_in_a_thread
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.policies.store import fingerprint
from robot_rl.robot.deploy.cases import read_cases
from robot_rl.robot.deploy.controller import Controller
from robot_rl.robot.deploy.deployment import (
    check_initial_states,
    check_robot_fits,
    deploy,
    make_controller,
)
from robot_rl.robot.deploy.judge import success_judge
from robot_rl.robot.deploy.recording import EpisodeRecording
from robot_rl.robot.deploy.resets import RESETS, default_reset
from robot_rl.robot.deploy.results import DeploymentResults
from robot_rl.robot.deploy.turns import Turns
from robot_rl.robot.operators.operator import Operator
from robot_rl.robot.operators.person import (
    MOTION_DEVICES,
    Person,
    device_settings,
    open_person,
    operator_role,
)
from robot_rl.saved_policies.bundle import CLASSIFIER, Manifest, check_same_robot, is_bundle, read_manifest
from robot_rl.saved_policies.loading import (
    acting_policy,
    check_asked,
    choose_device,
    chosen_execution,
    is_server,
    load_networks,
    warn_of_other_execution,
)

if TYPE_CHECKING:
    from robot_rl.robot.operators.scripted import ScriptedOperator

_TIMEOUT = 5.0
"""s to wait for an answer before the connection counts as lost."""


@dataclass
class Config:
    policy: str = "???"
    """Directory of a run, of a saved policy or of a bundle from `robot-rl export`, or ws://host:port of a
    policy behind `robot-rl serve`."""
    robot: str = field(default_factory=default_address)
    """Address of the robot's server, as in `robot-rl robot address=…`."""
    episodes: int = 20
    """Number of episodes."""
    horizon: int | None = None
    """Control steps after which an episode ends as a failure; as in the policy's training if null."""
    reset: str | None = None
    """Reset between episodes. `scene`: a simulated task is set to its saved initial state of that number.
    `operator`: the gripper opens, the arm moves home, you prepare the scene and press Enter, or `b` at the
    device of operator=…. `home`: the same without you. null: `scene` for a simulated task, otherwise
    `operator`."""
    cases: str | None = None
    """Folder of images of scenes that you prepare with reset=operator, one after the other; those of failures
    are written by `robot-rl states data=… out=…`."""
    success: str | None = None
    """Run of `method=classifier` that detects success in images; null for the classifier of a bundle that has
    one, otherwise the robot's sensor or you."""
    lookahead_ms: float | None = None
    """Fixed delay from a step's due time to its action's effect; must cover the robot's measured latency and
    the policy's inference time. null: actions are executed as soon as they are ready."""
    instruction: str | None = None
    """What the robot is asked to do, for a policy that reads instructions; null for the only one that it was
    trained on."""
    operator: str | None = None
    """Operator who may take over: the name of a `robot-rl teleop` device, or `scripted` for the expert of a
    served simulated task; null for none."""
    operator_device: dict[str, Any] = field(default_factory=dict)
    """Settings of the device, as `device.…` of `robot-rl teleop`: operator_device.host=0.0.0.0."""
    linear: float = 0.25
    """Linear speed at full deflection of the device, m/s."""
    angular: float = 1.0
    """Angular speed at full deflection of the device, rad/s."""
    record: str | None = None
    """Folder of recordings of all episodes; null for `deploy.raw` beside the results with an operator, and
    none without."""
    name: str = "deploy"
    """Name of this client at the robot's server."""
    turns_with: str | None = None
    """Name of another deployment whose episodes undo this one's: they take turns. Start the one without
    `first` first."""
    first: bool = False
    """Whether this deployment has the first turn."""
    seed: int = 0
    """Seed of the policy's noise, as for `robot-rl eval`."""
    asynchronous: str | None = None
    """Asynchronous execution, for a policy that is slower than the control rate: `naive`, `blend`, `prefix`,
    `guided` or `off`; as in the policy's training if null."""
    delay: int | None = None
    """With asynchronous: control steps from an observation to the chunk that is computed from it; as in the
    policy's training if null."""
    out: str = "${policy}/deploy.json"
    """File of the results; an existing file is never replaced."""
    keys: str | None = None
    """File of this client's keys, from `robot-rl robot keys`; required for a robot on a network."""
    insecure: bool = False
    """Use a network without keys."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto` for a GPU where there is one."""

    def __post_init__(self) -> None:
        for name in ("episodes", "horizon"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: ask for at least 1")
        if is_server(self.policy) and self.out.startswith(self.policy):
            raise ValueError(f"policy={self.policy} has no directory: add out=…")
        if self.reset not in (None, *RESETS):
            raise ValueError(f"reset={self.reset}: choose {', '.join(RESETS)}")
        operators = (*MOTION_DEVICES, SCRIPTED)
        if self.operator not in (None, *operators):
            raise ValueError(f"operator={self.operator}: choose {', '.join(operators)}")
        if self.operator_device and self.operator not in MOTION_DEVICES:
            raise ValueError("operator_device is for a device: give operator=…, or leave it out")
        Speed(self.linear, self.angular)
        if self.first and not self.turns_with:
            raise ValueError("first=true is for deployments that take turns: give turns_with=…")
        if self.turns_with == self.name:
            raise ValueError(f"turns_with={self.turns_with} is this client's own name: choose another name=…")


def run(config: Config) -> None:
    # One observation through a small network: more threads do not help.
    torch.set_num_threads(1)
    with ExitStack() as ended:
        with as_user_errors(), _answers(config.robot):
            controller, outcomes = _prepare(config, ended)
        if config.turns_with:
            print(f"it takes turns with {config.turns_with}", flush=True)
        how = deploy(controller, outcomes, config.episodes, config.seed)
    _report_end(config, outcomes, how)


def _prepare(config: Config, ended: ExitStack) -> tuple[Controller, DeploymentResults]:
    """Load the policy, connect everything that a deployment needs and check that it fits together."""
    if Path(config.out).exists():
        raise UserError(f"{config.out} holds an earlier deployment; choose another out=…")
    # `load_networks` checks the other files.
    bundle = read_manifest(Path(config.policy)) if is_bundle(Path(config.policy)) else None
    networks, meta = load_networks(config.policy, choose_device(config.device))
    environment = meta["environment"]
    if config.horizon is not None:
        environment = {**environment, "horizon": config.horizon}
    execution = chosen_execution(config.asynchronous, config.delay, meta)
    asked = asked_instruction(environment, config.instruction)
    keys = load_own_keys(config.keys)

    def connect(name: str, role: Role) -> RobotClient:
        client = RobotClient(config.robot, name, role, keys=keys, insecure=config.insecure, timeout=_TIMEOUT)
        return ended.enter_context(client)

    robot = connect(config.name, operator_role(keys) if config.operator in MOTION_DEVICES else "policy")
    reset = config.reset or default_reset(robot.spec)
    cases = read_cases(Path(config.cases)) if config.cases else None
    if cases and reset != "operator":
        raise ValueError(f"cases={config.cases} are scenes that you prepare: add reset=operator")
    if bundle and bundle.robot:
        check_same_robot(bundle.robot, robot.spec)
    check_robot_fits(robot.spec, robot.lease_ms, environment)
    cameras = environment["observation_spec"]["cameras"]
    period = 1 / environment["control_freq"]
    frames = ended.enter_context(camera_reader(robot, config.robot, cameras, period, keys, config.insecure))
    stop = ended.enter_context(stop_on_signal())
    display = OperatorDisplay(config.robot, keys, config.insecure)

    def say(line: str) -> None:
        print(line, flush=True)
        display.say(line)

    operator = _operator(config, environment, robot, display, say, ended)
    person = operator if isinstance(operator, Person) else None
    classifier = _classifier(config, bundle)
    warn_of_other_execution(networks, meta, execution)
    controller = make_controller(
        robot,
        _acting_policy(config, networks, environment, execution, ended),
        environment,
        reset,
        stop,
        ended,
        frames=frames,
        judge=success_judge(classifier, robot, config.robot, period, keys, config.insecure, person, ended),
        turns=Turns(robot, config.turns_with, first=config.first) if config.turns_with else None,
        lookahead_ms=config.lookahead_ms,
        instruction=asked,
        operator=operator,
        stopper=connect(f"{config.name}_stop", robot.role) if operator else None,
        wait_until_ready=person.ready(stop, say) if person else None,
        cases=cases,
        recording=_recording(config, networks, asked, ended),
        say=say,
    )
    if reset == "scene":
        check_initial_states(robot, config.episodes)
    facts = {
        **_facts(config, networks, robot, environment),
        **asdict(execution),
        "instruction": asked,
        "bundle": bundle and bundle.fingerprint,
        "reset": reset,
        "cases": cases and {"folder": config.cases, "count": len(cases)},
        "judge": classifier,
    }
    return controller, DeploymentResults(Path(config.out), facts, controller.timing)


def _facts(
    config: Config,
    networks: BasePolicy | FinetunedPolicy,
    robot: RobotClient,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """What the results say of the policy, the robot and the options."""
    return {
        "policy": config.policy,
        "kind": "tuned" if isinstance(networks, FinetunedPolicy) else "base",
        "fingerprint": fingerprint(networks),
        "task": environment["task"],
        "control_freq": environment["control_freq"],
        "horizon": environment["horizon"],
        "robot": {"name": robot.spec.name, "address": config.robot, "spec_sha256": robot.spec.sha256},
        "operator": config.operator,
        "recorded": _raw_folder(config),
        "lookahead_ms": config.lookahead_ms,
        "seed": config.seed,
    }


def _classifier(config: Config, bundle: Manifest | None) -> str | None:
    """Directory of the classifier that judges success, if one does."""
    if config.success is None and bundle and bundle.classifier:
        return str(Path(config.policy, CLASSIFIER))
    return config.success


def _acting_policy(
    config: Config,
    networks: BasePolicy | FinetunedPolicy,
    environment: Mapping[str, Any],
    execution: AsyncOptions,
    ended: ExitStack,
) -> ActingPolicy:
    """The policy that acts, perhaps with its inference in another thread."""
    policy = acting_policy(networks, 1)
    if config.instruction is not None:
        check_asked(policy.base, environment, config.instruction)
    if execution:
        repeated = repeated_in_hold(spec_from_list(environment["action_spec"]))
        execute_asynchronously(policy, execution, repeated, compute_in_a_thread(ended))
    return policy


def _raw_folder(config: Config) -> str | None:
    """Where the episodes are recorded, if they are."""
    if config.record or not config.operator:
        return config.record
    return str(Path(config.out).with_name("deploy.raw"))


def _recording(
    config: Config, networks: BasePolicy | FinetunedPolicy, asked: str | None, ended: ExitStack
) -> EpisodeRecording | None:
    """The recording of all episodes, by a recorder in another process."""
    folder = _raw_folder(config)
    if folder is None:
        return None
    keys = Path(config.keys) if config.keys else None
    try:
        recorder = RecorderProcess(config.robot, Path(folder), keys=keys, insecure=config.insecure)
    except RecorderError as error:
        raise UserError(f"record={folder}: {error}") from error
    labels = {"policy": fingerprint(networks), "kind": "deployment"}
    if asked is not None:
        labels[INSTRUCTION] = asked
    return EpisodeRecording(ended.enter_context(recorder), labels)


def _operator(
    config: Config,
    environment: Mapping[str, Any],
    robot: RobotClient,
    display: OperatorDisplay,
    say: Callable[[str], None],
    resources: ExitStack,
) -> Operator | None:
    """Who may take over: the person at the device of `operator=…`, the scripted expert, or nobody."""
    if config.operator is None:
        return None
    if config.operator == SCRIPTED:
        return _scripted(environment, robot, config.seed, resources)
    return open_person(
        device_settings(config.operator, config.operator_device, "operator_device"),
        display,
        spec_from_list(environment["action_spec"]),
        environment["control_freq"],
        Speed(config.linear, config.angular),
        resources,
        say,
        activity="deployment",
    )


def _scripted(
    environment: Mapping[str, Any], robot: RobotClient, seed: int, ended: ExitStack
) -> "ScriptedOperator":
    """The scripted expert of a served task, which watches the robot's states."""
    # Imported here: it simulates, and a deployment needs no simulator otherwise.
    from robot_rl.factory import task_of
    from robot_rl.robot.operators.scripted import mirror, scripted_operator

    task = task_of(environment)
    return scripted_operator(task, mirror(task, robot, ended), 1.0, seed)


def _report_end(config: Config, outcomes: DeploymentResults, how: str) -> None:
    """Print the results. `how` is what `deploy` returned.

    Raises:
        KeyboardInterrupt: if the user stopped the deployment.
        SystemExit: if the robot or the policy's server was lost.
    """
    print("\n".join(outcomes.summary()))
    if outcomes.episodes:
        print(f"  {Path(config.out)}")
    if how == "stopped":
        unless = f", unless {config.turns_with} has it" if config.turns_with else ""
        print(f"stopped; the arm is at rest and disarmed{unless}", file=sys.stderr)
        raise KeyboardInterrupt
    if how != "done":
        print(f"robot-rl: {config.robot}: {how}", file=sys.stderr)
        raise SystemExit(1)


@contextmanager
def _answers(robot: str) -> Iterator[None]:
    """Turns an error of the robot before any motion into a UserError."""
    try:
        yield
    except RobotError as error:
        raise UserError(f"{robot}: {error}") from error
    except DeviceError as error:
        raise UserError(f"operator: {error}") from error
