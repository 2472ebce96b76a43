"""The whole path on real parts: client, router, Redis, Ray Serve, vLLM with one and two ranks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from cluster.ray_serve.config import app_name
from cluster.settings import AuthSettings
from cluster.trust.secret import ClusterSecret
from deployments.demo_model import known_answers
from penstock.client import (
    AsyncClient,
    Client,
    Delta,
    Finished,
    FinishReason,
    InvalidArgumentError,
    Message,
    Resumed,
    Sampling,
    Started,
    grammar,
    json_schema,
    one_of,
    regex,
)
from router.build import build_router
from router.identity.new_key import KeyPlan, add_key
from router.stores import redis_factory
from tests.integration.conftest import require_program
from tests.support.running import ClusterThread
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.engine, pytest.mark.timeout(420)]

GREEDY = Sampling(temperature=0.0, max_tokens=96)


@pytest.fixture(scope="module")
def client(engines: ClusterThread) -> Client:
    return Client([engines.target(0), engines.target(1)])


def replica_processes(pool: str) -> list[psutil.Process]:
    """Return the Serve replica actors of a pool. Ray rewrites their titles with every call, so one may be missed."""
    title = f"ServeReplica:{app_name(pool)}:"
    return [p for p in psutil.process_iter() if any(title in part for part in _cmdline(p))]


def ranks() -> list[str]:
    """Return the names of workers that are one of several, of all pools."""
    # Not those of engines that other tests have in this very process.
    rays = (each for each in psutil.Process().children(recursive=True) if each.name() == "raylet")
    # Titles are padded to what was there before.
    names = (" ".join(_cmdline(each)).strip() for ray in rays for each in ray.children(recursive=True))
    return sorted(name for name in names if name.startswith("VLLM::Worker_TP"))


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize("question", ["What is Penstock?", "What is the KV cache?"])
def test_the_demo_model_answers_with_known_text(client: Client, question: str) -> None:
    events = list(client.stream("demo", [Message("user", question)], GREEDY, timeout=60))
    text = "".join(event.text for event in events if isinstance(event, Delta))

    assert known_answers()[question] == text.strip()
    assert isinstance(events[0], Started)
    end = events[-1]
    assert isinstance(end, Finished)
    assert FinishReason.STOP is end.choices[0].finish_reason
    [attempt] = end.receipt.attempts
    assert attempt.queue_time >= 0
    assert attempt.prefill_time > 0
    assert attempt.decode_time > 0
    assert attempt.gpu_seconds > 0
    assert end.usage.output_tokens == attempt.output_tokens


def test_two_ranks_generate_and_repeat_themselves(client: Client) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)
    one = client.generate("wide", [5, 6, 7, 8], sampling, timeout=60)
    other = client.generate("wide", [5, 6, 7, 8], sampling, timeout=60)

    assert 24 == one.usage.output_tokens
    assert one.choices[0].token_ids == other.choices[0].token_ids
    # No other pool has any.
    until_sync(lambda: ["VLLM::Worker_TP0", "VLLM::Worker_TP1"] == ranks())


@pytest.mark.parametrize(
    ("constraint", "accepts"),
    [
        pytest.param(one_of("red", "green"), lambda text: text in ("red", "green"), id="choice"),
        pytest.param(regex("[0-9]{3}-[a-f]{2}"), lambda text: re.fullmatch("[0-9]{3}-[a-f]{2}", text), id="regex"),
        pytest.param(
            # An enumeration: where a schema leaves white space free, an untrained model may never stop writing it.
            json_schema({"enum": [{"ok": True}, {"ok": False}]}),
            lambda text: isinstance(json.loads(text)["ok"], bool), id="json schema",
        ),
        pytest.param(grammar('root ::= "yes" | "no"'), lambda text: text in ("yes", "no"), id="grammar"),
    ],
)  # fmt: skip
def test_constrained_output_obeys(client: Client, constraint: object, accepts: object) -> None:
    sampling = Sampling(temperature=1.0, seed=4, max_tokens=64, structured=constraint)  # type: ignore[arg-type]
    text = client.generate("demo", "Answer: ", sampling, timeout=120).text
    assert accepts(text), text  # type: ignore[operator]


def test_all_sampling_parameters_reach_the_engine(client: Client) -> None:
    base = client.generate("demo", "Tell me", Sampling(temperature=0.0, max_tokens=16, ignore_eos=True), timeout=60)
    first = base.choices[0].token_ids[0]
    banned = client.generate(
        "demo",
        "Tell me",
        Sampling(temperature=0.0, max_tokens=1, ignore_eos=True, logit_bias={first: -100.0}),
        timeout=60,
    )
    assert first != banned.choices[0].token_ids[0]
    seeded = Sampling(
        temperature=2.0, top_p=0.9, top_k=50, min_p=0.01, presence_penalty=0.2, frequency_penalty=0.1,
        repetition_penalty=1.1, seed=11, min_tokens=8, max_tokens=16, logprobs=3, n=2,
    )  # fmt: skip
    one, other = (client.generate("demo", "Tell me", seeded, timeout=60) for _ in range(2))
    assert [choice.token_ids for choice in one.choices] == [choice.token_ids for choice in other.choices]
    assert one.choices[0].token_ids != one.choices[1].token_ids
    assert all(len(position.top) >= 3 for position in one.choices[0].logprobs)
    assert 8 <= len(one.choices[0].token_ids) <= 16


def test_a_repeated_prefix_is_found_in_the_cache(client: Client) -> None:
    prompt = [9 + number % 400 for number in range(200)]
    client.generate("demo", prompt, Sampling(temperature=0.0, max_tokens=2), timeout=60)
    again = client.generate("demo", prompt, Sampling(temperature=0.0, max_tokens=2), timeout=60)
    assert again.usage.cached_tokens >= 160


def test_a_shared_prefix_is_found_through_either_router(client: Client, engines: ClusterThread) -> None:
    """What one router started is cached for the other one; the receipt says so."""
    shared = [7 + number % 300 for number in range(256)]
    sampling = Sampling(temperature=0.0, max_tokens=2, ignore_eos=True)
    cached = []
    for router in (0, 1):
        with Client(engines.target(router)) as own:
            answer = own.generate("demo", [*shared, 5 + router], sampling, timeout=60)
        [attempt] = answer.receipt.attempts
        cached.append(attempt.cached_tokens)

    assert 0 == cached[0]
    assert cached[1] >= 224


def test_tenants_share_no_cached_prefix(client: Client, engines: ClusterThread, tmp_path: Path) -> None:
    """The salt that routers mint reaches vLLM: a router whose callers are another tenant finds nothing cached."""
    prompt = [8 + number % 350 for number in range(200)]
    sampling = Sampling(temperature=0.0, max_tokens=2, ignore_eos=True)
    client.generate("demo", prompt, sampling, timeout=60)
    assert client.generate("demo", prompt, sampling, timeout=60).usage.cached_tokens > 0

    keys_file = tmp_path / "keys.toml"
    key = add_key(keys_file, KeyPlan("globex"))
    assert 0 == asyncio.run(_cached_tokens_with(key, keys_file, engines, prompt, sampling))


async def _cached_tokens_with(
    key: str, keys_file: Path, engines: ClusterThread, prompt: list[int], sampling: Sampling
) -> int:
    """Ask a router of its own that knows tenants by key."""
    settings = engines.cluster.settings
    settings = settings.model_copy(update={"auth": AuthSettings(keys_file=keys_file)})
    secret = ClusterSecret.from_file(settings.cluster.secret_file or settings.cluster.state_dir / "secret")
    router = build_router(settings, secret, redis_factory(settings), port=0, metrics_port=0)
    await router.start()
    try:
        await asyncio.wait_for(router.pools["demo"].replicas.first_seen.wait(), 20)
        async with AsyncClient(f"127.0.0.1:{router.port}", api_key=key) as own:
            return (await own.generate("demo", prompt, sampling, timeout=60)).usage.cached_tokens
    finally:
        await router.stop(drain_s=1.0)


def test_a_request_the_engine_refuses_harms_nobody(client: Client) -> None:
    broken = Sampling(max_tokens=8, structured=grammar("root ::= ("))
    with pytest.raises(InvalidArgumentError):
        client.generate("demo", "x", broken, timeout=60)
    assert client.generate("demo", "x", Sampling(max_tokens=2, ignore_eos=True), timeout=60).usage.output_tokens == 2


def test_seeded_sampling_of_long_prompts_does_not_kill_a_cpu_engine(client: Client) -> None:
    """A seeded request whose prefill is split kills vLLM's CPU engine; ours never splits one."""

    def one(seed: int) -> int:
        sampling = Sampling(temperature=1.0, seed=seed, max_tokens=8, ignore_eos=True)
        return client.generate(
            "demo", [5 + (seed + i) % 400 for i in range(700)], sampling, timeout=120
        ).usage.output_tokens

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [8] * 8 == list(pool.map(one, range(8)))


