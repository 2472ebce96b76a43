"""Files of OpenAI's own SDK against real routers: upload, listing, content, deletion, and uploads that go wrong."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import openai
import pytest
from aiohttp import web

from router.http.files.ids import FileId
from router.http.files.routes import _skip_rest
from tests.router.http.files.support import CHAT, HTTP, base, call, content, ended, file_of, line, run, stored
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20


async def test_a_file_comes_back_byte_for_byte(client: openai.AsyncOpenAI, other: openai.AsyncOpenAI) -> None:
    data = b"\xef\xbb\xbf\r\n\n" + f"{line(0)}\r\n\n \t\n{line(1)}\n{line(2, temperature=9)}\n\n{{".encode()
    file = await client.files.create(file=("night.jsonl", data), purpose="batch")
    assert (file.object, file.filename, file.bytes, file.purpose) == ("file", "night.jsonl", len(data), "batch")
    assert file.id.startswith("file-")
    assert file.expires_at == file.created_at + 30 * 86_400
    assert await other.files.retrieve(file.id) == file
    assert (await other.files.content(file.id)).content == data


@pytest.mark.parametrize("data", [b"", b"\n\n", b"{}\nno JSON"])
async def test_a_file_that_is_no_batch_comes_back_too(client: openai.AsyncOpenAI, data: bytes) -> None:
    file = await client.files.create(file=("x", data), purpose="batch")
    assert (await client.files.content(file.id)).content == data


async def test_files_are_listed_in_pages_with_those_of_results(client: openai.AsyncOpenAI) -> None:
    batch = await run(client, [line(0)])
    newest = await client.files.create(file=file_of([line(0)]), purpose="batch")
    every = [file.id async for file in client.files.list()]
    assert {batch.input_file_id, batch.output_file_id, newest.id} <= {*every}
    assert [file.id async for file in client.files.list(limit=1)] == every
    assert [file.id async for file in client.files.list(order="asc")] == every[::-1]
    outputs = [file.id async for file in client.files.list(purpose="batch_output")]
    assert batch.output_file_id in outputs
    assert newest.id not in outputs
    inputs = [file.id async for file in client.files.list(purpose="batch")]
    assert {*inputs} | {*outputs} == {*every}
    assert (await client.files.list(purpose="vision")).data == []
    assert (await client.files.list(after=every[0], limit=1)).data[0].id == every[1]
    with pytest.raises(openai.BadRequestError, match="after"):
        await client.files.list(after="file-demo.00")


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_files_can_be_deleted_while_they_are_listed(
    client: openai.AsyncOpenAI, other: openai.AsyncOpenAI, order: Any
) -> None:
    """The place of the next page is a file that is gone by then."""
    await run(client, [line(0)])
    stays = (await client.files.create(file=file_of([line(0)]), purpose="batch")).id
    for _ in range(4):
        await client.files.create(file=file_of([line(0)]), purpose="batch")
    async for file in client.files.list(limit=2, order=order):
        if file.id != stays:
            await other.files.delete(file.id)
    assert [stays] == [file.id async for file in client.files.list()]
    await client.files.delete(stays)


async def test_a_file_of_deleted_results_keeps_its_place(client: openai.AsyncOpenAI) -> None:
    batch, newer = await run(client, [line(0)]), await run(client, [line(0)])
    assert batch.output_file_id
    assert newer.output_file_id
    await client.files.delete(newer.output_file_id)
    following = await client.files.list(after=newer.output_file_id, purpose="batch_output")
    assert following.data[0].id == batch.output_file_id
    earlier = await client.files.list(after=newer.output_file_id, purpose="batch_output", order="asc")
    assert [] == earlier.data


async def test_files_of_one_second_are_in_their_order(stack: Stack, client: openai.AsyncOpenAI) -> None:
    made = [(await client.files.create(file=file_of([line(n)]), purpose="batch")).id for n in range(8)]
    listed = [file.id async for file in client.files.list(purpose="batch")][:8]
    store = stack.job_store("demo")
    came = {str(FileId(r.job_id)): r.created_ms for r in await store.list_files("anonymous")}
    assert {*made} == {*listed}
    assert sorted((came[each] for each in listed), reverse=True) == [came[each] for each in listed]


async def test_a_deleted_file_is_gone_and_a_batch_that_reads_it_goes_on(
    stack: Stack, client: openai.AsyncOpenAI
) -> None:
    lines = [line(number, max_tokens=20) for number in range(100)]
    file = await client.files.create(file=file_of(lines), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    deleted = await client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for call_ in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            await call_(file.id)
        assert (caught.value.code, caught.value.param) == ("file_not_found", None)
    with pytest.raises(openai.NotFoundError, match="input_file_id: no file") as caught:
        await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert (caught.value.code, caught.value.param) == ("file_not_found", "input_file_id")
    assert file.id not in [each.id async for each in client.files.list()]
    batch = await ended(client, batch.id)
    assert batch.status == "completed"
    assert len(await content(client, batch.output_file_id)) == 100


async def test_deleted_results_leave_the_batch_and_its_other_results(stack: Stack, client: openai.AsyncOpenAI) -> None:
    long = line(1, messages=[{"role": "user", "content": "word " * 600}])
    batch = await run(client, [line(0), long])
    output, errors = batch.output_file_id or "", batch.error_file_id or ""
    await client.files.delete(output)
    batch = await client.batches.retrieve(batch.id)
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("completed", None, errors)
    with pytest.raises(openai.NotFoundError):
        await client.files.content(output)
    assert len(await content(client, errors)) == 1
    await client.files.delete(errors)
    batch = await client.batches.retrieve(batch.id)
    assert (batch.error_file_id, batch.request_counts is not None) == (None, True)
    # Now they are gone from the store.
    assert await stack.job_store("demo").results(batch.id.removeprefix("batch_"), 0, 9) == []


async def test_a_file_is_kept_as_long_as_the_client_says(client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(
        file=file_of([line(0)]), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3_600}
    )
    assert file.expires_at == file.created_at + 3_600
    with pytest.raises(openai.BadRequestError, match=r"at least 3600 and at most 2592000 \(jobs.file_ttl_s\), got 5"):
        await client.files.create(
            file=file_of([line(0)]), purpose="batch", expires_after={"anchor": "created_at", "seconds": 5}
        )


def form(**fields: Any) -> aiohttp.FormData:
    """Build a form; a tuple is a file's name and content."""
    data = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        if isinstance(value, tuple):
            content = value[1].encode() if isinstance(value[1], str) else value[1]
            data.add_field(name, io.BytesIO(content), filename=value[0])
        else:
            data.add_field(name, value)
    return data


