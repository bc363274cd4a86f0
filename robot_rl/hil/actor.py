"""The half of online training that acts: decide, let a person take over, step, send."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

import numpy as np
import torch

from robot_rl.envs.observation import Observation
from robot_rl.hardware.clock import Clock
from robot_rl.hardware.connection import NoAnswer, RequestRefused, RobotError, ServerChanged
from robot_rl.hardware.realtime import COMMANDS, realtime_priority
from robot_rl.hil.actor_job import ActorJob
from robot_rl.hil.link.client import LearnerClient, LearnerLost
from robot_rl.hil.link.messages import End, Step, Weights, pack, pack_all, unpack_tensors
from robot_rl.hil.operators.operator import Operator, Outcome
from robot_rl.hil.scene import Scene
from robot_rl.hil.takeover import SOURCE, Driver, Takeover
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.robot.deploy.controller import LATE_FRACTION
from robot_rl.robot.deploy.terminal import Stopped
from robot_rl.seeds import episode_seed

_WAIT_NS: Final = 200_000_000
_STOPS: Final = 3
_TAKEN: Final = (Driver.HUMAN, Driver.HOLD)


class Actor:
    """Runs episodes until told to stop. It never waits for the learner within one, but in lockstep."""

    def __init__(
        self,
        scene: Scene,
        operator: Operator,
        policy: ActingPolicy,
        networks: FinetunedPolicy,
        line: LearnerClient,
        job: ActorJob,
        clock: Clock,
        *,
        steps: int,
        stop: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        """Take all of these, which stay the caller's.

        Args:
            scene: what is moved.
            operator: who may take over.
            policy: with one slot, acting with `networks`, whose weights come over the line.
            networks: see above.
            line: greeted.
            job: what the learner asks for.
            clock: of this machine; used between episodes.
            steps: that the run has made before.
            stop: asked at each step whether to leave.
            say: shows a line to people.
        """
        self._scene, self._policy, self._networks, self._operator = scene, policy, networks, operator
        self._client, self._outbox, self._clock, self._job = line, line.outbox, clock, job
        self._steps, self._stop, self._say = steps, stop, say
        self._takeover = Takeover(np.array([dim.kind == "gripper" for dim in scene.action_spec]))
        self._known = networks.state_dict()
        self._version, self._warm = 0, False
        self._late_ms = LATE_FRACTION * 1000 / job.task.control_freq

    def run(self, first: int) -> None:
        """Episodes from number `first` on. However it is left, the arm is at rest.

        Raises:
            LearnerLost: it is dead; the episode was ended, and waits on the disk for another learner.
            RobotError: the robot is lost.
            DeviceError: the operator's device is gone.
        """
        number = first
        try:
            while not self._leaving and self._has_room():
                with realtime_priority(COMMANDS) if self._scene.paced else nullcontext():
                    self._episode(number)
                number += 1
        finally:
            self._scene.halt()

    @property
    def _leaving(self) -> bool:
        return self._client.stopping or self._stop()

    def _has_room(self) -> bool:
        """Wait until the learner has caught up; False where it wants no more."""
        told = False
        while self._outbox.unacknowledged >= self._job.hil.ahead:
            if not told:
                self._scene.halt()
                self._say(f"{self._outbox.unacknowledged} steps ahead of the learner: waiting for it")
                told = True
            self._client.exchange()
            self._client.require()
            if self._leaving:
                return False
            self._clock.sleep_until(self._clock.now() + _WAIT_NS)
        return True

    def _episode(self, number: int) -> None:
        seed = episode_seed(self._job.seed, "train", number)
        if (begun := self._begin(number, seed)) is None:
            return
        obs = begun
        self._policy.reset([0], [seed])
        self._takeover.begin()
        self._outbox.begin(number)
        index = interventions = late = 0
        success, failed, interrupted, failure = False, False, "", None
        while not (success or interrupted):
            try:
                if why := self._why_to_leave():
                    interrupted = why
                    break
                hand, now = self._operator.look(self._scene.now()), self._scene.now()
                before, driver = self._takeover.driver, self._takeover.step(hand.cue, now)
                if hand.verdict == "stop":
                    self._stop_arm()
                if driver is Driver.LOST or hand.verdict in ("stop", "discard"):
                    interrupted = hand.verdict or "the operator's device fell silent"
                    break
                if failed := hand.verdict == "failure":
                    break
                if driver is Driver.RETURN and before is not Driver.RETURN:
                    # What was planned before a person moved the arm is worth nothing now.
                    self._policy.replan(0)
                interventions += driver in _TAKEN and before not in _TAKEN
                record = self._decide(obs)
                proposed = record.pop("action")
                action = self._takeover.action(proposed, hand.action, now)
                obs, reward, terminated, truncated, info = self._scene.step(action, driver)
            except (RobotError, LearnerLost) as error:
                interrupted, failure = str(error), error
                break
            source = SOURCE[driver]
            if source == "policy" and not self._policy.active:
                source = "base"
            self._outbox.add(
                Step(
                    episode=number,
                    index=index,
                    version=self._version,
                    source=source,
                    fields=pack_all(record),
                    action=pack(np.asarray(info["applied_action"], np.float32)),
                    proposed=pack(proposed),
                    reward=float(reward),
                    terminated=terminated,
                )
            )
            index += 1
            self._steps += 1
            late += info["late_ms"] > self._late_ms
            success, interrupted = info["success"], info.get("interrupted", "")
            if truncated:
                break
        if interrupted or failed:
            # At once: an arm whose commander falls silent is in fault soon.
            self._scene.halt()
        if interrupted:
            self._say(f"episode {number} ended: {interrupted}")
        final = self._decide(obs, explore=False)
        del final["action"]
        self._outbox.add(
            End(
                episode=number,
                index=index,
                fields=pack_all(final),
                success=success,
                interrupted=interrupted,
                interventions=interventions,
                late=late,
            )
        )
        self._operator.ended(_outcome(success, interrupted))
        if isinstance(failure, LearnerLost | NoAnswer | ServerChanged):
            raise failure
        self._client.exchange()
        if self._job.hil.lockstep:
            self._client.await_learned()

    def _begin(self, number: int, seed: int) -> Observation | None:
        """Reset the scene once operator and robot are ready; None where it is not wanted any more."""
        told = ""
        while not self._leaving:
            consent = self._operator.begin(number)
            try:
                if consent.asks == "stop":
                    self._stop_arm()
                elif consent.asks == "arm":
                    self._scene.acknowledge()
                if not (why := consent.why_not or self._scene.waits()):
                    with self._operator.elsewhere(self._stop_arm):
                        return self._scene.reset(number, seed)
            except RequestRefused as refusal:
                why = str(refusal)
            except Stopped:
                # By whoever ends the run, or by `disarm`, which is then why.
                continue
            if why != told:
                self._say(f"episode {number} cannot begin yet: {why}")
                told = why
            self._client.exchange()
            self._client.require()
            self._clock.sleep_until(self._clock.now() + _WAIT_NS)
        return None

    def _stop_arm(self) -> None:
        """Raises NoAnswer where the robot does not answer, asked again and again."""
        for left in reversed(range(_STOPS)):
            try:
                return self._scene.stop("the operator's device")
            except NoAnswer:
                if not left:
                    raise
        return None

    def _why_to_leave(self) -> str:
        """Send and take what there is; a reason to end the episode, "" where there is none."""
        if self._job.hil.lockstep:
            self._client.await_learned()
        else:
            self._client.exchange()
            self._client.require()
        weights, self._client.weights = self._client.weights, None
        if weights:
            self.take_weights(weights)
        return "the run pauses" if self._leaving else ""

    def take_weights(self, weights: Weights) -> None:
        """Act with these from now on.

        Raises:
            ProtocolError: they are another policy's.
        """
        self._networks.load_state_dict(unpack_tensors(weights.tensors, self._known), strict=False)
        self._version, self._warm = weights.version, weights.warm

    @torch.no_grad()
    def _decide(self, obs: Observation, *, explore: bool = True) -> dict[str, Any]:
        """What the policy would do, and what the replay keeps of this moment."""
        self._policy.active = self._warm and self._steps >= self._job.warmup_steps
        frames: Mapping[str, np.ndarray] = {key: value[None] for key, value in obs.items()}
        decision = self._policy.act(frames, explore=explore, with_base_samples=True)
        everything = {**frames, **decision.replay_fields()}
        kept = {name: np.asarray(everything[name][0]) for name in self._job.fields}
        return {"action": decision.action[0], **kept}


def _outcome(success: bool, interrupted: str) -> Outcome:
    if success:
        return "success"
    if interrupted:
        return "discarded" if interrupted == "discard" else "interrupted"
    return "failure"
