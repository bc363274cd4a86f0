import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.cli.main import main
from robot_rl.errors import UserError
from robot_rl.machine import describe_machine, describe_versions
from robot_rl.report import write_report
from robot_rl.report.figures import MAX_POINTS, rolling_mean, thinned, time_unit
from tests.robot_rl.fixture_run import make_run, show_episode, write_json


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo", episodes=80)


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "demo"))


class Page(HTMLParser):
    """Tags with attributes, and the text outside <style> and <script>."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def reported(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with its report, to be read only: to draw the figures takes a while."""
    run = Path(shutil.copytree(made, tmp_path_factory.mktemp("reported") / "demo"))
    write_report(run)
    return run


@pytest.fixture
def page(reported: Path) -> Page:
    return Page(reported / "report.html")


def edit_json(path: Path, change: dict[str, Any]) -> None:
    write_json(path, json.loads(path.read_text()) | change)


def test_page_has_no_external_resources(page: Page) -> None:
    assert not re.search(r"https?://", page.source)
    assert not re.search(r"@import|url\((?!#)", page.source)
    for tag, attributes in page.tags:
        assert tag not in ("link", "script", "iframe", "object")
        for name in ("src", "href", "poster", "srcset"):
            value = attributes.get(name) or ""
            assert value == "" or value.startswith(("data:", "#")), (tag, name, value[:80])


def test_svg_references_are_unique_and_resolved(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = set(re.findall(r'(?:href="|url\()#([^")]+)', page.source))
    assert references
    assert references <= set(ids)


def test_numbers_on_the_page_equal_those_in_the_files(made: Path, page: Page) -> None:
    policies = json.loads((made / "eval" / "summary.json").read_text())["policies"]
    for policy in policies.values():
        low, high = policy["interval"]
        assert f"{policy['success']:.0%}".replace("%", " %") in page.text
        assert f"{100 * low:.1f} – {100 * high:.1f} %" in page.text
        assert f"{policy['mean_length']:.1f}" in page.text
        assert policy["fingerprint"] in page.text
    info = json.loads((made / "run.json").read_text())
    steps = f"{info['env_steps']:,}"
    for text in (info["command"], info["machine"]["cpu"], info["versions"]["torch"], steps):
        assert text in page.text
    assert page.count("video") == page.count("img") == 2
    assert page.count("svg") >= 1 + 2 + 4


def test_paired_outcomes_are_counted_by_episode(made: Path, page: Page) -> None:
    with open(made / "eval" / "episodes.csv") as file:
        rows = list(csv.DictReader(file))
    success = {(row["policy"], row["episode"]): row["success"] for row in rows}
    pairs = [(success["base", str(i)], success["tuned", str(i)]) for i in range(100)]
    gained, lost = pairs.count(("0", "1")), pairs.count(("1", "0"))
    assert gained > 0
    assert re.search(rf"gained {gained} states and lost {lost} \(", page.text)


def test_report_json_has_results_and_run(reported: Path) -> None:
    report = json.loads((reported / "report.json").read_text())
    info = json.loads((reported / "run.json").read_text())
    policies = json.loads((reported / "eval" / "summary.json").read_text())["policies"]
    assert set(report) == {
        "base", "tuned", "deployments", "env_steps", "wall_seconds", "seed", "command", "machine",
    }  # fmt: skip
    for name in ("base", "tuned"):
        assert report[name] == {key: policies[name][key] for key in ("success", "interval")}
    for key in ("env_steps", "wall_seconds", "seed", "command", "machine"):
        assert report[key] == info[key]


def test_user_text_is_escaped(run: Path) -> None:
    evil = "<script>alert('1')</script>"
    edit_json(run / "run.json", {"command": evil, "task": evil})
    (run / "config.yaml").write_text(f"name: {evil}\n")
    with open(run / "metrics.csv", "a") as file:
        file.write("1,0.1,<b>bold</b>,1.0\n")
    page = Page(write_report(run))
    assert page.count("script") == page.count("b") - 2 == 0  # the two <b> of the headline
    assert page.text.count(evil) >= 3


def test_same_run_gives_the_same_bytes(run: Path, page: Page) -> None:
    assert write_report(run).read_text() == page.source


def test_success_in_the_disturbed_task_is_a_table(run: Path, page: Page) -> None:
    summary = json.loads((run / "eval" / "summary.json").read_text())
    assert "disturbed" not in page.text
    for name, change in (("push", {}), ("mass", {"states_sha256": "1" * 64}), ("size", {"seed": 1})):
        folder = run / "eval" / "under" / name
        folder.mkdir(parents=True)
        policies = {
            policy: entry | {"success": 0.25, "interval": [0.125, 0.375]}
            for policy, entry in summary["policies"].items()
        }
        write_json(
            folder / "summary.json",
            summary | {"disturbance": f"what {name} does", "policies": policies} | change,
        )
    page = Page(write_report(run))
    assert "In the disturbed task" in page.text
    assert page.text.count("12.5 – 37.5 %") == 2
    assert "what push does" in page.text
    assert "what mass does" not in page.text  # of other initial states
    assert "what size does" not in page.text  # of another seed


def test_run_with_only_a_base(tmp_path: Path) -> None:
    run = make_run(tmp_path / "base", tuned=False, videos=False, episodes=20)
    page = Page(write_report(run))
    assert "Paired outcomes" not in page.text
    assert "Tuned" not in page.text
    assert "No video of this evaluation of the base policy" in page.text
    assert json.loads((run / "report.json").read_text())["tuned"] is None


def test_verdict_agrees_with_the_intervals(run: Path, page: Page) -> None:
    summary = json.loads((run / "eval" / "summary.json").read_text())
    assert "interval lies above" in page.text
    policies = summary["policies"]
    policies["tuned"]["interval"][0] = policies["base"]["interval"][1] - 0.01
    write_json(run / "eval" / "summary.json", summary)
    assert "intervals overlap" in Page(write_report(run)).text


def test_video_captions_state_the_outcome_of_the_episode(run: Path) -> None:
    with open(run / "eval" / "episodes.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["episode"] == "7"]
    show_episode(run, 7)
    text = Page(write_report(run)).text
    assert "Episode 7 of the evaluation" in text
    for row in rows:
        result = "succeeds after" if row["success"] == "1" else "does not succeed in"
        assert f"{row['policy'].capitalize()} {result} {row['length']} steps" in text
    # Of another evaluation, nothing says what they show.
    with open(run / "eval" / "episodes.csv", "a") as file:
        file.write("\n")
    assert "No video of this evaluation of the tuned policy" in Page(write_report(run)).text
    show_episode(run, 7)
    (run / "videos" / "tuned.mp4").unlink()
    (run / "videos" / "base.png").unlink()
    assert "videos/tuned.mp4 is missing" in Page(write_report(run)).text


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("run.json", "train"),
        ("metrics.csv", "train"),
        ("eval/summary.json", "eval"),
        ("eval/episodes.csv", "eval"),
    ],
)
def test_missing_file_is_named_with_the_command_that_writes_it(run: Path, missing: str, command: str) -> None:
    (run / missing).unlink()
    with pytest.raises(UserError, match=rf"{missing} is missing: `robot-rl {command}`"):
        write_report(run)
    assert not list(run.glob("*report*"))


