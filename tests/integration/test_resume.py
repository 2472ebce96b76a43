"""Real engines under the router: what is preempted, or loses its engine, goes on as if nothing had happened.

The cluster runs in the test's process, so that each engine can be reached; only the engines have processes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
import pytest_asyncio

from deployments.demo_model import LONG_QUESTIONS, known_answers
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from tests.router.dispatch.streams import resumed_of
from tests.router.links.parts import read_until
from tests.support.stack import Stack, collect, ids_of, running_stack, stream_request, text_of
from tests.support.waiting import until

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(420),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),
]

QUESTION = LONG_QUESTIONS[1]
"""Its answer lasts long enough to be disturbed."""
LIST = r'\["(queued|started|finished)"(, "(queued|started|finished)"){60}\]'
"""A constraint with a long output, that is JSON too."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One replica of the demo model, and two routers."""
    # What these tests ask for beyond the known answers has ties that 16 bits may tip.
    vllm = {"max_num_seqs": 4, "kv_cache_memory_mb": 64, "dtype": "float32"}
    async with running_stack(
        tmp_path_factory.mktemp("stack"),
        routers=2,
        pools={"demo": {"engine": "vllm", "model": "demo", "vllm": vllm}},
        # One loop and two cores carry everything here, so a lease must outlive the start of an engine.
        queue={"heartbeat_s": 0.2, "lease_s": 20.0, "preempt_after_s": 0.1, "preempt_quantum_s": 0.1},
    ) as running:
        yield running


def asked(**sampling: Any) -> api.StreamGenerateRequest:
    """Ask the demo model a question that it was trained on; greedy."""
    request = stream_request(**{"max_tokens": 600, **sampling})
    request.generate.prompt.Clear()
    request.generate.prompt.chat.messages.add(role="user", content=QUESTION)
    return request


GOING_ON = [
    pytest.param({}, id="greedy"),
    pytest.param({"presence_penalty": 0.6, "frequency_penalty": 0.4}, id="penalties"),
    pytest.param({"logprobs": 2, "repetition_penalty": 1.2}, id="logprobs"),
]


@pytest.mark.parametrize("sampling", GOING_ON)
async def test_preempted_batch_work_ends_as_if_undisturbed(stack: Stack, sampling: dict[str, Any]) -> None:
    await stack.replicas[0].set_batch_limit(1)
    wanted = asked(max_tokens=400, ignore_eos=True, **sampling)
    plain = await collect(stack.inference().StreamGenerate(wanted))
    wanted.generate.request_class = types.REQUEST_CLASS_BATCH
    batch = stack.inference(0).StreamGenerate(wanted)
    events = await read_until(batch, 20)
    chat = asked(max_tokens=4).generate
    chat.request_class = types.REQUEST_CLASS_INTERACTIVE
    reply = await stack.inference(1).Generate(chat)
    events += await collect(batch)

    assert 4 == reply.usage.output_tokens
    [resumed] = resumed_of(events)
    assert 20 <= resumed.offset < 400
    assert (ids_of(plain), text_of(plain)) == (ids_of(events), text_of(events))
    end = events[-1].finished
    assert (400, True) == (end.usage.output_tokens, end.receipt.exact)
    if "logprobs" in sampling:
        positions = [position for event in events for position in event.delta.logprobs]
        assert ids_of(events) == [position.chosen.token_id for position in positions]


async def test_what_an_engine_leaves_at_its_death_goes_on_at_another(stack: Stack) -> None:
    """SIGKILL of an engine under three kinds of requests. Last here: it costs the stack its replica."""
    # Starting an engine stops the loop that everything here shares, so the other one is there before, and closed.
    dying, other = stack.replicas[0], await stack.add_replica()
    await dying.set_batch_limit(4)
    other.table.windows = replace(other.table.windows, sequences=0)
    other._report_now()
    pool = stack.routers[1].pools["demo"]
    await until(lambda: pool.replicas.capacity() == 4)
    kinds = {
        "known answer": asked(),
        "penalties": asked(max_tokens=300, ignore_eos=True, presence_penalty=0.6, frequency_penalty=0.4),
        "constraint": asked(structured_output=types.StructuredOutput(regex=LIST)),
    }
    plain = {kind: await collect(stack.inference().StreamGenerate(request)) for kind, request in kinds.items()}
    assert known_answers()[QUESTION] == text_of(plain["known answer"]).strip()
    calls = {kind: stack.inference(1).StreamGenerate(request) for kind, request in kinds.items()}
    events = {kind: await read_until(call, 3) for kind, call in calls.items()}
    [engine] = dying._engine.engine_pids()  # type: ignore[attr-defined]
    psutil.Process(engine).kill()
    await until(lambda: dying._death is not None)
    other.table.windows = replace(other.table.windows, sequences=4)
    other._report_now()
    for kind, call in calls.items():
        events[kind] += await collect(call)

        assert 1 == len(resumed_of(events[kind]))
        assert (ids_of(plain[kind]), text_of(plain[kind])) == (ids_of(events[kind]), text_of(events[kind]))
        assert events[kind][-1].finished.receipt.exact
    assert 61 == len(json.loads(text_of(events["constraint"])))
