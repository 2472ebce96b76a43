"""LoRA adapters on a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.errors import EngineRequestError, EngineStartError
from cluster.models import GenerationSpec
from cluster.settings import PoolSettings, VllmSettings
from deployments.engines import identity
from deployments.engines.factory import build_engine
from deployments.engines.vllm.startup.adapters import Adapters
from tests.deployments.engines.conftest import Started
from tests.deployments.engines.recorder import generate, greedy
from tests.support.tiny_model import make_adapter

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),
]
PROMPT = tuple(range(600, 640))


def settings(base: VllmSettings, **adapters: Path) -> VllmSettings:
    modules = {name: str(folder) for name, folder in adapters.items()}
    return base.model_copy(update={"lora_modules": modules, "max_lora_rank": 8})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def adapted(
    tiny_model: Path, vllm_settings: VllmSettings, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Started]:
    nothing = make_adapter(tmp_path_factory.mktemp("nothing"), strength=0.0)
    poet = make_adapter(tmp_path_factory.mktemp("poet"), strength=0.5)
    pool = PoolSettings(model=str(tiny_model), vllm=settings(vllm_settings, nothing=nothing, poet=poet))
    engine = build_engine(pool)
    try:
        yield Started(engine, await engine.start(), tiny_model)
    finally:
        await engine.close()


async def test_each_request_gets_its_adapter(adapted: Started) -> None:
    """All at once, so that one step has them side by side."""
    names = ("", "nothing", "poet")
    results = await asyncio.gather(
        *(generate(adapted.engine, GenerationSpec(PROMPT, greedy(), lora_adapter=name)) for name in names)
    )
    plain, nothing, poet = (recorder.tokens for recorder, _end in results)
    assert len(plain) == len(poet) == 16
    assert nothing == plain
    assert poet != plain


async def test_adapters_belong_to_what_replicas_have_in_common(adapted: Started) -> None:
    model = adapted.identity.model
    assert model.lora_adapters == ("nothing", "poet")
    assert model.digest != identity.model_digest(adapted.model)
    assert adapted.identity.group_id.startswith(model.digest[:12])


@pytest.mark.parametrize(
    ("rank", "complaint"), [(None, "no adapter_config.json in "), (16, "LoRA rank 16 is greater than max_lora_rank 8")]
)
async def test_an_adapter_that_can_not_be_loaded_is_named_before_an_engine_starts(
    tiny_model: Path, vllm_settings: VllmSettings, tmp_path: Path, rank: int | None, complaint: str
) -> None:
    folder = tmp_path if rank is None else make_adapter(tmp_path, rank=rank)
    engine = build_engine(PoolSettings(model=str(tiny_model), vllm=settings(vllm_settings, poet=folder)))
    with pytest.raises(EngineStartError, match=r"lora_modules: adapter 'poet'.*" + complaint):
        await engine.start()
    assert engine._launched is None


async def test_an_adapter_that_does_not_load_is_named(adapted: Started, tmp_path: Path) -> None:
    """What it says of itself is right, its weights are not."""
    folder = make_adapter(tmp_path, strength=0.5)
    (folder / "adapter_model.safetensors").write_bytes(b"not weights")
    with pytest.raises(EngineStartError, match=r"lora_modules: adapter 'broken'"):
        await Adapters({"broken": folder}, first=9).load_first(adapted.engine._frontend, adapted.engine._up.config)
    with pytest.raises(EngineRequestError, match="the engine can't load the adapter"):
        await adapted.engine.load_adapter("broken", folder)
    # The others still work.
    await test_each_request_gets_its_adapter(adapted)


async def test_an_adapter_of_another_model_is_refused_by_name(
    adapted: Started, vllm_settings: VllmSettings, tmp_path: Path
) -> None:
    # vLLM would serve with it.
    folder = make_adapter(tmp_path, strength=0.5, hidden=32)
    complaint = r"self_attn\.o_proj is for a layer of 32 x 32, and the model's has "
    with pytest.raises(EngineRequestError, match=complaint):
        await adapted.engine.load_adapter("narrow", folder)
    engine = build_engine(PoolSettings(model=str(adapted.model), vllm=settings(vllm_settings, narrow=folder)))
    with pytest.raises(EngineStartError, match=r"lora_modules: adapter 'narrow'.*" + complaint):
        await engine.start()
    assert engine._launched is None
    await test_each_request_gets_its_adapter(adapted)


async def test_adapters_come_and_go_while_requests_run(adapted: Started, tmp_path: Path) -> None:
    """More of them than a step may use and than memory keeps, beside requests without one."""
    names = [f"late{number}" for number in range(10)]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        folder = make_adapter(tmp_path / name, strength=0.5, seed=2 + number)
        await adapted.engine.load_adapter(name, folder)
    specs = [GenerationSpec(PROMPT, greedy(), lora_adapter=name) for name in ("", "poet", *names, "", *names)]
    results = await asyncio.gather(*(generate(adapted.engine, spec) for spec in specs))
    plain, poet, *others = (recorder.tokens for recorder, _end in results)
    assert others[10] == plain
    assert others[:10] == others[11:]
    assert len({tuple(each) for each in (plain, poet, *others[:10])}) > 6, "they differ visibly"
    for name in names:
        await adapted.engine.unload_adapter(name)
    with pytest.raises(EngineRequestError, match="adapter 'late0' is not loaded"):
        await adapted.engine.submit("s", specs[2], None)
    await test_each_request_gets_its_adapter(adapted)
