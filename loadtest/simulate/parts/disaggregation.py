"""Disaggregation of prefill and decode: transfers of KV entries, and their figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.simulate.parts.settings import Split
from loadtest.simulate.parts.tiers import Link


class Transfers:
    """Transfers from prefill replicas to those that decode. Those of the same replica follow each other.

    Args:
        split: the replicas and their links.
        kv_bytes: of a token.
    """

    def __init__(self, split: Split, kv_bytes: int) -> None:
        self._split = split
        self._kv_bytes = kv_bytes
        self._from: dict[int, Link] = {}
        self._to: dict[str, Link] = {}

    def send(self, source: int, target: str, tokens: int, now: float) -> float:
        """Return when the KV entries of tokens have arrived."""
        size = tokens * self._kv_bytes
        ways = self._from.setdefault(source, self._link()), self._to.setdefault(target, self._link())
        return max(way.send(size, now) for way in ways)

    def _link(self) -> Link:
        return Link(self._split.gb_per_s, self._split.latency_s)


class SplitTally:
    """Work of the prefill replicas of a run."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        """Seconds of their steps, added up."""
        self.transfers = 0
        self.transfer_s = 0.0
        """Seconds of the transfers with their wait for the link, added up."""

    def sent(self, seconds: float) -> None:
        """Note a transfer."""
        self.transfers += 1
        self.transfer_s += seconds

    def as_json(self, split: Split, seconds: float) -> Mapping[str, Any]:
        """Return the figures of a run of some seconds."""
        time_s = split.prefill_replicas * seconds
        return {
            "prefill_replicas": split.prefill_replicas,
            "decode_replicas": split.decode_replicas,
            "transfers": self.transfers,
            "transfer_mean_s": self.transfer_s / self.transfers if self.transfers else 0.0,
            "prefill_busy": self.busy_s / time_s if time_s else 0.0,
        }
