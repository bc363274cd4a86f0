"""Image encoders, and base policies with images: learning, gradients, saving."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from robot_rl.data.dataset import Dataset
from robot_rl.policies.bases.imitation import ImitationPolicy
from robot_rl.policies.nets.vision import FEATURE_SIZE, ConvEncoder, SpatialSoftmaxEncoder, ViTEncoder
from robot_rl.policies.registry import BASES
from robot_rl.policies.store import fingerprint, load_base, save_policy
from robot_rl.saved_policies.loading import policy_directory
from tests.conftest import RunCommand

SIZE = (84, 84)
CAMERAS = ("agentview", "robot0_eye_in_hand")
TRAINED = ["act", "diffusion", "flow"]

MakeEncoder = type[ConvEncoder] | type[SpatialSoftmaxEncoder] | type[ViTEncoder]

encoders = pytest.mark.parametrize("make_encoder", [ConvEncoder, SpatialSoftmaxEncoder, ViTEncoder])
policies = pytest.mark.parametrize("name", TRAINED)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=seeded(seed))


def make(name: str, cameras: tuple[str, ...] = CAMERAS, size: tuple[int, int] = SIZE) -> ImitationPolicy:
    torch.manual_seed(0)
    small = {"act": {"width": 32, "layers": 1}}.get(name, {"width": 32, "depth": 1})
    config = BASES[name].config(horizon=4, execute=2, obs_steps=2, **small)
    return BASES[name].policy(config, 3, 2, cameras, size)


def observation(batch: int, cameras: tuple[str, ...] = CAMERAS) -> dict[str, Tensor]:
    images = {f"images.{c}": pictures(batch, 2, *SIZE, seed=i) for i, c in enumerate(cameras)}
    return {"state": torch.randn(batch, 2, 3, generator=seeded(7)), **images}


def demonstrations(batch: int) -> dict[str, Tensor]:
    actions = torch.rand(batch, 4, 2, generator=seeded(8)) * 2 - 1
    return {**observation(batch), "actions": actions, "mask": torch.ones(batch, 4)}


@encoders
@pytest.mark.parametrize("size", [(84, 84), (64, 96)])
def test_features_of_an_image_do_not_depend_on_the_others(
    make_encoder: MakeEncoder, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    encoder = make_encoder(size)
    images = pictures(5, *size)
    for mode in (True, False):
        features = encoder.train(mode)(images)
        assert features.shape == (5, FEATURE_SIZE)
        torch.testing.assert_close(encoder(images[2:3]), features[2:3], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "make_encoder",
    [
        ConvEncoder,
        *(pytest.param(one, marks=pytest.mark.full) for one in (SpatialSoftmaxEncoder, ViTEncoder)),
    ],
)
def test_encoder_learns_the_position_of_an_object(make_encoder: MakeEncoder) -> None:
    """The position of a square of 8 pixels, to within three pixels."""
    torch.manual_seed(0)
    generator = seeded(0)
    model = nn.Sequential(make_encoder((44, 44)), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        corner = torch.randint(0, 37, (count, 2), generator=generator)
        images = torch.full((count, 44, 44, 3), 60, dtype=torch.uint8)
        for image, (y, x) in zip(images, corner.tolist(), strict=True):
            image[y : y + 8, x : x + 8] = torch.tensor([200, 40, 40], dtype=torch.uint8)
        return images, (corner - 18) / 18

    for _ in range(200):
        images, target = draw(32)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(images), target).backward()
        optimizer.step()
    images, target = draw(64)
    with torch.no_grad():
        assert (model(images) - target).abs().mean() * 18 < 3


def test_spatial_softmax_gives_the_position_of_a_peak() -> None:
    encoder = SpatialSoftmaxEncoder((44, 44), maps=2)
    maps = torch.zeros(1, 2, 5, 5)
    maps[0, 0, 0, 4] = 100.0
    encoder.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 44 * 44, 50), nn.Unflatten(1, (2, 5, 5)))
    with torch.no_grad():
        encoder.body[1].weight.zero_()
        encoder.body[1].bias.copy_(maps.flatten())
        found = encoder.positions(pictures(1, 44, 44))
    # A peak in the top right corner, and a map without any, whose mean is the centre.
    torch.testing.assert_close(found, torch.tensor([[[-1.0, 1.0], [0.0, 0.0]]]))


@policies
def test_policy_uses_every_camera(name: str) -> None:
    policy = make(name).eval()
    assert policy.spec.cameras == CAMERAS
    assert policy.spec.image_size == SIZE
    obs = observation(3)
    noise = None if policy.spec.noise_shape is None else policy.draw_noise(3, generator=seeded(1))
    actions = policy.sample(obs, noise=noise).actions
    assert torch.equal(policy.sample(obs, noise=noise).actions, actions)
    for camera in CAMERAS:
        other = {**obs, f"images.{camera}": pictures(3, 2, *SIZE, seed=99)}
        assert not torch.allclose(policy.sample(other, noise=noise).actions, actions)


@policies
def test_every_weight_gets_a_gradient(name: str) -> None:
    policy = make(name)
    policy.loss(demonstrations(6), seeded(1)).backward()
    without = [n for n, p in policy.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name == "flow" else []) for name in TRAINED]
)
def test_policy_learns_from_the_image_alone(name: str) -> None:
    """Left or right, by the side of the image that is bright."""
    torch.manual_seed(0)
    extra = {"act": {"width": 32, "layers": 1}}.get(name, {"width": 64, "depth": 1})
    config = BASES[name].config(horizon=2, execute=2, **extra)
    policy = BASES[name].policy(config, 1, 1, ("front",), (32, 32))
    policy.fit_normalizers(torch.tensor([[-1.0], [1.0]]), torch.tensor([[-1.0], [1.0]]))
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    generator = seeded(0)

    def draw(count: int) -> tuple[dict[str, Tensor], Tensor]:
        right = torch.rand(count, generator=generator) < 0.5
        images = torch.randint(0, 100, (count, 1, 32, 32, 3), dtype=torch.uint8, generator=generator)
        images[right, :, :, 16:] += 100
        images[~right, :, :, :16] += 100
        return {"state": torch.zeros(count, 1, 1), "images.front": images}, torch.where(right, 0.8, -0.8)

    for _ in range(100):
        obs, side = draw(32)
        batch = {**obs, "actions": side.view(-1, 1, 1).expand(-1, 2, -1), "mask": torch.ones(32, 2)}
        optimizer.zero_grad()
        policy.loss(batch, generator).backward()
        optimizer.step()
    obs, side = draw(100)
    actions = policy.sample(obs, generator=generator).actions[:, 0].mean(dim=(1, 2))
    assert ((actions - side).abs() < 0.3).float().mean() > 0.95


@policies
def test_loaded_policy_samples_bit_identically(name: str, tmp_path: Path) -> None:
    policy = make(name)
    save_policy(policy, tmp_path, {})
    loaded, _ = load_base(tmp_path)
    assert loaded.spec == policy.spec
    assert fingerprint(loaded) == fingerprint(policy)
    first, second = (p.sample(observation(3), generator=seeded(1)).actions for p in (policy, loaded))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (None, "no images.agentview"),
        (torch.zeros(3, 2, 84, 84, 3), "torch.float32"),
        (torch.zeros(3, 1, 84, 84, 3, dtype=torch.uint8), r"uint8 \(3, 2, 84, 84, 3\)"),
        (torch.zeros(3, 2, 64, 84, 3, dtype=torch.uint8), r"uint8 \(3, 2, 84, 84, 3\)"),
        (torch.zeros(3, 2, 3, 84, 84, dtype=torch.uint8), r"uint8 \(3, 2, 84, 84, 3\)"),
    ],
)
def test_images_of_another_shape_are_refused(images: Tensor | None, says: str) -> None:
    obs = observation(3)
    del obs["images.agentview"]
    if images is not None:
        obs["images.agentview"] = images
    with pytest.raises(ValueError, match=says):
        make("flow").sample(obs)


def test_images_without_a_size_or_too_small_are_refused() -> None:
    config = BASES["flow"].config()
    with pytest.raises(ValueError, match="image_size is None"):
        BASES["flow"].policy(config, 3, 2, CAMERAS)
    with pytest.raises(ValueError, match="images of 12x84 pixels are too small: 16x16 is the least"):
        BASES["flow"].policy(config, 3, 2, CAMERAS, (12, 84))
    assert BASES["flow"].policy(config, 3, 2, (), SIZE).spec.image_size is None


@pytest.mark.full
def test_image_policy_learns_from_demonstrations_on_disk(robot_rl: RunCommand, tmp_path: Path) -> None:
    seen = ("task.cameras=[agentview]", "task.state_keys=[robot0_eef_pos,robot0_gripper_qpos]")
    data = tmp_path / "lift.zarr"
    robot_rl("collect", "task=lift", *seen, f"data={data}", "episodes=1")
    method = ["method=bc", "method.steps=80", "method.batch_size=16", "method.lr_warmup=5"]
    run = [f"data={data}", f"runs_dir={tmp_path}", "name=run", "log_every=10", "threads=1"]
    robot_rl("train", *seen, *method, *run, "base=diffusion", "base.width=64", "base.depth=1")

    rows = [line.split(",") for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()]
    losses = [float(row[3]) for row in rows if row[2] == "learn/loss"]
    assert losses[-1] < 0.7 * losses[0]
    directory = policy_directory(tmp_path / "run")
    first, second = (load_base(directory)[0] for _ in range(2))
    assert first.spec.cameras == ("agentview",)
    obs = {name: torch.from_numpy(v[:3, None]) for name, v in Dataset(data).observations().items()}
    assert obs["images.agentview"].float().std() > 5
    noise = first.draw_noise(3, generator=seeded(1))
    assert torch.equal(first.sample(obs, noise=noise).actions, second.sample(obs, noise=noise).actions)
