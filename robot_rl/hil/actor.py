"""The actor of `hil=on`: chooses actions, lets the operator take over, acts, and sends each step."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from robot_rl.envs.observation import Observation
from robot_rl.hardware.clock import Clock
from robot_rl.hardware.connection import NoAnswer, RobotError, ServerChanged
from robot_rl.hardware.protocol.large_messages import pack, pack_all
from robot_rl.hardware.realtime import COMMANDS, realtime_priority
from robot_rl.hil.actor_job import ActorJob
from robot_rl.hil.classifier_updates import ClassifierUpdates
from robot_rl.hil.link.client import LearnerClient, LearnerLost
from robot_rl.hil.link.messages import End, Step, Weights, unpack_tensors
from robot_rl.policies.acting import ActingPolicy
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.robot.deploy.controller import LATE_FRACTION
from robot_rl.robot.operators.operator import Operator, Outcome, outcome_of
from robot_rl.robot.operators.shared_control import SharedControl, SharedEnvironment
from robot_rl.rollout import episode_seed

_POLL_NS: Final = 200_000_000


@dataclass
class _Episode:
    """State of the current episode."""

    number: int
    obs: Observation
    """Newest observation."""
    steps: int = 0
    late: int = 0
    success: bool = False
    failed: bool = False
    """Whether the operator marked it as a failure."""
    truncated: bool = False
    interrupted: str = ""
    """Reason why it was aborted, "" if it was not."""
    error: RobotError | LearnerLost | None = None

    @property
    def over(self) -> bool:
        return (
            self.success or self.failed or self.truncated or bool(self.interrupted) or self.error is not None
        )

    @property
    def outcome(self) -> Outcome:
        return outcome_of(self.success, self.interrupted)


class Actor:
    """Runs episodes until stopped. During an episode it waits for the learner only in lockstep."""

    def __init__(
        self,
        env: SharedEnvironment,
        operator: Operator,
        policy: ActingPolicy,
        networks: FinetunedPolicy,
        client: LearnerClient,
        job: ActorJob,
        clock: Clock,
        *,
        steps: int,
        stop: Callable[[], bool],
        say: Callable[[str], None],
        updates: ClassifierUpdates | None = None,
    ) -> None:
        """Create without starting; the caller closes the arguments.

        Args:
            env: environment to act in.
            operator: operator who may take over.
            policy: acting policy of one environment, made of `networks`.
            networks: networks that receive the learner's weights.
            client: link to the learner, after the handshake.
            job: task and settings from the learner.
            clock: clock of this machine, used between episodes.
            steps: environment steps of the run so far, of all actors.
            stop: polled at each step; True ends the actor.
            say: shows a line to the user.
            updates: corrects the classifier of success by what the operator says.
        """
        self._updates = updates
        self._env, self._policy, self._networks, self._operator = env, policy, networks, operator
        self._client, self._outbox, self._clock, self._job = client, client.outbox, clock, job
        self._steps, self._stop, self._say = steps, stop, say
        self._shared = SharedControl(
            env, operator, policy, clock, stopping=lambda: self._stopping, say=say, idle=self._exchange
        )
        self._expected_weights = networks.state_dict()
        self._unsent: dict[str, torch.Tensor] = {}
        """Weights from before the first ones that were sent."""
        self._version, self._warm = 0, False
        self._held: list[Step | End] = []
        """Last step and end of a success that the operator may still take back."""
        self._late_ms = LATE_FRACTION * 1000 / job.task.control_freq

    def run(self, first: int) -> None:
        """Run episodes from number `first` on. The arm is at rest when this returns or raises.

        Raises:
            LearnerLost: if the learner is dead; the finished episodes are on the disk.
            RobotError: if the robot is lost.
            DeviceError: if the operator's device is lost.
        """
        number = first
        try:
            while not self._stopping and self._wait_for_learner():
                with realtime_priority(COMMANDS) if self._env.realtime else nullcontext():
                    self._run_episode(number)
                self._correct_classifier()
                number += 1
        finally:
            self._env.halt()
            self._release()
            self._correct_classifier()

    def load_weights(self, weights: Weights) -> None:
        """Act with these weights from now on.

        Raises:
            ProtocolError: if they do not fit the policy.
        """
        tensors = unpack_tensors(weights.tensors, self._expected_weights)
        for name in tensors.keys() - self._unsent.keys():
            self._unsent[name] = self._expected_weights[name].clone()
        # A learner that went back to an older checkpoint leaves out what it has not changed yet.
        self._networks.load_state_dict({**self._unsent, **tensors}, strict=False)
        self._version, self._warm = weights.version, weights.warm

    @property
    def _stopping(self) -> bool:
        return self._client.stopping or self._stop()

    def _wait_for_learner(self) -> bool:
        """Wait while the learner is more than `hil.ahead` steps behind; False if the actor must stop."""
        if self._outbox.unacknowledged < self._job.hil.ahead:
            return True
        self._env.halt()
        self._say(f"{self._outbox.unacknowledged} steps ahead of the learner: waiting for it")
        with self._shared.listening():
            while self._outbox.unacknowledged >= self._job.hil.ahead:
                self._exchange()
                if self._stopping:
                    return False
                self._clock.sleep_until(self._clock.now() + _POLL_NS)
        return True

    def _run_episode(self, number: int) -> None:
        seed = episode_seed(self._job.seed, "train", number)
        if (obs := self._shared.begin(number, seed)) is None:
            return
        self._release()
        self._policy.reset([0], [seed])
        self._policy.runner.queries = 0
        self._outbox.begin(number)
        episode = _Episode(number, obs)
        while not episode.over:
            try:
                self._control_step(episode)
            except (RobotError, LearnerLost) as error:
                episode.interrupted, episode.error = str(error), error
        self._end(episode)

    def _control_step(self, episode: _Episode) -> None:
        self._sync()
        if self._stopping:
            episode.interrupted = "the run pauses"
            return
        shared = self._shared
        shared.read()
        episode.interrupted, episode.failed = shared.interrupted, shared.failed
        if episode.over:
            return
        proposed, fields = self._act(episode.obs)
        step = shared.step(shared.action(proposed))
        episode.obs, reward, terminated, episode.truncated, info = step
        source = shared.source
        if source == "policy" and not self._policy.active:
            source = "base"
        elif source == "human" and info.get("refused"):
            # The arm held: the person wanted something else.
            source = "handover"
        self._send(
            Step(
                episode=episode.number,
                index=episode.steps,
                version=self._version,
                source=source,
                fields=pack_all(fields),
                action=pack(np.asarray(info["applied_action"], np.float32)),
                proposed=pack(proposed),
                reward=float(reward),
                terminated=terminated,
            ),
            hold=info["success"],
        )
        episode.steps += 1
        self._steps += 1
        episode.late += info["late_ms"] > self._late_ms
        episode.success, episode.interrupted = info["success"], info.get("interrupted", "")

    def _end(self, episode: _Episode) -> None:
        """Bring the arm to rest if the episode did not end by itself, and send its end."""
        if episode.interrupted or episode.failed:
            # First of all: an arm without commands soon goes into fault.
            self._env.halt()
        if episode.interrupted:
            self._say(f"episode {episode.number} ended: {episode.interrupted}")
        _, fields = self._act(episode.obs, explore=False)
        self._send(
            End(
                episode=episode.number,
                index=episode.steps,
                fields=pack_all(fields),
                success=episode.success,
                interrupted=episode.interrupted,
                interventions=self._shared.interventions,
                late=episode.late,
                queries=self._policy.runner.queries,
            ),
            hold=episode.success,
        )
        self._shared.end(episode.outcome)
        if isinstance(episode.error, LearnerLost | NoAnswer | ServerChanged):
            raise episode.error
        self._client.exchange()
        if self._job.hil.lockstep:
            self._client.wait_until_learned()

    def _send(self, record: Step | End, *, hold: bool) -> None:
        """Send a record, or hold it until `_release` if the operator may take a success back."""
        if hold and self._job.hil.revocable:
            self._held.append(record)
        else:
            self._outbox.add(record)

    def _release(self) -> None:
        """Send what is held, as a failure if the operator has taken the success back."""
        revoked = bool(self._held) and self._operator.revoked()
        if revoked:
            self._say("the operator has taken back the last success")
        if self._held and self._updates:
            self._updates.note_success(revoked=revoked)
        for record in self._held:
            if revoked and isinstance(record, Step):
                # The state after it is not the end: its value counts again.
                record = msgspec.structs.replace(record, reward=record.reward - 1.0, terminated=False)
            elif revoked:
                record = msgspec.structs.replace(record, success=False)
            self._outbox.add(record)
        self._held = []

    def _correct_classifier(self) -> None:
        if self._updates and self._updates.pending:
            # An arm without commands would go into fault meanwhile.
            self._env.halt()
            with self._shared.listening():
                self._updates.learn()

    def _exchange(self) -> None:
        self._client.exchange()
        self._client.check_connected()

    def _sync(self) -> None:
        """Exchange messages with the learner and load new weights."""
        if self._job.hil.lockstep:
            self._client.wait_until_learned()
        else:
            self._exchange()
        # Other actors step as well.
        self._steps = max(self._steps, self._client.steps)
        weights, self._client.weights = self._client.weights, None
        if weights:
            self.load_weights(weights)

    @torch.no_grad()
    def _act(
        self, obs: Observation, *, explore: bool = True
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
        """Action of the policy [A], and the fields that the replay stores of this step."""
        self._policy.active = self._warm and self._steps >= self._job.warmup_steps
        frames: Mapping[str, np.ndarray] = {key: value[None] for key, value in obs.items()}
        decision = self._policy.act(frames, explore=explore, with_base_samples=True)
        available = {**frames, **decision.replay_fields()}
        return decision.action[0], {name: np.asarray(available[name][0]) for name in self._job.fields}
