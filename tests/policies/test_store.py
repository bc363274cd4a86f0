"""Saving and loading of policies: bit-identical, and damaged or foreign files are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from robot_rl.policies import store
from robot_rl.policies.bases.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.policies.bases.vla import VLAConfig, VLAPolicy
from robot_rl.policies.registry import BASES, LOADERS
from robot_rl.policies.store import (
    Record,
    fingerprint,
    load_base,
    load_policy_files,
    read_weights,
    save_policy,
    write_files,
)

CONFIG = DiffusionConfig(horizon=4, execute=2, width=16, depth=1, unet_dims=[8, 16])


def make(denoiser: str = "mlp", seed: int = 0) -> DiffusionPolicy:
    torch.manual_seed(seed)
    policy = DiffusionPolicy(DiffusionConfig(**{**vars(CONFIG), "denoiser": denoiser}), 3, 2)
    policy.fit_normalizers(torch.randn(20, 3), torch.rand(20, 2) * 2 - 1)
    return policy


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_policy(make(), tmp_path / "policy", {"task": "lift", "success": 0.5})
    return tmp_path / "policy"


def edit(directory: Path, **changes: Any) -> None:
    path = directory / store.RECORD_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_policy_saved_before_there_were_prefixes_and_encoders_is_loaded(saved: Path) -> None:
    config = json.loads((saved / store.RECORD_FILE).read_text())["config"]
    assert config.pop("max_prefix") == 0
    assert config.pop("encoder") == "conv"
    edit(saved, config=config)
    assert load_base(saved)[0].max_prefix == 0


def test_a_policy_saved_before_there_were_pretrained_encoders_is_loaded(tmp_path: Path) -> None:
    config = VLAConfig(channels=[8], tokens_width=8, heads=1, layers=1, width=8, depth=1, words=["lift"])
    save_policy(VLAPolicy(config, 3, 2, ("front",), (24, 24)), tmp_path, {})
    saved = json.loads((tmp_path / store.RECORD_FILE).read_text())["config"]
    assert [saved.pop(name) for name in ("vision", "text", "pretrained")] == [None, None, {}]
    edit(tmp_path, config=saved)
    assert load_base(tmp_path)[0].spec.instruction


@pytest.mark.parametrize("denoiser", ["mlp", "unet"])
def test_loaded_policy_samples_bit_identically(tmp_path: Path, denoiser: str) -> None:
    policy = make(denoiser)
    save_policy(policy, tmp_path, {})
    loaded, _ = load_base(tmp_path)
    obs = {"state": torch.randn(3, 1, 3)}
    noise = policy.draw_noise(3, 2)
    assert torch.equal(
        policy.sample(obs, noise=noise, num_samples=2).actions,
        loaded.sample(obs, noise=noise, num_samples=2).actions,
    )
    assert loaded.spec == policy.spec
    assert fingerprint(loaded) == fingerprint(policy)


def test_metadata_is_loaded(saved: Path) -> None:
    assert load_policy_files(saved)[1] == {"task": "lift", "success": 0.5}


def test_directory_contains_only_json_and_safetensors(saved: Path) -> None:
    assert sorted(p.name for p in saved.iterdir()) == ["policy.json", "weights.safetensors"]


def test_saving_again_replaces_the_policy(saved: Path) -> None:
    other = make(seed=1)
    save_policy(other, saved, {})
    assert fingerprint(load_policy_files(saved)[0]) == fingerprint(other)


def test_fingerprint_depends_on_weights_and_normalisers() -> None:
    policy = make()
    prints = [fingerprint(policy)]
    with torch.no_grad():
        next(policy.parameters()).view(-1)[0] += 1e-6
    prints.append(fingerprint(policy))
    policy.state_normalizer.center += 1
    prints.append(fingerprint(policy))
    assert len(set(prints)) == 3
    assert all(len(p) == 16 and int(p, 16) >= 0 for p in prints)
    assert fingerprint(make()) == fingerprint(make())


@pytest.mark.parametrize("name", ["policy.json", "weights.safetensors"])
def test_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        load_policy_files(saved)


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_policy_files(tmp_path / "nowhere")


def test_other_format_version_is_refused(saved: Path) -> None:
    edit(saved, format_version=2)
    with pytest.raises(ValueError, match="format version 2, this program reads 1"):
        load_policy_files(saved)


def test_unknown_kind_suggests_the_nearest(saved: Path) -> None:
    edit(saved, kind="difusion")
    with pytest.raises(ValueError, match="did you mean 'diffusion'"):
        load_policy_files(saved)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"model_type": "act"}', '{"format_version": 1}', b"\x80\x04\x95".decode("latin1")],
)
def test_invalid_json_is_refused(saved: Path, text: str) -> None:
    (saved / "policy.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"policy\.json"):
        load_policy_files(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {}},
        {"config": {**vars(CONFIG), "extra": 1}},
        {"config": {**vars(CONFIG), "horizon": "4"}},
        {"config": {**vars(CONFIG), "horizon": 8}},
        {"config": {**vars(CONFIG), "width": 32}},
        {"spec": {}},
        {"kind": 3},
        {"meta": None},
        {"surplus": 1},
    ],
)
def test_mismatched_record_is_refused(saved: Path, change: dict[str, Any]) -> None:
    edit(saved, **change)
    with pytest.raises(ValueError, match=str(saved)):
        load_policy_files(saved)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def pickled(path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, path)


def of_another_save(path: Path) -> None:
    save_file(make(seed=5).state_dict(), path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, pickled, of_another_save, empty])
def test_damaged_weights_are_refused(saved: Path, damage: Callable[[Path], None]) -> None:
    damage(saved / "weights.safetensors")
    with pytest.raises(ValueError, match=r"weights\.safetensors"):
        load_policy_files(saved)


@pytest.mark.parametrize(("part", "name", "value"), [("config", "width", 10**12), ("spec", "state_size", -3)])
def test_sizes_that_cannot_be_are_refused_in_one_line(saved: Path, part: str, name: str, value: int) -> None:
    record = json.loads((saved / "policy.json").read_text())
    record[part][name] = value
    (saved / "policy.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"policy\.json is damaged"):
        load_policy_files(saved)


def test_mismatched_weights_are_named(saved: Path) -> None:
    weights = load_file(saved / "weights.safetensors")
    weights["denoiser.from_x.weight"] = torch.zeros(1, 1)
    record = store.read_record(saved)
    write_files(
        saved, kind=record.kind, config=record.config, spec=record.spec, meta=record.meta, weights=weights
    )
    with pytest.raises(ValueError, match=r"denoiser\.from_x\.weight"):
        load_policy_files(saved)


def test_metadata_that_is_not_json_is_refused(tmp_path: Path) -> None:
    for meta in ({"path": tmp_path}, {"loss": float("nan")}):
        with pytest.raises(ValueError, match=r"JSON|json"):
            save_policy(make(), tmp_path / "policy", meta)
        assert not (tmp_path / "policy").exists()


def test_unregistered_class_is_refused(tmp_path: Path) -> None:
    class Mine(DiffusionPolicy):
        pass

    with pytest.raises(ValueError, match="Mine is not in"):
        save_policy(Mine(CONFIG, 3, 2), tmp_path, {})


def test_every_registered_base_is_built_and_saved(tmp_path: Path) -> None:
    for kind, base in BASES.items():
        assert base.config().name == kind
        cameras = ("front",) if base.policy.takes_instruction else ()
        policy = base.policy(base.config(), 5, 3, cameras, (32, 32))
        if kind != "uniform":  # it has nothing to fit
            policy.fit_normalizers(torch.randn(10, 5), torch.zeros(10, 3))
        save_policy(policy, tmp_path / kind, {})
        assert type(load_policy_files(tmp_path / kind)[0]) is base.policy


class ToyFinetuned(nn.Module):
    """Like a finetuned policy: own weights, and a base in `base/`."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.head = nn.Linear(2, 2)


def load_wrapper(directory: Path, record: Record) -> ToyFinetuned:
    toy_policy = ToyFinetuned(load_base(directory / "base")[0])
    read_weights(directory, record, toy_policy.head)
    return toy_policy


def test_finetuned_policies_can_be_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOADERS, "toy", load_wrapper)
    base = make()
    toy_policy = ToyFinetuned(base)
    write_files(
        tmp_path, kind="toy", config={}, spec={}, meta={"method": "toy"}, weights=toy_policy.head.state_dict()
    )
    save_policy(base, tmp_path / "base", {})
    loaded, meta = load_policy_files(tmp_path)
    assert meta == {"method": "toy"}
    assert fingerprint(loaded) == fingerprint(toy_policy)
    with pytest.raises(ValueError, match="base"):
        load_base(tmp_path)
