"""Our tab, files and charts on Locust's page, added through its extension points."""

from __future__ import annotations

import json
from typing import Any

from flask import Response, request

from loadtest.load.locust.outputs import columns, figures, rows
from loadtest.load.locust.session import LoadTest

_KEY = "llm"
_TITLES = {"requests": "# requests", "failed": "# failed", "goodput": "goodput", "rps": "requests/s"}
_SHOWN = [name for name in columns() if not name.endswith("_p90_ms")]


def extend_page(web_ui: Any, load: LoadTest) -> None:
    """Add a tab with a line per kind of request, and a page with charts."""
    web_ui.template_args |= {
        "extended_tabs": [{"title": "LLM", "key": _KEY}],
        "extended_tables": [
            {"key": _KEY, "structure": [{"key": name, "title": _TITLES.get(name, _title(name))} for name in _SHOWN]}
        ],
        "extended_csv_files": [
            {"href": "./llm/charts", "title": "LLM charts: TTFT, ITL, throughput, goodput over time"},
            {"href": "./llm/stats.json", "title": "Download LLM statistics JSON"},
        ],
    }

    @web_ui.app.after_request  # type: ignore[untyped-decorator]
    def add_figures(response: Any) -> Any:
        # Locust's page takes extra tables from this answer; see "extending the web UI" in its documentation.
        if request.path.endswith("/stats/requests") and response.is_json:
            data = [{**each, "safe_name": each["kind"]} for each in rows(load)]
            response.set_data(json.dumps({**response.json, "extended_stats": [{"key": _KEY, "data": data}]}))
        return response

    @web_ui.app.route("/llm/charts")  # type: ignore[untyped-decorator]
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def charts() -> Any:
        from loadtest.load.results.page import live_page

        return Response(live_page(figures(load)), mimetype="text/html")

    @web_ui.app.route("/llm/stats.json")  # type: ignore[untyped-decorator]
    @web_ui.auth_required_if_enabled  # type: ignore[untyped-decorator]
    def stats() -> Any:
        return Response(json.dumps(figures(load)), mimetype="application/json")


def _title(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ") + (" [ms]" if name.endswith("_ms") else "")
