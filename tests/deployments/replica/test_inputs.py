"""Groups of inputs on a simulated engine: one attempt, a sequence of the engine for each input."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from cluster.errors import EngineRequestError
from cluster.models import NOTHING_TO_SAMPLE, GenerationSpec, PoolingSpec, PromptLogprobs, SequenceEnd
from cluster.settings import EngineKind, PoolSettings, SimSettings, TaskKind
from deployments.engines.sim import SimEngine
from deployments.replica.inputs import GroupingEngine
from penstock.models import FinishReason, ModelTask, PositionLogprobs, SamplingParams
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio
SIZE = 4


class Ends:
    """Receiver of a group's end."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        raise AssertionError

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        raise AssertionError

    def on_end(self, end: SequenceEnd) -> None:
        self.ended.set_result(end)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[SimEngine]:
    sim = SimSettings(base_ms=20.0, vector_size=SIZE, max_num_seqs=4, max_model_len=64)
    found = SimEngine(PoolSettings(engine=EngineKind.SIM, sim=sim, task=TaskKind.EMBED), None)
    await found.start()
    yield found
    await found.close()


def group(*inputs: Sequence[int]) -> GenerationSpec:
    spec = PoolingSpec(ModelTask.EMBED, tuple(map(len, inputs)))
    return GenerationSpec([token for each in inputs for token in each], NOTHING_TO_SAMPLE, pooling=spec)


async def test_a_group_ends_once_with_the_vectors_in_order(engine: SimEngine) -> None:
    groups, together, alone = GroupingEngine(engine), Ends(), Ends()
    inputs = [[50 + number] * (1 + number % 3) for number in range(11)]
    await groups.submit("r#1", group(*inputs), together)
    await groups.submit("s#1", group(inputs[7]), alone)
    end, single = await together.ended, await alone.ended
    assert (FinishReason.STOP, 11) == (end.reason, len(end.vectors))
    assert single.vectors[0] == end.vectors[7]
    assert all(SIZE == len(struct.unpack(f"<{SIZE}f", vector)) for vector in end.vectors)
    assert end.gpu_seconds > single.gpu_seconds > 0
    assert not groups.live_ids()


async def test_one_wrong_input_refuses_the_whole_group_and_leaves_nothing_running(engine: SimEngine) -> None:
    groups, ends = GroupingEngine(engine), Ends()
    with pytest.raises(EngineRequestError, match="outside"):
        await groups.submit("r#1", group([50, 51], [52], [10**6]), ends)
    await until(lambda: not engine.live_ids())
    assert not ends.ended.done()


async def test_an_abort_ends_a_group_with_its_reason_and_without_vectors(engine: SimEngine) -> None:
    groups, ends = GroupingEngine(engine), Ends()
    await groups.submit("r#1", group(*([50 + number] for number in range(9))), ends)
    assert {"r#1"} == set(groups.live_ids())
    await groups.abort(["r#1"], FinishReason.DEADLINE)
    end = await ends.ended
    assert (FinishReason.DEADLINE, ()) == (end.reason, end.vectors)
    assert not groups.live_ids()


async def test_the_death_of_the_engine_ends_a_group_as_such(engine: SimEngine) -> None:
    groups, ends = GroupingEngine(engine), Ends()
    await groups.submit("r#1", group(*([50 + number] for number in range(9))), ends)
    engine.die()
    end = await ends.ended
    assert end.engine_died
    assert () == end.vectors


@pytest.mark.parametrize("lengths", [(), (1, 1), (4,)])
async def test_lengths_that_are_not_those_of_the_prompt_are_refused(
    engine: SimEngine, lengths: tuple[int, ...]
) -> None:
    spec = GenerationSpec([50, 51, 52], NOTHING_TO_SAMPLE, pooling=PoolingSpec(ModelTask.EMBED, lengths))
    with pytest.raises(EngineRequestError, match="lengths"):
        await GroupingEngine(engine).submit("r#1", spec, Ends())


async def test_a_generation_on_an_engine_that_embeds_is_refused(engine: SimEngine) -> None:
    with pytest.raises(EngineRequestError, match="task is 'embed'"):
        await engine.submit("r", GenerationSpec([50], SamplingParams(max_tokens=1)), Ends())


async def test_the_only_step_of_a_vector_is_a_sample_for_the_step_model(engine: SimEngine) -> None:
    groups = GroupingEngine(engine)
    for number in range(3):
        ends = Ends()
        await groups.submit(f"r{number}#1", group([50, 51], [52]), ends)
        await ends.ended
    samples = engine.take_steps()
    assert [(3, 2)] * 3 == [(sample.tokens, sample.sequences) for sample in samples]
    assert all(sample.seconds >= 0.015 for sample in samples)
