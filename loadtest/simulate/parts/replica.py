"""A replica whose requests may need something before they can join its batch."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.settings import SimSettings
from loadtest.simulate.engine.replica import SimReplica, SimRequest, StepEnd
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.parts.core import PartsCore
from loadtest.simulate.parts.prefixes import GPU, PrefixTally
from loadtest.simulate.parts.tiers import Found, TierStore


class PartsReplica(SimReplica):
    """Replica with tiers of KV blocks.

    Args:
        name: the replica id.
        settings: of the engine.
        block_tokens: the trace's block size; None shares no prefixes.
        step_times: the step model; None for that of the settings.
        whole_log: whether the log of its steps has all columns.
        batch: its scheduler.
        tiers: below its GPU; None for none.
        tally: where beginnings were found.
    """

    def __init__(
        self,
        name: str,
        settings: SimSettings,
        block_tokens: int | None = None,
        step_times: StepTimes | None = None,
        *,
        whole_log: bool = True,
        batch: PartsCore,
        tiers: TierStore | None = None,
        tally: PrefixTally,
    ) -> None:
        self._batch = batch
        super().__init__(name, settings, block_tokens, step_times, whole_log=whole_log, core=batch)
        self._tiers = tiers
        self._tally = tally
        self._reserved: dict[str, tuple[Sequence[int], Sequence[int]]] = {}
        """Requests that hold a slot and are not in the batch yet, with the blocks that are here, and those that come.
        """

    def bring(self, item: SimRequest, now: float) -> float:
        """Take a granted request. Return when it can join the batch, which `join` then does."""
        self.running[item.request_id] = item
        item.started_at = now
        blocks = self._batch.usable(item.request.prompt_tokens + item.prior_tokens, self.shared_blocks(item.request))
        self.sync(now)
        here = self._batch.beginning(blocks)
        found = [] if self._tiers is None else self._tiers.find(blocks[here:])
        block_tokens = self._batch.block_size
        if item.scheduled_at is None:
            self._tally.looked(item.request_id, [Found(GPU, here * block_tokens), *found])
        come = sum(each.tokens for each in found) // block_tokens
        self._reserved[item.request_id] = blocks[:here], blocks[here : here + come]
        if self._tiers is None or not found:
            return now
        ready_at = self._tiers.load(found, now)
        self._tally.waited(ready_at - now)
        return ready_at

    def join(self, item: SimRequest, now: float) -> None:
        """Let a request that was brought join the batch."""
        here, come = self._reserved.pop(item.request_id)
        if come:
            self.sync(now)
            self._batch.load(here, come)
        granted_at = item.started_at
        self.start(item, now)
        item.started_at = granted_at

    def receive(self, item: SimRequest, now: float) -> None:
        """Let a request that was brought join the batch with the KV entries of all its tokens. The last of them is
        computed again, because its output is needed.
        """
        self._batch.expect(item.request_id, item.request.prompt_tokens + item.prior_tokens - 1)
        self.join(item, now)

    def output_tokens(self, item: SimRequest) -> int:
        return item.prior_tokens if item.request_id in self._reserved else super().output_tokens(item)

    def tell_ended(self, item: SimRequest) -> None:
        """Count where the beginning of a request that has ended was found."""
        self._tally.ended(item.request_id, item.cached_tokens)

    def kill(self, now: float) -> list[SimRequest]:
        lost = super().kill(now)
        self._reserved.clear()
        return lost

    def end(self) -> StepEnd:
        end = super().end()
        for item in end.finished:
            self.tell_ended(item)
        for item in end.aborted:
            self._reserved.pop(item.request_id, None)
        return end
