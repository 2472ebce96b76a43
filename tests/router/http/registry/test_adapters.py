"""Adapters in vLLM's spelling, over HTTP."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import aiohttp

from tests.router.http.test_openai import HTTP, base
from tests.support.keys import Keys
from tests.support.stack import running_stack, sim_pool


def poet_files(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


async def test_an_adapter_is_loaded_used_and_unloaded_over_http(tmp_path: Path) -> None:
    files = poet_files(tmp_path / "poet")
    async with running_stack(tmp_path / "stack", router=HTTP) as stack, aiohttp.ClientSession(base(stack)) as session:

        async def post(path: str, **body: object) -> tuple[int, str]:
            async with session.post(path, json=body) as answer:
                return answer.status, await answer.text()

        loaded = await post("/v1/load_lora_adapter", lora_name="poet", lora_path=str(files))
        assert loaded == (200, "Success: LoRA adapter 'poet' added successfully.")
        ask = {"model": "poet", "prompt": "Hi", "max_tokens": 4}
        assert (await post("/v1/completions", **ask))[0] == 200
        async with session.get("/v1/models") as answer:
            cards = {one["id"]: one["parent"] for one in (await answer.json())["data"]}
        assert cards == {"demo": None, "poet": "demo"}
        async with session.get("/v1/models/poet") as answer:
            assert (await answer.json())["parent"] == "demo"
        status, text = await post("/v1/load_lora_adapter", lora_name="poet", lora_path=str(files))
        assert (status, "must be a new name without load_inplace, got 'poet'" in text) == (400, True), text
        status, text = await post("/v1/load_lora_adapter", lora_name="lost", lora_path="/nowhere")
        assert (status, "demo-r0: there is no /nowhere on this replica" in text) == (400, True), text
        status, text = await post("/v1/unload_lora_adapter", lora_name="lost")
        assert (status, "must be an adapter of the registry, got 'lost'" in text) == (400, True), text
        gone = await post("/v1/unload_lora_adapter", lora_name="poet")
        assert gone == (200, "Success: LoRA adapter 'poet' removed successfully.")
        assert (await post("/v1/completions", **ask))[0] == 404


async def test_only_an_admin_changes_adapters_over_http(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.toml")
    sections = {"auth": {"keys_file": str(keys.path)}}
    body = {"lora_name": "poet", "lora_path": str(poet_files(tmp_path / "poet"))}
    async with running_stack(tmp_path / "stack", router=HTTP, sections=sections) as stack:
        for key, status in (("", 401), (keys.acme, 403), (keys.operator, 403), (keys.admin, 200)):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            async with aiohttp.ClientSession(base(stack), headers=headers) as session:
                for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
                    async with session.post(path, json=body) as answer:
                        assert answer.status == status, (path, key, await answer.text())


async def test_a_request_finds_a_replica_that_has_its_adapter(tmp_path: Path) -> None:
    """One replica could not load it."""
    files = poet_files(tmp_path / "poet")
    pools = {"demo": sim_pool(base_ms=5.0)}
    async with (
        running_stack(tmp_path / "stack", router=HTTP, pools=pools) as stack,
        aiohttp.ClientSession(base(stack)) as session,
    ):
        async with session.post("/v1/load_lora_adapter", json={"lora_name": "poet", "lora_path": str(files)}) as answer:
            assert answer.status == 200
        shutil.rmtree(files)
        await stack.add_replica()

        async def ask(number: int) -> int:
            body = {"model": "poet", "prompt": f"Hi {number}", "max_tokens": 8}
            async with session.post("/v1/completions", json=body) as answer:
                return answer.status

        assert await asyncio.gather(*map(ask, range(12))) == [200] * 12
        await stack.kill_replica(0)
        # Nobody has it now.
        async with session.post("/v1/completions", json={"model": "poet", "prompt": "Hi"}) as answer:
            assert (answer.status, "adapter 'poet' could not be loaded" in await answer.text()) == (503, True)
