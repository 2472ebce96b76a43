"""Real Locust, with real routers and replicas: on its own, with its page, with workers, and under `penstock`."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cluster.cli.main import main
from tests.support.ports import free_port
from tests.support.stack import Stack, running_stack
from tests.support.waiting import until

pytestmark = pytest.mark.slow

if importlib.util.find_spec("locust") is None:  # To import it would put gevent under every other test.
    pytest.skip("Locust is not installed", allow_module_level=True)

LOCUSTFILE = Path(__file__).resolve().parents[4] / "loadtest" / "locustfile.py"
LENGTHS = ("--prompt-tokens", "24", "--output-tokens", "12")
HELD_S = 60.0
SLO = ("--slo-ttft", "60", "--slo-itl", "60")
"""One that a busy machine meets too: one late message in twelve tokens would break the usual one."""


STEADY = {"lease_s": 60.0}
"""Of the queue: a replica that only stands still serves on."""


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path / "state", sim={"base_ms": 4.0}, queue=STEADY) as running:
        yield running


def target(stack: Stack) -> str:
    return f"127.0.0.1:{stack.routers[0].port}"


async def locust(*words: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--only-summary", *words)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)


async def ended(child: asyncio.subprocess.Process) -> str:
    said, _ = await asyncio.wait_for(child.communicate(), HELD_S)
    text = said.decode()
    assert 0 == child.returncode, text
    return text


def lines(name: str) -> list[dict[str, str]]:
    with Path(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def text_of(name: str) -> str:
    return Path(name).read_text(encoding="utf-8")


async def test_users_of_one_process_are_in_the_csv_the_console_and_the_page(stack: Stack, tmp_path: Path) -> None:
    port, prefix = str(free_port()), tmp_path / "out"
    page = f"http://127.0.0.1:{port}"
    users = ("-u", "6", "-r", "6", "--user-rate", "4", "-t", "6s", "--host", target(stack))
    # The page stays until it was read; where the test fails, it ends by itself.
    ui = ("--autostart", "--autoquit", "120", "--web-host", "127.0.0.1", "--web-port", port)
    child = await locust(*users, *ui, *LENGTHS, *SLO, "--csv", str(prefix), "ChatUser", "AgentUser")

    def fetch(path: str) -> str:
        with urllib.request.urlopen(page + path, timeout=HELD_S) as answer:  # noqa: S310  # our own page
            return str(answer.read().decode())

    async def tab() -> list[dict[str, Any]]:
        """Return the lines of the tab once there is a request, each with Locust's own bounds of its TTFT."""
        try:
            answer = json.loads(await asyncio.to_thread(fetch, "/stats/requests"))
        except OSError:
            return []
        (table,) = answer["extended_stats"]
        own = {
            each["name"]: (each["min_response_time"], each["max_response_time"])
            for each in answer["stats"]
            if each["method"] == "TTFT"
        }
        return [{**each, "locust": own.get(each["kind"])} for each in table["data"] if each["ttft_p50_ms"] != ""]

    found: list[dict[str, Any]] = []
    # A line without a finished request has no percentage yet.
    while not any(each["within"] == "100 %" for each in found):
        assert child.returncode is None
        found = await tab()
        await asyncio.sleep(0.05)
    assert '"extended_tabs": [{"key": "llm", "title": "LLM"}]' in await asyncio.to_thread(fetch, "/")
    assert '<iframe id="penstock"' in await asyncio.to_thread(fetch, "/")
    charts = ""
    while "<figure>" not in charts:
        assert child.returncode is None
        charts = await asyncio.to_thread(fetch, "/llm/charts")
        await asyncio.sleep(0.05)
    assert "6 users (" in charts
    assert "each sending 4 per second" in charts
    while "stopped" != json.loads(await asyncio.to_thread(fetch, "/stats/requests"))["state"]:
        assert child.returncode is None
        await asyncio.sleep(0.05)
    measured = {each["kind"]: (each["ttft_p50_ms"], *each["locust"]) for each in await tab() if each["locust"]}
    assert {"chat", "agent"} == set(measured)
    # Of few requests the medians differ: who has the middle of two? Each rounds, we by a hundredth of the value.
    assert all(0.98 * least - 1 <= p50 <= 1.02 * most + 1 for p50, least, most in measured.values()), measured
    child.terminate()
    text = await ended(child)

    assert "what clients saw" in text
    kinds = {line["kind"]: line for line in lines(f"{prefix}_llm_stats.csv")}
    assert {"chat", "agent", "all"} == set(kinds)
    whole = kinds["all"]
    assert int(whole["completed"]) == int(kinds["chat"]["completed"]) + int(kinds["agent"]["completed"])
    assert int(whole["completed"]) > 10
    assert 1.0 == float(whole["goodput"])
    assert 0 < float(whole["ttft_p50_ms"]) < float(whole["e2e_p50_ms"])
    own = {(line["Type"], line["Name"]): int(line["Request Count"]) for line in lines(f"{prefix}_stats.csv")}
    assert own["gRPC", "chat"] == own["TTFT", "chat"]
    assert own["", "Aggregated"] == own["gRPC", "chat"] + own["gRPC", "agent"]


