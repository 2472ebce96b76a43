from __future__ import annotations

from types import SimpleNamespace

import pytest

from cluster.errors import EngineStartError
from cluster.settings import PoolSettings
from deployments.engines.vllm.startup import launch

platforms = pytest.importorskip("vllm.platforms")


class Nobody:
    def on_step(self, stats: object, ended_at: float) -> None:
        raise NotImplementedError

    def on_death(self, error: Exception) -> None:
        raise NotImplementedError


def test_a_build_for_gpus_that_finds_none_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM itself says that a device string must not be empty. Another start would find none either."""
    monkeypatch.setattr(launch, "built_for_cpu", lambda: False)
    monkeypatch.setattr(launch, "version", lambda _name: "0.32.0")
    monkeypatch.setattr(platforms, "_current_platform", SimpleNamespace(is_unspecified=lambda: True))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    with pytest.raises(
        EngineStartError, match=r"0\.32\.0 runs on GPUs, and finds none; .*DEVICES is ''.*\[cpu\]"
    ) as one:
        launch.launch(PoolSettings(), "demo", None, Nobody())
    assert one.value.final
