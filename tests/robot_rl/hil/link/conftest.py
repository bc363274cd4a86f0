"""A learner and an actor with a link between them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.robot_rl.hil.link.ends import ActorLink, Learner


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'l'}"


@pytest.fixture
def learner(address: str) -> Iterator[Learner]:
    created = Learner(address)
    yield created
    created.server.close()


@pytest.fixture
def actor(address: str, tmp_path: Path) -> Iterator[ActorLink]:
    created = ActorLink(address, tmp_path / "spool")
    yield created
    created.client.close()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZMQ's threads may be slow to connect, and to send what is left at the end."""
    monkeypatch.setattr("robot_rl.hil.link.client._LINGER_MS", 60_000)