def test_a_cancel_frees_the_slot_of_a_real_engine(client: Client, engines: ClusterThread) -> None:
    stream = client.stream("demo", "go", Sampling(temperature=1.0, max_tokens=1500, ignore_eos=True), timeout=60)
    events = [next(stream) for _ in range(4)]
    assert any(isinstance(event, Delta) for event in events)
    client.cancel(request_id=stream.request_id, timeout=10)
    end = list(stream)[-1]
    assert isinstance(end, Finished)
    assert FinishReason.CANCELLED is end.choices[0].finish_reason
    until_sync(lambda: next(p for p in client.cluster_status().pools if p.name == "demo").running == 0)


def test_a_client_in_another_language_proves_the_contract(engines: ClusterThread) -> None:
    node, npm = require_program("node"), require_program("npm")
    folder = Path(__file__).parents[2] / "node"
    installed = subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True)
    assert 0 == installed.returncode, installed.stderr
    done = subprocess.run(
        [node, "--test"],
        cwd=folder,
        env={**os.environ, "PENSTOCK_TARGET": engines.target(), "PENSTOCK_MODEL": "demo"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def test_the_command_line_streams_and_reports(engines: ClusterThread) -> None:
    command = [sys.executable, "-m", "cluster.cli.main"]
    target = ["--target", engines.target()]
    answer = subprocess.run(
        [*command, "generate", *target, "--model", "demo", "--chat", "--temperature", "0", "What is Penstock?"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert known_answers()["What is Penstock?"] in answer.stdout
    assert "receipt" in answer.stderr
    lines = subprocess.run(
        [*command, "generate", *target, "--model", "demo", "--json", "--max-tokens", "3", "Hi"],
        capture_output=True, text=True, timeout=60,
    ).stdout.splitlines()  # fmt: skip
    assert "finished" == json.loads(lines[-1])["event"]
    status = subprocess.run([*command, "status", *target, "--json"], capture_output=True, text=True, timeout=60).stdout
    assert {"demo", "dozing", "elastic", "toy", "wide"} == {pool["name"] for pool in json.loads(status)["pools"]}
    wrong = subprocess.run(
        [*command, "generate", *target, "--model", "demo", "--temperature", "9", "Hi"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert 2 == wrong.returncode
    assert "--temperature" in wrong.stderr


def test_replica_count_follows_the_scale_endpoint_without_a_failed_request(engines: ClusterThread) -> None:
    """Simulated replicas in real Serve: 2 -> 3 -> 1 under load, every request answered."""
    serve = engines.cluster.serve
    assert serve is not None
    failures: list[Exception] = []
    stop = False

    def load() -> None:
        with Client(engines.target()) as own:
            while not stop:
                try:
                    own.generate("toy", "x", Sampling(max_tokens=20, ignore_eos=True), timeout=30)
                except Exception as error:  # noqa: BLE001 - every failure counts
                    failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()

    def ready() -> int:
        with Client(engines.target()) as own:
            return own.get_model("toy").ready_replicas

    try:
        engines.run(serve.scale("toy", 3))
        until_sync(lambda: ready() == 3, 120)
        engines.run(serve.scale("toy", 1))
        until_sync(lambda: ready() == 1, 120)
    finally:
        stop = True
        for thread in threads:
            thread.join()
    assert [] == failures


def test_no_engine_process_survives_a_killed_replica_and_serve_brings_a_new_one(
    engines: ClusterThread, client: Client
) -> None:
    """A stream that ran there goes on at the new one. Last in this file: it costs the pool its replica."""
    prompt, long = [5, 6, 7, 8], Sampling(temperature=0.0, max_tokens=700, ignore_eos=True)
    plain = client.generate("wide", prompt, long, timeout=60)
    stream = client.stream("wide", prompt, long, timeout=300)
    events = []
    while sum(isinstance(event, Delta) for event in events) < 20:
        events.append(next(stream))
    found: list[psutil.Process] = []
    until_sync(lambda: found or found.extend(replica_processes("wide")) or found)
    [victim] = found
    family = victim.children(recursive=True)
    assert family
    before = client.get_model("wide").ready_replicas
    os.kill(victim.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs([victim, *family], timeout=60)
    assert [] == alive
    assert 1 == before
    until_sync(lambda: replica_processes("wide") != [] and client.get_model("wide").ready_replicas == 1, 300)
    events += list(stream)
    [resumed] = [event for event in events if isinstance(event, Resumed)]
    end = events[-1]
    assert isinstance(end, Finished)
    assert 20 <= resumed.offset < 700
    assert 700 == end.usage.output_tokens
    assert [resumed.replica_id] == [attempt.replica_id for attempt in end.receipt.attempts[1:]]
    assert end.receipt.exact
    tokens = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
    assert plain.choices[0].token_ids == tuple(tokens)
    sampling = Sampling(temperature=0.0, max_tokens=4, ignore_eos=True)
    assert 4 == client.generate("wide", [5, 6, 7, 8], sampling, timeout=60).usage.output_tokens


def test_the_scaled_out_path_is_shared_by_both_routers(engines: ClusterThread) -> None:
    async def both() -> set[str]:
        routers = set()
        for number in (0, 1):
            async with AsyncClient(engines.target(number)) as own:
                reply = await own.generate("toy", "x", Sampling(max_tokens=2), timeout=30)
                routers.add(reply.receipt.router_id)
        return routers

    assert 2 == len(asyncio.run(both()))
