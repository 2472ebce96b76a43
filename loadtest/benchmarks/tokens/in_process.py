"""The in-process path: an AsyncLLM and its consumers. It reads phases and writes results as JSON lines."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from typing import Any

from loadtest.benchmarks.tokens import load
from loadtest.benchmarks.tokens.paths import CONTEXT, DTYPE, KV_MB, MAX_SEQS, MODEL, TEMPERATURE


def main() -> None:
    """Run until standard input ends."""
    import uvloop

    uvloop.run(_main())


async def _main() -> None:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    from deployments.engines.factory import resolve_model

    args = AsyncEngineArgs(
        model=str(resolve_model(MODEL)),
        dtype=DTYPE,
        max_model_len=CONTEXT,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=CONTEXT * 4,
        enable_chunked_prefill=False,
        kv_cache_memory_bytes=KV_MB << 20,
        block_size=32,
        enforce_eager=True,
        distributed_executor_backend="mp",
    )
    engine = AsyncLLM.from_engine_args(args)
    ids = itertools.count()

    async def send(text: str, tokens: int, stream: load.StreamTimes) -> None:
        params = SamplingParams(
            max_tokens=tokens, temperature=TEMPERATURE, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        async for output in engine.generate({"prompt": text}, params, f"r{next(ids)}"):
            stream.got(len(output.outputs[0].token_ids))

    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say({"ready": True})
    while line := await reader.readline():
        _say(_fields(await _phase(send, json.loads(line))))
    engine.shutdown()


async def _phase(send: load.Send, command: dict[str, Any]) -> load.LoadResult:
    match command["phase"]:
        case "saturate":
            return await load.saturate(send, command["rounds"], command["first"])
        case "pace":
            return await load.pace(send, command["requests_per_s"], command["seconds"], command["seed"])
        case "alone":
            return await load.alone(send, command["requests"])
        case other:
            raise ValueError(f"unknown phase {other!r}")


def _fields(result: load.LoadResult) -> dict[str, Any]:
    streams = [(s.sent_at, s.first_at, s.last_at, s.tokens, s.messages) for s in result.streams]
    return {"seconds": result.seconds, "streams": streams}


def _say(fields: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
