"""Output that began with an adapter's files goes on with the same files, or ends."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from penstock import AsyncClient, RegistryEdit
from penstock.v1 import inference_pb2 as api
from tests.router.dispatch.streams import LONG, SIM, error_of, read_into, replica_of
from tests.router.links.parts import read_until
from tests.support.stack import Stack, collect, ids_of, running_stack, stream_request


def adapter_of(folder: Path, weights: bytes) -> Path:
    """Write the files of an adapter."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


async def put(stack: Stack, folder: Path) -> None:
    """Give the adapter these files, and wait until every replica has loaded them."""
    edit = RegistryEdit("adapter", "poet", {"pool": "demo", "source": str(folder)})
    async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}") as client:
        result = await client.edit_registry([edit], wait=60.0)
    assert ["loaded"] * 2 == [each.state for each in result.adapters]


def asked() -> api.StreamGenerateRequest:
    """Ask for long output of the adapter."""
    wanted = stream_request(**LONG)
    wanted.generate.lora_adapter = "poet"
    return wanted


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("changed", [False, True])
async def test_output_goes_on_with_the_same_files_of_its_adapter_or_ends(
    tmp_path: Path, *, changed: bool, resumes: bool
) -> None:
    """Its replica dies after the adapter got new files, also under a call that took it over at another router."""
    async with running_stack(tmp_path, routers=2, replicas=2, sim={**SIM, "max_loras": 4}) as stack:
        await put(stack, adapter_of(tmp_path / "old", b"old"))
        expected = ids_of(await collect(stack.inference().StreamGenerate(asked())))
        call = stack.inference().StreamGenerate(asked())
        events = await read_until(call, 30)
        victim = replica_of(stack, events)
        if changed:
            await put(stack, adapter_of(tmp_path / "new", b"new"))
        if resumes:
            again = asked()
            again.resume.resume_token = next(e.started.resume_token for e in events if e.HasField("started"))
            again.resume.received_tokens.append(len(ids_of(events)))
            call = stack.inference(1).StreamGenerate(again)
            events += await read_until(call, 5)
        await stack.kill_replica(victim)
        if not changed:
            events += await collect(call)
            assert expected == ids_of(events)
            return
        with pytest.raises(grpc.aio.AioRpcError, match="other files") as failed:
            await read_into(events, call)
        assert "GENERATION_FAILED" == error_of(failed.value)[0]
        got = ids_of(events)
        assert 0 < len(got) < len(expected)
        assert expected[: len(got)] == got
