"""The whole picture: from what was seen and what the user chose to the lines of a screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from cluster.plural import counted
from penstock.client import PoolStatus, RequestClass
from router.commands.top.inside import decision_lines, replica_lines, tenant_lines
from router.commands.top.lines import Line, Look, Span, apart, fitted, line, span, table
from router.commands.top.looked import Looked, links_down, pool_of, replica_rows, row_keys
from router.commands.top.tables import (
    attainment,
    change,
    decision_columns,
    line_columns,
    pool_columns,
    replica_columns,
    time_of,
    why,
)
from router.commands.top.view import HELP, Lists, Page, View, chosen_row
from router.commands.top.words import number, price_words, slo_words, span_of

GUTTER = 2
"""Characters at the left that mark the chosen row."""
_POOLS_PART = 4
"""The list of pools takes at most one line in so many."""
_ALARMS = 2
_REASONS = 2
"""Most reasons why links are down."""
_HEAD = 4
"""Rows of the line that are shown above the replicas."""
_KEYS = "? help  q end  1 2 3 page  enter look into  tab pool  s sort  p pause"


def picture(looked: Looked, view: View, width: int | None = None, height: int | None = None) -> list[Line]:
    """Return the lines of a screen.

    Args:
        looked: what was seen.
        view: what the user chose.
        width: columns of the screen; None is as wide as it gets.
        height: rows of the screen, all of which are filled; None is as high as it gets, without the line of keys.
    """
    top = _header(looked, view, width)
    if height is None:
        return [*top, *_body(looked, view, width, None)]
    foot = _footer(view, width)
    room = max(0, height - len(top) - 1)
    body = _help() if view.help else _body(looked, view, width, room)
    body = body[:room]
    made = [*top, *body, *[()] * (room - len(body)), foot]
    return [fitted(each, width) if width is not None else each for each in made[:height]]


def shown_lists(looked: Looked, view: View, height: int) -> Lists:
    """Return the lists that keys move in."""
    return Lists([each.name for each in looked.status.pools], row_keys(looked, view), max(1, height // 2))


def _header(looked: Looked, view: View, width: int | None) -> list[Line]:
    status = looked.status
    left = line(
        span("penstock top", Look.BOLD), f"  {looked.target}  {status.router_id}  ", span(status.version, Look.DIM)
    )
    if looked.trouble:
        state = span(f"no answer for {span_of(looked.silent_s)}", Look.BAD)
    else:
        state = span("paused", Look.WARN) if view.paused else span("live", Look.GOOD)
    right = line(state, f"  {time_of(looked.clock_ms)} UTC")
    first = (*left, Span("  "), *right) if width is None else apart(left, right, width)
    return [first, line(span(f"{looked.trouble}; this is the last picture", Look.BAD))] if looked.trouble else [first]


def _footer(view: View, width: int | None) -> Line:
    order = f"sort: {view.sort}{' (turned)' if view.turned else ''}" if view.page is Page.REPLICAS else ""
    keys = "escape back  q end" if view.help or view.inside else _KEYS
    left, right = line(span(keys, Look.DIM)), line(span(order, Look.DIM))
    return (*left, *right) if width is None else apart(left, right, width)


def _help() -> list[Line]:
    wide = max(len(keys) for keys, _ in HELP)
    return [
        (),
        line(span("keys", Look.BOLD)),
        *(line(span(f"  {keys:<{wide}}  ", Look.BOLD), text) for keys, text in HELP),
    ]


def _body(looked: Looked, view: View, width: int | None, room: int | None) -> list[Line]:
    pool = pool_of(looked, view)
    if pool is None:
        return [(), line("no pools: there are none, or the key may use none of them")]
    inner = None if width is None else max(1, width - GUTTER)
    pools = looked.status.pools
    listed = _marked(table(pool_columns(looked.rates), pools, inner), pools.index(pool), _POOLS_PART, room)
    above = listed if view.inside else [*listed, *_away(pool), *_targets(looked, pool), *_autoscaler(pool)]
    left = None if room is None else max(2, room - len(above) - 1)
    return [*above, (), *_page(looked, pool, view, inner, left)]


def _away(pool: PoolStatus) -> list[Line]:
    """Return a line that says why the pool's queue is not reached, where that is known."""
    if not pool.unreachable_reason:
        return []
    return [line(span(f"  queue not reachable: {pool.unreachable_reason}", Look.BAD))]


