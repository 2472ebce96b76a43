"""What the page reads: each route is one call of the client."""

from __future__ import annotations

import datetime
import time

from aiohttp import web

import cluster
from router.console.answers import answer
from router.console.caller import ABOUT, CLIENT

TIMEOUT_S = 5.0
MOST_DECISIONS = 240
"""Decisions of an hour."""
MOST_REQUESTS = 500
MOST_JOBS = 200
MOST_DAYS = 400


class ReadRoutes:
    """Handlers of what is only read."""

    def __init__(self, target: str, *, planner: bool) -> None:
        """`target`: the router's address, to show; `planner`: whether plans can be made here."""
        self._about = {"version": cluster.__version__, "target": target, "planner": planner}

    def add_to(self, app: web.Application) -> None:
        add = app.router.add_get
        add(ABOUT, self.about)
        add("/api/whoami", self.whoami)
        add("/api/status", self.status)
        add("/api/models", self.models)
        add("/api/decisions", self.decisions)
        add("/api/outlook", self.outlook)
        add("/api/rollout", self.rollout)
        add("/api/requests", self.requests)
        add("/api/requests/{request_id}", self.explain)
        add("/api/jobs", self.jobs)
        add("/api/usage", self.usage)
        add("/api/costs", self.costs)

    async def about(self, request: web.Request) -> web.StreamResponse:
        return answer(self._about)

    async def whoami(self, request: web.Request) -> web.StreamResponse:
        return answer(await request.app[CLIENT].whoami(timeout=TIMEOUT_S))

    async def status(self, request: web.Request) -> web.StreamResponse:
        found = await request.app[CLIENT].cluster_status(timeout=TIMEOUT_S)
        # By this clock the page makes rates of counters.
        return answer({"status": found, "read_at_ms": time.time() * 1e3})

    async def models(self, request: web.Request) -> web.StreamResponse:
        return answer(await request.app[CLIENT].list_models(timeout=TIMEOUT_S))

    async def decisions(self, request: web.Request) -> web.StreamResponse:
        limit = number(request, "limit", 40, MOST_DECISIONS)
        pool = request.query.get("pool", "")
        return answer(await request.app[CLIENT].decisions(pool, limit=limit, timeout=TIMEOUT_S))

    async def outlook(self, request: web.Request) -> web.StreamResponse:
        return answer(await request.app[CLIENT].outlook(request.query.get("pool", ""), timeout=TIMEOUT_S))

    async def rollout(self, request: web.Request) -> web.StreamResponse:
        return answer(await request.app[CLIENT].rollout(request.query.get("pool", ""), timeout=TIMEOUT_S))

    async def requests(self, request: web.Request) -> web.StreamResponse:
        return answer(
            await request.app[CLIENT].requests(
                tenant=request.query.get("tenant", ""),
                all_tenants=flag(request, "all"),
                pool=request.query.get("pool", ""),
                missed=flag(request, "missed"),
                limit=number(request, "limit", 50, MOST_REQUESTS),
                timeout=TIMEOUT_S,
            )
        )

    async def explain(self, request: web.Request) -> web.StreamResponse:
        return answer(await request.app[CLIENT].explain(request.match_info["request_id"], timeout=TIMEOUT_S))

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        limit = number(request, "limit", 50, MOST_JOBS)
        return answer(await request.app[CLIENT].list_jobs(page_size=limit, timeout=TIMEOUT_S))

    async def usage(self, request: web.Request) -> web.StreamResponse:
        first = first_day(request)
        return answer(
            await request.app[CLIENT].usage(
                tenant=request.query.get("tenant", ""),
                all_tenants=flag(request, "all"),
                pool=request.query.get("pool", ""),
                first_day=first,
                timeout=TIMEOUT_S,
            )
        )

    async def costs(self, request: web.Request) -> web.StreamResponse:
        return answer(await request.app[CLIENT].costs(first_day=first_day(request), timeout=TIMEOUT_S))


def first_day(request: web.Request) -> datetime.date:
    """Return the first of the days of the query, which end today; UTC."""
    days = number(request, "days", 14, MOST_DAYS)
    return datetime.datetime.now(datetime.UTC).date() - datetime.timedelta(days=days - 1)


def number(request: web.Request, name: str, default: int, most: int) -> int:
    """Return a number of the query, 1 to `most`.

    Raises:
        ValueError: it is another one, or none.
    """
    text = request.query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
        raise ValueError(f"{name}: must be a whole number from 1 to {most}, got {text[:40]!r}")
    return int(text)


def flag(request: web.Request, name: str) -> bool:
    """Return whether a flag of the query is set."""
    return request.query.get(name, "") == "1"