async def test_workers_send_one_scenario_between_them(stack: Stack, tmp_path: Path) -> None:
    """Two workers send each planned request once, and the master has the figures of both. Locust gives its one user to
    one of them, and the test ends with its scenario.
    """
    figures, port = tmp_path / "figures.json", str(free_port())
    load = ("--scenario", "smoke", "--rate", "15", "--arrivals", "constant", "--duration", "3")
    # The last one runs on for 0.4 s.
    lengths = ("--prompt-tokens", "24", "--output-tokens", "100")
    spread = ("--headless", "--processes", "2", "--master-bind-port", port, "--master-port", port)
    child = await locust(*load, *lengths, *spread, "--host", target(stack), "--load-json", str(figures))
    await ended(child)
    found = json.loads(text_of(str(figures)))
    assert 45 == found["requests"] == found["completed"] == sum(each["ended"] for each in found["timeline"])
    assert 45 * 100 == found["output_tokens"]
    # To the last token, and not to the end of its second.
    assert 3 < found["seconds"]
    assert found["seconds"] % 1
    assert pytest.approx(45 * 100) == found["tokens_per_s"] * found["seconds"]
    assert {} == found["errors"]
    assert found["ttft_s"]["p50"] <= found["ttft_s"]["p99"] <= found["e2e_s"]["max"]
    assert found["generator"]["lag_s"]["p99"] is not None


async def test_workers_that_a_busy_machine_holds_up_send_all_the_same(stack: Stack, tmp_path: Path) -> None:
    """Both are silent for longer than Locust's three seconds, after which it would stop the test."""
    figures, port = tmp_path / "figures.json", str(free_port())
    # It is not over when they are held up, however late that is, and when they go on most of it is due.
    load = ("--scenario", "smoke", "--rate", "4.5", "--arrivals", "constant", "--duration", "10")
    spread = ("--headless", "--processes", "2", "--master-bind-port", port, "--master-port", port)
    child = await locust(*load, *LENGTHS, *spread, "--host", target(stack), "--load-json", str(figures))
    await until(lambda: stack.routers[0].pools["demo"].active, HELD_S)
    workers = psutil.Process(child.pid).children()
    for each in workers:
        each.suspend()
    await asyncio.sleep(7)
    for each in workers:
        with suppress(psutil.NoSuchProcess):
            each.resume()
    text = await ended(child)
    assert "no last report" not in text
    assert 45 == json.loads(text_of(str(figures)))["requests"]


async def test_a_test_without_one_of_its_workers_fails(stack: Stack, tmp_path: Path) -> None:
    """What a dead worker should have sent nobody else did, so the figures are of another load."""
    figures, port = tmp_path / "figures.json", str(free_port())
    load = ("--scenario", "smoke", "--rate", "15", "--arrivals", "constant", "--duration", "8", "--drain", "5")
    spread = ("--headless", "--processes", "2", "--master-bind-port", port, "--master-port", port)
    child = await locust(*load, *LENGTHS, *spread, "--host", target(stack), "--load-json", str(figures))
    await until(lambda: stack.routers[0].pools["demo"].active, HELD_S)
    # Each has a process of its own that sends.
    victim = next(each for each in psutil.Process(child.pid).children() if each.children())
    for process in (*victim.children(), victim):
        process.kill()

    said, _ = await asyncio.wait_for(child.communicate(), HELD_S)

    assert 2 == child.returncode, said.decode()
    assert b"no last report from" in said
    assert 0 < json.loads(text_of(str(figures)))["requests"] < 120


