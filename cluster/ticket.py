"""The resume token: lets any router find a running generation, also when Redis has forgotten everything."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from cluster.errors import InvalidRequestError
from cluster.secret import ClusterSecret

_PURPOSE = "resume/1"


@dataclass(frozen=True, slots=True)
class TicketChoice:
    """Is where one choice runs; all empty while it waits."""

    attempt: str = ""
    replica_id: str = ""
    address: str = ""
    group_id: str = ""


@dataclass(frozen=True, slots=True)
class ResumeTicket:
    """Is the content of a resume token. The token is opaque to clients and signed with the cluster secret."""

    request_id: str
    pool: str
    tenant: str
    prompt_tokens: int
    choices: tuple[TicketChoice, ...]

    def seal(self, secret: ClusterSecret) -> bytes:
        """Write and sign the token."""
        choices = [(c.attempt, c.replica_id, c.address, c.group_id) for c in self.choices]
        fields = (self.request_id, self.pool, self.tenant, self.prompt_tokens, choices)
        return secret.seal(_PURPOSE, bytes(msgpack.packb(fields)))

    @classmethod
    def open(cls, token: bytes, secret: ClusterSecret) -> ResumeTicket:
        """Read a token.

        Raises:
            InvalidRequestError: it was not made by this cluster.
        """
        payload = secret.open(_PURPOSE, token)
        if payload is None:
            raise InvalidRequestError.of("resume.resume_token", "was not issued by this cluster")
        request_id, pool, tenant, prompt_tokens, choices = msgpack.unpackb(payload)
        return cls(request_id, pool, tenant, prompt_tokens, tuple(TicketChoice(*c) for c in choices))
