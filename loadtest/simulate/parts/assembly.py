"""Replicas with the parts of one run, and the figures that its result has of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from cluster.settings import SimSettings
from loadtest.simulate.engine.replica import core_limits
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.parts.core import PartsCore
from loadtest.simulate.parts.disaggregation import SplitTally, Transfers
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
        self.split = SplitTally()
        """Work of the replicas for prefill."""

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
        parts, limits = self._parts, core_limits(engine, block_tokens)
        # Where prompts are computed elsewhere, their beginnings are found there.
        tally = self._prefixes if parts.split is None else PrefixTally()
        tiers = self._tiers(block_tokens) if parts.split is None else None
        if parts.speculation is not None:
            drafting = SpeculativeCore(limits, parts.speculation, self._seed, self._drafts, tiers)
            return self._widened(
                SpeculativeReplica(
                    name, engine, block_tokens, times, whole_log=whole_log, batch=drafting, tiers=tiers, tally=tally
                )
            )
        batch = PartsCore(limits, tiers)
        return self._widened(
            PartsReplica(name, engine, block_tokens, times, whole_log=whole_log, batch=batch, tiers=tiers, tally=tally)
        )

    def _widened(self, replica: PartsReplica) -> PartsReplica:
        """Let a replica have as many prompts outstanding as its part of the prefill replicas needs."""
        split, windows = self._parts.split, replica.windows
        if split is not None:
            share = -(-split.prefill_replicas // split.decode_replicas)
            replica.windows = dataclasses.replace(windows, prefill_tokens=share * windows.prefill_tokens)
        return replica

    def _tiers(self, block_tokens: int | None) -> TierStore | None:
        parts = self._parts
        return TierStore(parts.tiers, block_tokens, parts.kv_bytes) if parts.tiers and block_tokens else None

    def prefillers(
        self, engine: SimSettings, block_tokens: int | None, times: StepTimes | None
    ) -> tuple[list[PartsReplica], Transfers] | None:
        """Make the replicas for prefill, and their links; None where all replicas do both."""
        parts = self._parts
        if parts.split is None:
            return None
        found = []
        for number in range(parts.split.prefill_replicas):
            tiers = self._tiers(block_tokens)
            batch = PartsCore(core_limits(engine, block_tokens), tiers)
            name = f"prefill{number}"
            found.append(
                PartsReplica(
                    name, engine, block_tokens, times, whole_log=False, batch=batch, tiers=tiers, tally=self._prefixes
                )
            )
        return found, Transfers(parts.split, parts.kv_bytes)

    def as_json(self, trace: Sequence[TraceRequest], seconds: float) -> dict[str, Any]:
        """Return the figures of a run of some seconds, by part."""
        found: dict[str, Any] = {}
        if self._parts.prefixes:
            found["prefix_cache"] = self._prefixes.as_json(reuse_of(trace))
        if self._parts.speculation is not None:
            found["speculation"] = self._drafts.as_json(self._parts.speculation)
        if self._parts.split is not None:
            found["disaggregation"] = self.split.as_json(self._parts.split, seconds)
        return found
