"""Batches of OpenAI's own SDK against real routers, with simulated engines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from cluster.jobs.contract import FileJob
from cluster.jobs.ids import id_on
from penstock.v1 import jobs_pb2 as api
from router.http.files.content import ContentLostError, results
from router.http.files.ids import ERRORS
from router.http.files.notes import BatchNote, FileNote
from router.identity.new_key import KeyPlan, add_key
from tests.router.http.files.support import CHAT, HTTP, TEXT, base, call, content, ended, file_of, line, run
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG: dict[str, Any] = {"max_tokens": 200}


async def test_a_batch_runs_every_line_and_its_output_has_openais_form(
    client: openai.AsyncOpenAI, other: openai.AsyncOpenAI
) -> None:
    file = await client.files.create(file=file_of(map(line, range(40))), purpose="batch")
    # Another router knows the file.
    batch = await other.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"night": "7"}
    )
    assert (batch.object, batch.status, batch.input_file_id) == ("batch", "in_progress", file.id)
    assert (batch.endpoint, batch.completion_window, batch.metadata) == (CHAT, "24h", {"night": "7"})
    assert batch.id.startswith("batch_")
    assert batch.expires_at == batch.created_at + 86_400
    assert (batch.output_file_id, batch.error_file_id, batch.errors, batch.completed_at) == (None, None, None, None)

    batch = await ended(client, batch.id)
    assert (batch.status, batch.model, batch.errors) == ("completed", "demo", None)
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (40, 40, 0)
    assert batch.usage is not None
    assert batch.usage.output_tokens == 80
    assert batch.usage.total_tokens == batch.usage.input_tokens + 80
    assert batch.completed_at is not None
    assert batch.in_progress_at is not None
    assert batch.created_at <= batch.in_progress_at <= batch.completed_at
    assert (batch.failed_at, batch.cancelled_at, batch.expired_at, batch.error_file_id) == (None, None, None, None)

    found = await content(client, batch.output_file_id)
    assert sorted(each["custom_id"] for each in found) == sorted(f"q{number}" for number in range(40))
    answer = found[0]["response"]
    assert (answer["status_code"], found[0]["error"]) == (200, None)
    assert answer["body"]["object"] == "chat.completion"
    assert answer["body"]["choices"][0]["message"]["content"]
    assert answer["body"]["usage"]["completion_tokens"] == 2

    described = await other.files.retrieve(batch.output_file_id or "")
    assert (described.purpose, described.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert described.bytes == len((await client.files.content(described.id)).content)


async def test_a_batch_of_completions(client: openai.AsyncOpenAI) -> None:
    batch = await run(client, [line(number, TEXT) for number in range(3)], TEXT)
    found = await content(client, batch.output_file_id)
    assert [each["response"]["body"]["object"] for each in found] == ["text_completion"] * 3


async def test_a_line_that_fails_is_in_the_error_file_and_spoils_no_other(client: openai.AsyncOpenAI) -> None:
    long = line(1, messages=[{"role": "user", "content": "word " * 600}])
    batch = await run(client, [line(0), long, line(2)])
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
    assert {each["custom_id"] for each in await content(client, batch.output_file_id)} == {"q0", "q2"}
    [failed] = await content(client, batch.error_file_id)
    assert (failed["custom_id"], failed["error"], failed["response"]["status_code"]) == ("q1", None, 400)
    error = failed["response"]["body"]["error"]
    assert "prompt is too long: " in error["message"]
    assert ("invalid_request_error", "messages", "context_length_exceeded") == (
        error["type"],
        error["param"],
        error["code"],
    )
    described = await client.files.retrieve(batch.error_file_id or "")
    assert described.bytes == len((await client.files.content(described.id)).content)


@pytest.mark.parametrize(
    ("bad", "number", "code", "param"),
    [
        ("{", 2, "invalid_json_line", None),
        ("[]", 2, "invalid_json_line", None),
        (line(1).replace("q1", ""), 2, "invalid_request", "custom_id"),
        (line(0), 2, "duplicate_custom_id", "custom_id"),
        (line(1).replace("POST", "GET"), 2, "invalid_request", "method"),
        (line(1, "/v1/nothing"), 2, "invalid_request", "url"),
        (line(1, TEXT), 2, "invalid_url", "url"),
        (line(1, model="gpt-5"), 2, "mismatched_model", "body.model"),
        (line(1, temperature=9), 2, "invalid_request", "body.temperature"),
        (line(1, messages=[]), 2, "invalid_request", "body.messages"),
        (line(1, max_tokens="many"), 2, "invalid_request", "body.max_tokens"),
        (line(1, guided_regex="a", ignore_eos=False), 2, "invalid_request", "body.guided_regex"),
        (line(1, guided_choice=["a", ""], ignore_eos=False), 2, "invalid_request", "body.guided_choice[1]"),
        (json.dumps({"custom_id": "x", "method": "POST", "url": CHAT}), 2, "invalid_request", "body"),
        ("\n\n{", 4, "invalid_json_line", None),
    ],
)
async def test_a_file_with_a_wrong_line_fails_the_batch_and_names_line_and_field(
    client: openai.AsyncOpenAI, bad: str, number: int, code: str, param: str | None
) -> None:
    batch = await run(client, [line(0), bad, line(2)])
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    [error] = batch.errors.data or []
    assert (error.line, error.code, error.param) == (number, code, param)
    assert error.message
    assert f"line {number}" in error.message
    # Nothing ran and nothing is charged.
    assert (batch.in_progress_at, batch.output_file_id, batch.error_file_id) == (None, None, None)
    assert batch.usage is not None
    assert batch.usage.total_tokens == 0


async def test_an_unknown_model_or_an_empty_file_fails_the_batch(client: openai.AsyncOpenAI) -> None:
    for lines, code in (([line(0, model="gpt-5")], "model_not_found"), ([], "empty_file"), (["", " "], "empty_file")):
        batch = await run(client, lines)
        assert batch.errors is not None
        assert (batch.status, [error.code for error in batch.errors.data or []]) == ("failed", [code])


async def test_twenty_wrong_lines_are_named_and_no_more(client: openai.AsyncOpenAI) -> None:
    batch = await run(client, [line(0), *["{"] * 50])
    assert batch.errors is not None
    assert [error.line for error in batch.errors.data or []] == list(range(2, 22))


async def test_a_file_may_be_run_again_for_another_endpoint_and_as_often_as_wanted(client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=file_of([line(0)]), purpose="batch")
    ask: dict[str, Any] = {"input_file_id": file.id, "completion_window": "24h"}
    assert (await client.batches.create(endpoint=TEXT, **ask)).status == "failed"
    for _ in range(2):
        batch = await client.batches.create(endpoint=CHAT, **ask)
        assert (await ended(client, batch.id)).status == "completed"


async def test_a_cancelled_batch_names_what_did_not_run(stack: Stack, client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=file_of(line(number, **LONG) for number in range(300)), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    cancelled = await client.batches.cancel(batch.id)
    assert (cancelled.status, cancelled.request_counts is not None) == ("cancelled", True)
    assert cancelled.cancelled_at is not None
    assert cancelled.cancelling_at is not None
    found = await content(client, cancelled.error_file_id)
    ran = await content(client, cancelled.output_file_id) if cancelled.output_file_id else []
    assert len(found) + len(ran) == 300
    assert {each["error"]["code"] for each in found} == {"batch_cancelled"}
    assert {each["custom_id"] for each in (*found, *ran)} == {f"q{number}" for number in range(300)}
    described = await client.files.retrieve(cancelled.error_file_id or "")
    assert described.bytes == len((await client.files.content(described.id)).content)
    # A second cancel, as after a lost answer, changes nothing.
    assert (await client.batches.cancel(batch.id)).status == "cancelled"
    # Nor does it change what is named that the file is deleted.
    await client.files.delete(file.id)
    assert await content(client, cancelled.error_file_id) == found


async def test_a_batch_that_is_not_done_in_its_window_expires(client: openai.AsyncOpenAI) -> None:
    lines = [line(number, max_tokens=200) for number in range(1_000)]
    file = await client.files.create(file=file_of(lines), purpose="batch")
    window: Any = "1s"
    batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=window)
    assert batch.expires_at == batch.created_at + 1
    batch = await ended(client, batch.id)
    assert batch.status == "expired"
    assert batch.expired_at is not None
    assert {each["error"]["code"] for each in await content(client, batch.error_file_id)} == {"batch_expired"}


async def test_batches_are_listed_in_pages_without_other_jobs(stack: Stack, client: openai.AsyncOpenAI) -> None:
    first = await run(client, [line(0)])
    second = await run(client, [line(1)])
    third = await run(client, [line(2)])
    page = await client.batches.list(limit=2)
    assert [each.id for each in page.data] == [third.id, second.id]
    assert page.has_more
    following = await client.batches.list(limit=1, after=second.id)
    gone = await client.batches.list(limit=1, after=f"{second.id[:-4]}0000")
    assert gone.data == (await client.batches.list(limit=1)).data
    assert [each.id for each in following.data] == [first.id]
    assert [each.id async for each in client.batches.list(limit=2)][:3] == [third.id, second.id, first.id]
    # The same jobs over gRPC.
    jobs = (await stack.jobs().ListJobs(api.ListJobsRequest(page_size=1))).jobs
    assert f"batch_{jobs[0].job_id}" == third.id


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"endpoint": "/v1/images/edits"}, "endpoint", "not supported"),
        ({"endpoint": None}, "endpoint", "required"),
        ({"completion_window": "soon"}, "completion_window", "24h"),
        ({"completion_window": None}, "completion_window", "24h"),
        ({"input_file_id": None}, "input_file_id", "required"),
        ({"metadata": {"a": 1}}, "metadata", "512"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "16"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after.anchor", "created_at"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 9}}, "output_expires_after.seconds", "3600"),
    ],
)
async def test_a_wrong_field_of_a_batch_is_named(
    stack: Stack, client: openai.AsyncOpenAI, fields: dict[str, Any], param: str, words: str
) -> None:
    file = await client.files.create(file=file_of([line(0)]), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **fields}
    status, found, _ = await call(stack, "POST", "/v1/batches", json=body)
    assert (status, found["error"]["param"]) == (400, param)
    assert words in found["error"]["message"]


async def test_what_does_not_exist_is_not_found(stack: Stack, client: openai.AsyncOpenAI) -> None:
    body = {"input_file_id": "file-demo.00", "endpoint": CHAT, "completion_window": "24h"}
    for method, path, more in (
        ("POST", "/v1/batches", {"json": body}),
        ("POST", "/v1/batches", {"json": {**body, "input_file_id": "nonsense"}}),
        ("GET", "/v1/batches/batch_demo.0-0", {}),
        ("GET", "/v1/batches/nonsense", {}),
        ("POST", "/v1/batches/batch_demo.0-0/cancel", {}),
    ):
        status, found, _ = await call(stack, method, path, **more)
        assert (status, found["error"]["type"]) == (404, "not_found_error")
    for query in ("limit=0", "after=batch_demo.0-0"):
        status, found, _ = await call(stack, "GET", f"/v1/batches?{query}")
        assert (status, found["error"]["param"]) == (400, query.split("=")[0])
    batch = await run(client, [line(0)])
    with pytest.raises(openai.BadRequestError, match="batch_output"):
        await client.batches.create(input_file_id=batch.output_file_id or "", endpoint=CHAT, completion_window="24h")


async def test_a_repeat_under_an_idempotency_key_gives_the_same_batch(
    client: openai.AsyncOpenAI, other: openai.AsyncOpenAI
) -> None:
    file = await client.files.create(file=file_of([line(0)]), purpose="batch")
    ask: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    keyed = {"Idempotency-Key": "nightly-7"}
    first = await client.batches.create(**ask, extra_headers=keyed)
    assert (await other.batches.create(**ask, extra_headers=keyed)).id == first.id
    with pytest.raises(openai.ConflictError) as caught:
        await client.batches.create(**ask, metadata={"other": "content"}, extra_headers=keyed)
    assert (caught.value.code, caught.value.param) == ("job_key_reused", "Idempotency-Key")
    # A client that lost the answer need not have its file any more.
    await ended(client, first.id)
    await client.files.delete(file.id)
    assert (await client.batches.create(**ask, extra_headers=keyed)).id == first.id
    with pytest.raises(openai.NotFoundError):
        await client.batches.create(**ask, extra_headers={"Idempotency-Key": "nightly-8"})


async def test_results_are_kept_as_long_as_the_client_says(client: openai.AsyncOpenAI) -> None:
    batch = await run(client, [line(0)], output_expires_after={"anchor": "created_at", "seconds": 7_200})
    file = await client.files.retrieve(batch.output_file_id or "")
    assert file.expires_at is not None
    assert abs(file.expires_at - file.created_at - 7_200) <= 1


async def test_a_batch_is_a_job_of_the_native_api(stack: Stack, client: openai.AsyncOpenAI) -> None:
    batch = await run(client, [line(number) for number in range(3)])
    call_ = stack.jobs(1).WatchJob(api.WatchJobRequest(job_id=batch.id.removeprefix("batch_")))
    responses = [response async for response in call_]
    assert sorted(result.custom_id for each in responses for result in each.results) == ["q0", "q1", "q2"]
    assert responses[-1].job.state == api.JOB_STATE_SUCCEEDED
    failed = await run(client, ["{}"])
    job = (await stack.jobs().GetJob(api.GetJobRequest(job_id=failed.id.removeprefix("batch_")))).job
    assert (job.state, job.failure) == (api.JOB_STATE_FAILED, "its file has errors, which /v1/batches names")


async def test_a_tenant_sees_its_own_files_and_batches_and_its_keys_keep_their_rights(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys.toml")
    no_model = add_key(keys.path, KeyPlan("acme", models=("another",)))
    no_class = add_key(keys.path, KeyPlan("acme", classes=("interactive",)))
    sections = {"auth": {"keys_file": str(tmp_path / "keys.toml")}}
    async with running_stack(tmp_path, router=HTTP, sections=sections) as stack:
        url = f"{base(stack)}/v1"
        async with (
            openai.AsyncOpenAI(base_url=url, api_key=keys.acme, max_retries=0) as acme,
            openai.AsyncOpenAI(base_url=url, api_key=keys.other, max_retries=0) as beta,
        ):
            batch = await run(acme, [line(0)])
            assert batch.output_file_id
            for file_id in (batch.input_file_id, batch.output_file_id):
                for call_ in (beta.files.retrieve, beta.files.content, beta.files.delete):
                    with pytest.raises(openai.NotFoundError):
                        await call_(file_id)
            for call_ in (beta.batches.retrieve, beta.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    await call_(batch.id)
            with pytest.raises(openai.NotFoundError):
                await beta.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
            assert (await beta.files.list()).data == []
            assert (await beta.batches.list()).data == []
            assert len((await acme.files.list()).data) == 2
        ask: dict[str, Any] = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
        for key in (no_model, no_class):
            async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as weak:
                with pytest.raises(openai.PermissionDeniedError):
                    await weak.batches.create(**ask)
        async with openai.AsyncOpenAI(base_url=url, api_key=no_model, max_retries=0) as weak:
            with pytest.raises(openai.PermissionDeniedError, match="model 'demo' is not allowed"):
                await weak.files.create(file=file_of([line(0)]), purpose="batch")
        async with openai.AsyncOpenAI(base_url=url, api_key="wrong", max_retries=0) as nobody:
            for call_ in (nobody.files.list, nobody.batches.list):
                with pytest.raises(openai.AuthenticationError):
                    await call_()


async def test_results_of_any_size_come_back_whole(client: openai.AsyncOpenAI) -> None:
    sizes = [1, 200, 5, 180, 2]
    lines = [line(number, max_tokens=size, n=8, logprobs=True, top_logprobs=20) for number, size in enumerate(sizes)]
    batch = await run(client, lines)
    found = {each["custom_id"]: each["response"]["body"] for each in await content(client, batch.output_file_id)}
    assert [found[f"q{number}"]["usage"]["completion_tokens"] for number in range(5)] == [8 * size for size in sizes]
    described = await client.files.retrieve(batch.output_file_id or "")
    assert described.bytes == len((await client.files.content(described.id)).content)


async def test_a_file_of_a_pool_that_is_not_served_any_more_gives_no_batch(
    client: openai.AsyncOpenAI, stack: Stack
) -> None:
    store, pools = stack.job_store("former"), stack.job_pools()
    await pools.add(["former"])
    text = line(0, model="former").encode()
    await store.create("former.one", "anonymous", b"")
    await store.append("former.one", 0, [text])
    note = FileNote("in.jsonl", len(text), "former", {CHAT: 1}, ())
    await store.keep("former.one", api.JobHeader(model="former").SerializeToString(), note.pack(), 60_000)

    with pytest.raises(openai.NotFoundError) as caught:
        await client.batches.create(input_file_id="file-former.one", endpoint=CHAT, completion_window="24h")
    assert caught.value.code == "model_not_found"
    assert await store.list_jobs("anonymous", None, 10) == []
    # It can still be read.
    assert (await client.files.content("file-former.one")).content == text
    await pools.close()
    await store.close()


async def test_what_did_not_run_is_named_right_where_redis_lost_a_part_of_the_file(stack: Stack) -> None:
    """The error file says what is known, and the batch what is lost."""
    store = stack.job_store("demo")
    await store.create("torn.one", "anonymous", b"")
    for block in range(3):
        await store.append("torn.one", 2 * block, [line(2 * block + number).encode() for number in range(2)])
    note = FileNote("in.jsonl", 1, "demo", {CHAT: 1}, ())
    file = await store.keep("torn.one", b"", note.pack(), 60_000)
    batch_note = BatchNote(CHAT, "24h", None, ()).pack()
    batch = await store.begin(id_on("torn.one"), file, FileJob(b"", batch_note, "", "", 60_000, 60_000))
    await store.cancel(batch.job_id)
    await store._calls.command("HDEL", store._key("torn.one", 1), 1)
    ended_ = await store.get(batch.job_id)
    assert ended_ is not None

    with pytest.raises(ContentLostError):
        async for _lines in results(store, ended_, ERRORS):
            pass
    torn = replace(ended_, lost="bodies")
    lines = [
        json.loads(each) for part in [part async for part in results(store, torn, ERRORS)] for each in part.splitlines()
    ]
    assert [("q0", 0), ("q1", 1), ("q4", 4), ("q5", 5)] == [
        (each["custom_id"], int(each["id"].rpartition("_")[2])) for each in lines
    ]
