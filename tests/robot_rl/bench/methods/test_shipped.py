"""The shipped protocols, bases and results of the benchmark of methods fit together."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from robot_rl.bench.methods.page import BEGIN
from robot_rl.bench.methods.protocol import read_protocols
from robot_rl.bench.methods.queue import run_queue
from robot_rl.bench.methods.results import read_result
from robot_rl.cli import main as cli
from robot_rl.commands import bench_table
from robot_rl.envs.robosuite_env import RobosuiteEnv
from robot_rl.evaluation.initial_states import Split, load_states
from robot_rl.factory import make_robosuite_env
from robot_rl.policies.store import load_base, read_record
from tests.envs.earlier_states import as_saved_earlier
from tests.robot_rl.bench.methods.protocols import GROUPS, RESULTS, ROOT, SHIPPED


@pytest.mark.usefixtures("undrawn")
def test_shipped_page_shows_the_shipped_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, also after a result is added; the results must match their protocols."""
    monkeypatch.chdir(ROOT)
    assert sorted(bench_table.SHIPPED) == [folder.name for folder in GROUPS]
    out, plots = tmp_path / "docs" / "results.md", tmp_path / "docs" / "results"
    assert cli.main(["bench", "table", f"out={out}", f"plots={plots}"]) == 0
    _, _, written = out.read_text().partition(BEGIN)
    _, _, shipped = (ROOT / "docs" / "results.md").read_text().partition(BEGIN)
    assert shipped == written, "run `robot-rl bench table`"


def test_shipped_results_used_the_initial_states_of_their_split() -> None:
    """Compared by the hash of the states, so that no result can be in the wrong folder."""
    splits: tuple[Split, ...] = ("validation", "test")
    for protocol in read_protocols(SHIPPED):
        env = make_robosuite_env(protocol.task)
        assert isinstance(env, RobosuiteEnv)
        lists = {split: load_states(env, split=split) for split in splits}
        known = {
            split: {saved.sha256, replace(saved, states=as_saved_earlier(env, saved.states)).sha256}
            for split, saved in lists.items()
        }
        env.close()
        found = (RESULTS / protocol.group).glob(f"*/{protocol.task}/*.json")
        for path in found:
            record = json.loads(path.read_text())
            assert record["split"] == path.parents[1].name
            assert record["states"]["states_sha256"] in known[record["split"]]


@pytest.mark.parametrize("folder", GROUPS, ids=lambda folder: folder.name)
def test_shipped_protocols_are_valid(folder: Path) -> None:
    assert read_protocols(folder)


def test_only_rlpd_and_bc_do_not_start_from_the_base_of_the_task() -> None:
    entries = [entry for protocol in read_protocols(SHIPPED) for entry in protocol.entries]
    assert {entry.name for entry in entries if not entry.from_base} == {"rlpd", "bc"}


def test_shipped_bases_are_those_of_the_shipped_results() -> None:
    for protocol in read_protocols(SHIPPED):
        assert protocol.kept_base is not None
        load_base(protocol.kept_base)
        results = [read_result(run, RESULTS) for run in run_queue([protocol])]
        bases = [result.base_fingerprint for result in results if result]
        assert read_record(protocol.kept_base).fingerprint in bases
