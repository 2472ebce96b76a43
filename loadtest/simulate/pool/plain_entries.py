"""What the queue's twin knows of requests and replicas."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.simulate.engine.replica import SimRequest


@dataclass(slots=True, eq=False)
class LineEntry:
    """A request in line or in a slot."""

    item: SimRequest
    prompt_tokens: int
    kv_tokens: int
    place: int
    late_at: int
    """Milliseconds from when it lets others pass; 0 is never."""
    late: bool = False
    skips: int = 0
    reserved: ReplicaLoad | None = None
    """Replica that is kept for it."""
    on: ReplicaLoad | None = None
    prefilled: bool = False


@dataclass(slots=True, eq=False)
class ReplicaLoad:
    """What the queue knows of a replica."""

    name: str
    sequences: int = 0
    kv_window: int = 0
    prefill_window: int = 0
    used_kv: int = 0
    used_prefill: int = 0
    ready: bool = False
    linked: bool = False
    reserved: LineEntry | None = None
    slots: dict[str, LineEntry] = field(default_factory=dict)
    free_at: tuple[float, str] | None = None
    """Its place among those with a free slot."""
    gone: bool = False

    def give_back(self, entry: LineEntry) -> None:
        """Free what an entry that has left its slot counted for."""
        left = self.used_kv - entry.kv_tokens
        self.used_kv = left if left > 0 else 0
        if not entry.prefilled:
            self.prefilled(entry)

    def prefilled(self, entry: LineEntry) -> None:
        """Note that the prompt of an entry is computed."""
        entry.prefilled = True
        left = self.used_prefill - entry.prompt_tokens
        self.used_prefill = left if left > 0 else 0

    def takes_grants(self) -> bool:
        return self.ready and len(self.slots) < self.sequences

    def fits(self, entry: LineEntry) -> bool:
        return (
            len(self.slots) < self.sequences
            and self.used_kv + entry.kv_tokens <= self.kv_window
            # A prefill larger than the window starts when it is alone.
            and (not self.used_prefill or self.used_prefill + entry.prompt_tokens <= self.prefill_window)
        )
