"""Check that a dataset is valid; the exit code is 1 if it is not.

Prints a line for each fault. Reads datasets of this program, recordings, robomimic's HDF5 files and
LeRobotDatasets.
"""

from dataclasses import dataclass, field
from pathlib import Path

from robot_rl.data.kinds import NAMES, kind_of
from robot_rl.errors import UserError, as_user_errors


@dataclass
class Config:
    dataset: str = "???"
    """Path of the dataset."""
    replay: int = 0
    """Number of episodes, spread over the dataset, to replay in simulation and compare."""
    accept: list[str] = field(default_factory=list)
    """Accepted differences between the dataset's environment and the one here, for `replay`."""


def run(config: Config) -> None:
    path = Path(config.dataset)
    with as_user_errors():
        kind = kind_of(path)
        if config.replay and kind != "dataset":
            raise UserError(
                f"replay={config.replay}: a {NAMES[kind]} has no states to replay; convert it first"
            )
        found = _problems(path, kind)
        if config.replay and not found:
            found = _replayed(path, config)
    for fault in found:
        print(fault)
    print(f"{path}: {NAMES[kind]}, {_counted(found)}")
    if found:
        raise SystemExit(1)


def _counted(found: list[str]) -> str:
    if not found:
        return "no fault found"
    return "1 fault" if len(found) == 1 else f"{len(found)} faults"


def _problems(path: Path, kind: str) -> list[str]:
    # Imported late: each kind loads only what it needs.
    match kind:
        case "raw":
            from robot_rl.data.validation import find_raw_problems
            from robot_rl.hardware.recording.raw import RawDataset

            return find_raw_problems(RawDataset(path))
        case "robomimic":
            from robot_rl.data.formats.robomimic.file import find_problems as robomimic_problems

            return robomimic_problems(path)
        case "lerobot":
            from robot_rl.data.formats.lerobot.files import find_problems as lerobot_problems

            return lerobot_problems(path)
    from robot_rl.data.validation import find_problems

    return find_problems(path)


def _replayed(path: Path, config: Config) -> list[str]:
    import numpy as np

    from robot_rl.data.dataset import Dataset
    from robot_rl.data.playback import play, playback_env

    dataset = Dataset(path)
    env = playback_env(dataset, config.accept)
    # States rebuilt from another program's data are only approximate.
    exact = dataset.collection.get("states", True) is True
    number = min(config.replay, dataset.num_episodes)
    found = []
    for episode in np.linspace(0, dataset.num_episodes - 1, number).round().astype(int).tolist():
        playback = play(dataset, env, episode)
        if exact and not playback.exact:
            name, far = max(playback.deviations.items(), key=lambda one: one[1].farthest)
            found.append(f"episode {episode} comes out otherwise: {name} by {far.farthest:.2g} {far.unit}")
        if playback.success != playback.recorded:
            found.append(f"episode {episode} {'succeeds' if playback.success else 'fails'} when acted again")
    env.close()
    return found
