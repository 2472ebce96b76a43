"""Record of announced load."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace


@dataclass(frozen=True, slots=True)
class AnnouncedLoad:
    """Load that a tenant says it will send to a pool, or to an alias."""

    id: str
    """Name that the tenant gave it, or a router."""
    tenant: str
    starts_ms: int
    """Milliseconds since the Unix epoch, like the next one."""
    ends_ms: int
    requests: float = 0.0
    """Requests per second; 0 where tokens are announced."""
    tokens: float = 0.0
    """Tokens per second, of prompts and outputs together; 0 where requests are announced."""
    prompt_tokens: float = 0.0
    """Mean prompt of a request; 0 where both are unknown, like the next one."""
    output_tokens: float = 0.0
    quota_requests: float = 0.0
    """Requests per second that the tenant's quota let through when it was announced; 0 without a quota, like the next
    one. No more counts."""
    quota_tokens: float = 0.0
    quotas: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Both quotas by pool, for a load of an alias; a pool that is missing has those above."""
    alias: str = ""
    """Alias that it was announced to, where this is a pool's part of it."""

    @property
    def tokens_per_request(self) -> float:
        """Tokens of a request, prompt and output together; 0 where they are unknown."""
        return self.prompt_tokens + self.output_tokens

    @property
    def counts_for(self) -> float:
        """Part that counts: what the quota lets through."""
        tokens = self.tokens or self.requests * self.tokens_per_request
        return min(_part(self.quota_requests, self.requests), _part(self.quota_tokens, tokens))

    def holds(self, at: float) -> bool:
        """Return whether it is that time; seconds since the Unix epoch."""
        return self.starts_ms / 1000 <= at < self.ends_ms / 1000

    def going_on_from(self, others: Iterable[AnnouncedLoad], now_ms: int) -> AnnouncedLoad:
        """Return this load with the beginning of the one that it replaces, where that goes on and this says no more."""
        for other in others:
            if (other.tenant, other.id) != (self.tenant, self.id) or max(other.starts_ms, self.starts_ms) > now_ms:
                continue
            asked = ((each.requests, each.tokens, each.tokens_per_request) for each in (self, other))
            if all(mine <= known for mine, known in zip(*asked, strict=True)):
                return replace(self, starts_ms=min(self.starts_ms, other.starts_ms))
        return self

    def part(self, pool: str, part: float, alias: str = "") -> AnnouncedLoad:
        """Return what a pool gets of a load that is announced to an alias."""
        requests, tokens = self.quotas.get(pool, (self.quota_requests, self.quota_tokens))
        return replace(
            self,
            requests=part * self.requests,
            tokens=part * self.tokens,
            quota_requests=requests,
            quota_tokens=tokens,
            quotas={},
            alias=alias,
        )

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> AnnouncedLoad:
        """Read what `to_bytes` wrote. Fields that only a later release knows are left out.

        Raises:
            ValueError, TypeError, KeyError, AttributeError, IndexError: the text is anything else.
        """
        stored = json.loads(text)
        stored["quotas"] = {pool: (most[0], most[1]) for pool, most in stored.get("quotas", {}).items()}
        return cls(**{each.name: stored[each.name] for each in fields(cls) if each.name in stored})


def _part(most: float, asked: float) -> float:
    return min(1.0, most / asked) if most and asked else 1.0
