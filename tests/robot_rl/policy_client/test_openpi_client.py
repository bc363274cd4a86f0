"""`base=remote` with a stock openpi server: what the mapping declares is what is sent and how it is read."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.envs.instruction import encode_instruction
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import RemoteBase, connect_base
from tests.robot_rl.policy_client.policy_servers import served, stock
from tests.robot_rl.policy_server.small_policies import CAMERA, SIZE, flow

ENVIRONMENT: dict[str, Any] = {
    "observation_spec": {
        "state_keys": ["position", "opening"],
        "state_dims": [2, 1],
        "cameras": [CAMERA],
        "image_size": list(SIZE),
    },
    "action_spec": [
        {"name": "x", "kind": "delta", "unit": "m", "scale": 0.05, "frame": "base"},
        {"name": "rx", "kind": "delta", "unit": "rad", "scale": 0.5, "frame": "base"},
        {"name": "grip", "kind": "gripper", "unit": "closing", "scale": 1.0, "frame": "gripper"},
    ],
}
MAPPING: dict[str, Any] = {
    "execute": 2,
    "cameras": {CAMERA: "observation/image"},
    "state": {"observation/gripper": ["opening"], "observation/state": ["position"]},
    "prompt": "lift",
    "action_units": "si",
    "action_mode": "delta",
    "action_frame": "base",
    "gripper": [1.0, 0.0],
}


class Policy:
    """Answers three steps: the state's sum as x, a full turn, and a gripper that is half closed."""

    def __init__(self, noise: float = 0.0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.noise = noise

    def __call__(self, request: Any) -> dict[str, Any]:
        self.requests.append(request)
        x = 0.01 * request["observation/state"].sum() + self.noise * len(self.requests)
        return {"actions": np.tile([x, 0.5, 0.5], (3, 1)), "policy_timing": {"infer_ms": 1.0}}


def remote(url: str, **changes: Any) -> RemoteBase:
    return connect_base(RemoteConfig(url, timeout=20, **{**MAPPING, **changes}), ENVIRONMENT)


def observations(rows: int) -> dict[str, torch.Tensor]:
    state = torch.arange(3.0 * rows).view(rows, 1, 3) / 4
    images = torch.randint(0, 256, (rows, 1, *SIZE, 3), dtype=torch.uint8)
    return {"state": state, f"images.{CAMERA}": images}


def test_requests_and_actions_are_those_of_the_mapping() -> None:
    policy, obs = Policy(), observations(2)
    with stock(policy) as url:
        base = remote(url)
        assert (base.spec.horizon, base.spec.execute, base.spec.deterministic) == (3, 2, True)
        chunk = base.sample(obs)
    # x: 0.01 * (0 + 0.25) m and 0.01 * (0.75 + 1) m, of 0.05 m; 0.5 rad of 0.5 rad; half closed is 0.
    expected = torch.tensor([[0.05, 1.0, 0.0], [0.35, 1.0, 0.0]])[:, None, None].expand(2, 1, 3, 3)
    torch.testing.assert_close(chunk.actions, expected)
    assert chunk.noise is None
    with pytest.raises(ValueError, match="gives no features"):
        base.features(obs)
    sent = policy.requests[-1]
    assert sent.keys() == {"observation/state", "observation/gripper", "observation/image", "prompt"}
    assert sent["prompt"] == "lift"
    np.testing.assert_array_equal(sent["observation/state"], [0.75, 1.0])
    np.testing.assert_array_equal(sent["observation/gripper"], [1.25])
    np.testing.assert_array_equal(sent["observation/image"], obs[f"images.{CAMERA}"][1, 0].numpy())


def test_the_tasks_instructions_are_prompts() -> None:
    policy = Policy()
    told = {**ENVIRONMENT, "instructions": ["lift it", "leave it"]}
    with stock(policy) as url:
        base = connect_base(RemoteConfig(url, timeout=20, **{**MAPPING, "prompt": None}), told)
        assert base.spec.instruction
        texts = torch.from_numpy(np.stack([encode_instruction(text) for text in told["instructions"]]))
        base.sample({**observations(2), "instruction": texts[:, None]})
    assert [request["prompt"] for request in policy.requests[-2:]] == told["instructions"]


def test_a_policy_that_draws_its_own_noise_is_asked_once_for_each_sample() -> None:
    policy = Policy(noise=0.001)
    with stock(policy) as url:
        base = remote(url)
        assert not base.spec.deterministic
        assert base.spec.noise_shape is None
        before = len(policy.requests)
        chunk = base.sample(observations(2), num_samples=3)
        assert len(policy.requests) == before + 6
        assert len(torch.unique(chunk.actions[:, :, 0, 0])) == 6


def test_normalised_actions_stay_as_they_are_within_their_bounds_and_the_user_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with stock(lambda _: {"actions": np.array([[-0.5, 2.0, 0.0]], np.float32)}) as url:
        base = remote(url, action_units="normalized", execute=1, gripper=[-1.0, 1.0])
        assert base.sample(observations(1)).actions.flatten().tolist() == [-0.5, 1.0, 0.0]
    told = f"{url}: actions are up to 2 and are clipped to [-1, 1]: check base.action_units and base.gripper"
    assert capsys.readouterr().err.splitlines().count(told) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action_units": None, "gripper": []}, r"declare base\.action_units, base\.gripper"),
        ({"cameras": {"front": "image"}}, r"base\.cameras: the task does not observe 'front', only wrist"),
        ({"state": {"state": ["speed"]}}, r"base\.state: the task does not observe 'speed'"),
        ({"action_mode": "absolute"}, r"base\.action_mode=absolute: that of the task's actions is delta"),
        ({"action_frame": "tool"}, r"base\.action_frame=tool: that of the task's actions is base"),
        ({"execute": None}, r"base\.execute=None: .* predicts 3 steps"),
        ({"execute": 4}, r"base\.execute=4: .* predicts 3 steps"),
        ({"cameras": {CAMERA: "observation/state"}}, r"name 'observation/state' twice: each camera, state"),
        ({"prompt_key": "observation/gripper"}, r"name 'observation/gripper' twice"),
        ({"state": {"observation/state": []}}, r"base\.state: 'observation/state' has no keys of the task's"),
    ],
)
def test_a_server_whose_mapping_is_missing_or_wrong_is_refused(changes: dict[str, Any], words: str) -> None:
    with stock(Policy()) as url, pytest.raises(ValueError, match=words) as caught:
        remote(url, **changes)
    assert "\n" not in str(caught.value)


