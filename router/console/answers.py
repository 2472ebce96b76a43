"""Answers with the client's values. A field that a value gains is in the page's data without a change here."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from cluster.terminal.json_values import plain


def answer(value: Any, status: int = 200) -> web.Response:
    """Return an answer with a value."""
    return web.json_response(plain(value), status=status, dumps=dumps)


def dumps(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
