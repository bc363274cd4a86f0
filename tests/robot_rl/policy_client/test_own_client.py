"""`base=remote` with a server of `robot-rl serve`: actions are those of the same policy in this process."""

import ssl
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.envs.instruction import encode_instruction
from robot_rl.hardware.teleop.web.access import self_signed_certificate
from robot_rl.policies.bases.act import ACTConfig, ACTPolicy
from robot_rl.policies.bases.base_policy import BasePolicy, random_observations
from robot_rl.policies.bases.flow import FlowPolicy
from robot_rl.policies.bases.vla import VLAConfig, VLAPolicy
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.policies.finetuned.residual_chunk import ResidualChunk
from robot_rl.policies.nets.normalizer import Normalizer
from robot_rl.policies.store import fingerprint, load_policy_files
from robot_rl.policy_client.config import RemoteConfig
from robot_rl.policy_client.remote_base import RemoteBase, connect_base
from robot_rl.policy_server import inference, requests
from robot_rl.policy_server.inference import PolicyInference
from robot_rl.policy_server.server import Listen, PolicyServer
from tests.robot_rl.policy_client.policy_servers import served
from tests.robot_rl.policy_server.small_policies import (
    ACTION,
    CAMERA,
    EXECUTE,
    SIZE,
    STATE,
    environment,
    flow,
    tuned,
)


def remote(url: str, **options: Any) -> RemoteBase:
    return connect_base(RemoteConfig(url, **options), {})


def act() -> ACTPolicy:
    torch.manual_seed(0)
    return ACTPolicy(ACTConfig(width=16, heads=2, layers=1, horizon=4, execute=2), STATE, ACTION).eval()


