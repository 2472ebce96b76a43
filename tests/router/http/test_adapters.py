"""Adapters in vLLM's spelling, over HTTP."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from tests.router.http.test_openai import HTTP, base
from tests.support.stack import running_stack


async def test_an_adapter_is_loaded_used_and_unloaded_over_http(tmp_path: Path) -> None:
    files = tmp_path / "poet"
    files.mkdir()
    (files / "adapter_config.json").write_text("{}")
    (files / "adapter_model.safetensors").write_bytes(b"weights")
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
