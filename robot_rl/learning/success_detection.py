"""How well a classifier of single frames detects success in episodes: labels, threshold and error rates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robot_rl.stats import wilson

_BINS = 10
"""Number of intervals of probability in which a prediction is compared with the outcome."""


@dataclass(frozen=True)
class LabelledFrames:
    """Frames with labels."""

    obs: Mapping[str, NDArray[Any]]
    """`state` [T, S] and `images.<camera>` [T, H, W, 3]."""
    success: NDArray[np.bool_]
    """Rows labelled as success [T]."""
    other: NDArray[np.bool_]
    """Rows labelled as no success [T]."""
    episodes: Sequence[slice]


def label(
    success: NDArray[np.bool_], episodes: Sequence[slice], success_steps: int, unclear_steps: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Label rows as success and as no success, each bool [T].

    Args:
        success: outcome of each episode [N].
        episodes: rows of each episode.
        success_steps: last rows of a successful episode that show success.
        unclear_steps: rows before those that have no label.
    """
    rows = episodes[-1].stop
    shown, other = np.zeros(rows, bool), np.ones(rows, bool)
    for succeeded, episode in zip(success, episodes, strict=True):
        if succeeded:
            first = max(episode.start, episode.stop - success_steps)
            shown[first : episode.stop] = True
            other[max(episode.start, first - unclear_steps) : episode.stop] = False
    return shown, other


class Split(NamedTuple):
    """Episode numbers of each part."""

    learn: NDArray[np.int64]
    calibrate: NDArray[np.int64]
    """Episodes that set the threshold."""
    measure: NDArray[np.int64]
    """Episodes that measure its error rates."""


def split(success: NDArray[np.bool_], held_out: float, seed: int) -> Split:
    """Split the episodes into three parts.

    The split is stratified by success.

    Raises:
        ValueError: if there are too few successes for three parts.
    """
    rng = np.random.default_rng([seed, 5])
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    for kind in (True, False):
        numbers = rng.permutation(np.flatnonzero(success == kind))
        half = round(len(numbers) * held_out / 2)
        if kind and (half < 1 or len(numbers) - 2 * half < 1):
            raise ValueError(
                f"{len(numbers)} successful episodes are too few to learn from and to measure with: "
                "record more, or choose another method.held_out"
            )
        for part, chosen in zip(
            parts, (numbers[2 * half :], numbers[:half], numbers[half : 2 * half]), strict=True
        ):
            part.extend(chosen.tolist())
    return Split(*(np.sort(np.array(part, np.int64)) for part in parts))


def threshold_for(highest: NDArray[np.floating], false_alarms: float) -> float:
    """Lowest threshold at which at most a fraction `false_alarms` of episodes has a false alarm.

    Args:
        highest: largest logit of each episode's frames without success [N].
        false_alarms: allowed fraction of episodes.
    """
    ordered = np.sort(highest)[::-1]
    allowed = int(false_alarms * len(ordered))
    # Never below a logit of 0, where success has probability 1/2.
    return max(0.0, float(ordered[allowed]))


@dataclass(frozen=True)
class Bin:
    """Frames whose predicted probabilities of success are alike."""

    probability: float
    """Mean prediction."""
    frames: int
    successes: int


@dataclass(frozen=True)
class Rates:
    """Error rates of a threshold on held-out episodes, with 95 % intervals."""

    threshold: float
    """Logit above which success is detected."""
    episodes: int
    false_alarms: int
    """Episodes with a false positive: each would end with a false reward."""
    false_alarm_interval: tuple[float, float]
    frames: int
    """Without success."""
    false_frames: int
    successes: int
    """Episodes that succeed."""
    found: int
    """Of those, episodes in which success is detected."""
    recall_interval: tuple[float, float]
    early: int
    """Of those, episodes in which it is first detected before the frames that show it: a reward too early."""
    detections: int
    """Episodes in which success is detected."""
    right: int
    """Of those, episodes in which it is first detected in a frame that shows it."""
    precision_interval: tuple[float, float]
    calibration: list[Bin]
    """Frames with a label, by predicted probability."""


def calibration(logits: NDArray[np.floating], success: NDArray[np.bool_]) -> list[Bin]:
    """Count the successes among frames of similar predictions, in tenths of probability.

    Args:
        logits: of T frames [T].
        success: whether each shows success [T].
    """
    probability = 1 / (1 + np.exp(-logits.astype(np.float64)))
    tenth = np.minimum((probability * _BINS).astype(int), _BINS - 1)
    parts = (tenth == number for number in range(_BINS))
    return [
        Bin(float(probability[part].mean()), int(part.sum()), int(success[part].sum()))
        for part in parts
        if part.any()
    ]


def detection_rates(
    frames: LabelledFrames, episodes: Sequence[slice], logits: Sequence[NDArray[np.float32]], threshold: float
) -> Rates:
    """Error rates of a threshold.

    Args:
        frames: all frames with their labels.
        episodes: rows of each episode that is measured.
        logits: of the frames of each such episode [T].
        threshold: logit above which success is detected.
    """
    alarms = false_frames = others = successes = found = early = detections = 0
    for rows, seen in zip(episodes, logits, strict=True):
        taken = seen > threshold
        detections += bool(taken.any())
        false = taken & frames.other[rows]
        alarms += bool(false.any())
        false_frames += int(false.sum())
        others += int(frames.other[rows].sum())
        if (shown := frames.success[rows]).any():
            successes += 1
            found += bool(taken.any())
            early += bool(taken.any() and not shown[taken.argmax()])
    success = np.concatenate([frames.success[rows] for rows in episodes])
    clear = success | np.concatenate([frames.other[rows] for rows in episodes])
    return Rates(
        threshold=threshold,
        episodes=len(episodes),
        false_alarms=alarms,
        false_alarm_interval=_interval(alarms, len(episodes)),
        frames=others,
        false_frames=false_frames,
        successes=successes,
        found=found,
        recall_interval=_interval(found, successes),
        early=early,
        detections=detections,
        right=found - early,
        precision_interval=_interval(found - early, detections),
        calibration=calibration(np.concatenate(logits)[clear], success[clear]),
    )


def _interval(count: int, of: int) -> tuple[float, float]:
    """95 % interval of a fraction; (0, 1) of nothing."""
    return wilson(count, of) if of else (0.0, 1.0)


def describe(rates: Rates) -> str:
    """Summary of error rates to print."""
    (low, high), found = rates.false_alarm_interval, rates.recall_interval
    return (
        f"{rates.episodes} episodes not learned from: false alarms in {rates.false_alarms} "
        f"(95 % [{low:.3f}, {high:.3f}]), in {rates.false_frames} of {rates.frames} frames; "
        f"{rates.found} of {rates.successes} successes found (95 % [{found[0]:.3f}, {found[1]:.3f}]), "
        f"{rates.early} of them early; threshold {rates.threshold:.2f} (logit)"
    )
