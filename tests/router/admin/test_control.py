"""The fast loop in a running cluster: real routers and a replica, simulated steps in real time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from cluster.control.step_model import StepSample
from cluster.settings import PoolSettings
from deployments.engines.factory import resolve_model
from deployments.engines.sim.engine import SimEngine, step_seconds
from penstock.values.slo import ClassSlo, OperatingPoint
from tests.support.stack import MODEL, Stack, request, running_stack
from tests.support.waiting import until

SIM = {"base_ms": 20.0, "per_token_us": 1000.0, "max_num_seqs": 64}
TIGHT_S, LOOSE_S = 0.045, 0.25
"""A batch of about 23, and the largest there is, prompts that come in bursts included."""


class Load:
    """Keeps more requests under way than any batch holds."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._stopping = False
        self._lengths = random.Random(7)
        self.ended = 0
        self._tasks = [asyncio.create_task(self._client()) for _ in range(90)]

    async def _client(self) -> None:
        while not self._stopping:
            # Outputs of one length would end together, and their successors' prompts would make long steps for ever.
            tokens = self._lengths.randint(20, 60)
            reply = await self._stack.inference().Generate(request(max_tokens=tokens, ignore_eos=True))
            assert tokens == reply.usage.output_tokens
            self.ended += 1

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)


class EvenEngine(SimEngine):
    """Reports steps as long as they were meant to be: the machine under the test may hold them up as it likes."""

    def __init__(self, pool: PoolSettings, model: Path) -> None:
        super().__init__(pool, model)
        self.seconds = 0.0
        self.tokens = 0

    def take_steps(self) -> list[StepSample]:
        steps = [
            step._replace(seconds=step_seconds(self._settings, step.tokens, step.kv_tokens))
            for step in super().take_steps()
        ]
        self.seconds += sum(step.seconds for step in steps)
        self.tokens += sum(step.sequences for step in steps)
        return steps


async def throughput(engine: EvenEngine) -> float:
    """Return tokens per second of engine time over the next seconds of it."""
    seconds, tokens = engine.seconds, engine.tokens
    await until(lambda: engine.seconds >= seconds + 2.0, 60)
    return (engine.tokens - tokens) / (engine.seconds - seconds)


async def test_overload_holds_the_itl_and_a_looser_slo_gives_throughput(tmp_path: Path) -> None:
    """No request fails, and the window that routers see is the limit in force."""
    pool = {
        "model": MODEL, "engine": "sim", "sim": SIM, "slo": {"interactive": {"itl_p95_s": TIGHT_S}},
        "control": {"period_s": 0.2, "window_s": 3.0},
    }  # fmt: skip
    settings = PoolSettings.model_validate(pool)
    engine = EvenEngine(settings, resolve_model(MODEL))
    async with running_stack(tmp_path, pools={"demo": pool}, engine=lambda: engine) as stack:
        [replica], governor = stack.replicas, stack.replicas[0].governor
        load = Load(stack)
        await until(lambda: 0 < governor.itl_p95_s <= TIGHT_S and 18 <= replica.table.windows.sequences <= 25, 60)
        tight = await throughput(engine)
        # A busy machine's late step may be the one that counts at any one moment.
        await until(lambda: governor.itl_p95_s <= TIGHT_S)
        await until(lambda: stack.routers[0].pools["demo"].replicas.capacity() <= 25)

        governor.set_operating_point(OperatingPoint(interactive=ClassSlo(itl_p95_s=LOOSE_S)))
        await until(lambda: replica.table.windows.sequences >= 45 and governor.itl_p95_s > TIGHT_S, 60)
        await until(lambda: stack.routers[0].pools["demo"].replicas.capacity() >= 45)
        loose = await throughput(engine)
        await load.stop()

        assert governor.itl_p95_s <= LOOSE_S
        assert loose > 1.2 * tight