def test_directory_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("")
    for path, why in (
        (tmp_path / "nothing", "does not exist; `robot-rl train` makes a run"),
        (folder, "is not a run, it has no config.yaml"),
        (file, "is not a run, it is a file"),
    ):
        assert main(["report", f"run={path}"]) == 2
        said = capsys.readouterr().err
        assert f"{path} {why}" in said
        assert "eval" not in said
        assert said.count("\n") == 1


def test_run_without_evaluation_names_the_eval_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "eval" / "episodes.csv").unlink()
    assert main(["report", f"run={run}"]) == 2
    assert f"`robot-rl eval policy={run}` first" in capsys.readouterr().err


@pytest.fixture
def on_a_robot(run: Path) -> Path:
    """A run that was never evaluated in simulation."""
    shutil.rmtree(run / "eval")
    shutil.rmtree(run / "videos")
    return run


def deployment(*, kind: str = "tuned", **changes: Any) -> dict[str, Any]:
    """What `robot-rl deploy` writes: six successes, one of them with help, an interruption and a failure."""
    episode = {"steps": 50, "seconds": 2.5, "interrupted": "", "late_steps": 1, "seed": 1}
    episodes = [{**episode, "success": True} for _ in range(5)]
    episodes += [{**episode, "success": True, "interventions": 2, "human_steps": 20}]
    episodes += [{**episode, "success": False, "interrupted": "<b>fault</b>"}, {**episode, "success": False}]
    facts = {
        "kind": kind,
        "fingerprint": "f" * 64,
        "robot": {"name": "arm7"},
        "written": "2026-01-02T03:04:05",
    }
    return {**facts, "operator": "spacemouse", "judge": "runs/judge", "episodes": episodes, **changes}


