"""What a result says of the parts of its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.plural import counted
from loadtest.simulate.parts.prefixes import GPU
from loadtest.simulate.parts.settings import Parts, SharedPrefix, Speculation, Split

_SHOWN = {"gpu": "GPU", "cpu": "CPU"}


def notes(parts: Parts) -> list[str]:
    """Say of each part what of it is held to measurements."""
    said = []
    if parts.shared is not None:
        said.append(_shared(parts.shared))
    if parts.tiers:
        said.append(_tiers(parts))
    if parts.speculation is not None:
        said.append(_speculation(parts.speculation))
    if parts.split is not None:
        said.append(_split(parts.split, parts.kv_bytes))
    return said


def _shared(shared: SharedPrefix) -> str:
    return (
        f"Shared prefix: {counted(shared.number, 'beginning')} of {shared.tokens} tokens before {shared.part:.0%} of "
        "the longer prompts is an assumption about the load, not held to any measurement."
    )


def _tiers(parts: Parts) -> str:
    tiers = " and ".join(
        f"{_SHOWN.get(each.name, each.name)} {each.tokens:,} tokens at {each.gb_per_s:g} GB/s + "
        f"{1e3 * each.latency_s:g} ms"
        for each in parts.tiers
    )
    return (
        f"Prefix cache: {tiers} per replica, {parts.kv_bytes:,} bytes per token. Reuse is counted in the trace; what "
        "the tiers keep is the rule (least recently used), and loads take their time by bandwidth alone: neither is "
        "held to any measurement. Writes to the tiers take no time."
    )


def _speculation(what: Speculation) -> str:
    return (
        f"Speculation: drafts of {counted(what.draft_tokens, 'token')}, each accepted with {what.acceptance:.0%} "
        "whatever the text; a step takes longer by its draft and by the draft's tokens. Not held to any measurement. "
        "Policies know the step model without drafts."
    )


def _split(split: Split, kv_bytes: int) -> str:
    return (
        f"P/D: {counted(split.prefill_replicas, 'prefill replica')} beside {split.decode_replicas} that decode; "
        f"transfers at {split.gb_per_s:g} GB/s + {1e3 * split.latency_s:g} ms per link, {kv_bytes:,} bytes per token. "
        "Transfer time from bandwidth, not held to any measurement. Prefill replicas do not die and are not slow."
    )


def lines(figures: Mapping[str, Any]) -> list[str]:
    """Return the figures of the parts in sentences."""
    said = []
    if (cache := figures.get("prefix_cache")) is not None:
        tiers = cache["hit_by_tier"] or {GPU: 0.0}
        by_tier = ", ".join(f"{_SHOWN.get(name, name)} {part:.1%}" for name, part in tiers.items())
        waited = f"; {counted(cache['loads'], 'load')} of {1e3 * cache['load_mean_s']:.1f} ms" if cache["loads"] else ""
        said.append(
            f"Prefix cache: {cache['hit']:.1%} of the prompt tokens found ({by_tier}) of "
            f"{cache['reuse_in_trace']:.1%} that come again in the trace{waited}."
        )
    if (drafts := figures.get("speculation")) is not None:
        said.append(
            f"Speculation: {drafts['accepted']:.1%} of {drafts['draft_tokens']:,} draft tokens accepted, "
            f"{drafts['tokens_per_step']:.2f} tokens per step and sequence."
        )
    if (split := figures.get("disaggregation")) is not None:
        said.append(
            f"P/D: {split['prefill_replicas']} + {split['decode_replicas']} replicas, prefill busy "
            f"{split['prefill_busy']:.0%} of the time; {counted(split['transfers'], 'transfer')} of "
            f"{1e3 * split['transfer_mean_s']:.1f} ms."
        )
    return said
