"""Engines for the contract suite: each kind is started once."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from cluster.settings import EngineKind, PoolSettings, SimSettings, SpeculativeSettings, VllmSettings
from deployments.engines.base import EngineIdentity
from deployments.engines.factory import build_engine
from tests.support.tiny_model import make_tiny_model, make_tokenizer
from tests.support.vision_model import make_vision_model

CONTEXT_TOKENS = 1024


@dataclass(frozen=True)
class Started:
    """An engine that is up, with what it was made from."""

    engine: Any
    identity: EngineIdentity
    model: Path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), context_tokens=CONTEXT_TOKENS)


@pytest.fixture(scope="session")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("vision"), context_tokens=CONTEXT_TOKENS)


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def vllm_settings() -> VllmSettings:
    # Random weights make near ties, which batches of different shapes resolve differently in bfloat16.
    settings = VllmSettings(max_num_seqs=64, kv_cache_memory_mb=64, dtype="float32")
    if os.environ.get("TRITON_INTERPRET") == "1":
        # Its warm-up runs every kernel in Python, for as many sequences as there may be; see test_second_runner.py.
        return settings.model_copy(update={"max_num_seqs": 4, "max_num_batched_tokens": 256})
    return settings


@pytest_asyncio.fixture(
    scope="session", loop_scope="session", params=["sim", pytest.param("vllm", marks=pytest.mark.engine)]
)
async def started(request: pytest.FixtureRequest, vllm_settings: VllmSettings) -> AsyncIterator[Started]:
    """Every engine that must keep the contract."""
    model: Path = request.getfixturevalue("tiny_model" if request.param == "vllm" else "tiny_tokenizer")
    pool = PoolSettings(
        model=str(model),
        engine=EngineKind(request.param),
        vllm=vllm_settings,
        sim=SimSettings(base_ms=1.0, max_model_len=CONTEXT_TOKENS, max_num_seqs=64, time_scale=0.2),
    )
    async for each in _run(pool, model):
        yield each


@pytest_asyncio.fixture(
    scope="session", loop_scope="session", params=["sim", pytest.param("vllm", marks=pytest.mark.engine)]
)
async def seeing(request: pytest.FixtureRequest, vllm_settings: VllmSettings) -> AsyncIterator[Started]:
    """Every engine that takes images."""
    model: Path = request.getfixturevalue("vision_model" if request.param == "vllm" else "tiny_tokenizer")
    pool = PoolSettings(
        model=str(model),
        engine=EngineKind(request.param),
        vllm=vllm_settings.model_copy(update={"extra": {"limit_mm_per_prompt": {"image": 4}}}),
        sim=SimSettings(base_ms=1.0, max_model_len=CONTEXT_TOKENS, max_num_seqs=64, time_scale=0.2),
    )
    async for each in _run(pool, model):
        yield each


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def speculating(tiny_model: Path, vllm_settings: VllmSettings) -> AsyncIterator[Started]:
    """A vLLM engine with n-gram speculation; the last test that uses it kills it."""
    settings = vllm_settings.model_copy(update={"speculative": SpeculativeSettings(num_speculative_tokens=3)})
    async for each in _run(PoolSettings(model=str(tiny_model), vllm=settings), tiny_model):
        yield each


@pytest.fixture(scope="session", autouse=True)
def _no_constraints_where_triton_is_interpreted() -> Iterator[None]:
    """Leave out the start's constrained request: the interpreter does not take vLLM's kernel for it."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1":
            patch.setattr("deployments.engines.vllm.engine.constrain_once", AsyncMock())
        yield


async def _run(pool: PoolSettings, model: Path) -> AsyncIterator[Started]:
    engine = build_engine(pool)
    try:
        yield Started(engine, await engine.start(), model)
    finally:
        await engine.close()


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))


def pool_json(model: Path, ranks: int) -> str:
    return json.dumps(
        {"model": str(model), "tensor_parallel_size": ranks, "vllm": {"max_num_seqs": 8, "kv_cache_memory_mb": 32}}
    )
