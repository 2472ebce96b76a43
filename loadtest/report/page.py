"""HTML page of a report, with the stylesheet that all reports share."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root{color-scheme:light dark}body{font:14px system-ui,sans-serif;max-width:940px;margin:2em auto;padding:0 1em}
svg{width:100%;margin:.4em 0}text{font-size:12px;fill:currentColor}.title{font-weight:600}.end{text-anchor:end}
.mid{text-anchor:middle}.grid{stroke:currentColor;opacity:.2}polyline{fill:none;stroke-width:1.5}
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right}td:first-child,.left{text-align:left}
.bad{color:#dc2626;font-weight:600}.good{color:#16a34a;font-weight:600}
"""


def page(title: str, body: Sequence[str], refresh_s: int = 0) -> str:
    """Return a page.

    Args:
        title: plain text.
        body: pieces of HTML.
        refresh_s: seconds after which a browser loads the page again; 0 for never.
    """
    refresh = f'<meta http-equiv="refresh" content="{refresh_s}">' if refresh_s else ""
    head = f'<!doctype html><meta charset="utf-8">{refresh}<title>{escape(title)}</title><style>{_STYLE}</style>'
    return head + "\n".join(body) + "\n"
