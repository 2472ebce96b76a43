"""Suggestions for names of settings that do not exist."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from cluster.nearest import did_you_mean


def near_setting(root: type[BaseModel], path: Sequence[str | int]) -> str:
    """Return a question about an unknown setting, such as "; did you mean model?"; empty where no known name is close.

    A setting that exists under this very name one section further down is named with its place.
    """
    options: list[Any] = [root]
    for part in path[:-1]:
        options = [inner for each in options for inner in _below(each, part)]
    name = str(path[-1])
    for section in _sections(options):
        for inner, field in section.model_fields.items():
            if any(name in each.model_fields for each in _sections(options_of(field.annotation))):
                return f"; did you mean {'.'.join(map(str, (*path[:-1], inner, name)))}?"
    return did_you_mean(name, [known for each in _sections(options) for known in each.model_fields])


def _below(option: Any, part: str | int) -> list[Any]:
    """Return what may stand under a part of a path."""
    if isinstance(option, type) and issubclass(option, BaseModel):
        field = option.model_fields.get(str(part))
        return [] if field is None else options_of(field.annotation)
    if get_origin(option) is dict:
        return options_of(get_args(option)[1])
    return options_of(get_args(option)[0]) if get_origin(option) in (list, tuple) else []


def options_of(annotation: Any) -> list[Any]:
    """Return what an annotation allows."""
    if get_origin(annotation) is Annotated:
        return options_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [option for each in get_args(annotation) for option in options_of(each)]
    return [annotation]


def _sections(options: Sequence[Any]) -> Iterator[type[BaseModel]]:
    return (each for each in options if isinstance(each, type) and issubclass(each, BaseModel))
