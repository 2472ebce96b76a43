"""A report as data, and the template that makes a page of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from loadtest.report.charts import AnyChart
from loadtest.report.draw import keys_of, svg_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a report found, in a word and a sentence."""

    held: bool | None
    """Whether the bounds hold; None where that can't be said."""
    word: str
    text: str = ""
    parts: Sequence[tuple[str, bool]] = ()
    """Bounds in words, and whether each holds."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the few figures that a reader looks for first."""

    name: str
    value: str
    note: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """Table. The first column has words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = ()
    """Further columns with words."""
    bad: frozenset[tuple[int, int]] = frozenset()
    """Row and column of cells that break a bound."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a report below one heading."""

    title: str
    text: Sequence[str] = ()
    """Paragraphs."""
    items: Sequence[str] = ()
    charts: Sequence[AnyChart] = ()
    """Charts. One without any value is left out, and named."""
    grid: Grid | None = None

    @property
    def drawn(self) -> list[AnyChart]:
        """Charts with a value."""
        return [chart for chart in self.charts if not chart.empty]

    @property
    def missing(self) -> list[str]:
        """Titles of the charts without a value."""
        return [chart.title for chart in self.charts if chart.empty]


@dataclass(frozen=True, slots=True)
class Document:
    """Report."""

    title: str
    kind: str
    """What the report is of, such as "Load test"."""
    verdict: Verdict
    load: Sequence[str] = ()
    """Sentences about the load and the SLO."""
    warnings: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    parts: Sequence[Part] = ()
    origin: Sequence[tuple[str, str]] = ()
    refresh_s: int = 0
    """Seconds after which the page fetches itself again; 0 for never."""


def render(document: Document) -> str:
    """Return the page."""
    return _template().render(document=document)


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("loadtest.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals |= {"svg": svg_of, "keys": keys_of}
    return environment.get_template("page.html.j2")