def test_a_run_on_a_robot_is_reported_from_its_training_and_its_judged_episodes(
    on_a_robot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(on_a_robot / "deploy.json", deployment(ended="no answer"))
    write_json(on_a_robot / "deploy_base.json", deployment(kind="base", judge=None, operator=None))
    assert main(["report", f"run={on_a_robot}"]) == 0
    page = Page(on_a_robot / "report.html")
    assert "not evaluated in simulation" in page.text
    assert page.text.count("75 %") >= 4  # of each deployment, above and in the table
    assert "62.5 %" in page.text  # without a takeover
    assert "corrected with spacemouse. It ended early: no answer." in page.text
    assert page.text.count("Tuned, on arm7") == page.text.count("Base, on arm7") == 2
    assert page.source.count("✗</span>") == page.source.count(">✓</span>") - 8 == 4
    assert "interrupted: &lt;b&gt;fault" in page.source
    assert page.count("svg") >= 2  # learning curves
    assert "Evaluation" not in page.text
    report = json.loads((on_a_robot / "report.json").read_text())
    assert (report["base"], report["tuned"]) == (None, None)
    assert report["deployments"]["deploy.json"]["success"] == 0.75
    assert list(report["deployments"]) == ["deploy.json", "deploy_base.json"]


def test_training_episodes_on_a_robot_are_a_report(on_a_robot: Path) -> None:
    page = Page(write_report(on_a_robot))
    assert "Training, last 50 episodes" in page.text
    assert "On a robot" not in page.text


def test_a_run_without_any_episode_names_what_makes_some(on_a_robot: Path) -> None:
    (on_a_robot / "metrics.csv").write_text("step,seconds,name,value\n0,0.0,learn/loss,1.0\n")
    with pytest.raises(
        UserError, match=r"run `robot-rl eval policy=.*` or `robot-rl deploy policy=.*` first"
    ):
        write_report(on_a_robot)
    assert not (on_a_robot / "report.html").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "tuned"}', json.dumps(deployment(kind="<i>"))])
def test_a_damaged_deployment_is_named(run: Path, content: str) -> None:
    (run / "deploy.json").write_text(content)
    with pytest.raises(UserError, match=r"deploy\.json is damaged"):
        write_report(run)


def test_an_evaluated_run_shows_its_deployment_too(run: Path) -> None:
    write_json(run / "deploy.json", deployment())
    page = Page(write_report(run))
    assert "Paired outcomes" in page.text
    assert page.text.count("Tuned, on arm7") == 1


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("run.json", "{", "not JSON"),
        ("run.json", "{}", "damaged.*`command`"),
        ("run.json", "[]", "run.json is not a JSON object"),
        ("run.json", "[" * 100_000, "not JSON"),
        ("eval/summary.json", '{"states": "x", "policies": {}}', "no policy `base`"),
        (
            "eval/summary.json",
            '{"states": "x", "policies": {"base": {"success": 1}}}',
            "lacks success, interval",
        ),
        ("eval/episodes.csv", "policy,episode,success,length,seed\nbase,0,maybe,3,4\n", "lacks the columns"),
        (
            "eval/episodes.csv",
            "policy,episode,success,length,seed\nbase,0,1,3,4\n",
            "says that base succeeds",
        ),
    ],
)
def test_damaged_file_is_named(run: Path, file: str, content: str, message: str) -> None:
    (run / file).write_text(content)
    with pytest.raises(UserError, match=message):
        write_report(run)


@pytest.mark.parametrize("key", ["cores", "cpu", "gpu", "platform"])
def test_run_without_machine_or_versions_is_refused(run: Path, key: str) -> None:
    record = json.loads((run / "run.json").read_text())
    del record["machine"][key]
    write_json(run / "run.json", record)
    with pytest.raises(UserError, match=f"run.json is damaged.*`{key}`"):
        write_report(run)


def test_policies_evaluated_on_different_episodes_are_not_paired(run: Path) -> None:
    path = run / "eval" / "episodes.csv"
    path.write_text(path.read_text().replace("tuned,99,", "tuned,100,"))
    with pytest.raises(UserError, match="same episodes"):
        write_report(run)


def test_empty_and_non_finite_metrics_are_drawn(run: Path) -> None:
    (run / "metrics.csv").write_text("step,seconds,name,value\n")
    assert "Learning curve" not in Page(write_report(run)).text
    (run / "metrics.csv").write_text(
        "step,seconds,name,value\n0,0.0,learn/q_mean,nan\n0,0.0,eval/success,nan\n"
    )
    assert "1 of 1 values are not finite" in Page(write_report(run)).text


def test_rolling_mean_uses_fewer_values_at_the_start() -> None:
    np.testing.assert_allclose(rolling_mean(np.array([1.0, 0, 0, 1, 1]), 2), [1, 0.5, 0, 0.5, 1])


def test_thinning_keeps_extremes_and_gaps() -> None:
    y = np.arange(3000.0)
    y[:10], y[15] = np.nan, np.inf
    x, mean, low, high = thinned(np.arange(3000.0), y)
    assert len(x) == MAX_POINTS
    assert np.isnan(mean[0])
    assert np.isfinite(mean[1:]).all()
    assert (low[1], high[1], high[-1]) == (10, 19, 2999)


def test_time_unit_depends_on_the_duration() -> None:
    assert [time_unit(s)[1] for s in (90, 900, 90000)] == ["seconds", "minutes", "hours"]


def test_machine_and_versions_are_plain_json() -> None:
    machine = describe_machine()
    assert set(machine) == {"cpu", "cores", "gpu", "platform"}
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert {"python", "torch", "mujoco", "robosuite", "numpy"} <= set(describe_versions())
    json.dumps([machine, describe_versions()])
