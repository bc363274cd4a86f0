"""Methods are found by their name, also those that a plugin adds."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.bench.learners import make_context
from robot_rl.methods.method import OffPolicyMethod
from robot_rl.methods.registry import METHODS, build_method
from robot_rl.methods.residual import ResidualConfig, ResidualMethod

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = '''
from dataclasses import dataclass
from robot_rl.methods.registry import METHODS
from robot_rl.methods.residual import ResidualConfig, ResidualMethod

@dataclass
class MyConfig(ResidualConfig):
    """A residual of my own."""
    name: str = "my_residual"
    """Name of the method."""
    temper: float = 1.0
    """An option of mine."""

class MyMethod(ResidualMethod):
    config_type = MyConfig

METHODS["my_residual"] = MyMethod
'''


@pytest.mark.parametrize("name", ["residual", "residual_chunk", "expo", "ibrl", "dsrl", "dsrl_na"])
def test_all_networks_are_moved_to_the_device(name: str) -> None:
    """`meta` stands in for a GPU; an expected value of bins (hl_gauss) needs a buffer there too."""
    kind = METHODS[name]
    assert issubclass(kind, OffPolicyMethod)
    method, device = kind(kind.config_type(critic_loss="hl_gauss")), torch.device("meta")
    context = make_context(device, 0)
    agent = method.build_agent(context)
    learner: Any = method.build_learner(agent, context)
    for module in (agent.networks, learner.critics):
        assert {tensor.device.type for tensor in (*module.parameters(), *module.buffers())} == {"meta"}


@dataclass
class MyConfig(ResidualConfig):
    name: str = "my_residual"


class MyMethod(ResidualMethod):
    config_type = MyConfig


def test_every_method_is_built_from_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "my_residual", MyMethod)
    for name, kind in METHODS.items():
        method = build_method(kind.config_type())
        assert type(method) is kind
        assert kind.config_type().name == name


@pytest.mark.parametrize(
    ("name", "option", "value", "least"),
    [
        ("expo", "bc_weight", -5.0, 0),
        ("dsrl_na", "bc_weight", -5.0, 0),
        ("residual_chunk", "beta", -1.0, 0),
        ("ibrl", "target_noise", -1.0, 0),
        ("residual", "penalty", -0.1, 0),
        ("classifier", "unclear_steps", -1, 0),
        ("classifier", "steps", 0, 1),
        ("classifier", "hidden", 0, 1),
    ],
)
def test_options_below_the_least_that_means_something_are_refused(
    name: str, option: str, value: float, least: int
) -> None:
    with pytest.raises(ValueError, match=f"method.{option}={value}: choose {least} or more"):
        METHODS[name].config_type(**{option: value})


@pytest.mark.parametrize("name", ["expo", "unknown"])
def test_a_configuration_with_another_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"method.name={name}: leave it out"):
        build_method(ResidualConfig(name=name))


@pytest.mark.full
def test_a_method_of_a_plugin_is_listed_with_its_options(tmp_path: Path) -> None:
    (tmp_path / "my_methods.py").write_text(PLUGIN, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "robot_rl",
        "train",
        "plugins=[my_methods]",
        "method=my_residual",
        "--help",
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environ)
    assert result.returncode == 0, result.stderr
    assert "method.temper" in result.stdout
