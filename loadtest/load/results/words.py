"""A run's load, SLO and verdict in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.plural import counted
from loadtest.report.document import Verdict
from loadtest.report.units import shown_bound, shown_part

USUAL_GOODPUT = 0.99
"""Part of the requests within the SLO from which a run without bounds counts as one that held it."""
_PATTERNS = {
    "poisson": "Poisson arrivals",
    "constant": "evenly spaced arrivals",
    "gamma": "gamma-distributed arrivals",
    "mmpp": "arrivals in bursts",
    "step": "arrivals that rise in steps",
    "spike": "arrivals with a spike",
    "diurnal": "arrivals in a day's wave",
}


def load_words(figures: Mapping[str, Any]) -> list[str]:
    """Return sentences about what was sent, where to, and the SLO."""
    scenario = figures["scenario"]
    sent = _users(figures) if figures.get("users") else scenario_words(scenario)
    processes = figures.get("processes", 1)
    by = f" from {counted(processes, 'generator process', 'generator processes')}" if processes > 1 else ""
    to = [f"Sent to {figures['target']}{by}."] if figures.get("target") else []
    cached = [f"{each}."] if (each := cached_words(figures)) else []
    return [f"{sent}.", *_slo_sentences(figures), *to, *cached]


def cached_words(figures: Mapping[str, Any]) -> str:
    """Return the part of the prompts that was not computed, without a full stop; nothing where none is known of."""
    part = cached_part(figures)
    if not part:
        return ""
    return (
        f"{shown_part(part)} of the prompt tokens came from prefix caches; tests with the same seed send the same "
        "prompts again"
    )


def cached_part(figures: Mapping[str, Any]) -> float | None:
    """Return the part of the prompt tokens that came from prefix caches; None where it is not known."""
    cached, prompts = figures.get("cached_tokens"), figures.get("prompt_tokens")
    return None if cached is None or not prompts else cached / prompts


def scenario_words(scenario: Mapping[str, Any]) -> str:
    """Return the load of a scenario in words, without a full stop."""
    time = _seconds(scenario.get("duration_s"))
    seed = scenario.get("seed", 1)
    warm_up = f", the first {_seconds(scenario['warmup_s'])} not counted" if scenario.get("warmup_s") else ""
    if trace := scenario.get("trace"):
        speed = scenario.get("scale_rate", 1.0)
        faster = f", {speed:g} times as fast" if speed != 1 else ""
        return f"Replay of {Path(trace).name}{faster}, for {time}{warm_up}"
    name, _, rest = str(scenario.get("arrivals", "poisson")).partition(":")
    details = f" ({rest.replace('_', ' ').replace('=', ' ').replace(',', ', ')})" if rest else ""
    pattern = f"{_PATTERNS.get(name, name)}{details}"
    rate = f"{scenario['rate']:g} requests/s" if "rate" in scenario else "an unknown rate"
    begin = f"{pattern[0].upper()}{pattern[1:]} at {rate} for {time}, seed {seed}{warm_up}"
    return f"{begin}; {mix_words(scenario.get('mix', {}))}{_lengths(scenario)}"


def _users(figures: Mapping[str, Any]) -> str:
    users, scenario = figures["users"], figures["scenario"]
    count = sum(users.values())
    kinds = ", ".join(f"{number} {kind}" for kind, number in users.items())
    each = f", each sending {figures['user_rate']:g} per second" if figures.get("user_rate") else ""
    return f"{counted(count, 'user')} ({kinds}){each}, for {_seconds(figures['seconds'])}{_lengths(scenario)}"


def mix_words(mix: Mapping[str, float]) -> str:
    """Return the parts of each kind."""
    whole = sum(mix.values())
    if len(mix) == 1:
        return f"all {next(iter(mix))}"
    return ", ".join(f"{100 * weight / whole:.0f} % {kind}" for kind, weight in mix.items()) or "an unknown mix"


def _lengths(scenario: Mapping[str, Any]) -> str:
    if scenario.get("prompt_tokens"):
        return f"; prompts of {scenario['prompt_tokens']:,} tokens, answers of {scenario['output_tokens']:,}"
    return f"; lengths of {Path(scenario['lengths']).name}" if scenario.get("lengths") else ""


def _slo_sentences(figures: Mapping[str, Any]) -> list[str]:
    slos = figures.get("slos", {})
    texts = {kind: slo_words(each) for kind, each in slos.items()}
    if len(set(texts.values())) == 1:
        return [f"SLO of a request: {next(iter(texts.values()))}."]
    return ["SLO of a request: " + "; ".join(f"{kind}: {text}" for kind, text in texts.items()) + "."] if texts else []


def slo_words(slo: Mapping[str, float | None]) -> str:
    parts = []
    if slo.get("ttft_s"):
        parts.append(f"TTFT within {shown_bound(slo['ttft_s'] or 0)}")
    if slo.get("itl_s"):
        parts.append(f"95 % of its gaps between tokens within {shown_bound(slo['itl_s'] or 0)}")
    return " and ".join(parts) or "none, any completed answer is good"


def verdict_of(figures: Mapping[str, Any], bounds: Sequence[tuple[str, bool]]) -> Verdict:
    """Judge a run by its bounds, or without any by its goodput.

    Args:
        figures: those of the run.
        bounds: sentences about bounds, and whether each holds.
    """
    if not figures["requests"]:
        return Verdict(None, "No verdict", "No request ended.")
    if bounds:
        broken = [text for text, held in bounds if not held]
        every = counted(len(bounds), "bound")
        text = f"{len(broken)} of {every} broken." if broken else f"All {every} hold."
        if len(bounds) == 1:
            text = ""
        return Verdict(not broken, "Broken" if broken else "Held", text, list(bounds))
    if figures["goodput"] is None:
        return Verdict(None, "No verdict", "No request counts.")
    held = figures["goodput"] >= USUAL_GOODPUT
    text = f"{shown_part(figures['goodput'])} of {counted(figures['requests'], 'request')} kept the SLO; "
    return Verdict(held, "Held" if held else "Broken", f"{text}the bound is {shown_part(USUAL_GOODPUT)}.")


def _seconds(value: Any) -> str:
    if value is None:
        return "an unknown time"
    if value >= 3600 and value % 60 == 0:
        return f"{value / 3600:.4g} h"
    if value >= 120 and value % 60 == 0:
        return f"{value / 60:g} min"
    return f"{value:.4g} s"
