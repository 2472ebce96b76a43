"""The resume token: lets any router find a running generation, also when Redis has forgotten everything."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from cluster.errors import InvalidRequestError
from cluster.trust.secret import ClusterSecret

_PURPOSE = "resume/1"
_PARTS = 4
"""Fields of a choice."""


@dataclass(frozen=True, slots=True)
class ResumeTokenChoice:
    """Is where one choice runs; all empty while it waits."""

    attempt: str = ""
    replica_id: str = ""
    address: str = ""
    group_id: str = ""


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """Is the content of a resume token. The token is opaque to clients and signed with the cluster secret."""

    request_id: str
    pool: str
    tenant: str
    prompt_tokens: int
    choices: tuple[ResumeTokenChoice, ...]

    def seal(self, secret: ClusterSecret) -> bytes:
        """Write and sign the token."""
        choices = [(c.attempt, c.replica_id, c.address, c.group_id) for c in self.choices]
        fields = (self.request_id, self.pool, self.tenant, self.prompt_tokens, choices)
        return secret.seal(_PURPOSE, bytes(msgpack.packb(fields)))

    @classmethod
    def open(cls, token: bytes, secret: ClusterSecret) -> ResumeToken:
        """Read a token.

        Raises:
            InvalidRequestError: it was not made by this cluster, or by a release that this one can't read.
        """
        payload = secret.open(_PURPOSE, token)
        if payload is None:
            raise InvalidRequestError.of("resume.resume_token", "was not issued by this cluster")
        try:
            # A later release may append more.
            request_id, pool, tenant, prompt_tokens, choices, *_ = msgpack.unpackb(payload)
            return cls(request_id, pool, tenant, prompt_tokens, tuple(ResumeTokenChoice(*c[:_PARTS]) for c in choices))
        except (ValueError, TypeError) as error:
            raise InvalidRequestError.of("resume.resume_token", "cannot be read by this release") from error
