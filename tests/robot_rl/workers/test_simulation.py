"""What a worker simulates, without a cluster."""

import numpy as np
import pytest

from robot_rl.cli.compose import load_group
from robot_rl.envs.task import TaskConfig
from robot_rl.launchers.software import installed_software
from robot_rl.workers.simulation import EpisodeRecord, Simulation, SimulationJob


def job() -> SimulationJob:
    return SimulationJob(load_group("task", "lift", TaskConfig), 2, [], installed_software())


def test_a_worker_continues_for_another_with_the_same_bits() -> None:
    """One environment from a seed, the other from a saved state, a call that was not answered."""
    lost, other = Simulation(), Simulation()
    interface = lost.build(job())
    random = np.random.default_rng(0)
    actions = random.uniform(-1, 1, (5, 2, len(interface.action_spec))).astype(np.float32)
    draw = np.ones(2, bool)
    starts = {0: (3, None), 1: (4, None)}
    lost.reset(starts)
    for action in actions[:2]:
        lost.step(action, draw)
    saved = lost.get_states()[1]
    lost.set_states({1: saved})
    for action in actions[2:4]:
        lost.step(action, draw)
    records = {
        0: EpisodeRecord(starts[0], None, list(actions[:4, 0])),
        1: EpisodeRecord(starts[1], saved, list(actions[2:4, 1])),
    }
    obs = lost.step(actions[4], draw).obs["state"]
    other.build(job())
    assert np.array_equal(other.resume(records, "step", actions[4], draw).obs["state"], obs)
    for index, state in lost.get_states().items():
        assert np.array_equal(state, other.get_states()[index])


def test_a_worker_with_other_software_makes_no_environments() -> None:
    software = installed_software()
    wanted = SimulationJob(job().task, 1, [], {**software, "mujoco": "0.1"})
    with pytest.raises(ValueError, match=rf"mujoco is {software['mujoco']}, not 0.1; install the same"):
        Simulation().build(wanted)
