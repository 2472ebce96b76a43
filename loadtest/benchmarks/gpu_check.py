"""`make gpu-check`: checks of the engine adapter that need a machine with NVIDIA GPUs.

It starts one vLLM engine through Penstock's own adapter. It checks that the live batch limit holds with asynchronous
scheduling, that greedy output repeats, that constraints and log probabilities work, that an abort frees its slot, and
that no engine process is left. It also measures the frontend's CPU time per token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from cluster.models import GenerationSpec, PromptLogprobs, SequenceEnd
from cluster.settings import PoolSettings
from deployments.engines.base import Engine
from deployments.engines.factory import build_engine
from loadtest.benchmarks.ending import end
from penstock.models import ConstraintKind, FinishReason, PositionLogprobs, SamplingParams, StructuredOutput

STREAMS = 64
TOKENS = 128
LIMIT = 8


class Collected:
    """Sink that keeps everything."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.logprobs: list[PositionLogprobs] = []
        self.begun = asyncio.Event()
        self.end: asyncio.Future[SequenceEnd] = asyncio.get_running_loop().create_future()

    def on_prompt_logprobs(self, found: PromptLogprobs) -> None:
        """Ignore what nobody asks for."""

    def on_tokens(self, token_ids: Sequence[int], text: str, logprobs: Sequence[PositionLogprobs] | None) -> None:
        self.begun.set()
        self.ids.extend(token_ids)
        self.text += text
        self.logprobs.extend(logprobs or ())

    def on_end(self, end: SequenceEnd) -> None:
        self.end.set_result(end)


Check = Callable[[Engine], Awaitable[tuple[bool, str]]]


async def run(engine: Engine, name: str, **sampling: Any) -> Collected:
    """Generate one sequence to its end."""
    sink = Collected()
    params = SamplingParams(**{"max_tokens": 32, "temperature": 0.0, "ignore_eos": True, **sampling})
    await engine.submit(name, GenerationSpec([5, 6, 7, 8, 9], params), sink)
    await sink.end
    return sink


async def greedy_repeats(engine: Engine) -> tuple[bool, str]:
    """Check that greedy output of the same prompt repeats when it runs alone."""
    one, other = await run(engine, "g1"), await run(engine, "g2")
    return one.ids == other.ids, f"{len(one.ids)} tokens"


async def logprobs_come(engine: Engine) -> tuple[bool, str]:
    """Check that every token has its log probability and the requested alternatives."""
    sink = await run(engine, "l1", logprobs=3)
    return len(sink.logprobs) == len(sink.ids) and all(p.chosen.logprob <= 0 for p in sink.logprobs), "3 alternatives"


async def constraint_holds(engine: Engine) -> tuple[bool, str]:
    """Check that a choice constraint is obeyed."""
    structured = StructuredOutput(ConstraintKind.CHOICE, choices=("alpha", "beta"))
    sink = await run(engine, "c1", structured=structured, ignore_eos=False, temperature=1.0)
    return sink.text in ("alpha", "beta"), sink.text


async def limit_holds(engine: Engine) -> tuple[bool, str]:
    """Check that never more sequences run than the live limit allows."""
    before = engine.stats().batch_limit
    applied, _ = await engine.set_batch_limits(LIMIT, None)
    most = 0
    tasks = [asyncio.create_task(run(engine, f"b{i}", max_tokens=TOKENS)) for i in range(STREAMS)]
    while not all(task.done() for task in tasks):
        most = max(most, engine.stats().running)
        await asyncio.sleep(0.002)
    await engine.set_batch_limits(before, None)
    return applied == LIMIT and 0 < most <= LIMIT, f"limit {applied}, most running {most}"


async def abort_frees(engine: Engine) -> tuple[bool, str]:
    """Check that an aborted sequence ends and its slot is free."""
    sink = Collected()
    await engine.submit("a1", GenerationSpec([5, 6, 7], SamplingParams(max_tokens=2_000, ignore_eos=True)), sink)
    await sink.begun.wait()
    began = time.perf_counter()
    await engine.abort(["a1"])
    taken = time.perf_counter() - began
    end = await sink.end
    return end.reason is FinishReason.CANCELLED and engine.stats().running == 0, f"{1e3 * taken:.1f} ms"


async def front_cost(engine: Engine) -> tuple[bool, str]:
    """Measure the frontend's CPU time per token. It has no bar."""
    process = psutil.Process()
    cpu, began = sum(process.cpu_times()[:2]), time.perf_counter()
    sinks = await asyncio.gather(*(run(engine, f"f{i}", max_tokens=TOKENS) for i in range(STREAMS)))
    seconds, tokens = time.perf_counter() - began, sum(len(sink.ids) for sink in sinks)
    used = 1e6 * (sum(process.cpu_times()[:2]) - cpu) / tokens
    return True, f"{tokens / seconds:,.0f} tokens/s, {used:.1f} us of front CPU per token"


CHECKS: tuple[Check, ...] = (greedy_repeats, logprobs_come, constraint_holds, limit_holds, abort_frees, front_cost)


async def check_all(options: argparse.Namespace, console: Console) -> list[tuple[str, bool, str]]:
    """Run every check on one engine."""
    pool = PoolSettings(model=options.model, tensor_parallel_size=options.tp)
    engine = build_engine(pool)
    results: list[tuple[str, bool, str]] = []
    began = time.monotonic()
    with console.status("starting the engine"):
        identity = await engine.start()
    results.append(("starts", "cpu" not in identity.hardware, f"{identity.group_id}, {time.monotonic() - began:.0f} s"))
    children = psutil.Process().children(recursive=True)
    try:
        for check in CHECKS:
            with console.status(check.__name__):
                ok, text = await check(engine)
            results.append((check.__name__, ok, text))
    finally:
        await engine.close()
    _gone, alive = psutil.wait_procs(children, timeout=20)
    results.append(("no_process_left", not alive, f"{len(children)} had run"))
    return results


def main() -> int:
    """Run the checks. Exit with 1 if one failed."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    results = asyncio.run(check_all(options, console))
    table = Table("check", "result", "detail")
    for name, ok, text in results:
        table.add_row(name, "[green]ok[/]" if ok else "[red]FAILED[/]", text)
    console.print(table)
    if options.json:
        rows = [{"check": name, "ok": ok, "detail": text} for name, ok, text in results]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(ok for _, ok, _ in results) else 1


if __name__ == "__main__":
    end("gpu-check", main)
