"""Validates a dataset against every rule of its format, or recordings, and lists all problems."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import av
import numpy as np
from av.error import FFmpegError

from robot_rl.data.dataset import STEP_KEYS, TARGET, Dataset
from robot_rl.data.episode_notes import SOURCE, source_names
from robot_rl.data.episode_stream import cameras_of, videos_of
from robot_rl.envs.instruction import INSTRUCTION, INSTRUCTION_BYTES
from robot_rl.envs.observation import IMAGE_PREFIX
from robot_rl.hardware.recording.episode import Episode
from robot_rl.hardware.recording.raw import RawDataset
from robot_rl.hardware.recording.records import Received
from robot_rl.hardware.recording.stream_counter import sequence_number

_ALWAYS: Final = ("task", "robot", "control_freq", "horizon")
_SIMULATED: Final = ("env", "controller", "model_seed", "env_args", "state_layout", "versions")
_OFF: Final = 1e-6
"""Tolerance of actions beyond 1, for rounding."""
_UNEVEN: Final = 0.01
"""Largest relative deviation of a step's duration."""


def find_problems(path: Path) -> list[str]:
    """Problems of the dataset at `path`; empty if there are none."""
    try:
        dataset = Dataset(path)
    except ValueError as error:
        # A dataset that does not open cannot be checked further.
        return [str(error)]
    found = [*_environment(dataset)]
    if dataset.num_episodes == 0:
        return [*found, "it has no episode"]
    if damaged := list(dataset.undecodable()):
        return [*found, *damaged]
    return [
        *found,
        *_arrays(dataset),
        *_actions(dataset),
        *_ends(dataset),
        *_times(dataset),
        *_images(dataset),
    ]


def find_raw_problems(raw: RawDataset) -> list[str]:
    """Problems of recordings; reads every record."""
    found = [fault for number, episode in raw.episodes.items() for fault in _recording(number, episode)]
    if raw.open or raw.headless:
        left = len(raw.open) + len(raw.headless)
        found.append(
            f"{left} not committed: `robot-rl data repair raw={raw.root}`, unless one is being recorded"
        )
    return found or ([] if raw.episodes else ["it has no episode"])


def _environment(dataset: Dataset) -> Iterator[str]:
    environment = dataset.environment
    wanted = [*_ALWAYS, *(_SIMULATED if "sim_state" in dataset.keys else ())]
    if missing := [key for key in wanted if key not in environment]:
        yield f"the environment lacks {', '.join(missing)}: it cannot be built again"
    spec, size = dataset.observation_spec, len(dataset.action_spec)
    for key, dim in zip(spec.state_keys, spec.state_dims, strict=True):
        if key in dataset.keys and (here := int(np.prod(dataset.shape(key)[0]))) != dim:
            yield f"data/{key} has {here} numbers a step, the environment says {dim}"
    for key in ("action", "applied_action", TARGET):
        if key in dataset.keys and dataset.shape(key)[0] != (size,):
            yield f"data/{key} is {list(dataset.shape(key)[0])} a step, the environment has {size} actions"
    if "sim_state" in dataset.keys and "state_layout" in environment:
        layout = sum(size for _, size in environment["state_layout"])
        if dataset.shape("sim_state")[0] != (layout,):
            yield f"data/sim_state is {list(dataset.shape('sim_state')[0])} a step, its layout has {layout}"


def _arrays(dataset: Dataset) -> Iterator[str]:
    for key in dataset.keys:
        shape, dtype = dataset.shape(key)
        if dtype.kind == "f" and not key.startswith(IMAGE_PREFIX):
            for number, rows in enumerate(dataset.episodes):
                finite = np.isfinite(dataset.rows(key, rows)).reshape(rows.stop - rows.start, -1).all(1)
                if not finite.all():
                    yield f"data/{key} has NaN or infinity in episode {number}, step {int(finite.argmin())}"
        if key in STEP_KEYS[3:] and shape != ():
            yield f"data/{key} is {list(shape)} a step, and has to be one number"
    if INSTRUCTION in dataset.keys and dataset.shape(INSTRUCTION) == (
        (INSTRUCTION_BYTES,),
        np.dtype(np.uint8),
    ):
        asked = dataset[INSTRUCTION]
        for number, rows in enumerate(dataset.episodes):
            if (asked[rows] != asked[rows.start]).any():
                yield f"the instruction changes within episode {number}"
            elif not asked[rows.start].any():
                yield f"episode {number} has an empty instruction"
    elif INSTRUCTION in dataset.keys:
        yield f"data/{INSTRUCTION} is no array of {INSTRUCTION_BYTES} bytes a step"
    names = source_names(dataset)
    if SOURCE in dataset.keys and int(dataset[SOURCE].max()) >= len(names):
        yield f"data/{SOURCE} has the number {int(dataset[SOURCE].max())}, which the collection does not name"


