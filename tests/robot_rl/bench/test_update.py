"""`robot-rl bench update` in short runs; no timing is asserted."""

import json
import sys

import pytest
import torch

from robot_rl.bench.learners import off_policy_methods
from robot_rl.bench.update import Size, update_gflop
from robot_rl.cli import main as cli

TINY = [
    "bench",
    "update",
    "widths=[8]",
    "num_critics=[2]",
    "batch_size=8",
    "seconds=0.01",
    "threads=1",
    "device=cpu",
]


def test_last_line_is_json_with_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("stable_baselines3")
    assert cli.main([*TINY, "methods=[rlpd]", "encoders=[conv,base]", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("{") for line in out) == 1
    found = json.loads(out[-1])
    assert found["device"]
    images = {"rlpd_8_e2_images_conv", "rlpd_8_e2_images_base"}
    assert set(found["cases"]) == {"sac_8_e2", "rlpd_8_e2", *images}
    assert all(found["cases"][name]["ours_ms"] > 0 for name in images)
    assert all(value > 0 for value in found["cases"]["sac_8_e2"].values())
    assert found["cases"]["rlpd_8_e2"]["ours_ms"] > 0
    assert found["cases"]["rlpd_8_e2"]["sb3_ms"] is None


def test_without_stable_baselines_only_ours_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert cli.main([*TINY, "methods=[]", "--json"]) == 0
    written = capsys.readouterr()
    case = json.loads(written.out.splitlines()[-1])["cases"]["sac_8_e2"]
    assert case["sb3_ms"] is case["speedup"] is None
    assert case["ours_ms"] > 0
    assert case["floor_ms"] > 0
    assert "uv pip install -c constraints.txt -e '.[bench]'" in written.err
    if not torch.cuda.is_available():
        assert "GPU figures were not run here" in written.err


def test_floating_point_operations_equal_a_count_by_hand() -> None:
    """Passes of one critic and of the actor, by hand, for a network without hidden width."""
    size = Size(width=1, num_critics=2, batch=1)
    critic, first_critic, actor, first_actor = 2 * (26 + 2 + 1), 2 * 26, 2 * (19 + 2 + 14), 2 * 19
    target = actor + 2 * critic
    critics = 2 * (3 * critic - first_critic)
    assert update_gflop(size) * 1e9 == pytest.approx(
        target + critics + 3 * actor - first_actor + 2 * critic + critic
    )
    assert update_gflop(size, routed=False) * 1e9 == pytest.approx(update_gflop(size) * 1e9 + critic)


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("widths=[]", "widths=[]: give at least one number above 0"),
        ("num_critics=[0]", "num_critics=[0]: give at least one number above 0"),
        ("methods=[bc]", "choose from"),
        ("encoders=[resnet]", "encoders=['resnet']: choose from conv, spatial, vit, base"),
        ("seconds=0", "seconds=0: it must be more than 0"),
        ("batch_size=0", "batch_size=0: it must be at least 1"),
        ("threads=0", "threads=0: it must be at least 1"),
    ],
)
def test_invalid_options_are_refused(capsys: pytest.CaptureFixture[str], argument: str, answer: str) -> None:
    assert cli.main(["bench", "update", argument]) == 2
    assert answer in capsys.readouterr().err


def test_off_policy_methods_are_measured() -> None:
    assert {"rlpd", "residual"} <= set(off_policy_methods())
    assert "bc" not in off_policy_methods()
