from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from cluster.errors import BootstrapError
from cluster.ray_serve import gpus
from cluster.ray_serve.gpus import check_gpus
from cluster.settings import EngineKind, PoolSettings


def pool(**settings: Any) -> PoolSettings:
    return PoolSettings(**settings)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The build for GPUs."""
    monkeypatch.setattr(gpus, "version", lambda _name: "0.32.0")


@pytest.mark.usefixtures("vllm")
def test_replicas_that_have_their_gpus_start() -> None:
    check_gpus({"a": pool(tensor_parallel_size=2, replicas=2), "b": pool(pipeline_parallel_size=2)}, 6)
    check_gpus({"a": pool(engine=EngineKind.SIM, replicas=8)}, 0)


@pytest.mark.usefixtures("vllm")
def test_too_few_gpus_are_told_with_what_each_pool_needs() -> None:
    """Serve would wait for another machine, without a word."""
    with pytest.raises(BootstrapError) as caught:
        check_gpus({"a": pool(tensor_parallel_size=2), "b": pool(replicas=3)}, 4)
    text = str(caught.value)
    needed = "5 GPUs are needed (a: 1 replica with 2 GPUs each, b: 3 replicas with 1 GPU each)"
    assert f"pools did not start: {needed}, and Ray finds 4" in text
    assert "tensor_parallel_size" in text
    assert "CUDA_VISIBLE_DEVICES" in text


@pytest.mark.usefixtures("vllm")
def test_no_gpu_is_told_with_the_build_for_cpus() -> None:
    with pytest.raises(BootstrapError, match=r"1 GPU is needed .*Ray finds none; nvidia-smi .*penstock-llm\[cpu\]"):
        check_gpus({"demo": pool()}, 0)


@pytest.mark.usefixtures("vllm")
def test_a_cluster_that_grows_may_have_none_yet() -> None:
    check_gpus({"demo": pool(tensor_parallel_size=8)}, 0, grows=True)


@pytest.mark.parametrize("found", ["0.32.0+cpu", None])
def test_a_build_for_cpus_needs_none(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(_name: str) -> str:
        if found is None:
            raise PackageNotFoundError
        return found

    monkeypatch.setattr(gpus, "version", version)
    check_gpus({"demo": pool(tensor_parallel_size=8)}, 0)