def raw(body: bytes, boundary: str = "X") -> dict[str, Any]:
    """Return the arguments of a call with a body that is perhaps no form."""
    return {"data": body, "headers": {"content-type": f"multipart/form-data; boundary={boundary}"}}


PART = b'--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
PURPOSE = b'--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 20
GZIP = gzip.compress(line(0).encode())
LATE = "".join(f"{line(number)}\n" for number in range(40)).encode() + b"\xff\n"
"""A file whose first block is stored before its wrong line comes."""


@pytest.mark.parametrize(("name", "kept"), [(b"\xe9.jsonl", "\ufffd.jsonl"), ("é.jsonl".encode(), "é.jsonl")])
async def test_a_file_may_have_a_name_in_another_encoding(stack: Stack, name: bytes, kept: str) -> None:
    part = PART.replace(b'"a"', b'"%s"' % name)
    status, found, _ = await call(
        stack, "POST", "/v1/files", **raw(PURPOSE + part + line(0).encode() + b"\r\n--X--\r\n")
    )
    assert (status, found.get("filename")) == (200, kept)
    assert (await call(stack, "GET", f"/v1/files/{found['id']}"))[1] == found


@pytest.mark.parametrize(
    ("more", "status", "param", "words"),
    [
        ({"data": form(purpose="batch")}, 400, "file", "required"),
        ({"data": form(file=("a", line(0)))}, 400, "purpose", "required"),
        ({"data": form(file=("a", line(0)), purpose="fine-tune")}, 400, "purpose", "must be batch"),
        ({"data": form(purpose="x" * 9_000, file=("a", line(0)))}, 400, "purpose", "4,096 bytes"),
        ({"json": {"purpose": "batch"}}, 400, None, "multipart/form-data"),
        ({"data": b""}, 400, None, "multipart/form-data"),
        (raw(b"", boundary=""), 400, None, "form"),
        (raw(b""), 400, None, "form"),
        (raw(b"nonsense"), 400, None, "form"),
        (raw(b"--X--\r\n"), 400, "file", "required"),
        (raw(PURPOSE + PART + line(0).encode()), 400, None, "last boundary"),
        (raw(PURPOSE + PART + line(0).encode() + b"\r\n--X"), 400, None, "parts with names"),
        (raw(PURPOSE + PART + b"\r\n" + PART + b"\r\n--X--\r\n"), 400, "file", "once"),
        (raw(b"--X\r\n\r\nno name\r\n--X--\r\n"), 400, None, "names"),
        (raw(PURPOSE.replace(b"batch", b"\xff") + PART + b"\r\n--X--\r\n"), 400, "purpose", "UTF-8"),
        ({"data": form(purpose="batch", file=("a", "x" * 5_000))}, 400, "file", "line 1 has more"),
        ({"data": form(purpose="batch", file=("a", "{}\n" * 2_001))}, 400, "file", "2,000 requests"),
        ({"data": form(purpose="batch", file=("a", ("{" + " " * 97 + "}\n") * 10_500))}, 400, "file", "2,000 requests"),
        ({"data": form(purpose="batch", file=("a", "\n" * 5_000))}, 400, "file", "has more"),
        (
            {"data": form(purpose="batch", file=("a", PNG))},
            400,
            "file",
            "line 1: is not UTF-8 text; it looks like a PNG",
        ),
        (
            {"data": form(purpose="batch", file=("a", GZIP))},
            400,
            "file",
            "line 1: is not UTF-8 text; it looks like a gzip",
        ),
        ({"data": form(purpose="batch", file=("a", "\n\ncustom_id,body\n"))}, 400, "file", "line 3: is no JSON"),
        ({"data": form(purpose="batch", file=("a", "[{}]"))}, 400, "file", "line 1: must be an object"),
        (
            {"data": form(purpose="batch", file=("a", f"{line(0)}\n".encode() + b"\xe9"))},
            400,
            "file",
            "line 2: is not UTF-8",
        ),
        ({"data": form(purpose="batch", file=("a", LATE))}, 400, "file", "line 41: is not UTF-8"),
        ({"data": form(purpose="batch", file=("a", b"x" * (2 * MIB)))}, 413, None, "1 MiB (router.http.max_file_mb)"),
    ],
)
async def test_an_upload_that_is_wrong_gets_a_clear_error_and_leaves_nothing(
    stack: Stack, more: dict[str, Any], status: int, param: str | None, words: str
) -> None:
    before = await stored(stack)
    got, found, headers = await call(stack, "POST", "/v1/files", **more)
    assert got == status
    assert words in found["error"]["message"]
    assert (found["error"]["param"], found["error"]["type"]) == (param, "invalid_request_error")
    assert headers["x-should-retry"] == "false"

    async def clean() -> bool:
        return await stored(stack) <= before

    await until(clean)


