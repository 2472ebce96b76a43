"""JobService through real routers and replicas, with simulated engines and Redis in process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from cluster.autoscaler.router_report import JobWork, unpack_report
from cluster.errors import PermissionDeniedError
from penstock.models import RequestClass
from penstock.v1 import inference_pb2, types_pb2
from penstock.v1 import jobs_pb2 as api
from penstock.values.errors import from_rpc_error
from router.identity import Caller
from router.jobs.upload import BLOCK_ITEMS
from tests.support.stack import Stack, collect, request, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(
        tmp_path_factory.mktemp("stack"), routers=2, sim={"time_scale": 0.0}, jobs={"max_job_items": 5_000}
    ) as running:
        yield running


def item(number: int, **sampling: Any) -> api.JobItem:
    """Build an item with a short prompt of its own."""
    generate = request(f"Question {number}?", **{"max_tokens": 2, "ignore_eos": True, **sampling})
    return api.JobItem(custom_id=f"q{number}", request=generate)


def parts(items: Iterable[api.JobItem], **header: Any) -> Iterator[api.SubmitJobRequest]:
    """Build an upload with ten items per message."""
    yield api.SubmitJobRequest(header=api.JobHeader(**{"model": "demo", **header}))
    items = list(items)
    for at in range(0, len(items), 10):
        yield api.SubmitJobRequest(items=api.JobItems(items=items[at : at + 10]))


async def submit(stack: Stack, items: Iterable[api.JobItem], router: int = 0, **header: Any) -> api.Job:
    """Store a job."""
    return (await stack.jobs(router).SubmitJob(parts(items, **header))).job


async def watch(stack: Stack, job_id: str, router: int = 0, token: bytes = b"") -> list[api.WatchJobResponse]:
    """Read a watch to its end."""
    call = stack.jobs(router).WatchJob(api.WatchJobRequest(job_id=job_id, resume_token=token))
    return [response async for response in call]


def results_of(responses: Iterable[api.WatchJobResponse]) -> list[api.JobResult]:
    """Join the results, checking that offsets have no gap."""
    results = [result for response in responses for result in response.results]
    first = results[0].offset if results else 0
    assert list(range(first, first + len(results))) == [result.offset for result in results]
    return results


async def failure(call: Any) -> Any:
    """Return the error of a call that must fail, as the client sees it."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_every_item_has_one_result_with_usage_and_receipt(stack: Stack) -> None:
    job = await submit(stack, [item(number) for number in range(100)])
    assert (api.JOB_STATE_QUEUED, 100, types_pb2.REQUEST_CLASS_BATCH) == (job.state, job.items, job.request_class)
    responses = await watch(stack, job.job_id)
    results, end = results_of(responses), responses[-1].job

    assert sorted(range(100)) == sorted(result.index for result in results)
    assert all(result.custom_id == f"q{result.index}" for result in results)
    assert {2} == {result.response.usage.output_tokens for result in results}
    assert all(result.response.choices[0].text and not result.response.choices[0].token_ids for result in results)
    assert all(result.execution_id == result.response.request_id for result in results)
    assert all(len(result.response.receipt.attempts) == 1 for result in results)
    assert (api.JOB_STATE_SUCCEEDED, 100, 0) == (end.state, end.succeeded_items, end.failed_items)
    assert 200 == end.usage.output_tokens
    assert sum(result.response.usage.prompt_tokens for result in results) == end.usage.prompt_tokens
    assert end.created_at.ToMilliseconds() <= end.started_at.ToMilliseconds() <= end.ended_at.ToMilliseconds()
    week = 7 * 86_400_000
    assert week == end.due_at.ToMilliseconds() - end.ended_at.ToMilliseconds()
    assert end == (await stack.jobs(1).GetJob(api.GetJobRequest(job_id=job.job_id))).job