def test_a_mapping_is_refused_by_a_server_that_describes_itself() -> None:
    with served(flow()) as url, pytest.raises(ValueError, match=r"leave out base\.cameras"):
        remote(url, execute=None)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (np.zeros((3, 4)), "the task's have size 3"),
        (np.zeros(3), "no array of floats"),
        (np.full((3, 3), np.nan), "not finite"),
        ("text", "no array of floats"),
    ],
)
def test_actions_that_cannot_be_used_are_refused(actions: Any, words: str) -> None:
    with stock(lambda _: {"actions": actions}) as url, pytest.raises(ValueError, match=words):
        remote(url)


def test_a_connection_ends_with_its_base() -> None:
    """Without waiting for the garbage to be collected: each evaluation of a run opens another connection."""
    with stock(Policy()) as url:
        base = remote(url)
        server = weakref.ref(base._server)
        connection = base._server._connection._open[0]
        gc.disable()
        try:
            del base
            assert server() is None
        finally:
            gc.enable()
        assert connection.socket.fileno() == -1


def test_the_reply_to_an_interrupted_request_is_not_taken_for_that_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stock(Policy()) as url:
        base, obs = remote(url), observations(2)
        first, second = ({name: value[row : row + 1] for name, value in obs.items()} for row in range(2))
        expected = base.sample(second).actions

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        (connection,) = base._server._connection._open
        monkeypatch.setattr(connection, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            base.sample(first)
        monkeypatch.undo()
        assert torch.equal(base.sample(second).actions, expected)
        assert not torch.equal(base.sample(first).actions, expected)
