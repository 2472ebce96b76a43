"""The page of the Python client, from the source of everything that `penstock` makes public."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import penstock.client
from reference.markdown import code, page, prose, slug, table

INTRO = """All public names of the package `penstock`: `from penstock import Client`. How to use them:
[router](../../router/README.md). How to install the package: [API](../README.md#install-the-python-client)."""
GROUPS = {
    "Clients": ("client.aio", "client.sync", "client.aio_stream", "client.sync_stream"),
    "Connections and credentials": ("client.connection", "client.credentials", "client.retry"),
    "Requests": (
        "values.messages.message",
        "values.messages.images",
        "values.tools",
        "values.chat",
        "values.requests",
        "values.sampling",
        "models",
    ),
    "Events": ("values.events",),
    "Results": ("values.results",),
    "Embeddings": ("values.embeddings",),
    "Jobs": ("values.jobs",),
    "Batch files": ("batch.input", "batch.output"),
    "Operation": (
        "values.status.pool",
        "values.status.line",
        "values.status.replica",
        "values.slo",
        "values.decisions",
        "values.steps",
        "values.admin.costs",
        "values.admin.registry",
        "values.admin.rollout",
        "values.admin.announced",
        "values.admin.outlook",
        "values.admin.identity",
        "values.admin.records",
    ),
    "Errors": ("values.errors", "values.objects"),
}
"""Title of a section to the modules that define its names."""
INHERITED = {
    "AsyncClient": ("client.embeddings.aio", "client.admin.aio"),
    "Client": ("client.embeddings.sync", "client.admin.sync"),
}
"""Class to the modules whose classes it inherits public methods from."""
HIDDEN = ("to_proto", "from_proto")
"""Methods that convert to and from generated code."""
SECTION = re.compile(r"^(Args|Returns|Yields|Raises):$", re.MULTILINE)
WORDS = {"Args": "Arguments", "Returns": "Returns", "Yields": "Yields", "Raises": "Raises"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


def render() -> str:
    """Return the page.

    Raises:
        KeyError: a public name is defined in no module of a group.
    """
    wanted = set(penstock.client.__all__)
    sections = []
    for title, modules in GROUPS.items():
        parts = [part for module in modules for part in _Module(module).parts(wanted)]
        sections.append("\n\n".join((f"## {title}", *parts)))
    if wanted:
        raise KeyError(f"names of no group: {', '.join(sorted(wanted))}")
    links = "\n".join(f"- [{title}](#{slug(title)})" for title in GROUPS)
    return page("Python client", INTRO, links, *sections)


class _Module:
    """Source of one module, and text for what it defines."""

    def __init__(self, name: str) -> None:
        module = importlib.import_module(f"penstock.{name}")
        self._source = Path(inspect.getsourcefile(module) or "").read_text(encoding="utf-8")

    def parts(self, wanted: set[str]) -> Iterator[str]:
        """Yield the public names that the module defines, in its own order, and take them from those wanted."""
        for node, text in _documented(ast.parse(self._source).body):
            defined = _name(node)
            if defined in wanted:
                wanted.remove(defined)
                yield "\n\n".join(part for part in self._definition(node, text) if part)

    def _text(self, node: ast.AST) -> str:
        """Return a part of the source as it is written, on one line."""
        return " ".join((ast.get_source_segment(self._source, node) or "").split())

    def _definition(self, node: Definition, text: str) -> Iterator[str]:
        yield f"### {_name(node)}"
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(code(self._text(base)) for base in node.bases)
            yield f"Subclass of {bases}." if bases else ""
            yield _docstring(text)
            yield from self._class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield self._signature(node, node.name)
            yield _docstring(text)
        else:
            yield f"```py\n{self._text(node)}\n```"
            yield _docstring(text)

    def _class(self, node: ast.ClassDef) -> Iterator[str]:
        """Yield the fields and public methods of a class."""
        enum = any(self._text(base).endswith("Enum") for base in node.bases)
        fields, methods = [], []
        for each, text in _documented(node.body):
            if _name(each) == "__init__" and isinstance(each, ast.FunctionDef):
                yield self._signature(each, node.name)
                yield _docstring(text)
            elif _name(each).startswith("_") or _name(each) in HIDDEN:
                continue
            elif isinstance(each, ast.AnnAssign):
                fields.append([code(_name(each)), code(self._text(each.annotation)), self._value(each), prose(text)])
            elif isinstance(each, ast.Assign) and enum:
                fields.append([code(_name(each)), "", code(self._text(each.value)), prose(text)])
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                if "property" in [self._text(mark) for mark in each.decorator_list]:
                    kind = code(self._text(each.returns)) if each.returns else ""
                    fields.append([code(_name(each)), kind, "", prose(text)])
                else:
                    methods.append((each, text))
        if fields and enum:
            yield table(["member", "value", "meaning"], [[row[0], row[2], row[3]] for row in fields])
        elif fields:
            yield table(["field", "type", "default", "meaning"], fields)
        for method, text in methods:
            yield from self._method(node.name, method, text)
        for module in INHERITED.get(node.name, ()):
            yield from _Module(module).methods(node.name)

    def methods(self, owner: str) -> Iterator[str]:
        """Yield the methods of the module's class as those of another class."""
        for node in ast.parse(self._source).body:
            for each, text in _documented(node.body) if isinstance(node, ast.ClassDef) else ():
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from self._method(owner, each, text)

    def _method(self, owner: str, method: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> Iterator[str]:
        yield f"#### {owner}.{method.name}()"
        yield self._signature(method, method.name)
        yield _docstring(text)

    def _value(self, node: ast.AnnAssign) -> str:
        """Return the default of a field."""
        match node.value:
            case None:
                return ""
            case ast.Call(func=ast.Name(id="field"), keywords=keywords):
                named = {word.arg: self._text(word.value) for word in keywords}
                if not named.keys() & {"default", "default_factory"}:
                    return ""
                return code(named["default"] if "default" in named else f"{named['default_factory']}()")
            case value:
                return code(self._text(value))

    def _signature(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
        """Return a function's head, an argument a line where it is long."""
        start = f"{'await ' if isinstance(node, ast.AsyncFunctionDef) else ''}{name}("
        made = node.name == "__init__" or node.returns is None
        end = ")" if made else f") -> {self._text(node.returns)}"
        arguments = [each for each in self._arguments(node.args) if each not in ("self", "cls")]
        line = f"{start}{', '.join(arguments)}{end}"
        if len(line) > 100:
            line = f"{start}\n" + "".join(f"    {each},\n" for each in arguments) + end
        return f"```py\n{line}\n```"

    def _arguments(self, arguments: ast.arguments) -> Iterator[str]:
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
        for each, default in zip(plain, defaults, strict=True):
            yield self._argument(each, default)
        if arguments.kwonlyargs:
            yield "*"
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            yield self._argument(each, default)
        if arguments.kwarg:
            yield f"**{self._text(arguments.kwarg)}"

    def _argument(self, argument: ast.arg, default: ast.expr | None) -> str:
        return f"{self._text(argument)} = {self._text(default)}" if default else self._text(argument)


def _documented(body: list[ast.stmt]) -> Iterator[tuple[Definition, str]]:
    """Yield each definition with its docstring; that of a value follows it."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            match following:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield node, text
                case _:
                    yield node, ""


def _name(node: Definition) -> str:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else node.name


def _docstring(text: str) -> str:
    """Return a docstring; its sections become lists."""
    first, *rest = SECTION.split(text)
    parts = [prose(first)] if first.strip() else []
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        parts.append(f"{WORDS[title]}:\n\n" + "\n".join(f"- {item}" for item in _items(body)))
    return "\n\n".join(parts)


def _items(body: str) -> Iterator[str]:
    """Yield the entries of a section, which begin at its left edge."""
    lines = inspect.cleandoc(body).splitlines()
    entries: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and entries:
            entries[-1].append(line.strip())
        elif line.strip():
            entries.append([line])
    for entry in entries:
        name, colon, text = " ".join(entry).partition(": ")
        yield f"{code(name)}: {prose(text)}" if colon and " " not in name else prose(" ".join(entry))
