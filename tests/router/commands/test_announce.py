"""`penstock announce`, over a real router."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cluster.cli.main import main
from router.commands.announce import rate_text
from tests.support.stack import Stack, running_stack, sim_pool

pytestmark = pytest.mark.asyncio(loop_scope="module")
Captured = pytest.CaptureFixture[str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    pool = {**sim_pool(), "autoscale": {"mode": "advisory", "max_replicas": 4}}
    async with running_stack(tmp_path_factory.mktemp("stack"), replicas=0, pools={"demo": pool}) as running:
        yield running


async def announce(stack: Stack, capsys: Captured, *words: str) -> tuple[int, str]:
    """Return the command's exit status, and what it printed."""
    words = ("announce", *words, "--target", f"127.0.0.1:{stack.routers[0].port}")
    status = await asyncio.to_thread(main, list(words))
    said = capsys.readouterr()
    return status, said.out + said.err


async def test_load_is_announced_shown_and_withdrawn(stack: Stack, capsys: Captured) -> None:
    flags = ("demo", "--requests-per-second", "40", "--start", "30m", "--end", "2h", "--id", "nine", "--json")
    status, said = await announce(stack, capsys, *flags)
    [told] = json.loads(said)
    assert (0, "nine", 40.0, None, 1.0) == (
        *(status, told["id"], told["requests_per_second"], told["tokens_per_second"], told["counts_for"]),
    )
    status, said = await announce(stack, capsys)
    assert (0, True, True) == (status, "40 requests/s" in said, "nine" in said)
    assert (0, "withdrawn: nine\n") == await announce(stack, capsys, "--withdraw", "nine")
    assert (0, "nothing is announced\n") == await announce(stack, capsys)


@pytest.mark.parametrize(
    ("rate", "expected"), [(20_000.0, "20,000"), (1e6, "1,000,000"), (40.0, "40"), (0.5, "0.5"), (33.333333, "33.33")]
)
async def test_a_rate_is_written_without_an_exponent(rate: float, expected: str) -> None:
    assert expected == rate_text(rate)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--tokens-per-second", "5"), "--end: an announcement needs its end"),
        (("--start", "30m"), "--start: need --requests-per-second or --tokens-per-second"),
        (("--tokens-per-second", "5", "--end", "1h", "--all-tenants"), "is announced for the key's own tenant"),
        (("--tokens-per-second", "5", "--end", "soon"), "--end: must be like 90d"),
        (("--requests-per-second", "1e9", "--end", "1h"), "--requests-per-second: must be above 0 and at most 100000"),
        (("--withdraw", "none"), "no announcement 'none'"),
    ],
)
async def test_a_wrong_flag_is_named(stack: Stack, capsys: Captured, words: tuple[str, ...], expected: str) -> None:
    status, said = await announce(stack, capsys, *words)
    assert 0 < status
    assert expected in " ".join(said.split())
