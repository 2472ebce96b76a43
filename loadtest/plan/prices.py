"""Prices of accelerators, as flags give them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cluster.errors import SettingsError
from cluster.nearest import did_you_mean
from loadtest.plan.engine.gpus import GPUS, find_gpu


def prices_of(texts: Sequence[str], hardware: str | None = None) -> dict[str, float]:
    """Read prices such as h100=2.5. The result goes by the names that engines have.

    Args:
        texts: the flags.
        hardware: the name that a profile gives its accelerator. It may be missing from the table of accelerators.

    Raises:
        SettingsError: a price has another form, or is of an unknown accelerator.
    """
    own = None if hardware is None else find_gpu(hardware)
    prices: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = -1.0
        if not equals or not 0 <= price < 1e6:
            raise SettingsError(f"price must be GPU=NUMBER with a number of at least 0, got {text!r}")
        gpu = find_gpu(name)
        if hardware is not None and (name.strip().lower() == hardware.lower() or (gpu is not None and gpu == own)):
            priced = hardware
        elif gpu is not None:
            priced = gpu.name
        else:
            known = sorted({*GPUS, *([] if hardware is None else [hardware])})
            near = did_you_mean(name.strip(), known)
            raise SettingsError(f"price: {name.strip()!r} is no known accelerator; known: {', '.join(known)}{near}")
        if prices.setdefault(priced, price) != price:
            raise SettingsError(f"price: {priced} has two prices, {prices[priced]:g} and {price:g}")
    return prices


def check_prices(prices: Iterable[str], looked_at: Sequence[str]) -> None:
    """Refuse a price of an accelerator that the plan does not look at: the plan would seem to compare it with others.

    Raises:
        SettingsError: there is such a price.
    """
    if stray := [name for name in prices if name not in looked_at]:
        known = ", ".join(dict.fromkeys(looked_at))
        raise SettingsError(f"price: {', '.join(stray)} is not looked at, only {known}")
