"""Behaviour cloning."""

from pathlib import Path

import pytest
import torch

from robot_rl.learning.distributed import Processes
from robot_rl.methods import bc
from robot_rl.methods.bc import BCConfig, BCMethod
from robot_rl.methods.method import DatasetContext
from robot_rl.policies.bases.diffusion import DiffusionConfig
from robot_rl.policies.bases.vla import VLAPolicy
from tests.robot_rl.data import small_dataset
from tests.robot_rl.training import small_vla

CPU = torch.device("cpu")


def test_images_that_do_not_fit_into_memory_are_read_from_files_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = small_dataset.write(tmp_path / "a.zarr", (9, 6), ("front",))
    config = DiffusionConfig(horizon=4, execute=2, width=8)
    weights = []
    for memory in (10**9, 10**3):
        monkeypatch.setattr(bc, "memory_bytes", lambda _, memory=memory: memory)
        learner = BCMethod(BCConfig(batch_size=4)).build_learner(DatasetContext(dataset, config, 0, CPU))
        assert ("each batch reads its own" in capsys.readouterr().err) == (memory < 10**9)
        for _ in range(3):
            learner.update()
        weights.append(learner.policy.state_dict())
    first, second = weights
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=0, rtol=0)


def test_a_policy_knows_the_words_of_what_it_imitates_alone(tmp_path: Path) -> None:
    for failed, words in ((None, "close drawer open the"), (1, "drawer open the")):
        small_vla.write_dataset(tmp_path / f"{failed}.zarr", failed)
        learner = small_vla.make_learner(tmp_path / f"{failed}.zarr", Processes())
        assert isinstance(learner.policy, VLAPolicy)
        assert " ".join(learner.policy.config.words) == words


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"steps": 0}, {"max_grad_norm": 0.0}])
def test_options_with_which_nothing_is_learned_are_refused(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"method.{name}=0"):
        BCConfig(**options)  # type: ignore[arg-type]