async def test_a_file_that_is_too_large_is_refused_while_it_comes(stack: Stack) -> None:
    before = await stored(stack)

    async def endless() -> Any:
        yield PURPOSE + PART
        for number in range(100_000):
            yield f"{line(number % 1000)}{' ' * 3_000}\n".encode()

    status, found, _ = await call(stack, "POST", "/v1/files", **raw(endless()))  # type: ignore[arg-type]
    assert (status, found["error"]["code"]) == (413, "file_too_large")
    await until_clean(stack, before)


async def until_clean(stack: Stack, before: set[str]) -> None:
    """Wait until the store has no more than it had. What earlier tests left goes at its own time."""

    async def clean() -> bool:
        return await stored(stack) <= before

    await until(clean)


async def test_an_upload_that_is_cut_leaves_nothing(stack: Stack) -> None:
    before = await stored(stack)
    host, _, port = base(stack).removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary=X\r\n"
    writer.write(f"{head}Content-Length: 900000\r\n\r\n".encode() + PURPOSE + PART)
    writer.write("".join(f"{line(number)}\n" for number in range(500)).encode())
    await writer.drain()

    async def begun() -> bool:
        return not await stored(stack) <= before

    await until(begun)
    writer.transport.abort()
    await until_clean(stack, before)


