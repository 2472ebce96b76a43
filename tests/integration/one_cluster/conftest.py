"""One real cluster for the tests of this folder: Redis, Ray Serve, two routers, five pools. It ends with them, so that
those that start their own have the machine to themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import PATIENCE
from tests.support.running import ClusterThread, running_cluster
from tests.support.tiny_model import make_tiny_model


@pytest.fixture(scope="package")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights: unlike a trained one its logits hide nothing."""
    return make_tiny_model(tmp_path_factory.mktemp("random-model"))


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory, random_model: Path) -> Iterator[ClusterThread]:
    """A cluster whose pools are `demo` (TP=1), `wide` (TP=2), `toy` (two simulated replicas), `elastic` (one to three),
    and `dozing` (one or two, and always a standby).
    """
    sections: dict[str, Any] = {
        "cluster": {"state_dir": str(tmp_path_factory.mktemp("cluster"))},
        "router": {"port": 0, "processes": 2, "drain_s": 5.0},
        "replica": {"drain_s": 5.0},
        "autoscaler": {"tick_s": 0.5, "lease_s": 3.0},
        "pools": {
            "demo": {"engine": "vllm", "model": "demo", "vllm": {"max_num_seqs": 64}},
            "wide": {
                "engine": "vllm",
                "model": str(random_model),
                "tensor_parallel_size": 2,
                # In 16 bits random weights tie so often that no resumed output is the plain one.
                "vllm": {"max_num_seqs": 16, "kv_cache_memory_mb": 64, "dtype": "float32"},
            },
            "toy": {"engine": "sim", "model": "demo", "replicas": 2, "sim": {"base_ms": 2.0}},
            "elastic": {
                "engine": "sim",
                "model": "demo",
                "sim": {"base_ms": 20.0, "per_token_us": 1.0, "max_num_seqs": 4},
                "slo": {"interactive": {"ttft_p99_s": 2.0}},
                "autoscale": {"mode": "active", "max_replicas": 3, **PATIENCE},
            },
            "dozing": {
                "engine": "sim",
                "model": "demo",
                "sim": {"base_ms": 20.0, "per_token_us": 1.0, "max_num_seqs": 4, "wake_s": 0.2},
                "slo": {"interactive": {"ttft_p99_s": 2.0}},
                "autoscale": {"mode": "active", "max_replicas": 2, "standby": 1, "standby_least": 1, **PATIENCE},
            },
        },
    }
    with running_cluster(sections) as running:
        yield running