def _targets(looked: Looked, pool: PoolStatus) -> list[Line]:
    """Return a line per class that is promised something."""
    made = []
    for request_class in RequestClass:
        if not (words := slo_words(pool.operating_point.of(request_class))):
            continue
        total = next((each for each in pool.classes if each.request_class is request_class), None)
        promised = f"{100 * pool.operating_point.attainment:g} %"
        parts: list[Span | str] = [f"  {request_class.name.lower()}: "]
        if total is not None and total.judged:
            # What is measured comes first: the end of the line is cut on a narrow screen.
            parts += [attainment(pool, looked.rates.met(pool, request_class)), f" of {promised}; {words}; in all "
                      f"{100 * total.met / total.judged:.1f} % of {number(total.judged)}"]  # fmt: skip
        else:
            parts.append(f"{promised} within {words}; no request yet")
        made.append(line(*parts))
    if words := price_words(pool.operating_point):
        made.append(line(f"  price: {words}"))
    return made


def _autoscaler(pool: PoolStatus) -> list[Line]:
    made: list[Line] = []
    newest = pool.last_decision
    if newest is not None:
        at = f"  decision {newest.number} at {time_of(newest.at_ms)} ({newest.mode}): "
        made.append(line(at, change(newest), f" {'replica' if newest.replicas == 1 else 'replicas'}; ", why(newest)))
        # The first one is the reason already.
        made += [line(span(f"  alarm: {each}", Look.BAD)) for each in newest.alarms[1:_ALARMS]]
    elif pool.autoscaling != "unknown":
        made.append(line(span(f"  autoscaling {pool.autoscaling}, no decision yet", Look.DIM)))
    if pool.start_failure:
        made.append(line(span(f"  the last start failed: {pool.start_failure}", Look.BAD)))
    return made


def _page(looked: Looked, pool: PoolStatus, view: View, width: int | None, room: int | None) -> list[Line]:
    keys = row_keys(looked, view)
    row = chosen_row(view, keys)
    if view.page is Page.REPLICAS:
        rows = replica_rows(looked, pool, view)
        if view.inside and row is not None:
            return replica_lines(rows[row], pool)
        below = [*_links_down(pool), *_starting(pool)]
        head = _head_of_line(pool, width, room)
        made = table(replica_columns(), rows, width)
        return [*head, *_marked(made, row, 1, None if room is None else room - len(below) - len(head)), *below]
    if view.page is Page.DECISIONS:
        if not looked.decisions:
            return [line("no decisions: no autoscaler has looked after this pool")]
        if view.inside and row is not None:
            return decision_lines(looked.decisions[row])
        return _marked(table(decision_columns(), looked.decisions, width), row, 1, room)
    if not pool.line:
        return [line("nobody waits and nobody runs")]
    if view.inside and row is not None:
        return tenant_lines(pool.line[row].tenant, looked.status.pools)
    return _marked(table(line_columns(pool), pool.line, width), row, 1, room)


def _head_of_line(pool: PoolStatus, width: int | None, room: int | None) -> list[Line]:
    """Return the first rows of the line, where somebody waits and the replicas need not give way for it."""
    waiting = [each for each in pool.line if each.waiting]
    most = len(waiting) if room is None else min(_HEAD, room - len(pool.replicas) - 3)
    if most < 1 or not waiting:
        return []
    made = [(Span("  "), *each) for each in table(line_columns(pool), waiting[:most], width)]
    more = len(waiting) - most
    return [*made, line(span(f"  {more} more in line" if more > 0 else "", Look.DIM))]


def _links_down(pool: PoolStatus) -> list[Line]:
    found = islice(links_down(pool).items(), _REASONS)
    return [line(span(f"  no link to {', '.join(names)}: {reason}", Look.BAD)) for reason, names in found]


def _starting(pool: PoolStatus) -> list[Line]:
    if not pool.starting:
        return []
    usual = pool.last_decision.cold_start if pool.last_decision is not None else 0.0
    took = f"; a start takes {span_of(usual)}" if usual else ""
    start = "starts" if pool.starting == 1 else "start"
    return [
        line(span(f"  {counted(pool.starting, 'replica')} more {start}: wanted, and not there yet{took}", Look.WARN))
    ]


def _marked(made: Sequence[Line], chosen: int | None, part: int, room: int | None) -> list[Line]:
    """Return a table with a mark at the chosen row, and only the rows around it where there is no room for all.

    Args:
        made: header and rows.
        chosen: number of the chosen row.
        part: one line in so many is the room of the table.
        room: lines of the screen; None is room for all.
    """
    head, rows = made[0], list(made[1:])
    marked = [(Span("> " if index == chosen else "  ", Look.BOLD), *each) for index, each in enumerate(rows)]
    most = len(marked) if room is None else max(1, room // part - 1)
    first = 0
    if len(marked) > most:
        # One line says how many are hidden.
        most = max(1, most - 1)
        first = min(max(0, (chosen or 0) - most // 2), len(marked) - most)
        hidden = line(span(f"  {first} above, {len(marked) - first - most} below", Look.DIM))
        return [(Span("  "), *head), *marked[first : first + most], hidden]
    return [(Span("  "), *head), *marked]
