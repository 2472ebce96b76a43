"""Replicas with the parts of one run, and the figures that its result has of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.settings import SimSettings
from loadtest.simulate.engine.replica import core_limits
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.parts.core import PartsCore
from loadtest.simulate.parts.prefixes import PrefixTally, reuse_of
from loadtest.simulate.parts.replica import PartsReplica
from loadtest.simulate.parts.settings import Parts
from loadtest.simulate.parts.speculation import SpeculationTally, SpeculativeCore, SpeculativeTimes
from loadtest.simulate.parts.speculative_replica import SpeculativeReplica
from loadtest.simulate.parts.tiers import TierStore
from loadtest.traces import TraceRequest


class PartsOfRun:
    """Parts of one run.

    Args:
        parts: what there is.
        seed: of the draws.
    """

    def __init__(self, parts: Parts, seed: int) -> None:
        self._parts = parts
        self._seed = seed
        self._prefixes = PrefixTally()
        self._drafts = SpeculationTally()

    def times(self, engine: SimSettings, times: StepTimes | None) -> StepTimes | None:
        """Return the step model with the parts' own times; None for that of the engine's settings."""
        what = self._parts.speculation
        return times if what is None else SpeculativeTimes.around(times or StepTimes.of(engine), what)

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
        parts, tally, limits = self._parts, self._prefixes, core_limits(engine, block_tokens)
        tiers = TierStore(parts.tiers, block_tokens, parts.kv_bytes) if parts.tiers and block_tokens else None
        if parts.speculation is not None:
            drafting = SpeculativeCore(limits, parts.speculation, self._seed, self._drafts, tiers)
            return SpeculativeReplica(
                name, engine, block_tokens, times, whole_log=whole_log, batch=drafting, tiers=tiers, tally=tally
            )
        batch = PartsCore(limits, tiers)
        return PartsReplica(
            name, engine, block_tokens, times, whole_log=whole_log, batch=batch, tiers=tiers, tally=tally
        )

    def as_json(self, trace: Sequence[TraceRequest]) -> dict[str, Any]:
        """Return the figures of the run, by part."""
        found: dict[str, Any] = {}
        if self._parts.prefixes:
            found["prefix_cache"] = self._prefixes.as_json(reuse_of(trace))
        if self._parts.speculation is not None:
            found["speculation"] = self._drafts.as_json(self._parts.speculation)
        return found