async def test_items_are_demand_by_what_is_left_and_not_by_their_arrival(stack: Stack) -> None:
    pools = [router.pools["demo"] for router in stack.routers]
    # Long ones, so that the job is there for some heartbeats.
    job = await submit(stack, [item(number, max_tokens=100) for number in range(2_000)])

    told: list[JobWork] = []

    async def heard() -> bool:
        reports = (await pools[0]._context.queue.observe()).reports
        told[:] = [job for one in reports for job in unpack_report(one.report).jobs]
        return bool(told)

    await until(heard)
    [left] = told
    assert 0 < left.items <= 2_000
    assert RequestClass.BATCH == left.request_class
    assert left.left_s > 3600
    await stack.jobs().CancelJob(api.CancelJobRequest(job_id=job.job_id))
    assert [0, 0] == [
        unpack_report(pool.admission.demand.report()).counts[RequestClass.BATCH].requests for pool in pools
    ]


async def test_a_result_is_what_the_same_call_gives(stack: Stack) -> None:
    chat = types_pb2.Prompt(chat=types_pb2.ChatPrompt(messages=[types_pb2.ChatMessage(role="user", content="Hi")]))
    sampling = types_pb2.SamplingParams(max_tokens=12, temperature=0.0, logprobs=1, n=2, prompt_logprobs=1)
    generate = inference_pb2.GenerateRequest(prompt=chat, sampling=sampling)
    job = await submit(stack, [api.JobItem(custom_id="a", request=generate)])
    [result] = results_of(await watch(stack, job.job_id))
    generate.model = "demo"
    reply = await stack.inference().Generate(generate)

    assert result.chat
    assert [choice.text for choice in reply.choices] == [choice.text for choice in result.response.choices]
    assert reply.prompt_logprobs == result.response.prompt_logprobs
    assert all(position.chosen.token_bytes for position in result.response.choices[0].logprobs)
    # With log probabilities the ids stay: they say which token each one is of.
    assert reply.choices[1].token_ids == result.response.choices[1].token_ids


async def test_a_wrong_item_is_an_error_of_its_own_and_the_job_goes_on(stack: Stack) -> None:
    items = [item(0), item(1), item(2)]
    items[1].request.sampling.stop_token_ids.append(10**9)
    items[2].request.lora_adapter = "unknown"
    responses = await watch(stack, (await submit(stack, items)).job_id)
    by_index = {result.index: result for result in results_of(responses)}

    assert by_index[0].HasField("response")
    for index in (1, 2):
        error = by_index[index].error
        assert (grpc.StatusCode.INVALID_ARGUMENT.value[0], "INVALID_REQUEST") == (error.code, error.reason)
    assert "10" in by_index[1].error.message
    assert (api.JOB_STATE_SUCCEEDED, 1, 2) == (
        responses[-1].job.state,
        responses[-1].job.succeeded_items,
        responses[-1].job.failed_items,
    )


async def test_submission_is_all_or_nothing_and_names_the_item(stack: Stack) -> None:
    items = [item(number) for number in range(30)]
    items[17].request.sampling.temperature = 9.0
    items[17].request.idempotency_key = "x"
    items[18].custom_id = "q3"
    error = await failure(submit(stack, items, idempotency_key="bad"))

    assert [
        ("items[17].request.idempotency_key", "belongs to the job and must be unset (custom_id 'q17')"),
        ("items[17].request.sampling.temperature", "must be at least 0 and at most 2, got 9 (custom_id 'q17')"),
        ("items[18].custom_id", "must be unique in the job, got 'q3' again (custom_id 'q3')"),
    ] == [(violation.field, violation.description) for violation in error.violations]
    await until(lambda: all(job[b"state"] != b"uploading" for job in stack.stored_jobs().values()))
    assert all(job[b"key"] != b"bad" for job in stack.stored_jobs().values())


