"""Decisions about a choice whose attempt failed. Pure; the router that owns the choice makes them."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from cluster.plural import counted
from router.links.failure import Failure, RecoveryLimits
from router.links.placement import Group

FOREIGN_GRANTS = 4
"""Grants in another group that a choice gives back, in the hope for one in its own. Each closes the window of a healthy
replica until its next heartbeat."""

REFUSED_RESUMES = 4
"""Engines that may refuse to go on with a choice's output before the choice fails. A pool whose engines are being
changed has several kinds, and another one may accept it. Each refusal closes a window as above."""


class Next(enum.Enum):
    """What a choice does next."""

    AGAIN = "again"
    """It waits for another slot and goes on from what was delivered."""
    CANCELLED = "cancelled"
    """Its client had cancelled it, and nothing runs any more."""
    COMPLETE = "complete"
    """All tokens it may have were delivered; only its end was lost."""
    FAIL = "fail"


def after_failure(
    limits: RecoveryLimits, *, lost: int, cancelled: bool, known: bool, tokens: int, max_tokens: int
) -> Next:
    """Decide after an attempt was lost.

    Args:
        limits: the pool's.
        lost: attempts lost so far, this one included.
        cancelled: whether the choice was being stopped for its client.
        known: whether all output that was delivered is known here.
        tokens: output tokens delivered.
        max_tokens: the most it may have.
    """
    if cancelled:
        return Next.CANCELLED
    if tokens and tokens >= max_tokens:
        return Next.COMPLETE
    return Next.AGAIN if known and lost < limits.max_attempts else Next.FAIL


def losses_in_words(lost: int, last: Failure) -> str:
    """Return the reason of a choice that has lost too many attempts."""
    return f"{counted(lost, 'attempt was', 'attempts were')} lost, the last one by: {last.value}"


class Fit(enum.Enum):
    """Whether output that began in one group may go on in another."""

    SAME = "same"
    INEXACT = "inexact"
    """The same weights, but other hardware, ranks or dtype: valid, and not what an undisturbed run would have given."""
    WAIT = "wait"
    """Not here, as long as there is a better place."""
    NEVER = "never"
    """Other weights or another tokenizer, and no replica has the old ones: going on would join the outputs of two
    models."""


def fit(origin: Group, place: Group, elsewhere: Iterable[Group], given_back: int) -> Fit:
    """Decide whether a choice with output may go on in `place`.

    Args:
        origin: where its output came from.
        place: the group of the granted replica.
        elsewhere: groups of the other replicas that take work.
        given_back: grants that this choice has given back for this reason.
    """
    here = _reads_alike(origin, place)
    if here and origin.group_id and place.group_id == origin.group_id:
        return Fit.SAME
    others = [other for other in elsewhere if _reads_alike(origin, other)]
    patient = given_back < FOREIGN_GRANTS
    if patient and any(other.group_id == origin.group_id for other in others):
        return Fit.WAIT
    if here and (not origin.model_digest or place.model_digest == origin.model_digest):
        return Fit.INEXACT
    return Fit.WAIT if patient and any(o.model_digest == origin.model_digest for o in others) else Fit.NEVER


def _reads_alike(one: Group, other: Group) -> bool:
    """Return whether ids mean the same to two groups, as far as that is known."""
    return one.tokenizer_digest == other.tokenizer_digest or not (one.tokenizer_digest and other.tokenizer_digest)
