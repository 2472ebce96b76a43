"""Flags that a command line has, also those with the usual value: one without effect is an error, whatever it says."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


class _Given(argparse.Action):
    """Action that stores a value and notes that the flag was given."""

    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, __: object = None
    ) -> None:
        setattr(namespace, self.dest, self.const if self.nargs == 0 else values)
        namespace.given = {*given(namespace), self.dest}


class _GivenTrue(_Given):
    """The same for a flag without a value."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, const=True, default=False, help=help)


def given(options: argparse.Namespace) -> set[str]:
    """Return the names of the flags that a command line has."""
    return set(getattr(options, "given", ()))


def note_given(parser: argparse.ArgumentParser) -> None:
    """Let the flags that are added from now on be noted where they are given."""
    parser.register("action", None, _Given)
    parser.register("action", "store_true", _GivenTrue)
