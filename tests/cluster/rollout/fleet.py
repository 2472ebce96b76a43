"""A platform with replicas, in the head: it starts a replica wherever one ended, as Ray Serve does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from cluster.rollout.changes import rules_of
from cluster.rollout.decide import Seen, decide
from cluster.rollout.judge import Member
from cluster.rollout.record import Revision, Rollout
from cluster.rollout.starts import claim, give_up
from cluster.settings import PoolSettings
from penstock.values.admin.rollout import RolloutState

OLD, NEW = Revision(0), Revision(1, {"model": "other"})
STEP_MS = 1_000


def rollout(size: int, **rules: float) -> Rollout:
    """Return a roll-out that has just begun."""
    limits = replace(rules_of(PoolSettings()), **{"judge_s": 5.0, "start_timeout_s": 60.0, **rules})  # type: ignore[arg-type]
    return Rollout("base", OLD, NEW, limits, size=size, allowed=1)


@dataclass
class Fleet:
    """Replicas by place, and the record that they share."""

    record: Rollout
    start_s: float = 3.0
    drain_s: float = 2.0
    fails: Callable[[int], bool] = lambda _: False
    """Whether a start with this revision fails."""
    serves: Callable[[Member], Member] = lambda member: member
    """What a replica has served by now."""
    at_ms: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    """Replicas that are in the registry, by place."""
    starting: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    """Id, revision and time of what starts, by place."""
    draining: dict[int, int] = field(default_factory=dict)
    """Time since which a place drains."""
    fewest: int = 10**9
    most: int = 0
    most_new: int = 0
    """Most replicas with the new revision before one of them was found good."""
    _ids: int = 0

    def __post_init__(self) -> None:
        for place in range(self.record.size):
            self.members[place] = Member(self._name(), OLD.number, ready=True, up_s=100.0)

    def _name(self) -> str:
        self._ids += 1
        return f"demo-{self._ids}"

    def run(self, seconds: int, until: Callable[[Rollout], bool] = lambda found: not found.state.active) -> Rollout:
        """Let time pass until something holds."""
        for _ in range(seconds * 1000 // STEP_MS):
            if until(self.record):
                return self.record
            self.step()
        raise AssertionError(f"not reached in {seconds} s: {self.record}")

    def step(self) -> None:
        """Let a second pass."""
        self.at_ms += STEP_MS
        count = self.record.size + self.record.extra
        for place in [place for place in self.members if place >= count]:
            # The platform counts replicas, and removes only those that are too many.
            vacant = next((each for each in range(count) if each not in self.members | self.starting), None)
            member = self.members.pop(place)
            if vacant is not None:
                self.members[vacant] = member
        for place in range(count):
            self._move(place)
        here = list(self.members.values())
        self.fewest = min(self.fewest, sum(one.ready for one in here))
        self.most = max(self.most, len(here) + len(self.starting))
        if not self.record.passed and self.record.state is RolloutState.ROLLING:
            new = sum(one.revision == NEW.number for one in here)
            new += sum(revision == NEW.number for _, revision, _ in self.starting.values())
            self.most_new = max(self.most_new, new)
        self.record = decide(self.record, Seen(self.at_ms, here))

    def _move(self, place: int) -> None:
        if (found := self.starting.get(place)) is not None:
            name, revision, since = found
            if self.at_ms - since >= self.start_s * 1000:
                del self.starting[place]
                if self.fails(revision):
                    self.record = give_up(self.record, name, "out of memory", self.at_ms)
                else:
                    self.members[place] = Member(name, revision, ready=True)
        elif (member := self.members.get(place)) is None:
            name = self._name()
            self.record, got = claim(self.record, name, place, self.at_ms)
            self.starting[place] = (name, got.number, self.at_ms)
        elif place in self.draining:
            if self.at_ms - self.draining[place] >= self.drain_s * 1000:
                del self.draining[place], self.members[place]
        else:
            if member.replica_id in self.record.retiring:
                self.draining[place] = self.at_ms
                member = replace(member, ready=False, leaving=True)
            self.members[place] = self.serves(replace(member, up_s=member.up_s + STEP_MS / 1000))

    def kill(self, place: int) -> None:
        """End a replica, or a start, without a word."""
        self.members.pop(place, None)
        self.starting.pop(place, None)
        self.draining.pop(place, None)

    @property
    def revisions(self) -> list[int]:
        """Return the revision of each replica."""
        return [self.members[place].revision for place in sorted(self.members)]
