"""What a policy server answers: the policy's own actions, and one line about a request it cannot use."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.envs.instruction import encode_instruction
from robot_rl.policies.bases.vla import VLAConfig, VLAPolicy
from robot_rl.policies.finetuned.residual import Residual, ResidualSpec
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policy_client.codec import MessageError
from robot_rl.policy_server import requests as requests_module
from robot_rl.policy_server.inference import PolicyInference
from robot_rl.policy_server.requests import Query
from tests.robot_rl.policy_server.small_policies import (
    ACTION,
    CAMERA,
    EXECUTE,
    HORIZON,
    SIZE,
    STATE,
    environment,
    flow,
    image,
    observation,
    tuned,
)


@pytest.fixture(scope="module")
def base() -> PolicyInference:
    return PolicyInference(flow(), environment(), 0)


def infer(served: PolicyInference, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    return served.infer([served.check(request) for request in requests])


def noise(seed: int, *samples: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(*samples, HORIZON, ACTION)).astype(np.float32)


def test_a_base_answers_with_its_own_chunk_for_the_given_noise(base: PolicyInference) -> None:
    given, request = noise(1), observation()
    (reply,) = infer(base, {**request, "__noise__": given})
    expected = base.base.sample(
        {"state": torch.from_numpy(request["state"])[None, None]}, noise=torch.from_numpy(given)[None, None]
    )
    assert reply.keys() == {"actions"}
    assert reply["actions"].shape == (HORIZON, ACTION)
    assert np.array_equal(reply["actions"], expected.actions[0, 0].numpy())
    (other,) = infer(base, {**request, "__noise__": noise(2)})
    assert np.abs(other["actions"] - reply["actions"]).max() > 1e-3


def test_requests_that_are_answered_together_get_what_each_would_get_alone(base: PolicyInference) -> None:
    requests = [{**observation(i), "__noise__": noise(i, n)} for i, n in enumerate((1, 3, 1, 3, 2))]
    together = infer(base, *requests)
    for request, reply in zip(requests, together, strict=True):
        (alone,) = infer(base, request)
        np.testing.assert_allclose(reply["actions"], alone["actions"], atol=1e-6)


def test_samples_are_those_of_each_noise_and_returned_on_request_alone(base: PolicyInference) -> None:
    given = noise(3, 3)
    (reply,) = infer(base, {**observation(), "__noise__": given, "__return_samples__": True})
    assert reply["samples"].shape == (3, HORIZON, ACTION)
    assert np.array_equal(reply["noise"], given)
    assert np.array_equal(reply["actions"], reply["samples"][0])
    for one, sample in zip(given, reply["samples"], strict=True):
        (single,) = infer(base, {**observation(), "__noise__": one})
        np.testing.assert_allclose(single["actions"], sample, atol=1e-6)
    (drawn,) = infer(base, {**observation(), "__num_samples__": 5, "__return_samples__": True})
    assert drawn["samples"].shape == (5, HORIZON, ACTION)
    assert len(np.unique(drawn["samples"][:, 0, 0])) == 5


def test_features_are_returned_on_request_and_change_no_action(base: PolicyInference) -> None:
    request = {**observation(), "__seed__": 3}
    plain, asked = infer(base, request)[0], infer(base, {**request, "__features__": True}, request)
    features = base.base.features({"state": torch.from_numpy(request["state"])[None, None]})
    assert np.array_equal(asked[0]["features"], features[0].numpy())
    assert asked[1].keys() == {"actions"}
    np.testing.assert_allclose(asked[0]["actions"], plain["actions"], atol=1e-6)


def test_features_stand_for_the_observation_that_they_are_of(base: PolicyInference) -> None:
    request = {**observation(), "__noise__": noise(3, 2), "__return_samples__": True}
    (whole,) = infer(base, {**request, "__features__": True})
    (seen,) = infer(base, {**observation(), "__features__": True, "__num_samples__": 0})
    assert seen.keys() == {"features"}
    assert np.array_equal(seen["features"], whole["features"])
    # Also together with a request of equally many samples for an observation.
    request.pop("state")
    again, other = infer(base, {**request, **seen}, {**observation(1), "__noise__": noise(4, 2)})
    np.testing.assert_allclose(again["samples"], whole["samples"], atol=1e-6)
    assert other["actions"].shape == (HORIZON, ACTION)
    batch = {"features": np.tile(seen["features"], (3, 1)), "__batch__": 3, "__seed__": 0}
    (rows,) = infer(base, batch)
    assert rows["actions"].shape == (3, HORIZON, ACTION)
    for change, words in (
        ({"features": seen["features"][:-1]}, "features has shape"),
        ({"features": np.full_like(seen["features"], np.inf)}, "not finite"),
        ({**seen, **observation()}, "unknown key 'state'"),
    ):
        with pytest.raises(MessageError, match=words):
            base.check(change)
    with pytest.raises(MessageError, match="unknown key 'features'"):
        PolicyInference(tuned(), environment(), 0).check({**observation(), **seen})


def test_actions_that_are_not_finite_are_an_error(base: PolicyInference) -> None:
    (seen,) = infer(base, {**observation(), "__features__": True, "__num_samples__": 0})
    with pytest.raises(RuntimeError, match="actions are not finite"):
        infer(base, {"features": np.full_like(seen["features"], 3e38)})


def test_one_request_asks_for_a_bounded_number_of_chunks(base: PolicyInference) -> None:
    states = np.zeros((256, 1, STATE), np.float32)
    base.check({"state": states, "__batch__": 256, "__num_samples__": 16})
    for asked in ({"__num_samples__": 17}, {"__noise__": np.zeros((256, 17, HORIZON, ACTION), np.float32)}):
        with pytest.raises(MessageError, match="256 observations of 17 samples each are too much"):
            base.check({"state": states, "__batch__": 256, **asked})


def test_requests_together_are_answered_in_passes_as_large_as_that_of_one(
    base: PolicyInference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "MAX_ROWS", 3)
    passes: list[int] = []
    answer = PolicyInference._batch

    def watched(self: PolicyInference, queries: Sequence[Query]) -> list[dict[str, Any]]:
        passes.append(sum(query.rows for query in queries))
        return answer(self, queries)

    requests = [{**observation(i), "__noise__": noise(i, 1)} for i in range(7)]
    alone = [infer(base, request)[0]["actions"] for request in requests]
    monkeypatch.setattr(PolicyInference, "_batch", watched)
    together = infer(base, *requests)
    assert passes == [3, 3, 1]
    for mine, reply in zip(alone, together, strict=True):
        np.testing.assert_allclose(reply["actions"], mine, atol=1e-6)


def test_repeated_noise_is_that_noise_at_every_step(base: PolicyInference) -> None:
    row = noise(4)[0]
    (short,) = infer(base, {**observation(), "__noise__": row})
    (long,) = infer(base, {**observation(), "__noise__": np.tile(row, (HORIZON, 1))})
    assert np.array_equal(short["actions"], long["actions"])


@pytest.mark.parametrize("networks", [flow, tuned])
def test_a_seed_gives_the_same_actions_again(networks: Any) -> None:
    served = PolicyInference(networks(), environment(), 0)
    one, two, three = (infer(served, {**observation(), "__seed__": seed})[0]["actions"] for seed in (7, 7, 8))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, three)


def test_a_tuned_policy_answers_with_what_it_would_execute() -> None:
    networks = tuned()
    torch.nn.init.normal_(networks.actor.net.head.weight)
    served = PolicyInference(networks, environment(), 0)
    (reply,) = infer(served, {**observation(), "__seed__": 5})
    policy = networks.policy(1)
    obs = {"state": torch.from_numpy(observation()["state"])[None, None]}
    expected = policy.choose_chunks(obs, [torch.Generator().manual_seed(5)])
    assert reply["actions"].shape == (EXECUTE, ACTION)
    assert np.array_equal(reply["actions"], expected[0].numpy())
    assert served.metadata["kind"] == "tuned"
    assert served.metadata["noise"] is None


def test_a_policy_that_looks_back_needs_all_its_frames() -> None:
    served = PolicyInference(flow(obs_steps=2), environment(), 0)
    frames = np.random.default_rng(0).normal(size=(2, STATE)).astype(np.float32)
    (one,) = infer(served, {"state": frames, "__seed__": 0})
    (two,) = infer(served, {"state": frames[::-1].copy(), "__seed__": 0})
    assert not np.array_equal(one["actions"], two["actions"])
    with pytest.raises(MessageError, match=r"the last 2 frames, oldest first, of \[3\]"):
        served.check(observation())


def test_images_reach_the_policy() -> None:
    served = PolicyInference(flow(CAMERA), environment(CAMERA), 0)
    key = f"images.{CAMERA}"
    assert served.metadata["observation"]["images"] == {key: [*SIZE, 3]}
    replies = [
        infer(served, {**observation(), key: picture, "__seed__": 0})[0]["actions"]
        for picture in (image(0), image(0), 255 - image(0))
    ]
    assert np.array_equal(replies[0], replies[1])
    assert not np.array_equal(replies[0], replies[2])
    for change, words in (
        ({}, f"{key} is missing"),
        ({key: image().astype(np.float32)}, "send uint8"),
        ({key: image().transpose(1, 0, 2)}, "has shape"),
        ({key: image(), "images.front": image()}, "unknown key 'images.front'"),
    ):
        with pytest.raises(MessageError, match=words):
            served.check({**observation(), **change})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": None}, "state is no array"),
        ({"state": np.zeros(STATE + 1, np.float32)}, "state has shape"),
        ({"state": np.zeros(STATE, np.int64)}, "send floats"),
        ({"state": np.full(STATE, np.nan, np.float32)}, "not finite"),
        ({"sate": 1}, "unknown key 'sate'"),
        ({"__noise__": np.zeros((HORIZON, ACTION + 1), np.float32)}, "__noise__ has shape"),
        ({"__noise__": np.zeros((0, HORIZON, ACTION), np.float32)}, "__noise__ has shape"),
        ({"__noise__": np.full((HORIZON, ACTION), np.inf, np.float32)}, "finite"),
        ({"__noise__": np.zeros((2, HORIZON, ACTION), np.float32), "__num_samples__": 3}, "2 samples"),
        ({"__num_samples__": 0}, "send an integer from 1 to 64"),
        ({"__num_samples__": True}, "send an integer"),
        ({"__seed__": -1}, "send an integer"),
        ({"__seed__": 0.5}, "send an integer"),
        ({"__seed__": np.zeros((9, 9))}, r"__seed__ is array\(\[\[0., 0.* send an integer"),
        ({"__return_samples__": 1}, "true or false"),
        ({"__features__": "yes"}, "true or false"),
    ],
)
def test_a_request_that_cannot_be_used_is_refused_in_one_line(
    base: PolicyInference, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(MessageError, match=words) as caught:
        base.check({**observation(), **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"__noise__": np.zeros((HORIZON, ACTION), np.float32)},
        {"__num_samples__": 2},
        {"__return_samples__": True},
        {"__features__": True},
    ],
)
def test_noise_and_samples_are_for_base_policies(change: dict[str, Any]) -> None:
    served = PolicyInference(tuned(), environment(), 0)
    with pytest.raises(MessageError):
        served.check({**observation(), **change})


def test_a_policy_that_corrects_every_step_is_not_served() -> None:
    spec = ResidualSpec(EncoderSpec(STATE), ACTION, (16,), (0.2, 0.2))
    with pytest.raises(ValueError, match="corrects each action"):
        PolicyInference(Residual(flow(), spec), environment(), 0)


def test_a_prompt_is_the_instruction_of_a_policy_that_reads_one() -> None:
    torch.manual_seed(0)
    config = VLAConfig(
        horizon=HORIZON,
        execute=EXECUTE,
        channels=[8],
        tokens_width=8,
        heads=1,
        layers=1,
        width=16,
        depth=1,
        words=["lift", "push"],
    )
    served = PolicyInference(VLAPolicy(config, STATE, ACTION, [CAMERA], SIZE).eval(), environment(CAMERA), 0)
    assert served.metadata["observation"]["prompt"] is True
    request = {**observation(), f"images.{CAMERA}": image(), "__noise__": noise(1)}
    lift, push = infer(served, {**request, "prompt": "lift"}, {**request, "prompt": "Push"})
    assert not np.array_equal(lift["actions"], push["actions"])
    (again,) = infer(served, {**request, "instruction": encode_instruction("lift")})
    np.testing.assert_allclose(again["actions"], lift["actions"], atol=1e-6)
    with pytest.raises(MessageError, match="prompt is missing"):
        served.check(request)
    with pytest.raises(MessageError, match="not trained on 'throw'; it knows lift, push"):
        served.check({**request, "prompt": "throw"})
