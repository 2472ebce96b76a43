"""A process that hosts a vLLM engine, to be killed by a test: prints what it did, then waits for its end."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from cluster.models import GenerationSpec
from cluster.settings import PoolSettings
from deployments.engines.factory import build_engine
from tests.deployments.engines.recorder import begin, generate, greedy


async def main(pool: str) -> None:
    engine = build_engine(PoolSettings.model_validate_json(pool))
    await engine.start()
    _, end = await generate(engine, GenerationSpec(tuple(range(600, 620)), greedy(8)))
    _, endless = await begin(engine, GenerationSpec((5, 6), greedy(1000)))
    await endless.first.wait()
    report = {"pid": os.getpid(), "tokens": end.output_tokens, "gpu_seconds": end.gpu_seconds}
    # vLLM's log goes to standard output too.
    sys.stderr.write(f"REPORT {json.dumps(report)}\n")
    sys.stderr.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
