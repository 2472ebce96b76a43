"""Clients that stream one request after the other from a pool."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from penstock.client import AsyncClient, PenstockClientError, Sampling

FEWEST_TOKENS, MOST_TOKENS = 8, 16


@dataclass(slots=True)
class PoolLoad:
    """What clients of one pool got."""

    pool: str
    ended: int = 0
    failures: list[str] = field(default_factory=list)
    over: bool = False

    async def run(self, client: AsyncClient, clients: int, draw: random.Random) -> None:
        """Send requests until `over`; return when the last one has ended."""
        await asyncio.gather(*(self._stream(client, random.Random(draw.random())) for _ in range(clients)))

    async def _stream(self, client: AsyncClient, draw: random.Random) -> None:
        while not self.over:
            tokens = draw.randint(FEWEST_TOKENS, MOST_TOKENS)
            sampling = Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True)
            try:
                answer = await client.generate(self.pool, f"prompt {draw.random()}", sampling=sampling, timeout=120.0)
            except PenstockClientError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                if (got := len(answer.choices[0].token_ids)) != tokens:
                    self.failures.append(f"{got} tokens instead of {tokens}")
            self.ended += 1
            await asyncio.sleep(draw.random() * 0.05)
