"""Where a choice may go on: in its own replica group, in another one with the same weights, never with others."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec
from cluster.settings import EngineKind, PoolSettings, SimSettings
from deployments.engines.base import Engine, TokenSink
from deployments.engines.factory import build_engine
from deployments.engines.sim.engine import SimEngine
from router.generation.recovery import REFUSED_RESUMES
from tests.router.dispatch.streams import LONG, SIM, error_of, idle, plain, read_into, read_until_held, resumed_of
from tests.support.stack import MODEL, collect, ids_of, running_stack, stream_request
from tests.support.waiting import until


def of_group(ranks: int, context: int = 32_768) -> Engine:
    """Build an engine of another group: other ranks, or another context length, which counts as other weights."""
    sim = SimSettings(base_ms=SIM["base_ms"], max_model_len=context)
    return build_engine(PoolSettings(model=MODEL, engine=EngineKind.SIM, tensor_parallel_size=ranks, sim=sim))


async def test_the_same_group_is_waited_for(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim={**SIM, "max_num_seqs": 1}) as stack:
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until_held(stack, call, 30)
        foreign = await stack.add_replica(engine=of_group(2))
        same = await stack.add_replica()
        # At first the only free slots are in the other group.
        take_work = await idle(stack, same)
        pool = stack.routers[0].pools["demo"]
        await until(lambda: pool.replicas.capacity() == 1 + foreign.table.windows.sequences)
        await stack.kill_replica(0)
        await until(lambda: next(iter(pool.choices.values())).resume_state.given_back > 0)
        take_work()
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert same.plan.replica_id == resumed_of(events)[0].replica_id
        assert events[-1].finished.receipt.exact


async def test_in_another_group_of_the_same_weights_it_goes_on_and_says_so(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim=SIM) as stack:
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until_held(stack, call, 30)
        await stack.add_replica(engine=of_group(2))
        await stack.kill_replica(0)
        events += await collect(call)

        assert 300 == len(ids_of(events))
        assert [False] == [resumed.exact for resumed in resumed_of(events)]
        end = events[-1].finished
        assert not end.receipt.exact
        assert 2 == len({attempt.group_id for attempt in end.receipt.attempts})


class NoResumes(SimEngine):
    """Begins anything, and goes on with nothing, as an engine that can't resume penalties."""

    refused = 0

    async def submit(self, sequence_id: str, spec: GenerationSpec, sink: TokenSink) -> None:
        if spec.resume:
            self.refused += 1
            raise EngineRequestError("this engine cannot resume presence and frequency penalties")
        await super().submit(sequence_id, spec, sink)


def that_resumes_nothing() -> NoResumes:
    like = of_group(1)
    assert isinstance(like, SimEngine)
    return NoResumes(like._pool, like._folder)


async def test_who_can_resume_it_goes_on_with_what_others_refuse(tmp_path: Path) -> None:
    """A pool whose engines are being changed has both."""
    async with running_stack(tmp_path, sim=SIM) as stack:
        expected = await plain(stack, **LONG)
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until_held(stack, call, 30)
        unable = that_resumes_nothing()
        await stack.add_replica(engine=unable)
        able = await stack.add_replica()
        # The only free slots are where it can't go on.
        take_work = await idle(stack, able)
        pool = stack.routers[0].pools["demo"]
        await until(lambda: pool.replicas.capacity() == 2 * stack.replicas[0].table.windows.sequences)
        await stack.kill_replica(0)
        await until(lambda: unable.refused > 0)
        take_work()
        events += await collect(call)

        assert ids_of(expected) == ids_of(events)
        assert able.plan.replica_id == resumed_of(events)[-1].replica_id


async def test_what_everybody_refuses_to_resume_ends(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim=SIM) as stack:
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until_held(stack, call, 30)
        engines = [that_resumes_nothing(), that_resumes_nothing()]
        for engine in engines:
            await stack.add_replica(engine=engine)
        await stack.kill_replica(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_into(events, call)

        assert grpc.StatusCode.ABORTED is caught.value.code()
        assert "cannot resume presence and frequency penalties" in (caught.value.details() or "")
        assert 2 <= sum(engine.refused for engine in engines) <= 1 + REFUSED_RESUMES


async def test_outputs_of_two_models_are_never_joined(tmp_path: Path) -> None:
    async with running_stack(tmp_path, sim=SIM) as stack:
        call = stack.inference().StreamGenerate(stream_request(**LONG))
        events = await read_until_held(stack, call, 30)
        other = await stack.add_replica(engine=of_group(1, context=4096))
        await stack.kill_replica(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_into(events, call)

        reason, facts = error_of(caught.value)
        assert ("GENERATION_FAILED", "1") == (reason, facts["attempts"])
        assert str(len(ids_of(events))) == facts["delivered_tokens"]
        assert 0 == other.table.sequences
        # Its slot there is free again, and new requests run.
        assert 2 == (await stack.inference().Generate(stream_request(max_tokens=2).generate)).usage.output_tokens
