"""A scripted person at a simulated robot: watches the scene, and acts through the web page and by hand.

The person sees the scene and moves objects by hand as anyone in the room could
(`robot_rl.envs.surroundings`). Everything else goes through the page of `device=web`, as from a phone.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from robot_rl.envs.experts import make_expert
from robot_rl.envs.experts.expert import OPEN, Expert
from robot_rl.envs.task import TaskConfig
from robot_rl.hardware.realtime import COMMANDS, realtime_priority
from robot_rl.hardware.teleop.web.messages import Asked, View
from robot_rl.rehearsal.event_log import EventLog
from robot_rl.rehearsal.page import Page, PageLost
from robot_rl.rehearsal.scene import NEAR, Done, Scene
from robot_rl.robot.operators.scripted import ScriptedOperator
from robot_rl.robot.takeover import Cue

Duty = Literal["demonstrate", "label", "intervene", "watch"]
"""`demonstrate`: perform the task. `label`: prepare scenes for a policy and mark its successes; an episode
whose success did not last is discarded, as a classifier learns from them. `intervene`: prepare scenes,
mark successes, and take over from a failing policy. `watch`: prepare scenes."""
_PERIOD_S: Final = 1 / 40
_ACTS_EVERY: Final = 2
"""Periods per decision, which experts make 20 times per second."""
_PRESS_S: Final = 1.0
"""Time before a button without an effect is pressed again, s."""
_UNFOLLOWED_S: Final = 1.0
"""Time after which something that is held, and that the arm does not follow, is pressed again, s."""
_RELEASED_S: Final = 0.2
_GRIPPER_S: Final = 1.0
"""Time for the gripper to open, s."""
_SETTLED_S: Final = 0.5
"""Time for placed objects to come to rest, s."""
_NEARLY: Final = 1.5
"""Distance from where the object belongs, relative to `NEAR`, up to which the person lets a success pass."""
_JUDGED_S: Final = 0.3
"""Time after an episode's end within which the person sees whether it succeeded, s."""
_HOME_S: Final = 10.0
"""Time after which the person guides an arm by hand that does not find the way home, s."""


@dataclass(frozen=True)
class PersonConfig:
    """How a person works."""

    duty: Duty
    noise: float = 0.1
    """Noise of the demonstrated actions."""
    skill: float = 1.0
    """Skill of the demonstrations, from 0 to 1."""
    hold_s: float = 1.0
    """How long success is shown before it is marked, s."""
    patience_s: float = 25.0
    """Time after which a demonstration is given up as a failure, s."""


class Person:
    """Works in a background thread from `with` to its end, across restarts of page and robot."""

    def __init__(
        self,
        task: TaskConfig,
        room: Path,
        find_page: Callable[[], str],
        config: PersonConfig,
        events: EventLog,
        seed: int,
        session: str,
    ) -> None:
        """Create without starting.

        Args:
            task: the task that is served.
            room: its folder of surroundings.
            find_page: returns the newest printed link of a page, "" if there is none.
            config: how the person works.
            events: receives each scene that the person prepares, and the end of each episode that they see.
            seed: of everything that the person does. Sessions with the same duty begin with the same scenes.
            session: name of what the episodes are for. A session that goes on after an interruption goes on
                with the scenes as well.
        """
        self.task, self.config, self.seed = task, config, seed
        self._room, self._find_page, self._events = room, find_page, events
        self._session = {"duty": config.duty, "session": session}
        done = {**self._session, "refused": ""}.items()
        self._placed = sum(line.items() >= done for line in events.lines("placed"))
        """Number of scenes that this session has prepared."""
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="person", daemon=True)
        self.seen = self.succeeded = 0
        """Number of episodes that have ended so far, and of those that ended as a success."""
        self.happened = time.monotonic()
        """When the last episode ended, or the first was waited for, s."""
        self.error: Exception | None = None
        """Why the person could not go on."""

    def __enter__(self) -> "Person":
        self.happened = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            # A person and their phone do not wait for this machine's programs.
            with realtime_priority(COMMANDS), ExitStack() as opened:
                scene = Scene(self.task, self._room)
                opened.callback(scene.close)
                while not self._leaving.is_set():
                    with suppress(PageLost):
                        self._operate(scene)
                    self._leaving.wait(_PRESS_S)
        except Exception as error:
            self.error = error
            raise

    def _operate(self, scene: Scene) -> None:
        """Work at one page until it has gone."""
        if not (url := self._find_page()):
            return
        page = Page(url)
        try:
            controls = _PageControls(page)
            work = _Demonstrating if self.config.duty == "demonstrate" else _Attending
            session = work(self, scene, controls)
            watched = _Watched()
            due = time.monotonic()
            while not self._leaving.is_set():
                if page.view is not None and not page.view.trouble and scene.update():
                    self._note(watched.update(page.view))
                    session.step(page.view)
                else:
                    controls.release()
                controls.send(page.view)
                due = max(due + _PERIOD_S, time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))
        finally:
            page.close()

    def place_objects(self, scene: Scene) -> bool:
        """Prepare the next scene; False if that failed."""
        key = [self.seed, *self.config.duty.encode(), self._placed]
        seed = int(np.random.default_rng(key).integers(2**31))
        refused = scene.place(seed)
        self._events.write("placed", **self._session, refused=refused)
        self._placed += not refused
        return not refused

    def guide_home(self, scene: Scene) -> None:
        """Guide the disarmed arm home by hand."""
        self._events.write("guided home", refused=scene.guide_home())

    def note_revoked(self, episode: int | None) -> None:
        """Note that the success of the episode before this one was taken back."""
        self._events.write("revoked", before=episode)

    def _note(self, ended: tuple[int, str] | None) -> None:
        if ended is not None:
            number, outcome = ended
            self._events.write("episode", number=number, outcome=outcome, duty=self.config.duty)
            self.happened = time.monotonic()
            self.seen += 1
            self.succeeded += outcome == "success"


