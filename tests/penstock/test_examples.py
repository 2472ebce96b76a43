"""Every example does what it says, as a program of its own, against a router."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from penstock.v1 import admin_pb2, inference_pb2, jobs_pb2, types_pb2
from tests.integration.conftest import require_program
from tests.router.http.files.support import base, line
from tests.support.ports import free_port
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "proto" / "examples"
PROTO_FILES = " ".join(f"../../penstock/v1/{path.name}" for path in EXAMPLES.parent.glob("penstock/v1/*.proto"))
ASKED_FOR = os.environ.get("PENSTOCK_EXAMPLES", "").split(",")
"""Languages to run beside those whose tools every machine with this repository has."""
CHATS = [
    pytest.param("python", [sys.executable, "chat.py"], id="python"),
    pytest.param("node", ["node", "chat.mjs"], id="node", marks=pytest.mark.node),
    pytest.param("typescript", ["node", "out/chat.js"], id="typescript", marks=pytest.mark.node),
    *(
        pytest.param(language, command, id=language)
        for language, command in (
            ("go", ["./chat"]),
            ("java", ["mvn", "-q", "exec:java"]),
            ("cpp", ["./chat"]),
            ("ruby", ["ruby", "-I", "gen", "chat.rb"]),
        )
        if language in ASKED_FOR
    ),
]
BUILD = {
    "python": [],
    "node": ["npm ci --no-audit --no-fund"],
    "typescript": ["npm ci --no-audit --no-fund", "npm run build"],
    "go": ["buf generate", "go mod tidy", "go vet ./...", "go build -o chat ."],
    "java": ["mvn -q compile"],
    "cpp": ["make"],
    "ruby": ["mkdir -p gen", f"grpc_tools_ruby_protoc -I ../.. --ruby_out=gen --grpc_out=gen {PROTO_FILES}"],
}
BUILT: set[str] = set()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("stack"), router={"http": {"port": 0}}) as running:
        yield running


def environment(stack: Stack) -> dict[str, str]:
    # Examples need the client alone, and nothing of the server: neither its packages nor its experiments of gRPC.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        **{name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"},
        "PATH": path,
        "PYTHONPATH": str(EXAMPLES.parent),
        "PENSTOCK_TARGET": f"127.0.0.1:{stack.routers[0].port}",
        "PENSTOCK_HTTP": base(stack) + "/v1",
    }


async def run(stack: Stack, command: list[str], folder: Path, stdin: str = "") -> tuple[int, str, str]:
    """Run a program to its end; return status, output and errors."""
    child = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment(stack), stdin=-1, stdout=-1, stderr=-1
    )
    out, errors = await child.communicate(stdin.encode())
    return child.returncode or 0, out.decode(), errors.decode()


async def built(stack: Stack, language: str) -> Path:
    """Install and build an example as its README says, once; return its folder."""
    folder = EXAMPLES / language
    if language not in BUILT:
        for line in BUILD[language]:
            program, *arguments = line.split()
            status, out, errors = await run(stack, [require_program(program), *arguments], folder)
            assert 0 == status, out + errors
        BUILT.add(language)
    return folder


async def prompt_tokens(stack: Stack, *messages: str) -> int:
    """Count the tokens of a conversation in which user and assistant take turns."""
    turns = [
        types_pb2.ChatMessage(role=("user", "assistant")[number % 2], content=text)
        for number, text in enumerate(messages)
    ]
    prompt = types_pb2.Prompt(chat=types_pb2.ChatPrompt(messages=turns))
    reply = await stack.inference().CountTokens(inference_pb2.CountTokensRequest(model="demo", prompt=prompt))
    return int(reply.tokens)


async def used(stack: Stack) -> int:
    """Return the prompt tokens that were used so far."""
    usage = await stack.admin().GetUsage(admin_pb2.GetUsageRequest())
    return sum(line.prompt_tokens for line in usage.lines)


@pytest.mark.parametrize(("language", "command"), CHATS)
async def test_a_chat_streams_answers_and_remembers_them(stack: Stack, language: str, command: list[str]) -> None:
    folder, before = await built(stack, language), await used(stack)
    status, out, errors = await run(stack, command, folder, "What is Penstock?\nAnd a KV cache?\n")
    assert (0, "") == (status, errors)
    (first, _), (second, _) = answers = re.findall(r"> (.*?)\n\[(\d+) tokens\]", out, re.DOTALL)
    assert first
    assert second
    expected = await prompt_tokens(stack, "What is Penstock?")
    expected += await prompt_tokens(stack, "What is Penstock?", first, "And a KV cache?")

    assert 2 == len(answers)

    async def counted() -> bool:
        return await used(stack) - before == expected

    await until(counted)


@pytest.mark.parametrize(("language", "command"), CHATS)
async def test_a_chat_explains_errors_and_goes_on(stack: Stack, language: str, command: list[str]) -> None:
    folder = await built(stack, language)
    long = "word " * 40_000
    status, out, errors = await run(stack, command, folder, f"{long}\nWhat is Penstock?\n")
    assert 0 == status
    assert 1 == len(re.findall(r"\[\d+ tokens\]", out))
    assert "INVALID_ARGUMENT: " in errors
    assert "  reason: INVALID_REQUEST" in errors
    assert re.search(r"  prompt\S*: prompt is too long: \d+ tokens", errors)


@pytest.mark.parametrize(("language", "command"), CHATS)
async def test_a_chat_calls_the_model_that_it_is_told(stack: Stack, language: str, command: list[str]) -> None:
    folder = await built(stack, language)
    more = ["-Dexec.args=nobody"] if language == "java" else ["nobody"]
    _, _, errors = await run(stack, [*command, *more], folder, "Hello\n")
    assert "NOT_FOUND: " in errors
    assert "  reason: MODEL_NOT_FOUND" in errors


# --- Python -----------------------------------------------------------------------------------------------------------


async def test_a_batch_writes_every_answer_and_is_the_same_job_when_it_runs_again(stack: Stack, tmp_path: Path) -> None:
    questions = [f"What is {number} squared?" for number in range(40)]
    (tmp_path / "questions.txt").write_text("\n".join(questions))
    command = [sys.executable, str(EXAMPLES / "python" / "batch.py"), "questions.txt", "answers.csv"]
    written = []
    for _ in range(2):
        status, _, errors = await run(stack, command, tmp_path)
        assert 0 == status, errors
        with (tmp_path / "answers.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        written.append({row["question"]: row["answer"] for row in rows})
        assert {""} == {row["error"] for row in rows}
    assert set(questions) == set(written[0])
    assert written[0] == written[1]
    jobs = await stack.jobs().ListJobs(jobs_pb2.ListJobsRequest())
    assert 1 == len(jobs.jobs)


async def test_a_batch_of_openais_sdk_writes_every_result_and_what_is_wrong(stack: Stack, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "python" / "openai_batch.py"), "requests.jsonl", "results.jsonl"]
    for lines, status in ((map(line, range(20)), 0), (["{"], 1)):
        (tmp_path / "requests.jsonl").write_text("".join(f"{each}\n" for each in lines))
        found, _, errors = await run(stack, command, tmp_path)
        assert status == found, errors
        if status:
            assert "line 1: is no JSON" in errors
        else:
            results = [json.loads(text) for text in (tmp_path / "results.jsonl").read_text().splitlines()]
            assert {f"q{number}" for number in range(20)} == {result["custom_id"] for result in results}


@asynccontextmanager
async def bridge(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    """Run the web service."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "bridge:app", "--port", str(port), "--log-level", "warning"]
    child = await asyncio.create_subprocess_exec(*command, cwd=EXAMPLES / "python", env=environment(stack))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            for _ in range(600):
                try:
                    await client.get("/openapi.json")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.1)
            yield client
    finally:
        child.terminate()
        await child.wait()


