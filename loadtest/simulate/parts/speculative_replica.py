"""A replica whose steps give a sequence several tokens at once."""

from __future__ import annotations

from array import array

from cluster.settings import SimSettings
from loadtest.simulate.engine.replica import SimRequest, StepEnd
from loadtest.simulate.engine.steps import StepTimes
from loadtest.simulate.parts.prefixes import PrefixTally
from loadtest.simulate.parts.replica import PartsReplica
from loadtest.simulate.parts.speculation import SpeculativeCore
from loadtest.simulate.parts.tiers import TierStore


class SpeculativeReplica(PartsReplica):
    """Replica with speculative decoding. The tokens of a step come together: the gap before the first of them is the
    step's time, the others are 0.
    """

    def __init__(
        self,
        name: str,
        settings: SimSettings,
        block_tokens: int | None = None,
        step_times: StepTimes | None = None,
        *,
        whole_log: bool = True,
        batch: SpeculativeCore,
        tiers: TierStore | None = None,
        tally: PrefixTally,
    ) -> None:
        super().__init__(
            name, settings, block_tokens, step_times, whole_log=whole_log, batch=batch, tiers=tiers, tally=tally
        )
        self._drafting = batch

    def output_tokens(self, item: SimRequest) -> int:
        # What the last step gives beyond the end is dropped.
        return min(super().output_tokens(item), item.request.output_tokens)

    def end(self) -> StepEnd:
        now, finished = self.ends_at, []
        if now is not None:
            for request_id, gained in self._drafting.gained.items():
                item = self.running[request_id]
                self._note(item, gained)
                if self.output_tokens(item) >= item.request.output_tokens:
                    self._leave(item, now)
                    finished.append(item)
            self._drafting.gained.clear()
        end = super().end()
        for item in finished:
            self.tell_ended(item)
        end.finished = [*end.finished, *finished]
        return end

    def kill(self, now: float) -> list[SimRequest]:
        under_way = self.ends_at is not None
        gained = {**self._drafting.gained} if under_way else {}
        kept = {
            request_id: self._before(self.running[request_id], tokens)
            for request_id, tokens in gained.items()
            if request_id in self.running
        }
        lost = super().kill(now)
        for item in lost:
            item.prior_tokens = kept.get(item.request_id, item.prior_tokens)
        return lost

    def _before(self, item: SimRequest, gained: int) -> int:
        """Return the output tokens before the step under way."""
        return item.prior_tokens + self._drafting.output_tokens(item.request_id) - gained

    def _note(self, item: SimRequest, gained: int) -> None:
        together = min(gained, item.request.output_tokens - self._before(item, gained))
        item.add_gaps(array("d", (self.log.seconds[-1], *[0.0] * (together - 1))))
        self.bunched += together - 1
        # The gaps up to this step are noted.
        item.decodes_from = len(self.log) - 1
