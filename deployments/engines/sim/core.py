"""The scheduler of the simulated engine. It decides the work of one step. No clock, no text, no I/O.

It follows vLLM. Running sequences come first, then waiting ones. One token budget per step serves prefills and decodes
alike. A prefill is split where the budget ends. When the KV cache is full, the last sequence of the batch starts over.

The cost of a step depends on its changes, not on the batch size. All decoding sequences go on by one token, so they are
counted as a group, and the figures of one are computed when it leaves the group. The ways to go on agree: `step`
names every sequence, as an engine needs it; `turn` does not; `run` and `fill` do many steps at once, for simulations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from deployments.engines.limits import clamp_sequences, clamp_tokens
from deployments.engines.sim.kv import KvBlocks, KvHold
from deployments.engines.sim.limits import CoreLimits
from deployments.engines.sim.turn import NO_PARTS, Parts, StepResult, Turn


@dataclass(slots=True, eq=False)
class _Entry:
    sequence_id: str
    prompt_tokens: int
    block_hashes: Sequence[int]
    produced: int = 0
    computed: int = 0
    """Tokens whose KV entries exist."""
    since: int = 0
    """Turn count at the begin of decoding. `produced`, `computed` and `hold` are as of then; each turn adds a token."""
    cached: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    hold: KvHold = field(default_factory=KvHold)

    @property
    def missing(self) -> int:
        return self.prompt_tokens + self.produced - self.computed


class BatchCore:
    """Batch, waiting line and KV cache, which is the usual one unless it is given."""

    def __init__(self, limits: CoreLimits, blocks: KvBlocks | None = None) -> None:
        self._largest = limits
        self._size = limits.block_size
        self.sequence_limit = limits.sequences
        self._wanted_tokens = limits.tokens
        self._kv = blocks or KvBlocks(limits.kv_tokens // limits.block_size, limits.block_size)
        self._entries: dict[str, _Entry] = {}
        self.turns = 0
        """Number of steps done."""
        self._decoding: dict[str, _Entry] = {}
        """Decoding sequences in the order of the batch."""
        self._decode_kv = 0
        """Computed tokens of all decoding sequences."""
        self._due = [0] * limits.block_size
        """Number of decoding sequences that need another KV block, by turn number modulo the block size."""
        self._filling: _Entry | None = None
        """The last sequence of the batch, if the budget has split its prefill. There is never more than one."""
        self._waiting: deque[_Entry] = deque()

    @property
    def token_budget(self) -> int:
        """Tokens that one step may process now."""
        wanted, largest = self._wanted_tokens, self._largest.tokens
        if wanted == largest:
            return largest
        sequences = max(self.sequence_limit, self.running)
        return clamp_tokens(wanted, sequences=sequences, tokens_per_sequence=1, largest=largest)

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._decoding) + (self._filling is not None)

    @property
    def waiting(self) -> int:
        """Sequences without a place in the batch."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._entries

    @property
    def kv_usage(self) -> float:
        """Used part of the KV cache, 0 to 1."""
        return self._kv.usage

    def set_limits(self, sequences: int | None, tokens: int | None) -> None:
        """Move limits; None keeps one. A lower limit drains the batch and never preempts."""
        if sequences is not None:
            self.sequence_limit = clamp_sequences(sequences, self._largest.sequences)
        if tokens is not None:
            self._wanted_tokens = min(tokens, self._largest.tokens)

    def add(self, sequence_id: str, prompt_tokens: int, block_hashes: Sequence[int] = ()) -> None:
        """Put a sequence at the end of the waiting line.

        Args:
            sequence_id: unique among the sequences in the core.
            prompt_tokens: at least 1.
            block_hashes: one hash per full block of the prompt; each depends on all tokens up to the block's end.
        """
        entry = _Entry(sequence_id, prompt_tokens, block_hashes)
        self._entries[sequence_id] = entry
        self._waiting.append(entry)

    def remove(self, sequence_id: str) -> None:
        """Remove a sequence and free its KV entries. Unknown ids are ignored."""
        entry = self._entries.pop(sequence_id, None)
        if entry is None:
            return
        if sequence_id in self._decoding:
            self._leave(entry)
        elif entry is self._filling:
            self._filling = None
        else:
            self._waiting.remove(entry)
        self._kv.release(entry.hold)

    def cached_tokens(self, sequence_id: str) -> int:
        """Return the number of prompt tokens that came from the prefix cache."""
        return self._entries[sequence_id].cached

    def output_tokens(self, sequence_id: str) -> int:
        """Return the number of tokens that a sequence has produced."""
        entry = self._entries[sequence_id]
        return entry.produced + (self.turns - entry.since if sequence_id in self._decoding else 0)

    def step(self) -> StepResult:
        """Do one step. Its output is known only at its end, so call `remove` after it."""
        decoding = tuple(self._decoding)
        turn = self.turn()
        if turn.decoded < len(decoding):
            out = {*turn.preempted, *turn.starved}
            decoding = tuple(each for each in decoding if each not in out)
        return StepResult(
            scheduled=decoding + turn.filled,
            admitted=turn.admitted,
            produced=decoding + turn.prefilled,
            preempted=turn.preempted,
            tokens=turn.tokens,
            kv_tokens=turn.kv_tokens,
        )

    def turn(self) -> Turn:
        """Do one step. The result has less detail than that of `step`."""
        budget, decoded = self.token_budget, len(self._decoding)
        due = self._due[self.turns % self._size]
        if decoded > budget or (due and not self._kv.take(due)):
            return self._turn_one_by_one(budget)
        self.turns += 1
        self._decode_kv += decoded
        tokens, kv_tokens = decoded, self._decode_kv
        if not self._waiting and self._filling is None:
            return Turn(decoded, (), (), (), (), (), tokens, kv_tokens)
        preempted: list[_Entry] = []
        shares: dict[_Entry, int] = {}
        left = budget - decoded
        if self._filling is not None and left > 0:
            left -= self._schedule(self._filling, left, shares, preempted)
        admitted = [] if preempted else self._admit(shares, left)
        prefilled = self._fill(shares)
        for entry, share in shares.items():
            tokens += share
            kv_tokens += entry.computed
        filled = _ids(shares)
        return Turn(
            decoded,
            filled,
            # Mostly the same sequences: new ones, whose prompts fit into one step.
            filled if len(admitted) == len(shares) else _ids(admitted),
            filled if len(prefilled) == len(shares) else _ids(prefilled),
            _ids(preempted) if preempted else (),
            (),
            tokens,
            kv_tokens,
        )

    @property
    def changing(self) -> bool:
        """Whether the next turn computes a prompt, or nothing decodes."""
        decoding = len(self._decoding)
        return not decoding or (bool(self._waiting) and decoding < self.sequence_limit) or self._filling is not None

    def steady_turns(self, most: int) -> int:
        """Return a number of turns, at most `most`, in each of which every sequence surely decodes and gets a token.

        The number holds as long as no sequence is added or removed and no limit moves.
        """
        decoding = len(self._decoding)
        if self.changing:
            return 0
        if decoding > self._wanted_tokens and decoding > self.token_budget:
            return 0
        size = self._size
        rounds, free = divmod(self._kv.free, decoding)
        turns = rounds * size
        while turns < most:
            free -= self._due[(self.turns + turns) % size]
            if free < 0:
                return turns
            turns += 1
        return most

    def run(self, turns: int) -> None:
        """Do steps in which every sequence only decodes; at most as many as `steady_turns` allows now."""
        if not self._kv.take(self._due_in(turns)):
            raise ValueError(f"the KV cache has no room for {turns} more steps")
        self.turns += turns
        self._decode_kv += turns * len(self._decoding)

    def parts(self, most: int) -> Parts:
        """Return the turns, at most `most`, in each of which a split prefill surely takes all that decodes leave of the
        budget and does not end; none where no prefill is split.

        They hold as long as no sequence is added or removed and no limit moves.
        """
        entry, size = self._filling, self._size
        # Blocks that others may share become known step by step.
        if entry is None or entry.block_hashes:
            return NO_PARTS
        share = self.token_budget - len(self._decoding)
        turns = min(most, (entry.missing - 1) // share) if share > 0 else 0
        if turns <= 0:
            return NO_PARTS
        blocks = -(-(entry.computed + turns * share) // size) - len(entry.hold.hashes) - entry.hold.private
        fits = self._due_in(turns) + max(0, blocks) <= self._kv.free
        return Parts(turns, share, entry.computed) if fits else NO_PARTS

    def fill(self, turns: int, share: int) -> None:
        """Do steps with parts of the split prefill; at most as many as `parts` allows now, with its share."""
        entry = self._filling
        if entry is None or not self._kv.take(self._due_in(turns)):
            raise ValueError(f"there is no prefill or no room for {turns} more steps")
        entry.computed += turns * share
        if not self._kv.grow(entry.hold, entry.computed):
            raise ValueError(f"the KV cache has no room for {turns} more parts of a prompt")
        self.turns += turns
        self._decode_kv += turns * len(self._decoding)

    def _due_in(self, turns: int) -> int:
        """Return the KV blocks that the decoding sequences need in so many turns."""
        rounds, rest = divmod(turns, self._size)
        end = self.turns % self._size + rest
        due = sum(self._due[end - rest : end])
        if end > self._size:
            due += sum(self._due[: end - self._size])
        return rounds * len(self._decoding) + due

    @property
    def decoding(self) -> int:
        """Number of sequences in the batch whose prefill is over."""
        return len(self._decoding)

    @property
    def decode_kv_tokens(self) -> int:
        """Context tokens of the decoding sequences. The next decode reads one more for each of them."""
        return self._decode_kv

    # --- inside -------------------------------------------------------------------------------------------------------

    def _turn_one_by_one(self, budget: int) -> Turn:
        """Do a step in which the decoding sequences can't go on as one group."""
        decoding = list(self._decoding.values())
        for entry in decoding:
            self._leave(entry)
        batch = decoding if self._filling is None else [*decoding, self._filling]
        self._filling = None
        shares: dict[_Entry, int] = {}
        preempted: list[_Entry] = []
        index = 0
        while index < len(batch) and budget > 0:
            budget -= self._schedule(batch[index], budget, shares, preempted, batch)
            index += 1
        self.turns += 1
        starved = []
        for entry in decoding[: len(batch)]:
            if entry in shares:
                entry.computed += 1
                entry.produced += 1
            else:
                starved.append(entry)
            self._join(entry)
        decoded = [entry for entry in decoding if entry in shares]
        kv_tokens = sum(entry.computed for entry in decoded)
        for entry in decoded:
            del shares[entry]
        if len(batch) > len(decoding):
            self._filling = batch[-1]
        admitted = [] if preempted else self._admit(shares, budget)
        prefilled = self._fill(shares)
        return Turn(
            len(decoded),
            _ids(shares),
            _ids(admitted),
            _ids(prefilled),
            _ids(preempted),
            _ids(starved),
            len(decoded) + sum(shares.values()),
            kv_tokens + sum(entry.computed for entry in shares),
        )

    def _schedule(
        self,
        entry: _Entry,
        budget: int,
        shares: dict[_Entry, int],
        preempted: list[_Entry],
        batch: list[_Entry] | None = None,
    ) -> int:
        """Give a sequence its share of a step. Preempt from the end of `batch` if the KV cache has no room."""
        share = min(entry.missing, budget)
        while not self._kv.grow(entry.hold, entry.computed + share):
            victim = batch.pop() if batch is not None else entry
            self._preempt(victim)
            preempted.append(victim)
            if victim is entry:
                return 0
        shares[entry] = share
        return share

    def _admit(self, shares: dict[_Entry, int], budget: int) -> list[_Entry]:
        admitted: list[_Entry] = []
        waiting, room = self._waiting, self.sequence_limit - self.running
        while waiting and budget > 0 and len(admitted) < room:
            entry = waiting[0]
            if entry.block_hashes:
                self._take_cached(entry)
            missing = entry.missing
            share = missing if missing < budget else budget
            # Like vLLM: admit only sequences whose whole prefill fits in the KV cache.
            fits = share == missing or self._kv.fits(entry.hold, entry.computed + missing)
            if not fits or not self._kv.grow(entry.hold, entry.computed + share):
                self._kv.release(entry.hold)
                entry.computed = 0
                break
            waiting.popleft()
            admitted.append(entry)
            shares[entry] = share
            budget -= share
        return admitted

    def _fill(self, shares: dict[_Entry, int]) -> list[_Entry]:
        """Compute the prefills of a step. Return those that end."""
        prefilled = []
        for entry, share in shares.items():
            entry.computed += share
            if entry.block_hashes:
                self._kv.publish(entry.hold, entry.block_hashes, entry.computed)
            if entry.missing:
                self._filling = entry
                continue
            if entry is self._filling:
                self._filling = None
            entry.produced += 1
            self._join(entry)
            prefilled.append(entry)
        return prefilled

    def _join(self, entry: _Entry) -> None:
        """Let a sequence decode with the group from the next turn on."""
        entry.since = self.turns
        self._decoding[entry.sequence_id] = entry
        self._decode_kv += entry.computed
        self._due[(self.turns - entry.computed) % self._size] += 1

    def _leave(self, entry: _Entry) -> None:
        """Remove a sequence from the decoding group and compute its figures."""
        size = self._size
        self._due[(entry.since - entry.computed) % size] -= 1
        before = -(-entry.computed // size)
        turns = self.turns - entry.since
        entry.computed += turns
        entry.produced += turns
        entry.since = self.turns
        entry.hold.private += -(-entry.computed // size) - before
        self._decode_kv -= entry.computed
        del self._decoding[entry.sequence_id]

    def _take_cached(self, entry: _Entry) -> None:
        # The last prompt token is always computed, because its output is needed.
        usable = entry.block_hashes[: (entry.prompt_tokens - 1) // self._size]
        entry.computed = self._kv.take_cached(entry.hold, usable)
        if not entry.produced:
            entry.cached = entry.computed

    def _preempt(self, entry: _Entry) -> None:
        if entry is self._filling:
            self._filling = None
        self._kv.release(entry.hold)
        entry.computed = 0
        self._waiting.appendleft(entry)


def _ids(entries: Collection[_Entry]) -> tuple[str, ...]:
    return tuple([entry.sequence_id for entry in entries]) if entries else ()
