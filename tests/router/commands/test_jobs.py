"""`penstock jobs` against a real router, in threads beside the cluster's loop."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cluster.addresses import free_port
from cluster.cli.main import main
from penstock.client import Client
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), sim={"time_scale": 0.0}) as running:
        yield running


@pytest.fixture
def run(stack: Stack, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; returns its status, output and messages."""

    async def command(action: str, *arguments: str) -> tuple[int, str, str]:
        target = f"127.0.0.1:{stack.routers[0].port}"
        status = await asyncio.to_thread(main, ["jobs", action, "--target", target, *arguments])
        captured = capsys.readouterr()
        return status, captured.out, " ".join(captured.err.split())

    return command


def write(path: Path, items: int, **body: Any) -> str:
    """Write a file of so many requests."""
    base = {"model": "demo", "messages": [{"role": "user", "content": "What is Penstock?"}], "max_tokens": 4, **body}
    lines = (
        json.dumps({"custom_id": f"q{n}", "method": "POST", "url": "/v1/chat/completions", "body": base})
        for n in range(items)
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


async def test_a_file_goes_in_and_a_file_comes_out(run: Any, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    status, _out, messages = await run("submit", write(tmp_path / "in.jsonl", 30), "--output", str(output))

    assert 0 == status, messages
    assert "30 of 30 items succeeded" in messages
    results = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert {f"q{n}" for n in range(30)} == {result["custom_id"] for result in results}
    assert all(result["response"]["body"]["choices"][0]["message"]["content"] for result in results)


@pytest.mark.parametrize("flags", [("--detach",), ()])
async def test_messages_that_nobody_watches_have_no_empty_line(
    flags: tuple[str, ...], stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["jobs", "submit", "--target", f"127.0.0.1:{stack.routers[0].port}", write(tmp_path / "in.jsonl", 2)]
    assert 0 == await asyncio.to_thread(main, [*words, *flags])
    told = capsys.readouterr().err
    # Of the job that is stored, and of its end.
    assert (1 if flags else 2) == told.count("✓ job "), told
    assert (True, False) == (all(told.splitlines()), "━" in told), told


async def test_a_detached_job_is_shown_and_its_results_are_fetched_later(run: Any, tmp_path: Path) -> None:
    status, out, messages = await run("submit", write(tmp_path / "in.jsonl", 10), "--detach", "--key", "mine")
    job_id = out.strip()
    assert (0, False) == (status, "already" in messages)
    assert 0 == (await run("watch", job_id))[0]

    status, out, _messages = await run("results", job_id)
    assert (0, 10) == (status, len(out.splitlines()))
    described = json.loads((await run("get", job_id))[1])
    assert ("succeeded", 10, "mine", "batch") == (
        described["state"],
        described["succeeded_items"],
        described["idempotency_key"],
        described["request_class"],
    )
    listed = [json.loads(line) for line in (await run("list", "--json", "--limit", "500"))[1].splitlines()]
    assert job_id in [job["job_id"] for job in listed]
    assert job_id in (await run("list"))[1]
    _status, out, messages = await run("submit", write(tmp_path / "in.jsonl", 10), "--detach", "--key", "mine")
    assert job_id == out.strip()
    assert f"job {job_id} was there already under this key: 10 items" in messages

    assert 0 == (await run("delete", job_id))[0]
    status, _out, messages = await run("get", job_id)
    assert 1 == status
    assert f"no job '{job_id}'" in messages


async def test_a_failed_item_shows_in_the_status(run: Any, tmp_path: Path) -> None:
    status, out, messages = await run(
        "submit", write(tmp_path / "in.jsonl", 2, stop_token_ids=[10**9]), "--output", "-"
    )
    assert 1 == status
    assert "2 failed" in messages
    assert "the first failure: INVALID_REQUEST: " in messages
    assert ["invalid_request"] * 2 == [json.loads(line)["error"]["code"] for line in out.splitlines()]


async def test_why_items_failed_is_said_without_a_file_of_results_too(run: Any, tmp_path: Path) -> None:
    status, _out, messages = await run("submit", write(tmp_path / "in.jsonl", 2, stop_token_ids=[10**9]))
    assert 1 == status
    assert "the first failure: INVALID_REQUEST: sampling.stop_token_ids" in messages


async def test_cancelling(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", 50, max_tokens=20_000, ignore_eos=True)
    job_id = (await run("submit", file, "--detach"))[1].strip()
    status, _out, messages = await run("cancel", job_id)
    assert 0 == status
    assert "cancelled" in messages
    assert 1 == (await run("watch", job_id))[0]


async def test_a_bad_file_is_refused_before_anything_is_sent(run: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "in.jsonl", 3, store=True)
    status, _out, messages = await run("submit", file)
    assert 2 == status
    assert "line 1: body.store: must be false or absent, got true" in messages
    status, _out, messages = await run("submit", file, "--ignore-unknown")
    assert 0 == status
    assert "ignored: body.store on 3 lines" in messages
    assert 2 == (await run("submit", str(tmp_path / "missing.jsonl")))[0]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
async def test_standard_input_that_is_no_utf_8_is_refused(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    """Python reads it one way or the other, by the locale."""
    written = Path(write(tmp_path / "in.jsonl", 1))
    text = (await asyncio.to_thread(written.read_bytes)).replace(b"Penstock", b"\xff")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", errors=errors))
    status, _out, messages = await run("submit", "-")

    assert 2 == status
    assert "-: line 1: is not UTF-8: byte 0xff at column " in messages


@pytest.mark.parametrize("name", ["in.jsonl", "-"])
async def test_a_byte_order_mark_is_none(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    path = Path(write(tmp_path / "in.jsonl", 2))
    marked = b"\xef\xbb\xbf" + (await asyncio.to_thread(path.read_bytes))
    await asyncio.to_thread(path.write_bytes, marked)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(marked), encoding="latin-1"))
    status, _out, messages = await run("submit", str(path) if name == "in.jsonl" else name)

    assert 0 == status, messages
    assert "2 of 2 items succeeded" in messages


async def test_a_file_in_another_encoding_is_named_with_its_line(run: Any, tmp_path: Path) -> None:
    path = Path(write(tmp_path / "in.jsonl", 300))
    lines = (await asyncio.to_thread(path.read_bytes)).splitlines(keepends=True)
    lines[250] = lines[250].replace(b"Penstock", b"caf\xe9")
    await asyncio.to_thread(path.write_bytes, b"".join(lines))
    status, _out, messages = await run("submit", str(path))

    assert 2 == status
    assert "line 251: is not UTF-8: byte 0xe9 at column " in messages
    assert "the file may be Latin-1 or Windows-1252" in messages


async def test_results_that_nobody_waits_for_have_no_file(run: Any, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    status, _out, messages = await run("submit", write(tmp_path / "in.jsonl", 1), "--detach", "--output", str(output))
    assert (2, False) == (status, output.exists())
    assert "--output" in messages


async def test_what_the_router_refuses_is_shown_by_item(run: Any, tmp_path: Path) -> None:
    status, _out, messages = await run("submit", write(tmp_path / "in.jsonl", 1, temperature=7))
    assert 2 == status
    assert "items[0].request.sampling.temperature: must be at least 0 and at most 2, got 7" in messages


async def test_an_output_that_cannot_be_written_is_found_before_anything_is_sent(
    run: Any, stack: Stack, tmp_path: Path
) -> None:
    before = len(stack.stored_jobs())
    output = tmp_path / "no" / "results.jsonl"
    status, _out, messages = await run("submit", write(tmp_path / "in.jsonl", 3), "--output", str(output))

    assert (2, f"penstock: --output: {output} cannot be written: No such file or directory") == (status, messages)
    assert before == len(stack.stored_jobs())


async def test_no_bar_is_drawn_of_what_does_not_exist(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, messages = await run("submit", write(tmp_path / "in.jsonl", 3, model="typo"))
    assert (1, "", True) == (status, out, "'typo'" in messages)
    assert "━" not in messages

    job_id = (await run("submit", write(tmp_path / "in.jsonl", 3), "--detach"))[1].strip()
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    status, out, messages = await run("watch", "demo.typo")
    assert (1, "", True) == (status, out, "no job 'demo.typo'" in messages)
    assert "━" not in messages
    assert "━" in (await run("watch", job_id))[2]


async def test_a_file_keeps_what_it_has_until_the_job_is_known(run: Any, tmp_path: Path) -> None:
    kept, fresh = tmp_path / "kept.jsonl", tmp_path / "fresh.jsonl"
    kept.write_text("of yesterday\n", encoding="utf-8")
    for action in ("watch", "results"):
        for output in (kept, fresh):
            status, _out, messages = await run(action, "demo.typo", "--output", str(output))
            assert (1, True) == (status, "no job 'demo.typo'" in messages)
    assert ("of yesterday\n", False) == (kept.read_text(encoding="utf-8"), fresh.exists())

    job_id = (await run("submit", write(tmp_path / "in.jsonl", 3), "--detach"))[1].strip()
    for action in ("watch", "results"):
        kept.write_text("of yesterday\n" * 100, encoding="utf-8")
        assert 0 == (await run(action, job_id, "--output", str(kept)))[0]
        ids = {json.loads(line)["custom_id"] for line in kept.read_text(encoding="utf-8").splitlines()}
        assert {"q0", "q1", "q2"} == ids


async def test_a_key_is_no_markup(run: Any, tmp_path: Path) -> None:
    assert 0 == (await run("submit", write(tmp_path / "in.jsonl", 1), "--detach", "--key", "nightly [/eu]"))[0]
    status, out, _messages = await run("list")
    assert (0, True) == (status, "nightly [/eu]" in out)


@pytest.mark.parametrize("action", ["watch", "results"])
async def test_a_watch_begins_only_where_a_router_answers(
    action: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it goes on, it waits for routers that are away, for as long as that takes."""
    monkeypatch.setattr(Client, "watch_job", lambda *_, **__: pytest.fail("a watch would wait for ever"))
    assert 1 == await asyncio.to_thread(
        main, ["jobs", action, "demo.1", "--target", f"127.0.0.1:{free_port('127.0.0.1')}"]
    )
    assert "is not available: nothing listens there" in " ".join(capsys.readouterr().err.split())


async def test_a_command_finds_the_router_that_lives(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    targets = f"127.0.0.1:{free_port('127.0.0.1')},127.0.0.1:{stack.routers[0].port}"
    for _ in range(4):
        # The order is drawn.
        assert 0 == await asyncio.to_thread(main, ["jobs", "list", "--json", "--target", targets])
    assert "" == capsys.readouterr().err


async def test_a_list_without_jobs_says_so(stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"127.0.0.1:{stack.routers[0].port}"
    for words, said in (
        (["explain", "--missed"], "no requests"),
        (["usage", "--first-day", "2020-01-01", "--last-day", "2020-01-02"], "nothing was used"),
    ):
        assert 0 == await asyncio.to_thread(main, [*words, "--target", target])
        assert f"{said}\n" == capsys.readouterr().out
