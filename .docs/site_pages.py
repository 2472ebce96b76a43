"""Sphinx extension: the front page's contents, and pages for source files and folders that documents link to.

Documents link to code by its path, as code hosts show it. On the site such a link leads to a page with the file, or
with the folder's files. A link to a path that does not exist fails the build.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
PREFIX = "source"
"""Folder of the site with the pages of files and folders."""
NAMED = (".md", ".proto", ".py", ".toml", ".yaml")
"""Endings of files whose path becomes a link where a document names it as code."""
LARGEST = 200_000
"""Bytes of a file that gets a page."""
_NAVIGATION: dict[int, str] = {}
"""List of documents as pages of a depth have it."""
HIDDEN = ("__pycache__", "node_modules", "_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")

CONTENTS = {
    "Manuals": {
        "API and client": "proto/README",
        "Using a cluster": "router/README",
        "Costs": "router/COSTS",
        "Something is slow": "router/SLOW",
        "Examples": "proto/examples/README",
        "Console": "router/console/README",
        "Running a cluster": "cluster/README",
        "Versions": "cluster/VERSIONS",
        "Engines and models": "deployments/README",
        "Kubernetes": "k8s/README",
        "Load tests and planning": "loadtest/README",
        "Benchmarks": "loadtest/benchmarks/README",
        "Conformance of HTTP APIs": "tests/conformance/README",
    },
    "Reference": {
        "API": "proto/reference/api",
        "Python client": "proto/reference/client",
        "Errors": "proto/reference/errors",
        "Fields of OpenAI's bodies": "proto/reference/bodies",
        "Settings": "cluster/reference/settings",
        "Engine arguments": "deployments/reference/engine-arguments",
        "Metrics": "cluster/reference/metrics",
        "Alerts and runbooks": "cluster/reference/alerts",
        "Commands": "cluster/reference/cli",
    },
    "How it works": {
        "Architecture": "ARCHITECTURE",
        "Queue": "cluster/queue/README",
        "Control loops": "cluster/control/README",
        "Placement and recovery": "router/dispatch/README",
        "Simulator and planner": "loadtest/simulate/README",
    },
    "Decisions": {
        "All decisions": "DECISIONS",
        "proto": "proto/DECISIONS",
        "cluster": "cluster/DECISIONS",
        "router": "router/DECISIONS",
        "deployments": "deployments/DECISIONS",
        "loadtest": "loadtest/DECISIONS",
        "k8s": "k8s/DECISIONS",
        "tests": "tests/DECISIONS",
    },
    "Project": {"Contributing": "CONTRIBUTING", "Changelog": "CHANGELOG"},
}
"""The site's contents: captions, and the title of each document in the list."""