async def test_an_upload_that_is_broken_off_leaves_nothing(stack: Stack) -> None:
    async def endless() -> AsyncIterator[api.SubmitJobRequest]:
        for part in parts([item(number) for number in range(100)], idempotency_key="broken"):
            yield part
        await asyncio.Event().wait()

    call = stack.jobs().SubmitJob(endless())

    def uploading() -> int:
        return sum(job[b"state"] == b"uploading" for job in stack.stored_jobs().values())

    await until(lambda: uploading() == 1)
    call.cancel()
    await until(lambda: uploading() == 0)
    assert not (await stack.jobs().SubmitJob(parts([item(0)], idempotency_key="broken"))).existed


@pytest.mark.parametrize("kind", ["direct", "aio"])
@pytest.mark.parametrize("how", ["cancel", "too large"])
async def test_a_whole_block_before_the_break_is_no_job_either(tmp_path: Path, kind: str, how: str) -> None:
    """Nothing is left to store when the call breaks off, so only the break itself can keep it from being sealed."""
    limits = {"grpc_server": kind, "max_message_bytes": 1 << 20}
    async with running_stack(tmp_path, sim={"time_scale": 0.0}, router=limits) as stack:
        for number in range(5):
            sent = asyncio.Event()

            async def upload(sent: asyncio.Event = sent) -> AsyncIterator[api.SubmitJobRequest]:
                yield api.SubmitJobRequest(header=api.JobHeader(model="demo"))
                yield api.SubmitJobRequest(items=api.JobItems(items=[item(n) for n in range(BLOCK_ITEMS)]))
                sent.set()
                if how == "cancel":
                    await asyncio.Event().wait()
                yield api.SubmitJobRequest(items=api.JobItems(items=[item(99, stop=["x" * (2 << 20)])]))

            call = stack.jobs().SubmitJob(upload())
            await sent.wait()
            await until(lambda number=number: how != "cancel" or len(stack.stored_jobs()) > 0)
            if how == "cancel":
                call.cancel()
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await call
            await until(lambda: all(job[b"state"] != b"uploading" for job in stack.stored_jobs().values()))
            assert not stack.stored_jobs()


async def test_the_end_of_a_job_that_lost_its_results_is_told(stack: Stack) -> None:
    """There is nothing new behind the rewind, but the watcher has not heard that it is over."""
    job = await submit(stack, [item(number, max_tokens=500) for number in range(3)])
    await stack.jobs().CancelJob(api.CancelJobRequest(job_id=job.job_id))
    told = await watch(stack, job.job_id, token=b"2:lost-by-redis")

    assert told[0].rewound
    assert told[-1].job.state in (api.JOB_STATE_CANCELLED, api.JOB_STATE_SUCCEEDED)


@pytest.mark.parametrize(
    ("upload", "field"),
    [
        (lambda: parts([]), "items"),
        (lambda: parts([item(0)], request_class=99), "header.request_class"),
        (lambda: parts([item(0)], run_within=Duration(seconds=0)), "header.run_within"),
        (lambda: parts([item(0)], run_within=Duration(seconds=10**9)), "header.run_within"),
        (lambda: parts([item(0)], idempotency_key="ü"), "header.idempotency_key"),
        (lambda: list(parts([item(0)]))[1:], "header"),
        (lambda: list(parts([item(0)])) * 2, "items"),
        (lambda: parts([item(n) for n in range(5_001)]), "items"),
        (lambda: parts([api.JobItem(custom_id="", request=request())]), "items[0].custom_id"),
        (lambda: parts([api.JobItem(custom_id="a")]), "items[0].request.prompt"),
        (lambda: parts([api.JobItem(custom_id="a", request=request(model="other"))]), "items[0].request.model"),
    ],
)
async def test_bad_uploads_name_the_field(stack: Stack, upload: Any, field: str) -> None:
    error = await failure(stack.jobs().SubmitJob(iter(upload())))
    assert (grpc.StatusCode.INVALID_ARGUMENT, field) == (error.code, error.violations[0].field)