@pytest.mark.parametrize(
    ("policy", "cameras"),
    [(flow(), ()), (flow(obs_steps=2), ()), (flow(CAMERA), (CAMERA,)), (act(), ())],
)
@pytest.mark.parametrize("most", [256, 2])
def test_actions_are_those_of_the_policy_in_this_process(
    policy: BasePolicy, cameras: tuple[str, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "MAX_ROWS", most)
    with served(policy, environment(*cameras)) as url:
        base = remote(url)
        assert base.spec == policy.spec
        for rows, samples in ((1, 1), (most, 3), (5, 2)):
            samples = samples if policy.spec.noise_shape else 1
            obs = random_observations(policy, rows)
            generator = torch.Generator().manual_seed(rows)
            noise = policy.draw_noise(rows, samples, generator) if policy.spec.noise_shape else None
            found = base.sample(obs, noise=noise, num_samples=samples)
            # A batch that is larger than the server takes is asked for in parts.
            parts, features = [], []
            for at in range(0, rows, most):
                part = {name: value[at : at + most] for name, value in obs.items()}
                drawn = None if noise is None else noise[at : at + most]
                parts.append(policy.sample(part, noise=drawn, num_samples=samples).actions)
                features.append(policy.features(part))
            assert torch.equal(found.actions, torch.cat(parts))
            seen = base.features(obs)
            assert torch.equal(seen, torch.cat(features))
            again = base.sample_from_features(seen, noise=noise, num_samples=samples)
            assert torch.equal(again.actions, found.actions)
            assert found.noise is noise


def test_more_chunks_than_the_server_takes_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_CHUNKS", 8)
    monkeypatch.setattr(requests, "MAX_CHUNKS", 8)
    policy = flow()
    with served(policy, environment()) as url:
        noise = policy.draw_noise(7, 3, torch.Generator().manual_seed(0))
        obs = random_observations(policy, 7)
        found = remote(url).sample(obs, noise=noise, num_samples=3).actions
        expected = policy.sample(obs, noise=noise, num_samples=3).actions
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_instructions_reach_the_served_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    config = VLAConfig(
        horizon=4,
        execute=2,
        channels=[8],
        tokens_width=8,
        heads=2,
        layers=1,
        width=16,
        depth=1,
        words=["go", "stay"],
    )
    policy = VLAPolicy(config, STATE, ACTION, (CAMERA,), SIZE).eval()
    # The task has an instruction that the policy's data have not.
    with served(policy, {**environment(CAMERA), "instructions": ["wash up", "go"]}) as url:
        base = remote(url)
        base.check_noise()
        obs = random_observations(base, 2)
        text = torch.from_numpy(np.stack([encode_instruction(word) for word in ("go", "stay")]))[:, None]
        noise = policy.draw_noise(1, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1, -1)
        found = base.sample({**obs, "instruction": text}, noise=noise).actions
        assert torch.equal(found, policy.sample({**obs, "instruction": text}, noise=noise).actions)
        base.check_instruction("stay")
        # A server of this base asks for each request: it is not sent each time.
        with monkeypatch.context() as patched:
            patched.setattr(base, "sample", None)
            base.check_instruction("stay")
        with pytest.raises(ValueError, match="wash") as caught:
            base.check_instruction("wash up")
        assert "\n" not in str(caught.value)


def test_the_range_of_the_training_data_is_that_of_the_served_policy() -> None:
    policy = flow()
    policy.state_normalizer.load_state_dict(
        Normalizer.fit(
            torch.randn(20, STATE, generator=torch.Generator().manual_seed(0)), min_range=0.01
        ).state_dict()
    )
    with served(policy) as url:
        for name, value in remote(url).state_normalizer.state_dict().items():
            assert torch.equal(value, policy.state_normalizer.state_dict()[name])


def test_noise_that_changes_nothing_is_refused() -> None:
    class Deaf(FlowPolicy):
        def sample(self, obs: Any, **given: Any) -> Any:
            chunk = super().sample(obs, **given)
            chunk.actions.zero_()
            return chunk

    policy = flow()
    policy.__class__ = Deaf
    with served(policy) as url, pytest.raises(ValueError, match="its actions do not depend on it alone"):
        remote(url)


def test_a_served_tuned_policy_is_a_base_that_draws_its_own_noise() -> None:
    networks = tuned()
    torch.nn.init.normal_(networks.actor.net.head.weight)
    with served(networks) as url:
        base = remote(url)
        assert base.spec == replace(flow().spec, horizon=EXECUTE, noise_shape=None, deterministic=False)
        obs = random_observations(base, 3)
        found = base.sample(obs, num_samples=2).actions
        # The server's generator has seed 0, and each of the samples is a row of its batch.
        rows = {"state": obs["state"].repeat_interleave(2, 0)}
        expected = networks.policy(1).choose_chunks(rows, 6 * [torch.Generator().manual_seed(0)])
        assert torch.equal(found.flatten(0, 1), expected)
        assert not torch.equal(found[:, 0], found[:, 1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gripper": [-1.0, 1.0]}, r"describes its observations and actions: leave out base\.gripper"),
        ({"execute": 5}, "predicts 4 steps"),
    ],
)
def test_options_that_do_not_fit_the_server_are_refused(options: dict[str, Any], words: str) -> None:
    with served(flow()) as url, pytest.raises(ValueError, match=words):
        remote(url, **options)


def test_fewer_steps_of_a_chunk_can_be_executed() -> None:
    with served(flow()) as url:
        assert remote(url, execute=1).spec.execute == 1


def test_a_tuned_policy_is_saved_with_the_servers_address_and_fingerprint(tmp_path: Path) -> None:
    policy = flow()
    with served(policy) as url:
        base = remote(url)
        networks = ResidualChunk(base, tuned().spec).eval()
        save_finetuned(networks, tmp_path, {"environment": environment()})
        assert not any("denoiser" in name for name in networks.state_dict())
        loaded, _ = load_policy_files(tmp_path)
        assert isinstance(loaded, ResidualChunk)
        assert isinstance(loaded.base, RemoteBase)
        assert loaded.base.config == base.config
        assert fingerprint(loaded) == fingerprint(networks)
        obs = random_observations(policy, 1)
        generators = [[torch.Generator().manual_seed(3)] for _ in range(2)]
        plans = [
            each.policy(1).choose_chunks(obs, own)
            for each, own in zip((networks, loaded), generators, strict=True)
        ]
        assert torch.equal(*plans)
        port = int(url.rsplit(":", 1)[1])
    other = flow()
    torch.nn.init.normal_(other.state_normalizer.center)
    with served(other, port=port), pytest.raises(ValueError, match="serves another policy than"):
        load_policy_files(tmp_path)
    # The same weights, but other actions.
    other = FlowPolicy(replace(flow().config, inference_steps=7), STATE, ACTION)
    other.load_state_dict(policy.state_dict())
    with served(other, port=port), pytest.raises(ValueError, match="serves another policy than"):
        load_policy_files(tmp_path)


def test_the_token_is_that_of_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    server = PolicyServer(PolicyInference(flow(), environment(), 0), Listen(port=0, token="secret"))
    url = f"ws://127.0.0.1:{server.start()}"
    try:
        with pytest.raises(ValueError, match="it asks for a token: set ROBOT_RL_TOKEN"):
            remote(url)
        monkeypatch.setenv("ROBOT_RL_TOKEN", "secret")
        assert asdict(remote(url).spec) == asdict(flow().spec)
        # 127.0.0.1, in a form that could be that of another machine.
        elsewhere = url.replace("127.0.0.1", "2130706433")
        with pytest.raises(ValueError, match="not sent to other machines without TLS: use wss://"):
            remote(elsewhere)
    finally:
        server.close()


def test_a_certificate_has_to_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    certificate, key = self_signed_certificate(["127.0.0.1"])
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server = PolicyServer(PolicyInference(flow(), environment(), 0), Listen(port=0, tls=tls))
    url = f"wss://127.0.0.1:{server.start()}"
    try:
        with pytest.raises(
            ValueError, match=r"is not trusted .* variable SSL_CERT_FILE or, .* in base\.certificate"
        ):
            remote(url)
        assert remote(url, certificate=str(certificate)).spec == flow().spec
    finally:
        server.close()
    with pytest.raises(ValueError, match=r"base\.certificate=nowhere cannot be used"):
        remote(url, certificate="nowhere")
