"""`penstock console` as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from cluster.trust.verifying import trusting
from tests.router.console.conftest import Console
from tests.router.server.test_tls import shown_by
from tests.support.certificates import LOOPBACK, Authority
from tests.support.terminal import PENSTOCK
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OWN = {"X-Penstock-Console": "1"}


@asynccontextmanager
async def started(folder: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    ready = folder / "ready.json"
    command = [*PENSTOCK, "console", "--port", "0", "--ready-file", str(ready), *flags]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        await until(ready.exists)
        scheme = "https" if "--https-cert" in flags else "http"
        yield process, f"{scheme}://127.0.0.1:{json.loads(ready.read_text())['port']}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_it_serves_a_cluster_says_where_and_ends_by_sigterm(console: Console, tmp_path: Path) -> None:
    target = f"127.0.0.1:{console.stack.routers[0].port}"
    async with started(tmp_path, "--target", target) as (process, url):
        async with aiohttp.ClientSession(headers=OWN) as session:
            async with session.get(f"{url}/api/status") as answer:
                assert ["demo", "other", "tools"] == [pool["name"] for pool in (await answer.json())["status"]["pools"]]
            async with session.get(f"{url}/api/about") as answer:
                assert target == (await answer.json())["target"]
        process.send_signal(signal.SIGTERM)
        assert 0 == await process.wait()
        assert process.stdout is not None
        assert f"console of {target}: {url}" in (await process.stdout.read()).decode()


async def test_an_address_of_ipv6_is_shown_whole(tmp_path: Path) -> None:
    async with started(tmp_path, "--target", "[fd00::1]:50051") as (process, url):
        assert process.stdout is not None
        assert f"console of [fd00::1]:50051: {url}\n" == (await process.stdout.readline()).decode()


async def test_it_waits_for_routers_that_are_away(tmp_path: Path) -> None:
    async with (
        started(tmp_path, "--target", "127.0.0.1:1") as (_process, url),
        aiohttp.ClientSession(headers=OWN) as session,
        session.get(f"{url}/api/models") as answer,
    ):
        assert answer.status in (503, 504)
        assert "127.0.0.1:1" in (await answer.json())["error"]


async def test_a_key_never_crosses_a_network_in_the_clear(tmp_path: Path) -> None:
    key = {**OWN, "X-Penstock-Key": "psk-any"}
    for flags, expected in (((), 403), (("--allow-plaintext-key",), 200), (("--tls",), 200)):
        (tmp_path / "ready.json").unlink(missing_ok=True)
        async with (
            started(tmp_path, "--target", "router.invalid:50051", *flags) as (_process, url),
            aiohttp.ClientSession(headers=key) as session,
            session.get(f"{url}/api/about") as answer,
        ):
            assert expected == answer.status


@pytest.mark.parametrize(
    ("flags", "expected"), [((), (503, 504)), (("--name", "console.example.com"), (401,))], ids=["local", "named"]
)
async def test_behind_a_proxy_nobody_acts_as_the_console(
    tmp_path: Path, flags: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    """A proxy on this machine calls the console from here, and lets users of other machines in."""
    certificate, key = Authority("ours").issue("console").write(tmp_path, "console")
    shown = ("--tls-cert", str(certificate), "--tls-key", str(key))
    async with (
        started(tmp_path, "--target", "127.0.0.1:1", *shown, *flags) as (_process, url),
        aiohttp.ClientSession(headers=OWN) as session,
        session.get(f"{url}/api/models") as answer,
    ):
        assert answer.status in expected


async def test_the_page_comes_over_tls_and_a_new_certificate_counts_soon(tmp_path: Path) -> None:
    """Files are looked at once a second at most."""
    authority = Authority()
    cert, key = authority.issue("first", *LOOPBACK).write(tmp_path, "page")
    trust = trusting(authority.write(tmp_path))
    flags = ("--target", "127.0.0.1:1", "--https-cert", cert, "--https-key", key)
    async with started(tmp_path, *flags) as (_process, url):

        async def shown() -> str:
            connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
            async with (
                aiohttp.ClientSession(headers={**OWN, "Origin": url}, connector=connector) as session,
                session.get(f"{url}/api/about") as answer,
            ):
                assert 200 == answer.status
            return await asyncio.to_thread(shown_by, int(url.rpartition(":")[2]))

        assert "first" == await shown()
        authority.issue("second", *LOOPBACK).write(tmp_path, "page")

        async def is_new() -> bool:
            return "second" == await shown()

        await until(is_new)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--https-cert", "tls.crt"), "--https-cert and --https-key must be given together"),
        (("--https-cert", "no.crt", "--https-key", "no.key"), "--https-cert: no.crt cannot be read"),
    ],
)
async def test_files_of_tls_that_are_missing_are_named(flags: tuple[str, ...], complaint: str) -> None:
    command = [*PENSTOCK, "console", "--port", "0", *flags]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert 0 != done.returncode
    assert complaint in done.stderr


async def test_a_port_that_is_taken_is_named(console: Console) -> None:
    command = [*PENSTOCK, "console", "--port", str(console.port)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert 1 == done.returncode
    assert f"port 127.0.0.1:{console.port} can't be bound" in done.stderr


async def test_penstock_up_opens_it_and_starts_it_again(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [
        *(
            *PENSTOCK,
            "up",
            "--engine",
            "sim",
            "--port",
            "0",
            "--http-port",
            "0",
            "--state-dir",
            str(tmp_path / "state"),
        ),
        *("--ready-file", str(ready), "--console", "0", "--until-eof"),
    ]
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
    try:
        await until(ready.exists, 60.0)
        url = json.loads(ready.read_text())["console"]

        async def serves() -> bool:
            try:
                async with aiohttp.ClientSession(headers=OWN) as session, session.get(f"{url}/api/status") as answer:
                    return answer.status == 200
            except aiohttp.ClientConnectionError:
                return False

        assert await serves()
        first = json.loads((tmp_path / "state" / "run" / "console.json").read_text())["pid"]
        os.kill(first, signal.SIGKILL)
        await until(serves, 30.0)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
    assert 0 == process.returncode
    assert not await serves()
