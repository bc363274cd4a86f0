"""What a server of a LeRobot policy answers, and one line about a request that it cannot use."""

from typing import Any

import msgspec
import numpy as np
import pytest

from robot_rl.policy_client.codec import MessageError
from robot_rl.policy_server.lerobot_inference import LeRobotInference
from robot_rl.policy_server.lerobot_process import Description
from tests.robot_rl.policy_server.stand_in import ACTION, CAMERA, DESCRIPTION, SIZE, STATE, STEPS, actions

NOISE = (3, 5)


class Process:
    """A policy's process without a process; notes what it is asked."""

    def __init__(self, **description: Any) -> None:
        self.policy = msgspec.convert({**DESCRIPTION, **description}, Description)
        self.seeds: list[int | None] = []

    def predict(self, obs: Any, prompts: Any = (), noise: Any = None, seed: int | None = None) -> Any:
        self.seeds.append(seed)
        given = obs if noise is None else {**obs, "noise": noise}
        return actions(given, {"prompts": prompts, "seed": None if self.policy.deterministic else seed})


@pytest.fixture
def directory(tmp_path: Any) -> Any:
    return tmp_path


def serving(directory: Any, **description: Any) -> tuple[LeRobotInference, Process]:
    process = Process(**description)
    return LeRobotInference(process, directory, 0), process  # type: ignore[arg-type]


def observation(first: float = 1.0, pixel: int = 2) -> dict[str, Any]:
    state = np.zeros(STATE, np.float32)
    state[0] = first
    return {"observation.state": state, CAMERA: np.full((*SIZE, 3), pixel, np.uint8)}


