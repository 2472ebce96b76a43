"""Whether requests ask for more work each than they did: longer prompts show in a dozen of them.

How many come scatters far more than what each asks for, because requests come in groups. So the work of one request
tells a change of lengths minutes before the work of all of them does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.control.load import LoadRules, Need


@dataclass(frozen=True, slots=True)
class _Came:
    """Is what came between two ticks; not per second."""

    since: float
    work: float
    requests: float


def longer_work(work: float, requests: float, needs: Sequence[Need], at: float, rules: LoadRules) -> float | None:
    """Return the replica-seconds that one request of late asks for, where that is more than chance brings; else None.

    The last while is parted in two at every tick, and the parting that is the least likely to be chance counts, as a
    likelihood-ratio test for one change does.

    Args:
        work: replica-seconds per second, an exponential average.
        requests: that arrive per second, averaged alike.
        needs: earlier ticks, the same averages in them.
        at: now.
        rules: the constants.
    """
    if not rules.lengths_s or work <= 0 or requests <= 0:
        return None
    ticks = [each for each in needs if each.at > at - 2.0 * rules.lengths_s and each.requests > 0]
    came = [_came(*pair, rules) for pair in itertools.pairwise([*ticks, Need(at, work, 0, requests)])]
    whole_work, whole = sum(each.work for each in came), sum(each.requests for each in came)
    late_work = late = 0.0
    most, found = rules.lengths_deviations, None
    for part in reversed(came):
        if part.since < at - rules.lengths_s:
            break
        late_work, late = late_work + part.work, late + part.requests
        early_work, early = whole_work - late_work, whole - late
        if min(late, early) < rules.lengths_least or early_work <= 0:
            continue
        errors = (late_work / late * early / early_work - 1.0) / math.sqrt(1.0 / late + 1.0 / early)
        if errors > most:
            most, found = errors, late_work / late
    return found


def _came(before: Need, after: Need, rules: LoadRules) -> _Came:
    """Undo the averages, which forget at a known pace."""
    kept = math.exp(-(after.at - before.at) / rules.rate_window_s)
    seconds = (after.at - before.at) / (1.0 - kept)
    return _Came(
        before.at,
        max(0.0, seconds * (after.work - kept * before.work)),
        max(0.0, seconds * (after.requests - kept * before.requests)),
    )
