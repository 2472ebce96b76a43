"""The replay of a part of a recorded load through the whole stack. The result is written as a recorded run.

`penstock simulate --validate DIR` then fits the simulator to a part of the run and predicts the rest. Router, queue,
links and engine are real here, so the prediction's error comes from parts that the simulator leaves out. Times are the
client's, from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from cluster.bootstrap.local import LocalCluster
from cluster.settings import EngineKind, Settings, load_settings
from cluster.terminal.console import screen
from loadtest.benchmarks.data import check_there, data_folder
from loadtest.benchmarks.drive import Served, drive
from loadtest.benchmarks.ending import end
from loadtest.traces import TraceRequest, read_trace
from penstock.client.aio import AsyncClient

POOL = "demo"
TRACE = "azure_llm_2023_conv.csv"
MAX_NUM_SEQS, MAX_MODEL_LEN, BLOCK = 64, 2048, 32
KV_TOKENS = 1_000_000
"""KV cache so large that nothing is preempted. The run is kept far from that."""
SHORTER = 8
"""Divisor of prompts and outputs, because the demo model reads 2,048 tokens."""
LEAST = 8
WARM_UP = 20


def load_of(trace: Sequence[TraceRequest], count: int, rate: float) -> list[TraceRequest]:
    """Take the first requests of a trace, shorter and at another rate. Gaps keep their proportions."""
    taken = list(trace[:count])
    pace = (len(taken) / rate) / max(1e-9, taken[-1].arrival_s - taken[0].arrival_s)
    return [
        replace(
            each,
            number=number,
            arrival_s=pace * (each.arrival_s - taken[0].arrival_s),
            prompt_tokens=max(LEAST, each.prompt_tokens // SHORTER),
            output_tokens=max(LEAST, each.output_tokens // SHORTER),
            block_ids=(),
            block_tokens=0,
        )
        for number, each in enumerate(taken)
    ]


def settings_for(engine: EngineKind, folder: Path) -> Settings:
    """Describe the cluster: one replica of the demo model, whose batch limit stays."""
    pool: dict[str, Any] = {"engine": engine.value, "model": "demo", "control": {"mode": "off"}}
    pool["vllm"] = {
        "max_num_seqs": MAX_NUM_SEQS,
        "max_num_batched_tokens": MAX_MODEL_LEN,
        "enable_prefix_caching": False,
    }
    flags = {"cluster": {"state_dir": str(folder)}, "router": {"port": 0}, "pools": {POOL: pool}}
    return load_settings(flags=flags, environ={})


def write_run(folder: Path, requests: Sequence[TraceRequest], served: Sequence[Served]) -> int:
    """Write a run folder. Return the number of requests that ended well and are in it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "input_toks": request.prompt_tokens,
            "output_toks": seen.tokens,
            "queued_ts": seen.due,
            "first_token_ts": seen.first,
            "last_token_ts": seen.last,
        }
        for request, seen in zip(requests, served, strict=True)
        if seen.tokens
    ]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    kwargs = {"max_num_seqs": MAX_NUM_SEQS, "max_num_batched_tokens": MAX_MODEL_LEN, "max_model_len": MAX_MODEL_LEN}
    meta = {"engine_kwargs": kwargs, "kv_cache": {"block_size": BLOCK, "num_kv_tokens": KV_TOKENS}}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    return len(rows)


async def record(
    engine: EngineKind, requests: Sequence[TraceRequest], state: Path, out: Path, console: Console
) -> None:
    """Start a cluster, serve the requests, write the run."""

    def tell(step: str, text: str) -> None:
        console.print(escape(f"{step}: {text}"), highlight=False)

    async with LocalCluster(settings_for(engine, state), tell) as cluster, AsyncClient(cluster.target) as client:
        await drive(client, POOL, requests[:WARM_UP])
        served, failed = await drive(client, POOL, requests)
    written = write_run(out, requests, served)
    late = float(np.percentile([each.late for each in served], 99))
    console.print(
        f"{written} requests in {escape(str(out))}, {failed} failed; the generator was {1e3 * late:.1f} ms late (p99). "
        f"Now: penstock simulate --validate {escape(str(out))} --fit 1-{written // 3}",
        highlight=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="record-run", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the run")
    parser.add_argument("--engine", choices=[each.value for each in EngineKind], default="vllm")
    parser.add_argument("--trace", type=Path, default=data_folder() / TRACE, help="default %(default)s")
    parser.add_argument("--requests", type=int, default=300, help="default %(default)s")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second (default %(default)s)")
    options = parser.parse_args()
    check_there(options.trace, "--trace")
    requests = load_of(read_trace(options.trace, options.requests, tell=print), options.requests, options.rate)
    with tempfile.TemporaryDirectory(prefix="penstock-record-") as scratch:
        asyncio.run(record(EngineKind(options.engine), requests, Path(scratch), options.out, screen()))
    return 0


if __name__ == "__main__":
    end("record-run", main)