def body(content: str = "What is Penstock?", **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], **fields}


async def test_the_bridge_streams_events_and_cancels_for_a_browser_that_leaves(stack: Stack) -> None:
    async with bridge(stack) as client:
        answer = await client.post("/chat", json=body(max_tokens=32))
        assert "text/event-stream" == answer.headers["content-type"].partition(";")[0]
        events = re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer.text)
        assert {"delta"} == {name for name, _ in events[:-1]}
        assert "".join(json.loads(data)["text"] for _, data in events[:-1])
        assert "finished" == events[-1][0]
        assert 1 <= json.loads(events[-1][1])["tokens"] <= 32

        wrong = await client.post("/chat", json=body(model="nobody"))
        assert (404, "MODEL_NOT_FOUND") == (wrong.status_code, wrong.json()["reason"])

        running, engine = stack.replicas[0].table, stack.engines[0]
        # So that it is in its middle when its reader leaves.
        engine._settings = engine._settings.model_copy(update={"base_ms": 50.0})
        async with client.stream("POST", "/chat", json=body(max_tokens=1_900)) as left:
            await anext(left.aiter_text())
            assert 1 == running.sequences
        await until(lambda: running.sequences == 0)
        engine._settings = engine._settings.model_copy(update={"base_ms": 1.0})


async def test_the_notebook_runs_from_top_to_bottom_and_is_kept_without_outputs(stack: Stack, tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "python" / "first_look.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [([], None)] * len(cells) == [(cell["outputs"], cell["execution_count"]) for cell in cells]
    (tmp_path / "cells.py").write_text("\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    status, out, errors = await run(stack, [sys.executable, "cells.py"], tmp_path)
    assert (0, "") == (status, errors)
    assert re.search(r"demo \d+ tokens of context", out)
    assert "INVALID_REQUEST" in out


async def test_every_example_is_told_of(stack: Stack) -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(BUILD) == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    programs = [path.name for path in EXAMPLES.glob("python/*") if path.is_file()]
    assert [] == [name for name in programs if f"`{name}`" not in text]
