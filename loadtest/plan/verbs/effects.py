"""Flags that have an effect, by what is asked. Any other that is given is an error: its user would take the answer for
one to another question.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from cluster.errors import SettingsError
from loadtest.simulate.given_flags import given

_LISTS = ("tp", "pp", "dp", "price", "points", "also")
"""Flags that may be given again."""
_MODEL = frozenset(
    {"model", "precision", "kv_cache_dtype", "gpu", "tp", "pp", "dp", "price", "currency", "points", "points_of"}
)
_LENGTHS = frozenset({"prompt_tokens", "output_tokens", "spread"})
_DRAWN = _LENGTHS | {"prefix_hit", "lengths"}
_RECORDED = frozenset({"trace", "limit", "scale_rate", "rate_factor"})
_SLO = frozenset({"slo_ttft", "slo_itl", "slo_tpot", "attainment", "confidence"})
_PAPER = frozenset({"html", "apply", "profile"})
_EVERY = frozenset({"json", "state_dir", "no_store"})
"""Flags that change no answer, only where it goes and what is kept."""

USED = {
    "check-points": _EVERY | {"check_points"},
    "observe": _EVERY | {"observe"},
    "review": _EVERY | {"review"},
    "budget": _EVERY | _MODEL | _DRAWN | _SLO | {"budget", "embeddings", "simulate", "seed", "rate", "trace"},
    "deadline": _EVERY | _MODEL | _DRAWN | {"requests", "deadline", "embeddings", "confidence", "rate", "trace"},
    "also": _EVERY | _MODEL | _DRAWN | _SLO | _RECORDED | {"also", "rate", "embeddings", "draws", "seed"},
    "a plan": _EVERY | _MODEL | _DRAWN | _SLO | _RECORDED | _PAPER
    | {"rate", "cold_start", "embeddings", "simulate", "draws", "seed"},
}  # fmt: skip
"""Flags by the question. Those that a question refuses with words of its own are among them."""


def asked_for(options: argparse.Namespace) -> set[str]:
    """Return the names of the flags that a command line has."""
    return given(options) | {name for name in _LISTS if getattr(options, name)}


def check_question(options: argparse.Namespace, question: str) -> None:
    """Refuse flags that have nothing to do with a question, one of `USED`.

    Raises:
        SettingsError: there is such a flag.
    """
    _refuse(options, asked_for(options) - USED[question], f"with {question}")


def check_load(options: argparse.Namespace) -> None:
    """Refuse flags about a load that another flag settles.

    Raises:
        SettingsError: there is such a flag.
    """
    # Lengths of the other models are drawn also where those of the first one are recorded.
    found = asked_for(options) - ({"spread"} if options.also else set())
    if options.trace:
        if stray := found & ({"rate"} | _DRAWN):
            name = min(stray)
            raise SettingsError(
                f"{_flag(name)}: a trace has its own, got {getattr(options, name)}; see scale-rate, rate-factor and "
                "limit"
            )
        return
    if stray := found & (_RECORDED - {"trace"}):
        name = min(stray)
        raise SettingsError(f"{_flag(name)} is for traces, got {getattr(options, name)} without a trace; give a rate")
    _refuse(options, found & {"cold_start"}, "without a trace, which the autoscaler would follow")
    if options.lengths:
        _refuse(options, found & _LENGTHS, f"with lengths, which come from {options.lengths}")


def check_engine(options: argparse.Namespace) -> None:
    """Refuse flags about an engine that a profile settles, and a currency of nothing.

    Raises:
        SettingsError: there is such a flag.
    """
    found = asked_for(options)
    if options.profile:
        for name in sorted(found & (_MODEL - {"price", "currency"})):
            raise SettingsError(
                f"--{_flag(name)} says what to look for, and --profile is of one engine that was measured"
            )
    if not options.price:
        _refuse(options, found & {"currency"}, "without a price")


def _refuse(options: argparse.Namespace, stray: Iterable[str], why: str) -> None:
    for name in sorted(stray):
        value = getattr(options, name)
        told = "" if isinstance(value, bool) else f", got {_shown(value)}"
        raise SettingsError(f"{_flag(name)} has no effect {why}{told}")


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flag(name: str) -> str:
    return name.replace("_", "-")