class _Watched:
    """Notices the ends of episodes on the page."""

    def __init__(self) -> None:
        self._running: int | None = None
        self._ended: tuple[int, float] | None = None

    def update(self, view: View) -> tuple[int, str] | None:
        """Number and outcome of an episode that has ended."""
        program = view.program
        if program.running and program.episode is not None:
            self._running = program.episode
        elif self._running is not None:
            self._ended, self._running = (self._running, time.monotonic() + _JUDGED_S), None
        # The outcome is shown a moment after the end.
        if self._ended is None or time.monotonic() < self._ended[1]:
            return None
        number, self._ended = self._ended[0], None
        return number, program.outcomes[-1] if program.outcomes else ""


class _PageControls:
    """What is held on the page, and its buttons."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._motion: tuple[float, ...] = (0.0,) * 6
        self._gripper: float | None = None
        self._on = False
        self._followed = self._released = time.monotonic()
        self._pressed: dict[Asked, float] = {}

    def hold(self, motion: tuple[float, ...] = (0.0,) * 6, gripper: float | None = None) -> None:
        """Hold this from now on."""
        if not self._on:
            self._followed = time.monotonic()
        self._motion, self._gripper, self._on = motion, gripper, True

    def act(self, action: np.ndarray) -> None:
        """Hold an action of an expert: six motions and a gripper, open at -1."""
        motion = tuple(float(part) for part in np.clip(action[:6], -1, 1))
        self.hold(motion, 1.0 if action[6] <= OPEN / 2 else 0.0)

    def release(self) -> None:
        """Hold nothing."""
        self._on = False

    def press(self, mark: Asked) -> bool:
        """Press a button, at most once per second; returns whether it was pressed now."""
        now = time.monotonic()
        if now - self._pressed.get(mark, 0.0) < _PRESS_S:
            return False
        self._pressed[mark] = now
        self._page.press(mark)
        return True

    def send(self, view: View | None) -> None:
        """Send what is held. It is pressed again where the arm does not follow."""
        now = time.monotonic()
        if view is None or not self._on or view.arm.mode == "human":
            self._followed = now
        elif now - self._followed > _UNFOLLOWED_S:
            self._followed = self._released = now
        if view is not None and view.control != "you":
            return
        if self._on and now - self._released > _RELEASED_S:
            # Pressed without the gripper first: one that is asked for with the press moves nothing.
            driving = view is not None and view.arm.mode == "human"
            self._page.move(self._motion, self._gripper if driving else None, on=True)
        else:
            self._page.move(on=False)


class _Demonstrating:
    """Performs the task by hand, episode after episode."""

    def __init__(self, person: Person, scene: Scene, controls: _PageControls) -> None:
        self._person, self._scene, self._controls = person, scene, controls
        self._expert: Expert | None = None
        self._done = Done(scene)
        self._placed_at: float | None = None
        self._opened_at: float | None = None
        self._homing_at: float | None = None
        self._steps = 0
        self._began = 0.0

    def step(self, view: View) -> None:
        """One period of work."""
        program, controls = view.program, self._controls
        if view.arm.mode in ("idle", "fault"):
            controls.release()
            if self._lost and view.arm.mode == "idle":
                self._homing_at = None
                self._person.guide_home(self._scene)
            controls.press("arm")
        elif program.running:
            self._placed_at = self._opened_at = self._homing_at = None
            self._perform(view)
        elif "begin" in program.marks:
            self._expert = None
            self._prepare(view)
        else:
            controls.release()

    def _perform(self, view: View) -> None:
        config, sim, now = self._person.config, self._scene.sim, time.monotonic()
        if self._expert is None:
            rng = np.random.default_rng([self._person.seed, view.program.episode or 0])
            self._expert = make_expert(self._person.task.env, noise=config.noise, skill=config.skill, rng=rng)
            self._expert.reset(sim)
            self._done.begin(self._expert)
            self._steps, self._began = 0, now
        if self._steps % _ACTS_EVERY == 0:
            self._controls.act(self._expert.act(sim))
        self._steps += 1
        if self._done.held_s() > config.hold_s:
            self._controls.press("success")
        elif self._scene.outside or now - self._began > config.patience_s:
            self._controls.press("failure")

    @property
    def _lost(self) -> bool:
        """Whether the arm has not found the way home for a while."""
        return self._homing_at is not None and time.monotonic() - self._homing_at > _HOME_S

    def _prepare(self, view: View) -> None:
        """Open the gripper, go home, put the objects elsewhere, begin."""
        now = time.monotonic()
        if self._opened_at is None:
            self._controls.hold()
            self._opened_at = now if view.arm.mode == "human" else None
        elif now - self._opened_at < _GRIPPER_S:
            self._controls.hold(gripper=1.0)
        elif self._placed_at is None and not self._scene.at_home:
            self._homing_at = self._homing_at or now
            self._controls.hold(gripper=1.0)
            self._controls.press("disarm" if self._lost else "home")
        elif self._placed_at is None:
            self._controls.release()
            self._placed_at = now if self._person.place_objects(self._scene) else None
        elif now - self._placed_at > _SETTLED_S:
            self._controls.press("begin")


class _Attending:
    """Prepares scenes for a policy, and takes over where it fails, if that is the person's duty."""

    def __init__(self, person: Person, scene: Scene, controls: _PageControls) -> None:
        self._person, self._scene, self._controls = person, scene, controls
        fraction = float(person.config.duty == "intervene")
        self._operator = ScriptedOperator(person.task.env, lambda: scene.sim, fraction, person.seed)
        self._running = False
        self._steps = 0
        self._done = Done(scene)
        self._achieved, self._ended_at = True, 0.0
        self._placed_at: float | None = None
        self._homing_at: float | None = None

    def step(self, view: View) -> None:
        """One period of work."""
        program, controls = view.program, self._controls
        if view.arm.mode == "fault":
            controls.press("arm")
        if program.running:
            self._placed_at = self._homing_at = None
            self._attend(view)
            return
        controls.release()
        if self._take_back(view):
            return
        waiting = "begin" in program.marks
        if not waiting and self._is_lost(view):
            self._help_home(view)
        elif view.arm.mode == "idle" and (self._scene.outside or (waiting and not self._scene.at_home)):
            self._person.guide_home(self._scene)
        if not waiting:
            return
        self._homing_at = None
        if self._placed_at is None:
            self._placed_at = time.monotonic() if self._person.place_objects(self._scene) else None
        elif time.monotonic() - self._placed_at > _SETTLED_S:
            controls.press("begin")

    def _take_back(self, view: View) -> bool:
        """Take back the last success if it clearly was none; returns whether that is still to be done."""
        now = time.monotonic()
        if self._running:
            self._running, self._ended_at = False, now
        if not self._achieved and now - self._ended_at < _JUDGED_S:
            self._achieved = self._nearly_done
        wrong = "failure" in view.program.marks and not self._achieved
        if wrong and now - self._ended_at >= _JUDGED_S and self._controls.press("failure"):
            self._person.note_revoked(view.program.episode)
        return wrong

    @property
    def _nearly_done(self) -> bool:
        return self._done.distance() < _NEARLY * NEAR

    def _is_lost(self, view: View) -> bool:
        """Whether the program has not brought the arm home for a while."""
        now = time.monotonic()
        if view.arm.mode == "script":
            self._homing_at = self._homing_at or now
        return self._homing_at is not None and now - self._homing_at > _HOME_S

    def _help_home(self, view: View) -> None:
        """Disarm the arm, guide it home by hand, and arm it."""
        idle = view.arm.mode == "idle"
        if self._scene.at_home and not idle:
            self._homing_at = None
        elif self._scene.at_home:
            self._controls.press("arm")
        elif idle:
            self._person.guide_home(self._scene)
        else:
            self._controls.press("disarm")

    def _attend(self, view: View) -> None:
        if not self._running:
            self._running, self._steps, self._achieved = True, 0, False
            self._operator.begin(view.program.episode or 0)
            self._done.begin(self._operator.expert)
        if self._steps % _ACTS_EVERY == 0:
            given = self._operator.read(time.monotonic_ns())
            if given.cue is Cue.DRIVING and given.action is not None:
                self._controls.act(given.action)
            else:
                self._controls.release()
        self._steps += 1
        config, held_s = self._person.config, self._done.held_s()
        self._achieved |= self._nearly_done
        if self._scene.outside:
            self._controls.press("failure")
        elif config.duty != "watch" and held_s > config.hold_s:
            self._controls.press("success")
        elif config.duty == "label" and self._done.lost:
            self._controls.press("discard")
