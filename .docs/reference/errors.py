"""The page of error reasons, from the errors' classes and from the statuses that routers give them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from google.rpc import code_pb2

from cluster.errors import LinkError, NotInTimeError, PenstockError, RequestError
from reference.markdown import code, page, prose, table
from router.status import DOMAIN, TOO_LATE_CODE, code_of

ROOTS = (RequestError, LinkError)
"""Never raised themselves."""
INTRO = f"""Every error of a call has a gRPC status. Its trailer `grpc-status-details-bin` is a `google.rpc.Status` with
an `ErrorInfo` of the domain `{DOMAIN}`, and the `reason` there is one of the words below. Where they apply, there are
also `BadRequest` (the wrong fields), `QuotaFailure`, and `RetryInfo` (when to come back). A failed item of a job has
the same words. Program against the words: they are part of the API, and the texts are not."""
CALLS = "## Errors of a call"
INSIDE = """## Failures inside the cluster

These words are in logs and metrics. A command that fails prints the message. If such a failure ends a call, the call's
status is `INTERNAL`: the client sees the word and an incident id, and the router's log has the rest."""
WITHOUT = """## Errors without a reason

- gRPC itself answers some calls before Penstock sees them: `UNIMPLEMENTED` for an unknown method, `RESOURCE_EXHAUSTED`
for a message above `router.max_message_bytes`.
- A lost connection is `UNAVAILABLE`, a deadline that the client's own gRPC library notices `DEADLINE_EXCEEDED`.
- The Python client has three words of its own. `UNREACHABLE`: no router answered; the message says what to try.
`MESSAGE_TOO_LARGE`: a request or an answer is longer than its receiver takes; the message has both lengths.
`PROTOCOL`: an answer broke the protocol; something between client and router changed it, or their releases do not
fit."""


def render() -> str:
    """Return the page."""
    kinds = sorted((kind for kind in _family(PenstockError) if kind not in ROOTS), key=lambda kind: kind.reason)
    calls = [kind for kind in kinds if kind is PenstockError or code_of(kind) != code_pb2.INTERNAL]
    inside = [kind for kind in kinds if kind not in calls]
    return page(
        "Errors",
        INTRO,
        CALLS,
        table(
            ["reason", "status", "meaning", "what to do"],
            [[code(kind.reason), _status(kind), _meaning(kind), kind.remedy] for kind in calls],
        ),
        INSIDE,
        table(
            ["reason", "meaning", "what to do"], [[code(kind.reason), _meaning(kind), kind.remedy] for kind in inside]
        ),
        WITHOUT,
    )


def _family(root: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _family(kind)


def _meaning(kind: type[PenstockError]) -> str:
    if kind is PenstockError:
        return "A fault of the cluster."
    return prose(inspect.getdoc(kind) or "").replace("\n\n", " ")


def _status(kind: type[PenstockError]) -> str:
    name = code(code_pb2.Code.Name(code_of(kind)))
    if kind is NotInTimeError:
        return f"{name}; {code(code_pb2.Code.Name(TOO_LATE_CODE))} where no wait would help"
    return name
