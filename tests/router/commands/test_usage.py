"""`penstock usage` against a real router."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main
from penstock.values.admin.costs import CostLine, GpuTime
from penstock.values.results import UsageReport
from router.commands.costs import picture_of
from router.commands.usage import _table
from tests.support.keys import Keys, bearer
from tests.support.stack import request, running_stack, sim_pool


def test_what_rounds_to_nothing_has_no_sign() -> None:
    """Lost time is what other kinds do not explain, so it may be a hair below zero."""
    kinds = {name: GpuTime(0.0, 0.0) for name in ("starting", "draining", "running", "standby")}
    idle, lost = GpuTime(100.0, 1.0), GpuTime(-1e-6, -1e-8)
    line = CostLine(datetime(2027, 1, 1), "demo", idle, requests=idle, idle=idle, lost=lost, charged=0.0, **kinds)
    assert "x lost        0.0%  0.0000" in picture_of([line]).plain


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--costs", "--tenant", "acme"], "--tenant: can't go with --costs"),
        (["--costs", "--all-tenants"], "--all-tenants: can't go with --costs"),
        (["--currency", "EUR"], "--currency: needs --format focus"),
        (["--provider", "me", "--json"], "--provider: needs --format focus"),
        (["--currency", "euro", "--format", "focus"], "must be a code of ISO 4217 such as EUR, got 'euro'"),
    ],
)
def test_a_flag_without_effect_is_refused(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["usage", *flags])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert 2 == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("period", ["day", "hour"])
def test_the_first_column_is_named_after_the_period(period: str) -> None:
    assert period == str(_table(UsageReport((), truncated=False), period).columns[0].header)


async def test_usage_is_shown_to_whom_it_belongs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path / "keys.toml")
    # A narrower table comes in parts.
    monkeypatch.setenv("COLUMNS", "160")

    async with running_stack(tmp_path, sections={"auth": {"keys_file": str(keys.path)}}) as stack:

        async def usage(key: str, *flags: str) -> tuple[int, str, str]:
            monkeypatch.setenv("PENSTOCK_API_KEY", key)
            target = f"127.0.0.1:{stack.routers[0].port}"
            status = await asyncio.to_thread(main, ["usage", "--target", target, *flags])
            captured = capsys.readouterr()
            return status, captured.out, captured.err

        for key in (keys.acme, keys.acme, keys.other):
            await stack.inference().Generate(request(max_tokens=5, ignore_eos=True), metadata=bearer(key))

        status, out, _ = await usage(keys.acme, "--json")
        [line] = json.loads(out)["lines"]
        assert (0, "acme", 2, 10) == (status, line["tenant"], line["requests"], line["output_tokens"])

        status, out, _ = await usage(keys.operator, "--all-tenants")
        assert status == 0
        rows = [row.replace("│", " ").split() for row in out.splitlines()]
        prompt = line["prompt_tokens"] // 2
        [acme], [other], [total] = ([row for row in rows if name in row] for name in ("acme", "other", "total"))
        # day, pool, tenant, requests, prompt, cached, output
        assert ("2", str(2 * prompt), "10") == (acme[3], acme[4], acme[6])
        assert ("1", str(prompt), "5") == (other[3], other[4], other[6])
        assert ("3", str(3 * prompt), "15") == (total[1], total[2], total[4])

        status, _, errors = await usage(keys.acme, "--tenant", "other")
        assert status == 1
        assert "not allowed" in errors

        with pytest.raises(SystemExit):
            await usage(keys.acme, "--first-day", "soon")


async def test_costs_add_up_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pool = {**sim_pool(base_ms=5.0), "price_per_gpu_hour": 3600.0}
    async with running_stack(tmp_path, pools={"demo": pool}) as stack:

        async def costs(*flags: str) -> str:
            target = f"127.0.0.1:{stack.routers[0].port}"
            assert 0 == await asyncio.to_thread(main, ["usage", "--target", target, "--costs", *flags])
            return capsys.readouterr().out

        await stack.inference().Generate(request(max_tokens=100, ignore_eos=True))
        lines: list[Any] = []
        while not any(line["requests"]["gpu_seconds"] for line in lines):
            lines = json.loads(await costs("--json"))["lines"]
        # One for each hour in which the test ran.
        line = next(line for line in lines if line["requests"]["gpu_seconds"])
        kinds = ("requests", "running", "idle", "standby", "starting", "draining", "lost")
        found = sum(line[kind]["gpu_seconds"] for kind in kinds)
        assert found == pytest.approx(line["total"]["gpu_seconds"], rel=0.01)
        assert line["total"]["cost"] == pytest.approx(line["total"]["gpu_seconds"])
        text = await costs()
        rows = [row.replace("│", " ").split() for row in text.splitlines()]
        [total] = [row for row in rows if row[:1] == ["total"]]
        assert abs(float(total[10].rstrip("%"))) <= 1.0
        assert "#" in text.splitlines()[-8]
        assert all(kind in text for kind in kinds)

        exported = list(csv.DictReader(io.StringIO(await costs("--format", "csv"))))
        assert {"idle", "starting"} <= {row["kind"] for row in exported}


async def test_an_export_has_tenants_and_unallocated_time_by_hour(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Keys(tmp_path / "keys.toml")
    async with running_stack(tmp_path, sections={"auth": {"keys_file": str(keys.path)}}) as stack:

        async def export(key: str, *flags: str) -> list[dict[str, str]]:
            monkeypatch.setenv("PENSTOCK_API_KEY", key)
            target = f"127.0.0.1:{stack.routers[0].port}"
            assert 0 == await asyncio.to_thread(main, ["usage", "--target", target, "--by", "hour", *flags])
            return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

        for key in (keys.acme, keys.other):
            await stack.inference().Generate(request(max_tokens=5, ignore_eos=True), metadata=bearer(key))
        rows: list[dict[str, str]] = []
        while {"acme", "other", ""} != {row["tenant"] for row in rows}:
            rows = await export(keys.operator, "--all-tenants", "--format", "csv")
        moments = (rows[0][name].replace("Z", "+00:00") for name in ("period_start", "period_end"))
        start, end = map(datetime.fromisoformat, moments)
        assert timedelta(hours=1) == end - start
        assert {"acme"} == {row["SubAccountId"] for row in await export(keys.acme, "--format", "focus")}
