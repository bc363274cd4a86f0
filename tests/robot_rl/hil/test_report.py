"""The report shows the intervention rate beside success."""

from pathlib import Path

from robot_rl.report import write_report
from tests.robot_rl.fixture_run import make_run

DRIVEN = "fraction of steps by the operator"


def test_the_intervention_rate_is_a_curve_beside_success(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "plain", videos=False, episodes=30)
    helped = make_run(tmp_path / "helped", videos=False, episodes=30)
    with (helped / "metrics.csv").open("a") as file:
        for i in range(30):
            file.write(f"{100 * i},{i}.0,hil/intervention_rate,{0.5 - i / 100}\n")
            file.write(f"{100 * i},{i}.0,hil/interventions,1.0\n")
    assert DRIVEN not in write_report(plain).read_text()
    page = write_report(helped).read_text()
    assert DRIVEN in page
    assert page.count("<h3>Interventions per episode") == 1
    assert "<code>hil/intervention_rate</code>" not in page, "it is already in the learning curve"


def test_metrics_of_each_of_several_actors_have_titles(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", videos=False, episodes=30)
    with (run / "metrics.csv").open("a") as file:
        for i in range(30):
            for name in ("success", "intervention_rate"):
                file.write(f"{100 * i},{i}.0,hil/actor2/{name},{i % 2}\n")
    page = write_report(run).read_text()
    assert page.count("<h3>Success of the training episodes, mean of") == 1
    assert "Fraction of steps by the operator, mean of" in page
    assert ", actor2" in page
