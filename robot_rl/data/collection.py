"""The metadata of a dataset that say how it was collected, typed."""

from typing import Any, TypedDict


class EpisodeNote(TypedDict, total=False):
    """Metadata of one episode, as far as it is used here."""

    labels: dict[str, Any]
    lost: dict[str, int]
    events: list[Any]
    filter_keys: list[str]


class Recorded(TypedDict, total=False):
    """The recordings that a dataset was derived from, as far as it is used here."""

    episodes: list[EpisodeNote]


class Part(TypedDict):
    """A dataset that was merged into another one."""

    dataset: str
    episodes: int


class Collection(TypedDict, total=False):
    """How a dataset was collected, as far as it is used here."""

    episodes: list[EpisodeNote]
    recorded: Recorded
    sources: list[str]
    parts: list[Part]
    converted: dict[str, Any]
