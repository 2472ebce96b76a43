"""Flags of the parts that a simulated cluster has besides."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cluster.terminal.values import above_zero, time_from_zero, up_to, whole
from loadtest.simulate.parts.settings import KV_BYTES, MOST_DRAFTED, SharedPrefix, Tier

_GB_PER_S = {"cpu": 25.0, "disk": 5.0}
"""What PCIe 4 x16 and a fast NVMe drive carry, from data sheets."""
LINK_GB_PER_S = 12.5
_MOST_TOKENS = 10**12


def add_part_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags, in a group per part."""
    cache = parser.add_argument_group(
        "prefix cache",
        "beginnings of prompts that the GPU no longer has. What it computes is also kept in the tiers below, each "
        "replica's own; the block that was used last stays longest",
    )
    for name, memory in (("cpu", "in host memory"), ("disk", "on a local drive")):
        cache.add_argument(
            f"--{name}-cache",
            type=_tier(name),
            metavar="TOKENS[:GB/S[:MS]]",
            help=f"tokens that each replica keeps {memory}, its bandwidth to the GPU (default "
            f"{_GB_PER_S[name]:g}) and the milliseconds of a load beside it (default 0)",
        )
    cache.add_argument(
        "--kv-bytes",
        type=whole(1, 10**9),
        metavar="N",
        default=KV_BYTES,
        help="KV cache of a token in bytes, for transfers (default %(default)s, an 8-billion-parameter model)",
    )
    cache.add_argument(
        "--shared-prefix",
        type=_shared,
        metavar="TOKENS[:PART[:N]]",
        help="for a trace without hash_ids: PART of the longer prompts (default 1) begin with one of N beginnings "
        "(default 1) of this many tokens",
    )
    _add_speculation(parser)
    _add_split(parser)


def _add_speculation(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "speculative decoding",
        "each step verifies a draft of some tokens per sequence. A draft takes one pass of the draft model per token; "
        "none of these times is measured",
    )
    group.add_argument("--draft-tokens", type=whole(1, MOST_DRAFTED), metavar="N", help="length of a draft")
    group.add_argument(
        "--acceptance",
        type=up_to(1),
        metavar="X",
        help="probability that a draft token is accepted when all before it are",
    )
    group.add_argument(
        "--draft-ms",
        type=up_to(60_000),
        metavar="N",
        default=0.0,
        help="milliseconds of a pass of the draft model (default %(default)g, as n-grams of the prompt)",
    )
    group.add_argument(
        "--draft-us",
        type=up_to(1_000_000),
        metavar="N",
        default=0.0,
        help="microseconds of a pass per sequence (default %(default)g)",
    )
    group.add_argument(
        "--verify-us",
        type=up_to(1_000_000),
        metavar="N",
        help="microseconds of the step per draft token (default: --per-token-us)",
    )


def _add_split(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "prefill/decode disaggregation", "prompts are computed on replicas of their own, which then send the KV cache"
    )
    group.add_argument(
        "--prefill-decode",
        type=_ratio,
        metavar="P:D",
        help="of every P + D replicas, P compute prompts and D decode (with a policy that keeps the number)",
    )
    group.add_argument(
        "--kv-link",
        type=_link,
        metavar="GB/S[:MS]",
        help=f"bandwidth of each replica's link for KV caches (default {LINK_GB_PER_S:g}, 100 Gbit/s), and the "
        "milliseconds of a transfer beside it (default 0)",
    )


def _ratio(text: str) -> tuple[int, int]:
    """Read a ratio, such as 1:3."""
    prefill, colon, decode = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"must be two whole numbers such as 1:3, got {text!r}")
    count = whole(1, 1_000)
    return count(prefill), count(decode)


def _link(text: str) -> tuple[float, float]:
    """Read a link, such as 12.5:0.5."""
    gb_per_s, colon, latency_ms = text.partition(":")
    return above_zero(gb_per_s), time_from_zero(latency_ms) / 1e3 if colon else 0.0


def _tier(name: str) -> Callable[[str], Tier]:
    def read(text: str) -> Tier:
        """Read a tier, such as 2000000:25:0.5."""
        tokens, gb_per_s, latency_ms = _fields(text, "tokens, GB/s and milliseconds such as 2000000:25:0.5")
        return Tier(
            name,
            int(whole(1, _MOST_TOKENS)(tokens)),
            above_zero(gb_per_s) if gb_per_s else _GB_PER_S[name],
            time_from_zero(latency_ms) / 1e3 if latency_ms else 0.0,
        )

    return read


def _shared(text: str) -> SharedPrefix:
    """Read a shared beginning, such as 1024:0.8:4."""
    tokens, part, number = _fields(text, "tokens, a part and a number such as 1024:0.8:4")
    if part and not 0 < above_zero(part) <= 1:
        raise argparse.ArgumentTypeError(f"must have a part above 0 of at most 1, got {part!r}")
    return SharedPrefix(
        int(whole(1, _MOST_TOKENS)(tokens)),
        above_zero(part) if part else 1.0,
        int(whole(1, 1_000_000)(number)) if number else 1,
    )


def _fields(text: str, like: str) -> tuple[str, str, str]:
    fields = text.split(":")
    if len(fields) > 3 or not all(fields):
        raise argparse.ArgumentTypeError(f"must be {like}, got {text!r}")
    first, second, third = [*fields, "", ""][:3]
    return first, second, third