async def test_the_gate_ends_with_one_and_says_why(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "gate"
    load = ["--scenario", "smoke", "--rate", "20", "--duration", "3", "--seed", "7"]
    bounds = ["--assert", "goodput>0.5,ttft_p50<1us,completed>20"]
    words = ["loadtest", *load, *SLO, *bounds, "--target", target(stack), "--report", str(prefix), "--json"]
    assert 1 == await asyncio.to_thread(main, words)
    said = capsys.readouterr()
    assert "assertion failed: ttft_p50<1us: it was" in " ".join(said.err.split())
    assert "assertion failed: goodput" not in said.err
    found = json.loads(text_of(f"{prefix}.json"))
    assert found == json.loads(said.out)
    assert found["completed"] == found["requests"] > 30
    assert 1 == len(found["assert"]["broken"])
    sure = found["attainment"]
    assert sure["low"] < found["goodput"] == sure["part"] <= sure["high"]
    assert [1] * len(found["cluster"]) == [look["ready"] for look in found["cluster"]]
    assert len(found["cluster"]) >= 2
    page = text_of(f"{prefix}.html")
    titles = ("TTFT", "ITL", "SLO attainment", "Throughput and latency", "Queue depth", "Replicas", "Batch")
    assert all(f">{title}<" in page for title in titles)
    assert "://" not in page
    assert "Broken" in page
    assert page.index("ttft_p50&lt;1us: it was") < page.index("<h2>Latency</h2>")
    assert found["origin"]["command"].split()[0] == "penstock"
    await until(lambda: not stack.routers[0].pools["demo"].active)


async def test_the_same_load_goes_to_a_server_with_openais_api(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "http"
    load = ["--scenario", "smoke", "--rate", "20", "--duration", "3", "--seed", "7"]
    http_too, sim = {"http": {"port": 0}}, {"base_ms": 4.0}
    async with running_stack(tmp_path / "state", router=http_too, sim=sim, queue=STEADY) as stack:
        http = stack.routers[0].http
        assert http is not None
        words = ["loadtest", *load, "--report", str(prefix), "--json", "--target"]
        assert 0 == await asyncio.to_thread(main, [*words, f"http://127.0.0.1:{http.port}"]), capsys.readouterr().err
        over_http = json.loads(capsys.readouterr().out)
        assert 0 == await asyncio.to_thread(main, [*words, target(stack)]), capsys.readouterr().err
        over_grpc = json.loads(capsys.readouterr().out)
    assert {} == over_http["errors"]
    assert over_http["requests"] > 30
    for name in ("requests", "completed", "prompt_tokens", "output_tokens"):
        assert over_grpc[name] == over_http[name], name
    assert over_http["queue_s"]["p50"] is not None
    assert all(over_http[name]["p50"] > 0 for name in ("ttft_s", "e2e_s"))


async def test_a_terminated_command_leaves_no_load_behind(stack: Stack, tmp_path: Path) -> None:
    load = ["--scenario", "smoke", "--rate", "20", "--duration", "300", "--target", target(stack)]
    words = [sys.executable, "-c", "import sys; from cluster.cli.main import main; sys.exit(main())", "loadtest", *load]
    child = await asyncio.create_subprocess_exec(*words, "--report", str(tmp_path / "cut"))
    await until(lambda: stack.routers[0].pools["demo"].active, HELD_S)
    family = psutil.Process(child.pid).children(recursive=True)
    child.terminate()

    assert 143 == await asyncio.wait_for(child.wait(), HELD_S)
    assert family
    await until(lambda: not any(each.is_running() for each in family), HELD_S)


async def test_an_interrupted_run_lets_open_requests_end_and_reports_what_ran(stack: Stack, tmp_path: Path) -> None:
    prefix = tmp_path / "cut"
    load = ["--scenario", "smoke", "--rate", "20", "--duration", "300", "--target", target(stack)]
    # What a shell starts in the background is told to ignore this signal, and so are its children.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = heard + "import sys; from cluster.cli.main import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "loadtest", *load]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*words, "--report", str(prefix), stdout=pipe, stderr=pipe)
    await until(lambda: stack.routers[0].pools["demo"].active, HELD_S)
    child.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(child.communicate(), HELD_S)
    assert 130 == child.returncode, (out, err)
    assert "interrupted" in err.decode()
    found = json.loads(text_of(f"{prefix}.json"))
    assert found["interrupted"]
    assert found["completed"] == found["requests"] > 0
    assert {} == found["errors"]
    assert found["seconds"] < 100
    await until(lambda: not stack.routers[0].pools["demo"].active)


async def test_a_model_that_nobody_serves_is_named(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "loadtest",
        "--model",
        "nope",
        "--duration",
        "30",
        "--target",
        target(stack),
        "--report",
        str(tmp_path / "x"),
    ]
    assert 1 == await asyncio.to_thread(main, words)
    assert "model must be one of demo, got nope" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("duration", ["1", "10"])
def test_a_router_that_is_not_there_is_said_with_its_remedy(
    duration: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the test is shorter than the tries to connect."""
    nobody = f"127.0.0.1:{free_port()}"
    words = ["loadtest", "--rate", "5", "--duration", duration, "--target", nobody, "--report", str(tmp_path / "x")]
    assert 1 == main(words)
    said = " ".join(capsys.readouterr().err.split())
    assert f"penstock: {nobody} is not available: nothing listens there; `penstock up` starts a cluster here" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--assert", "ttft_p99<5"], "needs a unit"),
        (["--scenario", "chart"], "scenario must be one of smoke"),
        (["--rate", "fast"], "rate must be a number, got 'fast'"),
        (["--target", "http://router:80,router:50051"], "either gRPC routers or HTTP servers"),
        (["--target", "http://router:80", "--flush-interval", "0.1"], "flush-interval is for gRPC routers"),
        (["--tls-cert", "x.pem"], "a certificate and its key must be given together"),
        (["--sweep", "--sweep-repeats", "2"], "repeats must be an odd number"),
        (["--trace", "no-such-file.csv"], "no-such-file.csv"),
    ],
)
def test_wrong_flags_end_with_two_before_anything_is_sent(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["loadtest", *words])
    assert said in " ".join(capsys.readouterr().err.split())
