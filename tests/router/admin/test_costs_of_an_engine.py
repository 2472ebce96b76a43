"""GPU-seconds of receipts and idle time add up to the time of a replica with a real vLLM engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.v1 import admin_pb2
from tests.support.stack import MODEL, request, running_stack
from tests.support.waiting import until

KINDS = ("requests", "starting", "idle", "draining", "lost", "running", "standby")


@pytest.mark.engine
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore")
async def test_a_real_engines_time_is_accounted_for(tmp_path: Path) -> None:
    pool = {"model": MODEL, "engine": "vllm", "vllm": {"dtype": "float32", "max_num_seqs": 8}}
    async with running_stack(tmp_path, pools={"demo": pool}) as stack:

        async def ask(number: int) -> float:
            body = request(f"Question {number}", max_tokens=40 + number, ignore_eos=True)
            reply = await stack.inference().Generate(body, timeout=120)
            return float(reply.receipt.gpu_seconds)

        receipts = []
        for batch in (range(6), range(6, 7), range(7, 19)):
            receipts += await asyncio.gather(*map(ask, batch))
            await asyncio.sleep(0.5)
        # One that is left in the middle.
        call = stack.inference().Generate(request(max_tokens=400, ignore_eos=True))
        await until(lambda: stack.replicas[0].table.sequences > 0)
        await asyncio.sleep(0.3)
        call.cancel()
        await until(lambda: stack.replicas[0].table.sequences == 0)
        await asyncio.sleep(1.0)
        await stack.replicas[0].stop(drain_s=1.0)
        told = stack.replicas[0]._times.told
        # One line for each hour in which the test ran.
        lines = (await stack.admin().GetCosts(admin_pb2.GetCostsRequest())).lines

    assert told is not None
    found = {kind: sum(getattr(line, kind).gpu_seconds for line in lines) for kind in KINDS}
    served = told.total - told.starting
    assert sum(line.total.gpu_seconds for line in lines) == pytest.approx(told.total)
    # 1 % of the time in which it took work: a start is long, and exact in any case.
    assert sum(found.values()) == pytest.approx(told.total, abs=0.01 * served)
    assert sum(receipts) <= found["requests"] * 1.0001
    assert found["lost"] == pytest.approx(0.0, abs=0.01 * served)
    assert found["idle"] > 1.0
