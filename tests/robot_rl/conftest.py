"""A real Ray cluster of two nodes on this machine."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], "Cluster"]]:
    """Starts clusters of a head without cores and one node with a core; commands use the newest."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Otherwise Ray ends workers when other processes of this machine use its memory.
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    made: list[Cluster] = []

    def make() -> "Cluster":
        head = {"num_cpus": 0, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        made.append(cluster)
        cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        return cluster

    yield make
    ray.shutdown()
    for cluster in made:
        cluster.shutdown()


@pytest.fixture
def cluster(make_cluster: Callable[[], "Cluster"]) -> "Cluster":
    """A head without cores and one node with a core."""
    return make_cluster()


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the clusters of other tests on this machine."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(set))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