async def test_an_upload_that_falls_silent_is_ended(stack: Stack) -> None:
    before = await stored(stack)
    host, _, port = base(stack).removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary=X\r\n"
    writer.write(f"{head}Content-Length: 900000\r\n\r\n".encode() + PURPOSE + PART + line(0).encode() + b"\n")
    status = await asyncio.wait_for(reader.readline(), 30)
    assert status.split()[1] == b"400"
    assert b"jobs.upload_s" in await reader.read(2_000)
    writer.close()
    await until_clean(stack, before)


async def test_the_rest_of_a_refused_upload_is_read_in_turns_with_others() -> None:
    """A compressed part of it is a thousand times as long as it was sent."""
    turns, seen, parts = 0, list[int](), 9

    class Content:
        async def iter_any(self) -> AsyncIterator[bytes]:
            for _ in range(parts):
                seen.append(turns)
                yield b"x"

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(others())
    await _skip_rest(cast("web.Request", SimpleNamespace(content=Content())))
    other.cancel()
    # The others begin with the second part.
    assert len({*seen[1:]}) == len(seen[1:]) == parts - 1


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://["])
async def test_a_page_of_another_site_can_upload_nothing(stack: Stack, origin: str) -> None:
    data = form(purpose="batch", file=("a", line(0)))
    status, found, _ = await call(stack, "POST", "/v1/files", data=data, headers={"Origin": origin})
    assert status == 400
    assert "another site" in found["error"]["message"]


async def test_a_page_of_the_router_itself_can_upload(stack: Stack) -> None:
    data = form(purpose="batch", file=("a", line(0)))
    assert (await call(stack, "POST", "/v1/files", data=data, headers={"Origin": base(stack)}))[0] == 200


async def test_the_fields_of_a_form_come_in_any_order(stack: Stack) -> None:
    data = form(file=("a", line(0)), purpose="batch")
    status, found, _ = await call(stack, "POST", "/v1/files", data=data)
    assert (status, found["bytes"]) == (200, len(line(0)))


async def test_no_tenant_stores_more_than_its_share(tmp_path: Any) -> None:
    async with (
        running_stack(tmp_path, router=HTTP, jobs={"tenant_jobs": 2, "tenant_items": 100}) as stack,
        openai.AsyncOpenAI(base_url=f"{base(stack)}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.RateLimitError, match="tenant_items = 100") as caught:
            await client.files.create(file=file_of(line(number) for number in range(200)), purpose="batch")
        assert caught.value.response.headers["x-should-retry"] == "false"
        batch = await run(client, [line(0)])
        with pytest.raises(openai.RateLimitError, match="tenant_jobs = 2"):
            await client.files.create(file=file_of([line(0)]), purpose="batch")
        await client.files.delete(batch.input_file_id)
        await client.files.create(file=file_of([line(0)]), purpose="batch")