def _actions(dataset: Dataset) -> Iterator[str]:
    # Requested actions may exceed the range, applied ones and those to imitate may not.
    for key in [key for key in ("applied_action", TARGET) if key in dataset.keys]:
        actions = dataset[key]
        for number, rows in enumerate(dataset.episodes):
            beyond = np.abs(actions[rows]) > 1 + _OFF
            if beyond.any():
                step, dim = (int(n) for n in np.argwhere(beyond)[0])
                told = f"{actions[rows][step, dim]:.3g} in episode {number}, step {step}, number {dim}"
                yield f"data/{key} is beyond [-1, 1]: {told}"


def _ends(dataset: Dataset) -> Iterator[str]:
    """Check that success, reward and the end of each episode agree."""
    terminated, truncated = dataset["terminated"].astype(bool), dataset["truncated"].astype(bool)
    rewards = dataset["reward"]
    for number, rows in enumerate(dataset.episodes):
        last = rows.stop - 1
        if terminated[rows.start : last].any() or truncated[rows.start : last].any():
            yield f"episode {number} ends before its last step"
        if terminated[last] and truncated[last]:
            yield f"episode {number} is terminated and truncated at once"
        if not (terminated[last] or truncated[last]):
            yield f"episode {number} ends neither terminated nor truncated"
        if bool(dataset.success[number]) != bool((rewards[rows] > 0).any()):
            told = "a success" if dataset.success[number] else "no success"
            yield f"episode {number} is {told}, and its rewards sum to {float(rewards[rows].sum()):g}"


def _times(dataset: Dataset) -> Iterator[str]:
    if "time" not in dataset.keys:
        return
    times = dataset["time"]
    period = 1e9 / float(dataset.environment.get("control_freq", 0) or np.inf)
    for number, rows in enumerate(dataset.episodes):
        steps = np.diff(times[rows])
        if (steps <= 0).any():
            yield f"data/time does not increase in episode {number}, step {int((steps <= 0).argmax()) + 1}"
        elif period and (np.abs(steps - period) > _UNEVEN * period).any():
            yield f"steps of episode {number} are {steps.min() / 1e6:.2f} to {steps.max() / 1e6:.2f} ms apart"


def _images(dataset: Dataset) -> Iterator[str]:
    wanted = dataset.observation_spec.image_size
    for camera in cameras_of(dataset):
        key = IMAGE_PREFIX + camera
        if key in dataset.keys:
            shape, dtype = dataset.shape(key)
            if shape != (*wanted, 3) or dtype != np.uint8:
                yield f"data/{key} is {dtype} {list(shape)} a step, the environment says uint8 {[*wanted, 3]}"
    for number, rows in enumerate(dataset.episodes):
        for video in videos_of(dataset, number).values():
            assert isinstance(video, Path)
            yield from _video(video, rows.stop - rows.start, wanted)


def _video(path: Path, wanted: int, size: tuple[int, int]) -> Iterator[str]:
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            if (stream.height, stream.width) != size:
                yield f"{path} has images of {stream.width}x{stream.height}, not {size[1]}x{size[0]}"
            number = sum(1 for _ in container.decode(stream))
    except (FFmpegError, IndexError) as error:
        yield f"{path} is damaged: {error}"
        return
    if number != wanted:
        yield f"{path} has {number} images, its episode {wanted} steps"


def _recording(number: int, episode: Episode) -> Iterator[str]:
    try:
        header, footer = episode.header, episode.footer
        if footer is None:
            yield f"episode {number} has no footer: it is damaged"
            return
        yield from (f"episode {number}: {trouble}" for trouble in footer.trouble)
        for stream, count in footer.counts.items():
            if count.lost or count.unwritten:
                yield f"episode {number}: {count.lost + count.unwritten} {stream} missing"
        if torn := episode.torn():
            yield f"episode {number}: {torn} bytes of records that are not whole"
        _read_all(episode, header.cameras)
    except (ValueError, OSError) as error:
        yield f"episode {number}: {error}"


def _read_all(episode: Episode, cameras: tuple[str, ...]) -> None:
    """Raises ValueError if a record differs from what was written."""
    for record in chain(episode.messages(), *map(episode.images, cameras)):
        if isinstance(record, Received):
            # Decoding checks that the message is complete.
            sequence_number(record.stream, record.frame)
