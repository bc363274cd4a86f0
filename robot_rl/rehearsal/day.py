"""The stages of a rehearsal: what is typed in each, and what happens meanwhile."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from robot_rl.envs.task import TaskConfig
from robot_rl.errors import INTERRUPTED, USER_ERROR, UserError
from robot_rl.rehearsal.event_log import EventLog
from robot_rl.rehearsal.person import Person, PersonConfig
from robot_rl.rehearsal.report import count_episodes
from robot_rl.rehearsal.workplace import ServedRobot, Terminal
from robot_rl.runs import list_checkpoints, write_text

PACKAGES: Final = Path(".ci/packages.sh")
"""Installs the project, in a checkout."""
_WITH_FINDINGS: Final = (0, 1)
"""Exit codes of a check that may find something."""
_ATTEMPTS: Final = 8
"""How often a command that a kill has ended is typed at most."""
_TRIES: Final = 5
"""Most demonstrations for each successful one."""
_KILL_AFTER: Final = {"camera": 1, "server": 2}
"""Number of ended episodes of the stage after which each is killed. The learner is killed after its first
checkpoint."""
_STUCK_S: Final = 300.0
"""Time without the end of an episode after which the robot's server is started again, s: a person would."""


@dataclass
class Plan:
    """What a rehearsal does. Lists are options of the commands, as a person would type them."""

    task: list[str] = field(default_factory=list)
    """Options that choose the task, for all commands."""
    robot: list[str] = field(default_factory=list)
    """Further options of `robot-rl robot`."""
    demonstrations: int = 2
    """Number of successful demonstrations; failed ones are kept, too."""
    noise: float = 0.3
    """Noise of the operator's motions."""
    skill: float = 0.9
    """Skill of the operator, from 0 to 1."""
    derive: list[str] = field(default_factory=list)
    """Further options of `robot-rl data derive`."""
    base: list[str] = field(default_factory=list)
    """Options of the training of the base."""
    trials: int = 40
    """Episodes of the base that the person judges; the classifier learns from them."""
    classifier: list[str] = field(default_factory=list)
    """Options of the training of the classifier."""
    rl: list[str] = field(default_factory=list)
    """Options of reinforcement learning."""
    imagination: list[str] = field(default_factory=list)
    """Options that the second run of reinforcement learning has in addition; none: there is no second run."""
    episodes: int = 50
    """Judged episodes of each policy."""
    horizon: int = 80
    """Control steps of a judged episode, after which it is a failure."""
    clean: bool = True
    """Whether to deploy from a new environment that has only what deployment needs; it takes a checkout."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        for name in ("demonstrations", "trials", "episodes", "horizon"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")


class Day:
    """All stages in one folder. A stage that is done is skipped; one that was cut goes on where it can."""

    def __init__(
        self,
        plan: Plan,
        task: TaskConfig,
        home: Path,
        address: str,
        robot: ServedRobot,
        say: Callable[[str], None],
    ) -> None:
        """Create without starting.

        Args:
            plan: what to do.
            task: the served task.
            home: folder of the day.
            address: address of the robot.
            robot: its server.
            say: prints a line.
        """
        self._plan, self._task, self._home, self._address, self._robot = plan, task, home, address, robot
        self._say = say
        self._events = EventLog(home / "events.jsonl")
        self._terminal = Terminal(home / "logs", self._events, say)

    def stages(self) -> dict[str, Callable[[], None]]:
        """The stages in order."""
        return {
            "check": self._check,
            "demonstrate": self._demonstrate,
            "base": self._base,
            "classifier": self._classifier,
            "reinforcement": self._reinforcement,
            "imagination": self._imagination,
            "judge": self._judge,
        }

    def run(self) -> None:
        """Run all stages that are not done.

        Raises:
            UserError: if a command ends in an unexpected way.
        """
        for name, stage in self.stages().items():
            done = self._home / "done" / name
            if done.is_file():
                self._say(f"{name}: done before")
                continue
            self._say(f"{name}:")
            stage()
            done.parent.mkdir(exist_ok=True)
            write_text(done, "")

    # ---- stages ----------------------------------------------------------------------------------------

    def _check(self) -> None:
        type_ = self._terminal.run
        type_(["doctor", f"robot={self._address}"], codes=_WITH_FINDINGS)
        type_(["robot", "latency", f"address={self._address}", "go=true"], codes=_WITH_FINDINGS)
        raw = f"out={self._home / 'check.raw'}"
        type_(["record", f"address={self._address}", raw, "seconds=3", "outcome=discarded"])
        # Now, since an installation that fails should not cost a day.
        self._deployer()

    def _demonstrate(self) -> None:
        plan, raw, data = self._plan, self._home / "demos.raw", self._home / "demos.zarr"
        for attempt in range(_ATTEMPTS):
            left = plan.demonstrations - count_episodes(raw, "success")
            # A server that was restarted ends the command, which is typed again.
            codes = (0, INTERRUPTED) if attempt == _ATTEMPTS - 1 else (0, INTERRUPTED, 1)
            if left <= 0 or self._teleoperate(left, raw, codes) != 1:
                break
        if (count := count_episodes(raw, "success")) < plan.demonstrations:
            raise UserError(f"{raw} has {count} successful episodes, not {plan.demonstrations}: run it again")
        self._dataset(raw, data)
        self._terminal.run(["data", "validate", f"dataset={data}"])
        self._view(data)

    def _teleoperate(self, left: int, raw: Path, codes: tuple[int, ...]) -> int:
        """Collect `left` successful demonstrations; returns the command's exit code, one of `codes`."""
        person = self._person(
            "demos", PersonConfig("demonstrate", noise=self._plan.noise, skill=self._plan.skill)
        )
        leaving = False

        def meanwhile() -> None:
            nonlocal leaving
            self._attend(person)
            self._kill_once("camera", person, lambda: self._robot.camera(self._task.cameras[0]))
            if not leaving and (person.succeeded >= left or person.seen >= _TRIES * left):
                # Once: a second Ctrl-C would end it at once.
                leaving = True
                self._process.send_signal(signal.SIGINT)

        command = [
            "teleop",
            "device=web",
            "device.port=0",
            "speed=0.25",
            f"address={self._address}",
            f"out={raw}",
        ]
        self._robot.wait()
        with person:
            return self._terminal.run(command, codes=codes, meanwhile=meanwhile)

    def _base(self) -> None:
        home = self._home
        self._train("base", "method=bc", f"data={home / 'demos.zarr'}", *self._plan.base)
        trials = self._deploy("trials", [f"policy={home / 'base'}"], self._plan.trials, PersonConfig("label"))
        recordings = [self._recorded(out) for out in trials]
        datasets = [home / "demos.zarr"]
        for raw in recordings:
            datasets.append(raw.with_suffix(".zarr"))
            self._dataset(raw, datasets[-1])
        if not (labelled := home / "labelled.zarr").exists():
            listed = ",".join(map(str, datasets))
            self._terminal.run(["data", "merge", f"datasets=[{listed}]", f"out={labelled}"])

    def _classifier(self) -> None:
        data = f"data={self._home / 'labelled.zarr'}"
        self._train("classifier", "method=classifier", data, *self._plan.classifier)

    def _reinforcement(self) -> None:
        def kill(person: Person) -> None:
            self._kill_once("server", person, lambda: self._robot.pid)
            if list_checkpoints(self._home / "tuned" / "checkpoints"):
                self._kill_once("learner", person, lambda: self._process.pid)

        self._learn("tuned", kill)

    def _imagination(self) -> None:
        if self._plan.imagination:
            self._learn("imagined", lambda _: None, *self._plan.imagination)

    def _learn(self, name: str, kill: Callable[[Person], None], *more: str) -> None:
        """Reinforcement learning until it is finished. What a kill has ended is typed again."""
        person = self._person(name, PersonConfig("intervene"))

        def meanwhile() -> None:
            self._attend(person)
            kill(person)

        with person:
            for attempt in range(_ATTEMPTS):
                codes = (0,) if attempt == _ATTEMPTS - 1 else (0, 1, USER_ERROR, -signal.SIGKILL)
                self._robot.wait()
                if self._terminal.run([*self._rl(name), *more], codes=codes, meanwhile=meanwhile) == 0:
                    return

    def _judge(self) -> None:
        home, classifier = self._home, self._home / "classifier"
        program = self._deployer()
        for policy in ("base", "tuned"):
            bundle = home / f"{policy}_bundle"
            if not bundle.exists():
                self._terminal.run(
                    [
                        "export",
                        f"policy={home / policy}",
                        f"out={bundle}",
                        f"success={classifier}",
                        f"robot={self._address}",
                    ]
                )
            more = [f"policy={bundle}", f"horizon={self._plan.horizon}"]
            for out in self._deploy(
                policy, more, self._plan.episodes, PersonConfig("watch"), program=program
            ):
                self._view(self._recorded(out))

    # ---- commands --------------------------------------------------------------------------------------

    def _train(self, name: str, *options: str) -> None:
        common = [f"runs_dir={self._home}", f"name={name}", f"seed={self._plan.seed}"]
        self._terminal.run(["train", *self._plan.task, *options, *common])

    def _rl(self, name: str) -> list[str]:
        home = self._home
        # Full deflection on the page is a full action of the policy.
        controls = ["hil.operator=web", "hil.device.port=0", "hil.linear=1.0", "hil.angular=10.0"]
        return [
            "train",
            *self._plan.task,
            *self._plan.rl,
            f"base={home / 'base'}",
            f"data={home / 'demos.zarr'}",
            "hil=on",
            *controls,
            f"hil.robot={self._address}",
            "hil.reset=operator",
            f"hil.success={home / 'classifier'}",
            f"runs_dir={home}",
            f"name={name}",
            f"seed={self._plan.seed}",
        ]

    def _deploy(
        self,
        name: str,
        options: Sequence[str],
        episodes: int,
        config: PersonConfig,
        program: Sequence[str] = (),
    ) -> list[Path]:
        """Run episodes until there are enough, and return the files of the results.

        A deployment that was ended by a lost robot keeps its episodes; the next has the rest.
        """
        folder = self._home / "deployed"
        folder.mkdir(exist_ok=True)
        for attempt in range(_ATTEMPTS):
            results = sorted(folder.glob(f"{name}_*.json"))
            left = episodes - sum(len(json.loads(path.read_text())["episodes"]) for path in results)
            if left <= 0:
                return results
            used = len(list(folder.glob(f"{name}_*.raw")))
            out = folder / f"{name}_{used:02d}.json"
            person = self._person(name, config)
            self._robot.wait()
            with person:
                self._terminal.run(
                    [
                        "deploy",
                        *options,
                        f"robot={self._address}",
                        f"episodes={left}",
                        "reset=operator",
                        "operator=web",
                        "operator_device.port=0",
                        f"out={out}",
                        f"record={self._recorded(out)}",
                        f"seed={self._plan.seed + attempt}",
                    ],
                    program=program,
                    codes=(0, 1) if attempt == _ATTEMPTS - 1 else (0, 1, USER_ERROR),
                    meanwhile=lambda person=person: self._attend(person),  # type: ignore[misc]
                )
        raise UserError(f"{name}: not {episodes} episodes in {_ATTEMPTS} deployments; see {folder}")

    def _view(self, data: Path) -> None:
        # A stage that is run again may have made it.
        if not data.with_suffix(".html").exists():
            self._terminal.run(["data", "view", f"dataset={data}"])

    def _dataset(self, raw: Path, out: Path) -> None:
        if not out.exists():
            words = [f"raw={raw}", f"out={out}", *self._plan.task, *self._plan.derive]
            self._terminal.run(["data", "derive", *words])

    def _deployer(self) -> list[str]:
        """The command `robot-rl` of an environment that has only what deployment needs; [] for this one."""
        if not (self._plan.clean and PACKAGES.is_file()):
            self._events.write("environment", clean=False)
            return []
        environment = self._home / "environment"
        command = environment / "bin" / "robot-rl"
        if not command.is_file():
            self._terminal.run(["-m", "venv", str(environment)], program=[sys.executable])
            self._terminal.run([str(environment), "deploy"], program=[str(PACKAGES)])
        self._events.write("environment", clean=True)
        return [str(command)]

    def _recorded(self, results: Path) -> Path:
        return results.with_suffix(".raw")

    # ---- people and kills ------------------------------------------------------------------------------

    def _person(self, session: str, config: PersonConfig) -> Person:
        room, find_page = self._home / "room", self._terminal.find_page
        return Person(self._task, room, find_page, config, self._events, self._plan.seed, session)

    def _attend(self, person: Person) -> None:
        """Raise the error of a person who could not go on, and restart a robot with which nothing happens."""
        if person.error is not None:
            raise person.error
        if time.monotonic() - person.happened > _STUCK_S:
            self._events.write("stuck", after=person.seen)
            self._say(f"no episode has ended for {_STUCK_S:.0f} s: the server is restarted")
            os.kill(self._robot.pid, signal.SIGTERM)
            person.happened = time.monotonic()

    @property
    def _process(self) -> "subprocess.Popen[bytes]":
        assert self._terminal.process is not None
        return self._terminal.process

    def _kill_once(self, what: str, person: Person, find: Callable[[], int]) -> None:
        """Kill a process of the day, once in the day, after some episodes of this stage."""
        killed = self._events.lines("killed")
        if person.seen < _KILL_AFTER.get(what, 0) or any(line["name"] == what for line in killed):
            return
        pid = find()
        os.kill(pid, signal.SIGKILL)
        self._events.write("killed", name=what, pid=pid, after=person.seen)
        self._say(f"the {what} was killed")
