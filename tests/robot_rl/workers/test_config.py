"""Which options go together with workers."""

import pytest

from robot_rl.cli.main import main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("method=bc",), "method=bc takes no environment steps: leave workers out"),
        (
            ("method=residual", "base=runs/x", "hil=on", "hil.operator=none"),
            "hil=on has its own actors, each of which drives one arm: leave workers out",
        ),
        (("method=residual", "base=runs/x", "workers.count=0"), "workers.count=0: choose 1 or more"),
        (
            ("method=residual_ppo", "base=runs/x"),
            "method=residual_ppo learns from steps of the newest weights alone: add workers.lockstep=true",
        ),
        (
            ("method=residual", "base=remote", "base.url=ws://localhost:1"),
            "base=remote is asked by the learner's process alone: add workers.lockstep=true",
        ),
        (
            ("method=residual", "base=runs/x", "method.progressive_steps=7"),
            "method.progressive_steps=7 counts the steps of one acting policy: leave it out, or add",
        ),
        (
            ("method=residual", "base=runs/x", "asynchronous=naive", "delay=2"),
            "asynchronous=… is not there with workers that act yet: add workers.lockstep=true",
        ),
        (
            ("method=rlpd", "base=uniform", "method.num_envs=4", "method.utd=2", "workers.max_age=300"),
            "workers.max_age=300: choose 320 or more with these method options",
        ),
    ],
)
def test_options_that_workers_do_not_go_with_are_refused(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "workers=ray", *options]) == 2
    assert message in capsys.readouterr().err