def add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give the front page the site's contents. On a code host it has none."""
    if docname == app.config.root_doc:
        source[0] += "".join(
            f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{_entries(entries)}\n```\n"
            for caption, entries in CONTENTS.items()
        )


def _entries(entries: dict[str, str]) -> str:
    return "\n".join(f"{title} <{docname}>" for title, docname in entries.items())


def link_sources(app: Sphinx, doctree: nodes.document) -> None:
    """Lead links to files and folders of the repository to their pages, and paths of files that are named as code."""
    docname = app.env.docname
    folder = Path(app.env.doc2path(docname)).parent
    for node in list(doctree.findall(_is_link)):
        path = Path(os.path.normpath(folder / node["reftarget"]))
        if node.get("refdomain") != "doc" and path.exists() and path.is_relative_to(ROOT) and path != ROOT:
            node.replace_self(_reference(app, docname, path, node.children))
    for node in list(doctree.findall(nodes.literal)):
        path = ROOT / node.astext()
        named = path.suffix in NAMED and "/" in node.astext() and path.is_file()
        if named and not isinstance(node.parent, nodes.reference | addnodes.pending_xref):
            node.replace_self(_reference(app, docname, path, [node.deepcopy()]))


def _is_link(node: nodes.Node) -> bool:
    return isinstance(node, addnodes.download_reference | addnodes.pending_xref) and node.get("reftype") == "myst"


def _reference(app: Sphinx, docname: str, path: Path, inner: list[nodes.Node]) -> nodes.reference:
    """Return a link from a document to a document, or to the page of a file or folder."""
    target = app.env.path2doc(str(path))
    if target not in app.env.found_docs:
        name = path.relative_to(ROOT).as_posix()
        _linked(app).add(name)
        target = f"{PREFIX}/{name}"
    link = nodes.reference("", "", internal=True, refuri=f"{'../' * docname.count('/')}{target}.html")
    link += inner
    return link


def frame_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Put each picture into a box of its own, which scrolls where the screen is narrow."""
    for image in list(doctree.findall(nodes.image)):
        place = image.parent if isinstance(image.parent, nodes.paragraph) and len(image.parent) == 1 else image
        box = nodes.container(classes=["picture"])
        place.replace_self(box)
        box += image


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Make the pages of linked files and folders, and of the files in those folders."""
    linked = _linked(app)
    folders = sorted(name for name in linked if (ROOT / name).is_dir())
    files = {name for name in linked if (ROOT / name).is_file()}
    files |= {path.relative_to(ROOT).as_posix() for name in folders for path in _inside(ROOT / name) if _has_page(path)}
    for name in folders:
        yield f"{PREFIX}/{name}", {"title": name, "body": _folder(name, files | linked)}, "page.html"
    for name in sorted(files):
        yield f"{PREFIX}/{name}", {"title": name, "body": _file(name)}, "page.html"


def share_navigation(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Let source files of one depth share their list of documents, which takes most of a page's time."""
    if pagename.startswith(f"{PREFIX}/"):
        make, depth = context["toctree"], pagename.count("/")

        def shared(**options: Any) -> str:
            if depth not in _NAVIGATION:
                _NAVIGATION[depth] = make(**options)
            return _NAVIGATION[depth]

        context["toctree"] = shared


def _linked(app: Sphinx) -> set[str]:
    """Return the paths that documents link to; the site is always built as a whole."""
    if not hasattr(app, "linked_sources"):
        app.linked_sources = set()
    linked: set[str] = app.linked_sources
    return linked


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.endswith(HIDDEN))


def _has_page(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > LARGEST:
        return False
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _folder(name: str, pages: set[str]) -> str:
    rows = []
    for path in _inside(ROOT / name):
        inner = path.relative_to(ROOT).as_posix()
        shown = f"<code>{escape(path.name)}{'/' if path.is_dir() else ''}</code>"
        if inner in pages:
            shown = f'<a href="{escape(Path(name).name)}/{escape(path.name)}.html">{shown}</a>'
        rows.append(f"<tr><td>{shown}</td><td>{escape(_summary(path))}</td></tr>")
    table = f'<table class="docutils source-files"><tbody>{"".join(rows)}</tbody></table>'
    return f'<h1>{escape(name)}</h1><div class="table-wrapper">{table}</div>'


def _summary(path: Path) -> str:
    """Return the first paragraph of a module's docstring; a package's stands for its folder."""
    module = path / "__init__.py" if path.is_dir() else path
    if module.suffix != ".py" or not module.is_file():
        return ""
    text = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _file(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(name)
    except ClassNotFound:
        shown = f"<pre>{escape(text)}</pre>"
    else:
        shown = highlight(text, lexer, HtmlFormatter(nowrap=True))
        shown = f"<pre>{shown}</pre>"
    return f'<h1>{escape(name)}</h1><div class="highlight">{shown}</div>'


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Lead the site's address to the front page."""
    if error is None and app.builder.format == "html":
        target = f"{app.config.root_doc}.html"
        text = f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><a href="{target}">Penstock</a>\n'
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hooks."""
    app.connect("source-read", add_contents)
    # Before Sphinx copies the files that documents link to.
    app.connect("doctree-read", link_sources, priority=400)
    app.connect("doctree-read", frame_pictures)
    app.connect("html-collect-pages", source_pages)
    # Before the theme asks for the list.
    app.connect("html-page-context", share_navigation, priority=400)
    app.connect("build-finished", write_index)
    return {"version": "1", "parallel_read_safe": False}
