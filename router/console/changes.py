"""Changes of a pool's operating point. Routers allow them to admins."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from penstock.client import ClassSlo, OperatingPoint
from router.console.answers import answer
from router.console.bodies import field, optional_number, read_body
from router.console.caller import CLIENT
from router.console.reads import TIMEOUT_S


class ChangeRoutes:
    """Handlers of changes."""

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/api/operating-point", self.set_operating_point)

    async def set_operating_point(self, request: web.Request) -> web.StreamResponse:
        """Set the operating point; null returns to the settings."""
        body = await read_body(request)
        given = body.get("operating_point")
        point = None if given is None else _point(field(body, "operating_point", dict, {}))
        pool = field(body, "pool", str, "")
        return answer(await request.app[CLIENT].set_operating_point(pool, point, timeout=TIMEOUT_S))


def _point(body: dict[str, Any]) -> OperatingPoint:
    """Read an operating point. The router checks ranges.

    Raises:
        TypeError: a field is of another type.
    """
    attainment = optional_number(body, "attainment")
    return OperatingPoint(
        _slo(field(body, "interactive", dict, {})),
        _slo(field(body, "standard", dict, {})),
        _slo(field(body, "batch", dict, {})),
        attainment=OperatingPoint().attainment if attainment is None else attainment,
        price_per_gpu_hour=optional_number(body, "price_per_gpu_hour") or 0.0,
        budget_per_hour=optional_number(body, "budget_per_hour"),
    )


def _slo(body: dict[str, Any]) -> ClassSlo:
    return ClassSlo(optional_number(body, "ttft_p99_s"), optional_number(body, "itl_p95_s"))
