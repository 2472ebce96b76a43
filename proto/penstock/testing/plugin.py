"""Fixtures of pytest. In conftest.py: pytest_plugins = ["penstock.testing.plugin"]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from penstock.client import Client
from penstock.testing.cluster import SimulatedCluster, running_cluster


@pytest.fixture(scope="session")
def penstock_flags() -> Sequence[str]:
    """Further flags of `penstock up` for the cluster; override it in conftest.py."""
    return ()


@pytest.fixture(scope="session")
def penstock_cluster(penstock_flags: Sequence[str]) -> Iterator[SimulatedCluster]:
    """A cluster that is started once, when a test first asks for it, and stopped after the last test."""
    with running_cluster(*penstock_flags) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def penstock_client(penstock_cluster: SimulatedCluster) -> Client:
    """A client that is connected to the cluster."""
    return penstock_cluster.client
