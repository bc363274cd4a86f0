"""Videos of real episodes and of what a model of features imagined, drawn by a decoder of these features."""

from pathlib import Path

import torch

from robot_rl.imagination.episodes import Episode
from robot_rl.policies.finetuned.finetuned_policy import FinetunedPolicy
from robot_rl.report.feature_decoder import FeatureDecoder, fit_decoder
from robot_rl.report.imagination_data import ImaginationData
from robot_rl.report.imagination_videos import (
    MOST_FRAMES,
    Video,
    chosen_episodes,
    describe_episode,
    imagined_states,
    side_by_side,
)
from robot_rl.saved_policies.loading import load_networks

_ENLARGED = 2
"""Pixels of the video for each of an image."""


def feature_videos(data: ImaginationData) -> tuple[list[Video], str]:
    """Videos of a successful and of a failed episode, and why there are none."""
    path = data.config["data"]
    if path is None:
        return [], "The run has no demonstrations, from whose images a decoder of the features learns."
    try:
        networks, meta = load_networks(data.path)
        assert isinstance(networks, FinetunedPolicy)
        if not networks.base.spec.cameras:
            return [], "The base sees no images that could be drawn."
        decoder = fit_decoder(Path(path), networks.base)
    except ValueError as error:
        return [], f"The decoder of features cannot learn from the demonstrations: {error}."
    fps = int(meta["environment"]["control_freq"])
    return [_video(data, decoder, episode, fps) for episode in chosen_episodes(data.shown_episodes)], ""


def _video(data: ImaginationData, decoder: FeatureDecoder, episode: Episode, fps: int) -> Video:
    assert data.model
    chunks = int(data.config["imagination"]["chunks"])
    imagined = torch.from_numpy(imagined_states(data.model, episode, data.chunk, chunks, data.history))
    halves = [decoder.draw(vectors[:MOST_FRAMES]) for vectors in (episode.states, imagined)]
    enlarged = [list(half.repeat(_ENLARGED, 1).repeat(_ENLARGED, 2)) for half in halves]
    return Video(describe_episode(episode), side_by_side(enlarged, fps))
