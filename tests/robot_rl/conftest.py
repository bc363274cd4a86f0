"""A real Ray cluster of two nodes on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator["Cluster"]:
    """A head without cores and one node with a core."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_DISABLE_MEMORY_MONITOR", "1")
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    made.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
