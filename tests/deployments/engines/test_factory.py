from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.settings import EngineKind, PoolSettings
from deployments.engines.factory import build_engine, model_source, resolve_model
from deployments.engines.sim import SimEngine


def test_demo_is_the_shipped_model() -> None:
    assert resolve_model("demo").parts[-3:] == ("deployments", "demo_model", "weights")


@pytest.mark.parametrize("name", ["someone/some-model", "s3://bucket/some-model", "gs://bucket/m", "az://bucket/m"])
def test_folder_is_found_and_what_is_elsewhere_keeps_its_name(tmp_path: Path, name: str) -> None:
    assert str(tmp_path.resolve()) == model_source(PoolSettings(model=str(tmp_path))).engine_name
    assert name == model_source(PoolSettings(model=name)).engine_name


def test_settings_name_the_engine(tmp_path: Path) -> None:
    assert isinstance(build_engine(PoolSettings(engine=EngineKind.SIM, model=str(tmp_path))), SimEngine)


@pytest.mark.slow
def test_contract_and_simulated_engine_import_no_vllm() -> None:
    code = (
        "import sys, deployments.engines, deployments.engines.factory, deployments.engines.sim, "
        "deployments.engines.vllm.plugin; print(sorted({'vllm', 'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