async def test_bytes_that_are_no_message_are_refused_with_a_reason(stack: Stack) -> None:
    call = stack.channels[0].stream_unary("/penstock.v1.JobService/SubmitJob")
    error = await failure(call(iter([b"\xff\xff"])))
    assert grpc.StatusCode.INVALID_ARGUMENT is error.code
    assert str(error).startswith("the request is not a valid message: ")


async def test_an_unknown_model_is_not_found(stack: Stack) -> None:
    error = await failure(stack.jobs().SubmitJob(parts([item(0)], model="nope")))
    assert (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND") == (error.code, error.reason)


async def test_a_key_gives_the_same_job_again_at_any_router(stack: Stack) -> None:
    items = [item(number) for number in range(40)]
    both = await asyncio.gather(
        *(stack.jobs(router).SubmitJob(parts(items, idempotency_key="twice")) for router in (0, 1))
    )
    again = await stack.jobs(1).SubmitJob(parts(items, idempotency_key="twice"))
    assert 1 == len({reply.job.job_id for reply in (*both, again)})
    assert [False, True, True] == sorted(reply.existed for reply in (*both, again))

    error = await failure(submit(stack, items[:-1], idempotency_key="twice"))
    assert (grpc.StatusCode.ALREADY_EXISTS, "JOB_KEY_REUSED") == (error.code, error.reason)
    assert again.job.job_id == error.details.metadata["job_id"]


async def test_a_watch_goes_on_at_another_router_without_gap_or_repetition(stack: Stack) -> None:
    job = await submit(stack, [item(number) for number in range(300)])
    seen: list[api.JobResult] = []
    token, router = b"", 0
    while True:
        call = stack.jobs(router).WatchJob(api.WatchJobRequest(job_id=job.job_id, resume_token=token))
        response = await call.read()
        while not response.results and response.job.state in (api.JOB_STATE_QUEUED, api.JOB_STATE_RUNNING):
            response = await call.read()
        seen.extend(response.results)
        token, router = response.resume_token, 1 - router
        call.cancel()
        if response.job.state == api.JOB_STATE_SUCCEEDED:
            break
    assert list(range(300)) == [result.offset for result in seen]
    assert set(range(300)) == {result.index for result in seen}
    # After the end there is nothing but the end.
    [last] = await watch(stack, job.job_id, token=token)
    assert ([], api.JOB_STATE_SUCCEEDED) == (list(last.results), last.job.state)


async def test_results_that_were_lost_are_told_again_from_the_start(stack: Stack) -> None:
    """What a crash of Redis does: the newest results are gone, and others take their offsets."""
    job = await submit(stack, [item(number) for number in range(20)])
    responses = await watch(stack, job.job_id)
    key = stack.job_key(job.job_id, "results")
    last = stack.store.execute("HMGET", key, 18, 19)
    stack.store.execute("HSET", key, 18, last[1], 19, last[0])
    again = await watch(stack, job.job_id, token=responses[-1].resume_token)

    assert again[0].rewound
    assert set(range(20)) == {result.index for result in results_of(again)}
    assert not any(response.rewound for response in again[1:])


async def test_large_results_come_in_several_responses(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.jobs.servicer.RESPONSE_BYTES", 1_000)
    job = await submit(stack, [item(number, max_tokens=200) for number in range(20)])
    await watch(stack, job.job_id)
    responses = await watch(stack, job.job_id)
    assert set(range(20)) == {result.index for result in results_of(responses)}
    sizes = [sum(result.ByteSize() for result in response.results) for response in responses]
    assert len(responses) > 5
    assert max(sizes) < 3_000
    # The end is told once, behind the last result.
    states = [response.job.state for response in responses]
    assert ([api.JOB_STATE_SUCCEEDED], 1) == (states[-1:], states.count(api.JOB_STATE_SUCCEEDED))


async def test_progress_without_results(stack: Stack) -> None:
    job = await submit(stack, [item(number) for number in range(50)])
    call = stack.jobs().WatchJob(api.WatchJobRequest(job_id=job.job_id, progress_only=True))
    responses = [response async for response in call]
    assert not any(response.results for response in responses)
    assert (api.JOB_STATE_SUCCEEDED, 50) == (responses[-1].job.state, responses[-1].job.succeeded_items)


async def test_a_bad_resume_token_is_refused(stack: Stack) -> None:
    job = await submit(stack, [item(0)])
    for token in (b"x", b"5", b"-1:a", b"99999999999:a", b"\xff\xfe"):
        error = await failure(watch(stack, job.job_id, token=token))
        assert "resume_token" == error.violations[0].field


async def test_cancelling_stops_what_runs_and_keeps_what_is_done(stack: Stack) -> None:
    items = [item(number, max_tokens=2 if number < 10 else 30_000) for number in range(60)]
    job = await submit(stack, items)
    call = stack.jobs(1).WatchJob(api.WatchJobRequest(job_id=job.job_id))
    results: list[api.JobResult] = []
    while len(results) < 10:
        results.extend((await call.read()).results)
    await until(lambda: stack.replicas[0].table.sequences == 16)
    cancelled = (await stack.jobs().CancelJob(api.CancelJobRequest(job_id=job.job_id))).job

    assert (api.JOB_STATE_CANCELLED, 10) == (cancelled.state, cancelled.succeeded_items)
    await until(lambda: stack.replicas[0].table.sequences == 0)
    rest = await collect(call)
    assert api.JOB_STATE_CANCELLED == rest[-1].job.state
    assert results == results_of(await watch(stack, job.job_id))
    again = (await stack.jobs().CancelJob(api.CancelJobRequest(job_id=job.job_id))).job
    assert cancelled == again


async def test_deleting_a_running_job_leaves_nothing(stack: Stack) -> None:
    job = await submit(stack, [item(number, max_tokens=30_000) for number in range(30)])
    await until(lambda: stack.replicas[0].table.sequences == 16)
    call = stack.jobs().WatchJob(api.WatchJobRequest(job_id=job.job_id))
    await call.read()
    await stack.jobs(1).DeleteJob(api.DeleteJobRequest(job_id=job.job_id))

    await until(lambda: stack.replicas[0].table.sequences == 0)
    assert job.job_id not in stack.stored_jobs()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    assert grpc.StatusCode.NOT_FOUND is caught.value.code()
    for ask in (
        stack.jobs().GetJob(api.GetJobRequest(job_id=job.job_id)),
        stack.jobs().DeleteJob(api.DeleteJobRequest(job_id=job.job_id)),
    ):
        assert "JOB_NOT_FOUND" == (await failure(ask)).reason


async def test_a_job_that_takes_too_long_expires(stack: Stack) -> None:
    job = await submit(
        stack, [item(number, max_tokens=30_000) for number in range(30)], run_within=Duration(nanos=300_000_000)
    )
    end = (await watch(stack, job.job_id))[-1].job
    assert api.JOB_STATE_EXPIRED == end.state
    await until(lambda: stack.replicas[0].table.sequences == 0)


async def test_a_job_whose_bodies_are_gone_ends_and_says_so(stack: Stack) -> None:
    job = await submit(stack, [item(number, max_tokens=2 if number < 5 else 30_000) for number in range(60)])
    call = stack.jobs(1).WatchJob(api.WatchJobRequest(job_id=job.job_id))
    results: list[api.JobResult] = []
    while len(results) < 5:
        results.extend((await call.read()).results)
    stack.store.execute("DEL", stack.job_key(job.job_id, "items"))

    end = (await collect(call))[-1].job

    assert (api.JOB_STATE_FAILED, 5) == (end.state, end.succeeded_items)
    assert "Redis lost the job's bodies, by an eviction or a deletion" == end.failure
    assert results == results_of(await watch(stack, job.job_id))
    assert end == (await stack.jobs().GetJob(api.GetJobRequest(job_id=job.job_id))).job
    await until(lambda: stack.replicas[0].table.sequences == 0)


@pytest.mark.parametrize("left", [0, 4])
async def test_a_watch_of_results_that_are_gone_ends_and_says_so(stack: Stack, left: int) -> None:
    job = await submit(stack, [item(number) for number in range(10)])
    token = (await watch(stack, job.job_id))[-1].resume_token
    stack.store.execute("HDEL", stack.job_key(job.job_id, "results"), *range(left, 10))

    for begin in (b"", token):
        call = stack.jobs(1).WatchJob(api.WatchJobRequest(job_id=job.job_id, resume_token=begin))
        error = await failure(collect(call))
        assert (grpc.StatusCode.DATA_LOSS, "JOB_RESULTS_LOST") == (error.code, error.reason)
        assert f"{left} of 10 are left" in str(error)
    progress = stack.jobs().WatchJob(api.WatchJobRequest(job_id=job.job_id, progress_only=True))
    assert api.JOB_STATE_SUCCEEDED == (await collect(progress))[-1].job.state


async def test_jobs_are_listed_in_pages(stack: Stack) -> None:
    made = [(await submit(stack, [item(0)])).job_id for _ in range(5)]
    listed: list[str] = []
    token = ""
    while len(listed) < 5:
        page = await stack.jobs(1).ListJobs(api.ListJobsRequest(page_size=2, page_token=token))
        assert 2 == len(page.jobs)
        listed.extend(job.job_id for job in page.jobs)
        token = page.next_page_token
    created = {
        job.job_id: job.created_at.ToMilliseconds() for job in (await stack.jobs().ListJobs(api.ListJobsRequest())).jobs
    }
    assert set(made) == set(listed[:5])
    assert sorted(listed, key=lambda job_id: (created[job_id], job_id), reverse=True) == listed
    for wrong, field in (
        (api.ListJobsRequest(page_size=501), "page_size"),
        (api.ListJobsRequest(page_token="!"), "page_token"),
    ):
        assert field == (await failure(stack.jobs().ListJobs(wrong))).violations[0].field


async def test_another_tenant_sees_nothing_of_a_job(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await submit(stack, [item(0)], idempotency_key="shared")
    await watch(stack, job.job_id)
    servicer = stack.routers[0]._jobs
    other = Caller("other")
    for call in (
        servicer.GetJob(api.GetJobRequest(job_id=job.job_id), None, other),
        servicer.CancelJob(api.CancelJobRequest(job_id=job.job_id), None, other),
        servicer.DeleteJob(api.DeleteJobRequest(job_id=job.job_id), None, other),
        servicer.WatchJob(api.WatchJobRequest(job_id=job.job_id), None, other),
    ):
        with pytest.raises(Exception, match=f"no job '{job.job_id}'"):
            await call
    assert [] == list((await servicer.ListJobs(api.ListJobsRequest(), None, other)).jobs)

    async def upload() -> AsyncIterator[api.SubmitJobRequest]:
        for part in parts([item(0)], idempotency_key="shared"):
            yield part

    theirs = await servicer.SubmitJob(upload(), None, other)
    assert not theirs.existed
    assert theirs.job.job_id != job.job_id


async def test_a_caller_may_only_submit_what_its_key_allows(stack: Stack) -> None:
    async def upload() -> AsyncIterator[api.SubmitJobRequest]:
        for part in parts([item(0)]):
            yield part

    servicer = stack.routers[0]._jobs
    with pytest.raises(PermissionDeniedError, match="model 'demo' is not allowed"):
        await servicer.SubmitJob(upload(), None, Caller("t", models=frozenset({"other"})))
    with pytest.raises(PermissionDeniedError, match=r"class '(standard|batch)' is not allowed"):
        await servicer.SubmitJob(upload(), None, Caller("t", classes=frozenset({RequestClass.INTERACTIVE})))
