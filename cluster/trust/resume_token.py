"""The resume token, with which any router finds a running generation, even if Redis has lost all data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from cluster.errors import InvalidRequestError
from cluster.trust.secret import ClusterSecret

_PURPOSE = "resume/1"
_PARTS = 4
"""Number of fields of a choice."""


@dataclass(frozen=True, slots=True)
class ResumeTokenChoice:
    """Place where one choice runs; all fields are empty while it waits."""

    attempt: str = ""
    replica_id: str = ""
    address: str = ""
    group_id: str = ""


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """Content of a resume token. The token is opaque to clients and signed with the cluster secret."""

    request_id: str
    pool: str
    tenant: str
    prompt_tokens: int
    choices: tuple[ResumeTokenChoice, ...]
    began_ms: int = 0
    """Arrival of the request's first call, milliseconds since the Unix epoch by its router's clock; 0 where that is not
    known."""
    tokenizer_digest: str = ""
    """Digest of the tokenizer that counted the prompt's tokens; empty where that is not known."""

    def seal(self, secret: ClusterSecret) -> bytes:
        """Return the signed token."""
        choices = [(c.attempt, c.replica_id, c.address, c.group_id) for c in self.choices]
        prompt = (self.prompt_tokens, choices, self.began_ms, self.tokenizer_digest)
        fields = (self.request_id, self.pool, self.tenant, *prompt)
        return secret.seal(_PURPOSE, bytes(msgpack.packb(fields)))

    @classmethod
    def open(cls, token: bytes, secret: ClusterSecret) -> ResumeToken:
        """Read a token.

        Raises:
            InvalidRequestError: the token is not of this cluster, or is of a release that this one can't read.
        """
        payload = secret.open(_PURPOSE, token)
        if payload is None:
            raise InvalidRequestError.of("resume.resume_token", "was not issued by this cluster")
        try:
            # A later release may append more fields.
            fields: list[Any] = msgpack.unpackb(payload)
            request_id, pool, tenant, prompt_tokens, choices, *more = fields
            places = tuple(ResumeTokenChoice(*c[:_PARTS]) for c in choices)
            began_ms, digest = more[0] if more else 0, more[1] if len(more) > 1 else ""
            return cls(request_id, pool, tenant, prompt_tokens, places, int(began_ms), _text(digest))
        except (ValueError, TypeError) as error:
            raise InvalidRequestError.of("resume.resume_token", "cannot be read by this release") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
