"""What changes for us between two releases of vLLM. Pure: it gets both sources and the list."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deployments.engines.vllm.internals.sources import Found, Sources
from deployments.engines.vllm.internals.used import Used


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference."""

    kind: str
    """"gone", "moved", "changed" or "new"."""
    name: str
    words: str = ""

    @property
    def breaks(self) -> bool:
        """Whether something that we use is not there any more."""
        return self.kind in ("gone", "moved")


def compare(used: Iterable[Used], before: Sources, after: Sources) -> list[Finding]:
    """Compare every internal that we use.

    Args:
        used: the list.
        before: the release that we are written for.
        after: the other one.
    """
    found: dict[Finding, None] = {}
    for each in used:
        found |= dict.fromkeys(_compare(each, before, after))
    order = ("gone", "moved", "changed", "new")
    return sorted(found, key=lambda finding: (order.index(finding.kind), finding.name))


def _compare(used: Used, before: Sources, after: Sources) -> Iterator[Finding]:
    here = after.find(used.module, used.path)
    if here is None:
        yield _lost(used, after)
        return
    yield from _attributes(used, here, before, after)
    yield from _arguments(used, here, after)
    there = before.find(used.module, used.path)
    if there is None:
        return
    if isinstance(here.node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from _signature(used.name, before.parameters(there), after.parameters(here))
    elif isinstance(here.node, ast.ClassDef):
        yield from _fields(used, before.fields(there), after.fields(here))


def _lost(used: Used, after: Sources) -> Finding:
    head = used.path.partition(".")[0]
    if used.path and after.find(used.module, head) is None and (places := after.named(head)):
        return Finding("moved", used.name, f"now {', '.join(places)}")
    return Finding("gone", used.name, "" if after.module(used.module) is not None else "its module is gone")


def _attributes(used: Used, here: Found, before: Sources, after: Sources) -> Iterator[Finding]:
    there = before.find(used.module, used.path)
    for name in (*used.attributes, *used.members):
        own = after.attribute(here, name)
        full = f"{used.name}.{name}"
        if own is None:
            yield Finding("gone", full)
            continue
        old = None if there is None else before.attribute(there, name)
        if old is None:
            continue
        if isinstance(own.node, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(old.node, type(own.node)):
            yield from _signature(full, before.parameters(old), after.parameters(own))
        elif type(own.node) is not type(old.node) and (callable_ := _is_callable(own)) != _is_callable(old):
            yield Finding("changed", full, f"{'a method' if callable_ else 'no method'} now")


def _arguments(used: Used, here: Found, after: Sources) -> Iterator[Finding]:
    if used.parameters is None and not used.passes:
        return
    listed = after.parameters(here)
    names = tuple(_name(each) for each in listed)
    if used.parameters is not None and names != used.parameters:
        yield Finding("gone", used.name, f"takes ({', '.join(listed)}), and we need ({', '.join(used.parameters)})")
    taken = any(each.startswith("**") for each in listed)
    for name in used.passes:
        if name not in names and not taken:
            yield Finding("gone", f"{used.name}({name}=)", "no such parameter")


def _signature(name: str, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[Finding]:
    if before != after:
        yield Finding("changed", name, f"({', '.join(before)}) -> ({', '.join(after)})")


def _fields(used: Used, before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[Finding]:
    if before == after:
        return
    for name in after:
        if name not in before:
            yield Finding("new", f"{used.name}.{name}")
    for name in before:
        if name not in after and name not in (*used.attributes, *used.members):
            yield Finding("changed", used.name, f"has no {name} any more, which we don't use")
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        yield Finding("changed", used.name, f"other order: {', '.join(after)}")


def _is_callable(found: Found) -> bool:
    node = found.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any("property" in ast.unparse(each) for each in node.decorator_list)


def _name(parameter: str) -> str:
    return parameter.partition("=")[0].removeprefix("**")
