"""Replicas with the parts of one run, and what its result says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.plural import counted
from cluster.settings import SimSettings
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.parts.prefixes import GPU, PrefixTally, reuse_of
from loadtest.simulate.parts.replica import PartsReplica
from loadtest.simulate.parts.settings import Parts
from loadtest.simulate.parts.tiers import TierStore
from loadtest.traces import TraceRequest


class PartsOfRun:
    """Parts of one run."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._prefixes = PrefixTally()

    def replica(
        self,
        name: str,
        engine: SimSettings,
        block_tokens: int | None = None,
        times: StepTimes | None = None,
        *,
        whole_log: bool = True,
    ) -> PartsReplica:
        """Make a replica."""
        parts = self._parts
        tiers = TierStore(parts.tiers, block_tokens, parts.kv_bytes) if parts.tiers and block_tokens else None
        return PartsReplica(name, engine, block_tokens, times, whole_log=whole_log, tiers=tiers, tally=self._prefixes)

    def as_json(self, trace: Sequence[TraceRequest]) -> dict[str, Any]:
        """Return the figures of the run, by part."""
        return {"prefix_cache": self._prefixes.as_json(reuse_of(trace))} if self._parts.prefixes else {}


def notes(parts: Parts) -> list[str]:
    """Say of each part what of it is held to measurements."""
    said = []
    if parts.shared is not None:
        shared = parts.shared
        said.append(
            f"Shared prefix: {counted(shared.number, 'beginning')} of {shared.tokens} tokens before {shared.part:.0%} "
            "of the longer prompts is an assumption about the load, not held to any measurement."
        )
    if parts.tiers:
        tiers = " and ".join(
            f"{each.name} {each.tokens:,} tokens at {each.gb_per_s:g} GB/s + {1e3 * each.latency_s:g} ms"
            for each in parts.tiers
        )
        said.append(
            f"Prefix cache: {tiers} per replica, {parts.kv_bytes:,} bytes per token. Reuse is counted in the trace; "
            "what the tiers keep is the rule (least recently used), and loads take their time by bandwidth alone: "
            "neither is held to any measurement. Writes to the tiers take no time."
        )
    return said


def lines(figures: Mapping[str, Any]) -> list[str]:
    """Return the figures of the parts in sentences."""
    said = []
    if (cache := figures.get("prefix_cache")) is not None:
        by_tier = ", ".join(
            f"{name.upper() if name != 'disk' else name} {part:.1%}" for name, part in cache["hit_by_tier"].items()
        )
        waited = f"; {counted(cache['loads'], 'load')} of {1e3 * cache['load_mean_s']:.1f} ms" if cache["loads"] else ""
        said.append(
            f"Prefix cache: {cache['hit']:.1%} of the prompt tokens found ({by_tier or GPU.upper() + ' 0.0%'}) of "
            f"{cache['reuse_in_trace']:.1%} that come again in the trace{waited}."
        )
    return said
