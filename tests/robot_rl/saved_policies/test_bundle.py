"""Bundles: what `robot-rl export` writes can be checked and read, and what was changed is refused."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

from robot_rl.cli.main import main
from robot_rl.errors import UserError
from robot_rl.hardware.robot_file import load_robot
from robot_rl.hardware.spec import RobotSpec
from robot_rl.policies.classifier import SuccessClassifier
from robot_rl.policies.finetuned.finetuned_policy import save_finetuned
from robot_rl.policies.nets.encoder import EncoderSpec
from robot_rl.policies.store import fingerprint
from robot_rl.robot.deploy.judge import load_classifier
from robot_rl.robot.robots import robot_path
from robot_rl.saved_policies.bundle import MANIFEST, check_same_robot, read_bundle, write_bundle
from robot_rl.saved_policies.loading import load_networks
from tests.robot_rl.policy_server.small_policies import STATE, environment, tuned

META = {"environment": environment()}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    save_finetuned(tuned(), tmp_path / "policy", META)
    return tmp_path / "policy"


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    SuccessClassifier(EncoderSpec(STATE), 8).save(tmp_path / "judge", META)
    return tmp_path / "judge"


@pytest.fixture
def robot() -> RobotSpec:
    return load_robot(robot_path("sim_panda")).spec


@pytest.fixture
def bundle(policy: Path, classifier: Path, tmp_path: Path) -> Path:
    arguments = (f"policy={policy}", f"out={tmp_path / 'bundle'}", f"success={classifier}", "licence=CC0-1.0")
    assert main(["export", *arguments]) == 0
    return tmp_path / "bundle"


def test_a_bundle_has_the_policy_its_base_the_classifier_and_a_readable_manifest(
    bundle: Path, policy: Path, classifier: Path
) -> None:
    networks, meta = load_networks(bundle)
    assert fingerprint(networks) == fingerprint(load_networks(policy)[0])
    assert meta == META
    judge, _ = load_classifier(str(bundle / "classifier"))
    assert fingerprint(judge) == fingerprint(load_classifier(str(classifier))[0])
    told = json.loads((bundle / MANIFEST).read_text())
    assert (told["kind"], told["task"], told["control_freq"]) == ("residual_chunk", "small", 20)
    assert told["observation"] == environment()["observation_spec"]
    assert told["versions"]["torch"] == metadata.version("torch")
    assert told["licences"]["weights"] == "CC0-1.0"
    assert "BSD-3-Clause" in told["licences"]["torch"]
    files = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert told["files"].keys() == files - {MANIFEST}
    assert {"base/policy.json", "classifier/weights.safetensors"} <= files


def test_a_bundle_knows_the_calibration_and_latency_of_its_robot(
    policy: Path, tmp_path: Path, robot: RobotSpec
) -> None:
    file = load_robot(robot_path("sim_panda"))
    write_bundle(policy, tmp_path / "bundle", robot=(file.spec, file.latency))
    manifest = read_bundle(tmp_path / "bundle")
    assert manifest.robot is not None
    assert manifest.robot.sha256 == robot.sha256
    assert manifest.latency == file.latency
    check_same_robot(manifest.robot, robot)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "other"}, "is for the robot sim_panda, this one is other: name differ"),
        ({"calibration": {"tool": (0.0, 0.0, 0.1)}}, "is for the robot sim_panda: calibration differ"),
    ],
)
def test_another_robot_is_refused(robot: RobotSpec, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_same_robot(robot, msgspec.structs.replace(robot, **change))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda b: flip(b / "weights.safetensors"), "weights.safetensors was changed after the export"),
        (lambda b: flip(b / "base" / "weights.safetensors"), "base/weights.safetensors was changed"),
        (lambda b: edit(b / "policy.json", meta={}), "policy.json was changed"),
        (
            lambda b: flip(b / "classifier" / "weights.safetensors"),
            "weights.safetensors was changed",
        ),
        (lambda b: edit(b / MANIFEST, control_freq=10), "bundle.json was changed"),
        (lambda b: edit(b / MANIFEST, robot=None, fingerprint="0" * 64), "bundle.json was changed"),
        (lambda b: edit(b / MANIFEST, format_version=2), "format version 2"),
        (lambda b: edit(b / MANIFEST, more=1), "damaged or of another version"),
        (lambda b: (b / MANIFEST).write_text("[" * 100_000), "damaged or of another version"),
        (lambda b: (b / "base" / "policy.json").unlink(), "'base/policy.json' is missing"),
    ],
)
def test_a_changed_bundle_is_refused_in_one_line(
    bundle: Path, change: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(bundle)
    for command in (["serve", "address=ws://127.0.0.1:0"], ["deploy", "robot=ipc:///tmp/nobody"]):
        capsys.readouterr()
        assert main([*command, f"policy={bundle}"]) == 2
        (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("robot-rl: ")]
        assert words in line
        assert "copy the whole bundle again" in line


def test_a_file_that_was_added_is_refused(policy: Path, classifier: Path, tmp_path: Path) -> None:
    write_bundle(policy, tmp_path / "bundle")
    classifier.rename(tmp_path / "bundle" / "classifier")
    with pytest.raises(UserError, match=r"'classifier/policy\.json' was added after the export"):
        read_bundle(tmp_path / "bundle")


def test_nothing_is_overwritten_and_damaged_files_are_not_exported(
    policy: Path, bundle: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = (bundle / MANIFEST).read_bytes()
    assert main(["export", f"policy={policy}", f"out={bundle}"]) == 2
    assert "choose another out=" in capsys.readouterr().err
    assert (bundle / MANIFEST).read_bytes() == before
    flip(policy / "weights.safetensors")
    assert main(["export", f"policy={policy}", f"out={tmp_path / 'other'}"]) == 2
    assert not (tmp_path / "other").exists()
