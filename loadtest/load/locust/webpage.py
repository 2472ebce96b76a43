"""Our tab, files and charts on Locust's page, added through its extension points."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import gevent
from flask import Response, request
from gevent.lock import RLock

from loadtest.load.locust.outputs import figures, rows
from loadtest.load.locust.session import LoadTest
from loadtest.report.units import shown_part

_KEY = "llm"
_LEAST_S, _SHARE = 1.0, 9.0
"""Time for which a drawn page is good: seconds, and a multiple of the time that it took."""
_SHOWN = {
    "kind": "Kind",
    "requests": "# Requests",
    "failed": "# Fails",
    "within": "Within the SLO",
    "rps": "Requests/s",
    "tokens_per_s": "Tokens/s",
    "ttft_p50_ms": "TTFT median (ms)",
    "ttft_p99_ms": "TTFT 99%ile (ms)",
    "itl_p50_ms": "ITL median (ms)",
    "itl_p99_ms": "ITL 99%ile (ms)",
}
"""Columns of the tab. The CSV has all."""
_FRAME = """
<iframe id="penstock" title="LLM charts" style="display: none; position: absolute; width: 100%; border: 0"></iframe>
<script>
setInterval(() => {
  const frame = document.getElementById("penstock");
  const table = document.querySelector("#root table");
  const shown = new URLSearchParams(location.search).get("tab") === "llm" && table;
  frame.style.display = shown ? "block" : "none";
  if (!shown) return;
  if (!frame.src) frame.src = "./llm/charts";
  frame.style.top = `${table.getBoundingClientRect().bottom + scrollY + 16}px`;
  const page = frame.contentDocument;
  if (!page?.body) return;
  page.documentElement.dataset.theme = localStorage.theme ?? "";
  frame.style.height = `${page.body.offsetHeight}px`;
}, 300);
</script>
"""
"""Charts below the tab's table. They stand beside Locust's own elements, which its own script keeps."""


def extend_page(web_ui: Any, load: LoadTest) -> None:
    """Add a tab with a line per kind of request and charts, and the files of a test."""
    web_ui.template_args |= {
        "extended_tabs": [{"title": "LLM", "key": _KEY}],
        "extended_tables": [
            {"key": _KEY, "structure": [{"key": name, "title": title} for name, title in _SHOWN.items()]}
        ],
        "extended_csv_files": [
            {"href": "./llm/charts", "title": "LLM charts: TTFT, ITL, throughput, goodput over time"},
            {"href": "./llm/stats.json", "title": "Download LLM statistics JSON"},
        ],
    }

    # Its libraries take more than a second, which a test that begins should not lose.
    from loadtest.load.results.page import live_page

    drawn = _Drawn(live_page)

    @web_ui.app.after_request  # type: ignore[untyped-decorator]
    def add_figures(response: Any) -> Any:
        # Locust's page takes extra tables from this answer; see "extending the web UI" in its documentation.
        if request.path.endswith("/stats/requests") and response.is_json:
            data = [_tab_row(each) for each in rows(load)]
            response.set_data(json.dumps({**response.json, "extended_stats": [{"key": _KEY, "data": data}]}))
        elif request.path.endswith("/") and response.mimetype == "text/html":
            response.set_data(response.get_data(as_text=True).replace("</body>", f"{_FRAME}</body>"))
        return response

    @web_ui.app.route("/llm/charts")  # type: ignore[untyped-decorator]
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def charts() -> Any:
        return Response(drawn(load), mimetype="text/html")

    @web_ui.app.route("/llm/stats.json")  # type: ignore[untyped-decorator]
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def stats() -> Any:
        return Response(json.dumps(figures(load)), mimetype="application/json")


class _Drawn:
    """The page of charts. However many look at it, drawing takes a tenth of a core at most.

    A thread of its own draws it. In Locust's, requests would be late meanwhile.
    """

    def __init__(self, draw: Callable[[dict[str, Any]], str]) -> None:
        self._draw = draw
        self._page = ""
        self._good_until = 0.0
        self._lock = RLock()

    def __call__(self, load: LoadTest) -> str:
        with self._lock:
            began = time.monotonic()
            if began >= self._good_until:
                self._page = gevent.get_hub().threadpool.apply(self._draw, (figures(load),))
                now = time.monotonic()
                self._good_until = now + max(_LEAST_S, _SHARE * (now - began))
            return self._page


def _tab_row(row: dict[str, Any]) -> dict[str, Any]:
    within = "-" if row["goodput"] == "" else shown_part(row["goodput"])
    return {**{name: row.get(name, within) for name in _SHOWN}, "safe_name": row["kind"]}
