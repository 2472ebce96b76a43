"""`penstock profile`: it starts an engine, measures it, keeps and prints the profile."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cluster.bootstrap.models import check_model
from cluster.cli.options import settings_from
from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from cluster.settings import PoolSettings, Settings, load_settings
from cluster.terminal.console import messages, screen
from cluster.terminal.lines import ProgressLines
from cluster.terminal.tables import add_columns, print_table
from deployments.engines.factory import build_engine
from loadtest.load.command import target_from
from loadtest.profile.cluster import profile_cluster
from loadtest.profile.drive import TIMEOUT_S, Tell, profile
from loadtest.profile.stored import Profile, folder_of_profiles
from penstock.client import AsyncClient
from router.commands.target import report_call_errors

ROUNDS = 3


def run_profile(options: argparse.Namespace) -> int:
    """Profile the engine that a pool's settings describe, or a replica of a running cluster.

    Raises:
        SettingsError: a setting is out of range, or the cluster has no single idle replica.
        EngineError: the engine did not come up, or failed.
    """
    if options.rounds < 1:
        raise SettingsError(f"rounds must be at least 1, got {options.rounds}")
    console = messages()
    if options.target:
        state_dir = Path(options.state_dir or "~/.penstock")
        folder_of_profiles(Path(options.out) if options.out else state_dir)
        with report_call_errors(options) as outcome:
            found = asyncio.run(_profile_target(options, console))
        if outcome.status:
            return outcome.status
    else:
        _check_pool(options)
        settings = settings_from(options)
        state_dir = settings.cluster.state_dir
        name = options.pool or _only_pool(settings)
        pool = settings.pools[name]
        check_model(name, pool)
        folder_of_profiles(Path(options.out) if options.out else state_dir)
        with _engine_talks_to_stderr():
            found = asyncio.run(profile_pool(pool, console, rounds=options.rounds))
    file = found.save(Path(options.out) if options.out else state_dir)
    if options.json:
        sys.stdout.write(json.dumps({"file": str(file), **asdict(found)}, indent=2) + "\n")
    else:
        show(found, screen())
        screen().print(escape(f"kept in {file}"), highlight=False, soft_wrap=True)
    return 0


def _check_pool(options: argparse.Namespace) -> None:
    """Refuse a name that no pool has. The flags would make a pool of it, which is right only for `penstock up`."""
    pools = load_settings(Path(options.settings) if options.settings else None).pools
    if options.pool and options.pool not in pools:
        near = did_you_mean(options.pool, pools)
        raise SettingsError(f"--pool must be one of {', '.join(pools)}, got {options.pool!r}{near}")


def _only_pool(settings: Settings) -> str:
    name, *others = settings.pools
    if others:
        raise SettingsError(f"--pool must say which pool is measured: {', '.join(settings.pools)}")
    return name


def served(options: argparse.Namespace) -> str:
    """Return the name by which a running cluster serves the pool; empty is the only one."""
    if options.pool and options.model and options.pool != options.model:
        raise SettingsError(
            f"--pool and --model both name what a cluster serves, and must be the same, got {options.pool!r} and "
            f"{options.model!r}"
        )
    return options.pool or options.model or ""


async def _profile_target(options: argparse.Namespace, console: Console) -> Profile:
    target = target_from(argparse.Namespace(**{**vars(options), "request_timeout": TIMEOUT_S, "flush_interval": 0.0}))
    client = AsyncClient(
        target.routers,
        tls=target.connection().tls,
        api_key=target.api_key or None,
        allow_plaintext_key=target.allow_plaintext_key,
        timeout=TIMEOUT_S,
    )
    with _shown(console) as tell:
        async with client:
            return await profile_cluster(client, served(options), rounds=options.rounds, tell=tell)


@contextmanager
def _engine_talks_to_stderr() -> Iterator[None]:
    """Keep standard output for the result. An engine and its processes log there."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


async def profile_pool(pool: PoolSettings, console: Console, *, rounds: int = ROUNDS) -> Profile:
    """Start a pool's engine, profile it, stop it."""
    with _shown(console) as tell:
        engine = build_engine(pool)
        try:
            identity = await engine.start()
            return await profile(engine, identity, name=pool.model, rounds=rounds, tell=tell)
        finally:
            await engine.close()


@contextmanager
def _shown(console: Console) -> Iterator[Tell]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task, lines = progress.add_task("starting", total=None), ProgressLines(console)

        def tell(text: str, done: int, total: int) -> None:
            progress.update(task, description=text, completed=done, total=total)
            lines(f"{text}, {done} of {total}")

        yield tell


def show(found: Profile, console: Console) -> None:
    console.print(
        f"[bold]{escape(found.model)}[/] on {found.tensor_parallel} x {escape(found.hardware)} ({found.precision}): "
        f"a step takes {1e3 * found.a:.3g} ms + {1e6 * found.b:.3g} us per token + {1e6 * found.g:.3g} us per "
        "context token",
        highlight=False,
    )
    table = Table(title="Held-out points", title_justify="left")
    add_columns(table, "batch", "prompt", "output", "predicted ms", "measured ms", "error")
    for each in found.checks:
        table.add_row(
            str(each.batch),
            str(each.prompt_tokens),
            str(each.output_tokens),
            f"{1e3 * each.predicted_s:.3g}",
            f"{1e3 * each.measured_s:.3g}",
            f"{each.error:+.1%}",
        )
    print_table(table, console)
    console.print(
        f"Before the first token {1e3 * found.overhead_s:.3g} ms beside its step, and {found.overhead_steps:.2g} more "
        "steps where others decode",
        highlight=False,
    )
    console.print(
        f"Mean error {found.error:.1%} on held-out points, {found.fit_error:.1%} (median) on {found.samples:,} fitted "
        f"steps; KV cache {found.kv_tokens:,} tokens; took {found.seconds:.0f} s. Good for batches of "
        f"{found.batches[0]} to {found.batches[1]} and {found.lengths[0]} to {found.lengths[1]} tokens.",
        highlight=False,
    )
