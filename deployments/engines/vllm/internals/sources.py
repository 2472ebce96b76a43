"""The source of a vLLM, read without an import of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr | ast.Module
"""A function, class or module, or the value or annotation of a variable."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Found:
    """A definition, and where it is."""

    module: str
    path: str
    node: Definition


class Sources:
    """All modules under a folder.

    Args:
        folder: the one that has the package `vllm`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.module = lru_cache(maxsize=None)(self._read)
        """Return the syntax of a module by its name; None where there is none."""

    def find(self, module: str, path: str) -> Found | None:
        """Find a definition by the module that it is imported from. Follow imports, and look in base classes."""
        tree = self.module(module)
        if tree is None:
            return None
        if not path:
            return Found(module, "", tree)
        head, _, rest = path.partition(".")
        found = self._in_module(module, head)
        for name in rest.split(".") if rest else ():
            if found is None or not isinstance(found.node, ast.ClassDef):
                return None
            found = self._attribute(found, name)
        return found

    def attribute(self, owner: Found, name: str) -> Found | None:
        """Find what a class or its bases declare under a name, or set on an instance."""
        return self._attribute(owner, name)

    def fields(self, owner: Found) -> tuple[str, ...]:
        """List the annotated fields of a class with those of its bases first, or the members of an enumeration."""
        names: dict[str, None] = {}
        for part in reversed(list(self._lineage(owner))):
            if isinstance(part.node, ast.ClassDef):
                names |= dict.fromkeys(_declared(part.node))
        return tuple(names)

    def parameters(self, found: Found) -> tuple[str, ...]:
        """List the parameters of a function with their defaults, or those of the constructor of a class."""
        node = found.node
        if isinstance(node, _FUNCTIONS):
            return tuple(_parameters(node))
        made = self._attribute(found, "__init__") if isinstance(node, ast.ClassDef) else None
        if made is not None and isinstance(made.node, _FUNCTIONS):
            return tuple(each for each in _parameters(made.node) if each != "self")
        return self.fields(found)

    def named(self, name: str) -> list[str]:
        """List the places in which a function or class of a name is defined at the top of a module."""
        begins = re.compile(rf"^\s*(?:class|def|async def) {re.escape(name)}\b", re.MULTILINE)
        return [
            f"{module}:{name}"
            for module, file in self._modules()
            # All of vLLM takes a minute to parse.
            if begins.search(file.read_text(encoding="utf-8"))
            and (tree := self.module(module)) is not None
            and any(isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and node.name == name for node in _statements(tree))
        ]

    def _modules(self) -> Iterator[tuple[str, Path]]:
        for file in sorted(self._folder.glob("vllm/**/*.py")):
            parts = file.relative_to(self._folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file

    def _read(self, module: str) -> ast.Module | None:
        file = self._file(module)
        return None if file is None else ast.parse(file.read_text(encoding="utf-8"))

    def _file(self, module: str) -> Path | None:
        path = self._folder.joinpath(*module.split("."))
        return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)

    def _in_module(self, module: str, name: str, depth: int = 0) -> Found | None:
        tree = self.module(module)
        if tree is None or depth > _MOST_HOPS:
            return None
        for node in _statements(tree):
            if isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and node.name == name:
                return Found(module, name, node)
            if (value := _assigned(node, name)) is not None:
                return Found(module, name, value)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._in_module(self._origin(module, node), alias.name, depth + 1)
        return None

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        file = self._file(module)
        parts = module.split(".")
        keep = len(parts) - node.level + (file is not None and file.name == "__init__.py")
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])

    def _lineage(self, owner: Found, depth: int = 0) -> Iterator[Found]:
        yield owner
        if not isinstance(owner.node, ast.ClassDef) or depth > _MOST_HOPS:
            return
        for base in owner.node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(name, ast.Name) and (found := self._in_module(owner.module, name.id)) is not None:
                yield from self._lineage(found, depth + 1)

    def _attribute(self, owner: Found, name: str) -> Found | None:
        for part in self._lineage(owner):
            if isinstance(part.node, ast.ClassDef) and (node := _member(part.node, name)) is not None:
                return Found(part.module, f"{part.path}.{name}", node)
        return None


_MOST_HOPS = 12


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield a module's statements, those under `if` and `try` too."""
    todo = list(tree.body)
    while todo:
        node = todo.pop(0)
        yield node
        if isinstance(node, ast.If):
            todo = [*node.body, *node.orelse, *todo]
        elif isinstance(node, ast.Try):
            todo = [*node.body, *(each for handler in node.handlers for each in handler.body), *node.orelse, *todo]


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
        return node.annotation
    if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
        return node.value
    return None


def _member(node: ast.ClassDef, name: str) -> Definition | None:
    for each in node.body:
        if isinstance(each, (ast.ClassDef, *_FUNCTIONS)) and each.name == name:
            return each
        if (value := _assigned(each, name)) is not None:
            return value
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and inner.attr == name and _set_on_self(inner):
            return inner
    return None


def _set_on_self(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _declared(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            if not ast.unparse(each.annotation).startswith("ClassVar"):
                yield each.target.id
        elif isinstance(each, ast.Assign):
            yield from (to.id for to in each.targets if isinstance(to, ast.Name) and not to.id.startswith("_"))


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    arguments = node.args
    placed = [*arguments.posonlyargs, *arguments.args]
    if any(isinstance(each, ast.Name) and each.id == "classmethod" for each in node.decorator_list):
        placed = placed[1:]
    first = len(placed) - len(arguments.defaults)
    for number, each in enumerate(placed):
        default = arguments.defaults[number - first] if number >= first else None
        yield each.arg if default is None else f"{each.arg}={ast.unparse(default)}"
    if arguments.vararg is not None:
        yield arguments.vararg.arg
    for each, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield each.arg if given is None else f"{each.arg}={ast.unparse(given)}"
    if arguments.kwarg is not None:
        yield f"**{arguments.kwarg.arg}"