def infer(served: LeRobotInference, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    return served.infer([served.check(request) for request in requests])


def noise(seed: int, *samples: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(*samples, *NOISE)).astype(np.float32)


def test_the_metadata_say_what_to_send_and_what_comes_back(directory: Any) -> None:
    found = serving(directory)[0].metadata
    assert found["server"] == "robot-rl/lerobot"
    assert found["observation"] == {
        "obs_steps": 1,
        "numbers": {"observation.state": [STATE]},
        "images": {CAMERA: [*SIZE, 3]},
        "prompt": False,
    }
    assert found["action"] == {
        "shape": [STEPS, ACTION],
        "execute": 2,
        "units": "those of the policy's dataset",
    }
    assert found["noise"] is None
    assert "__noise__" not in found["reserved"]
    assert serving(directory, noise=NOISE)[0].metadata["reserved"][0] == "__noise__"


def test_requests_are_answered_together_and_each_gets_its_own(directory: Any) -> None:
    served, process = serving(directory)
    batch = {name: np.stack([array[None]] * 3) for name, array in observation(5.0).items()}
    one, three, two = infer(served, observation(1.0), {**batch, "__batch__": 3}, observation(2.0))
    assert len(process.seeds) == 1
    assert one["actions"].shape == (STEPS, ACTION)
    assert three["actions"].shape == (3, STEPS, ACTION)
    assert [one["actions"][0, 0], two["actions"][0, 0]] == [3, 4]
    assert (three["actions"] == 7).all()
    assert one.keys() == {"actions"}


def test_noise_is_given_drawn_or_seeded_where_the_policy_takes_it(directory: Any) -> None:
    served, process = serving(directory, noise=NOISE)
    given, requests = noise(1), []
    requests += [{**observation(), "__noise__": given}, {**observation(), "__noise__": noise(1, 2)}]
    requests += [{**observation(), "__seed__": 7}, {**observation(), "__seed__": 7}, observation()]
    asked = {"__num_samples__": 2, "__return_samples__": True}
    fixed, two, seeded, again, drawn, several = infer(served, *requests, {**observation(), **asked})
    assert len(process.seeds) == 2  # requests of one sample, and of two
    np.testing.assert_allclose(fixed["actions"], 3 + given.sum(), rtol=1e-5)
    np.testing.assert_allclose(two["actions"], 3 + noise(1, 2)[0].sum(), rtol=1e-5)
    np.testing.assert_array_equal(seeded["actions"], again["actions"])
    assert not np.array_equal(seeded["actions"], drawn["actions"])
    assert several["samples"].shape == (2, STEPS, ACTION)
    for sample, own in zip(several["samples"], several["noise"], strict=True):
        np.testing.assert_allclose(sample, 3 + own.sum(), rtol=1e-5)


def test_a_policy_that_draws_its_own_noise_is_seeded_for_one_request_alone(directory: Any) -> None:
    served, process = serving(directory, deterministic=False)
    replies = infer(
        served, *({**observation(), **seed} for seed in ({"__seed__": 7}, {}, {"__seed__": 8}, {}))
    )
    assert [reply["actions"][0, 0] for reply in replies[::2]] == [10, 11]
    assert len(process.seeds) == 3
    assert len(set(process.seeds)) == 3
    # What the server draws is decided by its own seed.
    other, again = serving(directory, deterministic=False)
    infer(other, observation())
    assert again.seeds == process.seeds[1:2]
    with pytest.raises(MessageError, match="__noise__ cannot be given: actions of this adds policy"):
        served.check({**observation(), "__noise__": noise(0)})
    with pytest.raises(MessageError, match="__num_samples__: this adds policy takes no noise"):
        served.check({**observation(), "__num_samples__": 2})


def test_a_prompt_is_needed_by_a_policy_that_reads_one(directory: Any) -> None:
    served = serving(directory, prompt=True)[0]
    batch = {name: np.stack([array[None]] * 2) for name, array in observation().items()}
    short, long, both = infer(
        served,
        {**observation(), "prompt": "a"},
        {**observation(), "prompt": "abcd"},
        {**batch, "__batch__": 2, "prompt": ["a", "abcd"]},
    )
    # The stand-in counts the letters of all observations in a pass.
    assert short["actions"][0, 0] == long["actions"][0, 0] == both["actions"][0, 0, 0] == 3 + 10
    assert infer(serving(directory)[0], {**observation(), "prompt": "ignored"})[0]["actions"][0, 0] == 3
    for change, words in (
        ({}, "prompt is missing"),
        ({"prompt": 3}, "prompt is missing"),
        ({"prompt": ["a", "b"]}, "send one text, or 1 of them"),
        ({"prompt": "a" * 5000}, "of 1024 characters at most"),
    ):
        with pytest.raises(MessageError, match=words):
            served.check({**observation(), **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"observation.images.wrist": np.zeros((*SIZE, 3), np.uint8)}, "unknown key 'observation.images.wri"),
        ({CAMERA: np.zeros((*SIZE[::-1], 3), np.uint8)}, r"has shape \[24, 16, 3\]; send \[16, 24, 3\]"),
        ({CAMERA: np.zeros((3, *SIZE), np.uint8)}, "has shape"),
        ({CAMERA: np.zeros((*SIZE, 3), np.float32)}, "send uint8"),
        ({"observation.state": np.zeros(STATE + 1, np.float32)}, "observation.state has shape"),
        ({"observation.state": np.full(STATE, np.inf, np.float32)}, "not finite"),
        ({"observation.state": [0.0]}, "observation.state is no array"),
        (
            {"state": np.zeros(STATE, np.float32)},
            "this policy observes observation.state, observation.images",
        ),
        ({"__features__": True}, "gives no features"),
        ({"__batch__": 2}, r"send \[2, 1, 3\]"),
        ({"__seed__": -1}, "send an integer"),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_in_one_line(
    directory: Any, change: dict[str, Any], words: str
) -> None:
    served = serving(directory)[0]
    with pytest.raises(MessageError, match=words) as caught:
        served.check({**observation(), **change})
    assert "\n" not in str(caught.value)
    for name in observation():
        without = {other: value for other, value in observation().items() if other != name}
        with pytest.raises(MessageError, match=f"{name} is missing"):
            served.check(without)


def test_a_policy_that_looks_back_needs_all_its_frames(directory: Any) -> None:
    served = serving(directory, obs_steps=2)[0]
    frames = {name: np.stack([array, array]) for name, array in observation().items()}
    assert infer(served, frames)[0]["actions"][0, 0] == 2 * 1 + 2
    with pytest.raises(MessageError, match=r"the last 2 frames, oldest first, of \[3\]"):
        served.check(observation())


def test_requests_are_given_to_the_policy_together_up_to_the_size_of_one(directory: Any) -> None:
    served, process = serving(directory, deterministic=True)
    whole = {name: np.stack([value[None]] * 200) for name, value in observation().items()}
    replies = infer(served, *({**whole, "__batch__": 200} for _ in range(3)), observation())
    assert [len(reply["actions"]) for reply in replies] == [200, 200, 200, STEPS]
    assert len(process.seeds) == 3
