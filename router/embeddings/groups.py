"""Groups of inputs: what of a request runs in one attempt. Pure.

An entry in the queue for each of 2,048 inputs would cost 2,048 times the queue's CPU and change the order for everybody
who waits. So inputs stand in line in groups. A group is about one engine step of work: small enough that many replicas
share a large request and nobody waits for long behind it, large enough that the queue's cost does not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cluster.queue.entries import MAX_CHOICES, Quota

GROUP_TOKENS = 4_096
"""Tokens that a group has about, where the request allows more groups."""
GROUP_INPUTS = 128
"""Most inputs of a group: 2,048 inputs are 16 groups."""


def plan(lengths: Sequence[int], most: int = MAX_CHOICES) -> list[tuple[int, int]]:
    """Return the groups of a request, each as the range of its inputs. They are in order and nearly as long each.

    Args:
        lengths: tokens of each input, at least one input.
        most: most groups.
    """
    total = sum(lengths)
    wanted = max(-(-total // GROUP_TOKENS), -(-len(lengths) // GROUP_INPUTS))
    number = max(1, min(wanted, most, len(lengths)))
    # Each group ends where its part of all tokens ends, but not before it has an input, nor so late that one of the
    # others has none.
    ends = list(itertools.accumulate(lengths))
    bounds, at = [0], 0
    for group in range(1, number):
        aim = total * group / number
        least, last = bounds[-1] + 1, len(lengths) - (number - group)
        while at < last and ends[at] < aim:
            at += 1
        # The input that reaches over the end belongs to the group that has more of it.
        nearer = at + 1 if at < last and aim - (ends[at - 1] if at else 0) > ends[at] - aim else at
        bounds.append(max(least, min(last, nearer)))
        at = bounds[-1]
    bounds.append(len(lengths))
    return list(itertools.pairwise(bounds))


def most_groups(quota: Quota) -> int:
    """Return into how many groups a tenant's request may be split. More than a quota ever allows would always be
    refused.
    """
    bounds = (quota.requests_per_minute, quota.concurrency, quota.max_waiting)
    return min([MAX_CHOICES, *(bound for bound in bounds if bound > 0)])
