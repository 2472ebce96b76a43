"""A router dies: another one takes its streams over from the replicas, and what nobody takes over ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.v1 import inference_pb2 as api
from tests.router.links.parts import LONG, golden, kill, newest_token, read_until
from tests.support.stack import collect, ids_of, request, running_stack, stream_request, text_of
from tests.support.waiting import until


async def test_another_router_goes_on_after_the_first_died(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 2.0}) as stack:
        expected = await golden(stack, **LONG)
        call = stack.inference(0).StreamGenerate(stream_request(**LONG))
        events = await read_until(call, 30)
        await kill(stack.routers[0])
        got = ids_of(events)
        resumed = stream_request(**LONG)
        resumed.resume.CopyFrom(api.Resume(resume_token=newest_token(events), received_tokens=[len(got)]))
        rest = await collect(stack.inference(1).StreamGenerate(resumed))
        for event in rest:
            if event.HasField("delta"):
                assert event.delta.offset == len(got)
                got.extend(event.delta.token_ids)

        assert expected == got
        assert 400 == rest[-1].finished.usage.output_tokens
        await until(lambda: stack.replicas[0].table.sequences == 0)
        stack.routers.pop(0)


async def test_a_sampled_stream_is_the_very_same_after_a_router_died(tmp_path: Path) -> None:
    sampling = {**LONG, "temperature": 1.0, "seed": 3, "n": 2}
    async with running_stack(tmp_path, routers=2, sim={"base_ms": 2.0}) as stack:
        reply = await stack.inference().Generate(request(**sampling))
        call = stack.inference(0).StreamGenerate(stream_request(**sampling))
        events = await read_until(call, 40)
        await kill(stack.routers[0])
        got = [ids_of(events, index) for index in range(2)]
        texts = [text_of(events, index) for index in range(2)]
        resumed = stream_request(**sampling)
        resumed.resume.CopyFrom(
            api.Resume(resume_token=newest_token(events), received_tokens=[len(ids) for ids in got])
        )
        for event in await collect(stack.inference(1).StreamGenerate(resumed)):
            if event.HasField("delta"):
                got[event.delta.choice_index].extend(event.delta.token_ids)
                texts[event.delta.choice_index] += event.delta.text

        assert [list(choice.token_ids) for choice in reply.choices] == got
        assert [choice.text for choice in reply.choices] == texts
        stack.routers.pop(0)


async def test_output_that_nobody_takes_over_is_aborted_after_the_grace(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=2, queue={"attach_grace_s": 0.4}, sim={"base_ms": 2.0}) as stack:
        call = stack.inference(0).StreamGenerate(stream_request(max_tokens=20_000, ignore_eos=True))
        await read_until(call, 5)
        await kill(stack.routers[0])
        await until(lambda: (stack.replicas[0].table.sequences, stack.replicas[0].table.retained) == (0, 0))
        # The dead router's slot goes back to the pool, so the other router can use all of it.
        await until(lambda: stack.routers[1].pools["demo"].beat.running == 0)
        assert 3 == (await stack.inference(1).Generate(request(max_tokens=3, ignore_eos=True))).usage.output_tokens
        stack.routers.pop(0)


async def test_a_client_that_comes_while_its_work_is_given_up_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abort takes until the end of the engine's step; who attaches meanwhile must not get a cut answer."""
    queue = {"attach_grace_s": 0.3}
    # Longer than the grace, by far.
    longer = {**LONG, "max_tokens": 2_000}
    async with running_stack(tmp_path, routers=2, queue=queue, sim={"base_ms": 2.0}) as stack:
        expected = await golden(stack, **longer)
        call = stack.inference(0).StreamGenerate(stream_request(**longer))
        events = await read_until(call, 30)
        table, engine = stack.replicas[0].table, stack.replicas[0]._engine
        stopping, attached = asyncio.Event(), asyncio.Event()
        abort, attach = engine.abort, table.attach

        async def abort_later(*arguments: Any, **named: Any) -> None:
            stopping.set()
            await attached.wait()
            await abort(*arguments, **named)

        def attach_now(*arguments: Any, **named: Any) -> Any:
            done = attach(*arguments, **named)
            attached.set()
            return done

        monkeypatch.setattr(engine, "abort", abort_later)
        monkeypatch.setattr(table, "attach", attach_now)
        await kill(stack.routers[0])
        await stopping.wait()
        got = ids_of(events)
        resumed = stream_request(**longer)
        resumed.resume.CopyFrom(api.Resume(resume_token=newest_token(events), received_tokens=[len(got)]))
        rest = await collect(stack.inference(1).StreamGenerate(resumed))

        assert expected == [*got, *(token for event in rest for token in event.delta.token_ids)]
        assert 2 == len(rest[-1].finished.receipt.attempts)
        await until(lambda: table.sequences == 0)
        stack.routers.pop(0)
