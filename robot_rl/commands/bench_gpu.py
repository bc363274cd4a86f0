"""Check and measure this program on a GPU: updates equal to the CPU's, their speed, a run from images.

`make gpu-check` runs it. It needs no network, takes 10 minutes at most, and writes one file of results for
each kind of GPU. A part that cannot run here (without a simulator there is no run from images) is named with
the reason. The exit code is 1 if an update differs from the CPU's, or a part failed.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from robot_rl.bench.devices import METRICS_TOLERANCE, WEIGHTS_TOLERANCE, Difference, cases, compare
from robot_rl.bench.image_run import measure_image_run
from robot_rl.bench.learners import off_policy_methods
from robot_rl.bench.update import Size, measure_method, measure_sac
from robot_rl.cli.progress import progress
from robot_rl.errors import UserError, as_user_errors
from robot_rl.files.durable import make_folder, write_file
from robot_rl.learning.config import BASE_FEATURES
from robot_rl.machine import describe_machine, describe_versions, keep_freed_memory
from robot_rl.saved_policies.loading import choose_device

_SIZES = (Size(256, 2), Size(1024, 10))
_LIMIT_S = 570.0
"""Time in s after which nothing is begun, and a run from images is ended."""


@dataclass
class Config:
    out: str = "benchmarks/results/gpu"
    """Folder of the results, a file for each kind of GPU."""
    seconds: float = 1.0
    """Duration in s of each speed that is measured, but at least three turns."""
    device: str = "cuda"
    """`cuda`, or `cpu` to try the command out: it then compares the CPU with itself."""
    image_run: bool = True
    """Whether to train from images for a few minutes."""


def run(config: Config) -> None:
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "there is no CUDA GPU here, or torch is built without CUDA: nothing was checked; device=cpu "
            "tries the command out"
        )
    with as_user_errors():
        device = choose_device(config.device)
    keep_freed_memory()
    end = time.monotonic() + _LIMIT_S
    machine = {**describe_machine(), "versions": describe_versions()}
    name = machine["gpu"] if device.type == "cuda" else "cpu"
    path = Path(config.out) / f"{_file_name(name)}.json"
    make_folder(path.parent)
    results: dict[str, Any] = {"device": name, "machine": machine}

    def keep(**part: Any) -> None:
        # After each part, so that a machine that is taken away leaves what was measured.
        results.update(part)
        write_file(path, (json.dumps(results, indent=2) + "\n").encode())

    differences = dict(_check_updates(device))
    keep(
        tolerance={"metrics": METRICS_TOLERANCE, "weights": WEIGHTS_TOLERANCE},
        updates={case: {**asdict(found), "equal": found.equal} for case, found in differences.items()},
    )
    keep(update_ms=dict(_measure_updates(device, config.seconds, end)))
    failed: str | None = None
    if config.image_run:
        reason = None if find_spec("robosuite") else "no simulator is installed"
        try:
            done = None if reason else asdict(measure_image_run(config.device, end - time.monotonic()))
        except UserError as error:
            done, failed = None, str(error)
        keep(image_run=done or {"not_run": reason or failed})
    different = [case for case, found in differences.items() if not found.equal]
    print(
        f"{name}: {len(differences) - len(different)} of {len(differences)} updates equal the CPU's; {path}"
    )
    if different:
        print(f"bench gpu: updates differ from the CPU's: {', '.join(different)}", file=sys.stderr)
    if failed:
        print(f"bench gpu: the run from images failed: {failed}", file=sys.stderr)
    if different or failed:
        raise SystemExit(1)


def _check_updates(device: torch.device) -> Iterator[tuple[str, Difference]]:
    made = cases()
    with progress(len(made), "bench gpu", "updates") as show:
        for i, (case, make) in enumerate(made.items()):
            show.update(i, now=case)
            yield case, compare(make, device)
        show.update(len(made))


def _measure_updates(device: torch.device, seconds: float, end: float) -> Iterator[tuple[str, float]]:
    """Time of an update in ms, by case, until the time is up."""
    size, methods = _SIZES[0], off_policy_methods()
    sac = {f"sac_{size.name}": size for size in _SIZES}
    seeing = {
        f"{name}_{size.name}{f'_images_{encoder}' if encoder else ''}": (name, encoder)
        for encoder in (None, "conv", BASE_FEATURES)
        for name in methods
    }
    with progress(len(sac) + len(seeing), "bench gpu", "speeds") as show:
        for i, case in enumerate((*sac, *seeing)):
            if time.monotonic() > end:
                return
            show.update(i, now=case)
            if case in sac:
                yield case, measure_sac(sac[case], seconds, device).ours_ms
            else:
                name, encoder = seeing[case]
                yield case, measure_method(name, size, seconds, device, encoder=encoder).ours_ms
        show.update(len(sac) + len(seeing))


def _file_name(device: str) -> str:
    """A device's name as the name of a file."""
    return "".join(letter if letter.isalnum() else "_" for letter in device.lower())
