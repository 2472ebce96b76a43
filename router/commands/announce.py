"""`penstock announce`."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError
from cluster.terminal.command import show_examples
from cluster.terminal.console import screen
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import above_zero, whole, word
from router.commands.keys import moment
from router.commands.target import add_target_flags, open_client, placed_by, report_call_errors

if TYPE_CHECKING:
    from penstock.client import AnnouncedLoad, Client

_PLACES = {
    "pool": "POOL",
    "requests_per_second": "--requests-per-second",
    "tokens_per_second": "--tokens-per-second",
    "prompt_tokens": "--prompt-tokens",
    "output_tokens": "--output-tokens",
    "start": "--start",
    "end": "--end",
    "id": "--id",
}
_OF_LOAD = ("start", "end", "prompt_tokens", "output_tokens", "id")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Announce load before it comes, so that the pool's autoscaler has the replicas by then. It counts as far as "
        "the tenant's quota lets it through and its earlier announcements came true. Without a rate, what is announced "
        "is shown."
    )
    parser.add_argument(
        "pool", nargs="?", default="", metavar="POOL", help="the pool, or an alias (default: the only pool)"
    )
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--requests-per-second", type=above_zero, metavar="N", help="requests per second in that time")
    rates.add_argument(
        "--tokens-per-second", type=above_zero, metavar="N",
        help="tokens per second in that time, of prompts and outputs together",
    )  # fmt: skip
    rates.add_argument("--withdraw", type=word, metavar="ID", help="withdraw an announcement")
    parser.add_argument(
        "--start", metavar="WHEN", help="when it begins, such as 30m or 2027-01-15T09:00 (default: now)"
    )
    parser.add_argument("--end", metavar="WHEN", help="when it ends, such as 2h or 2027-01-15T11:00")
    parser.add_argument(
        "--prompt-tokens", type=whole(1), metavar="N",
        help="mean prompt of a request (default: as the tenant's requests of late, or the pool's)",
    )  # fmt: skip
    parser.add_argument("--output-tokens", type=whole(1), metavar="N", help="mean output of a request, as above")
    parser.add_argument("--id", type=word, help="id of the announcement; one that exists is replaced")
    parser.add_argument(
        "--tenant", default="", help="the tenant whose announcements are meant (default: the key's own)"
    )
    parser.add_argument("--all-tenants", action="store_true", help="show those of all tenants, for operators")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target_flags(parser)
    show_examples(
        parser,
        "penstock announce large --requests-per-second 40 --start 8h --end 10h",
        "penstock announce large --tokens-per-second 20000 --start 30m --end 2h",
        "penstock announce large",
        "penstock announce large --withdraw load-5d41402a",
    )
    parser.set_defaults(run=run_announce)


def run_announce(options: argparse.Namespace) -> int:
    """Announce load, withdraw it, or show what is announced."""
    rate = options.requests_per_second or options.tokens_per_second
    _check(options, announces=bool(rate))
    with report_call_errors(options, "10 s", placed_by(_PLACES)) as outcome:
        with open_client(options) as client:
            if rate:
                found: Sequence[AnnouncedLoad] = (_announce(client, options),)
            elif options.withdraw:
                client.withdraw_load(options.withdraw, options.pool, tenant=options.tenant, timeout=10.0)
                found = ()
            else:
                found = client.announced_load(
                    options.pool, tenant=options.tenant, all_tenants=options.all_tenants, timeout=10.0
                )
        if options.json:
            print_json(found)
        elif options.withdraw:
            screen().print(f"withdrawn: {options.withdraw}", highlight=False, markup=False)
        elif found:
            show(found, screen())
        else:
            screen().print("nothing is announced")
    return outcome.status


def _check(options: argparse.Namespace, *, announces: bool) -> None:
    if announces and not options.end:
        raise SettingsError("--end: an announcement needs its end, such as 2h or 2027-01-15T11:00")
    if announces and (options.tenant or options.all_tenants):
        raise SettingsError("--tenant, --all-tenants: load is announced for the key's own tenant")
    given = [f"--{name.replace('_', '-')}" for name in _OF_LOAD if getattr(options, name)]
    if given and not announces:
        raise SettingsError(f"{', '.join(given)}: need --requests-per-second or --tokens-per-second")


def _announce(client: Client, options: argparse.Namespace) -> AnnouncedLoad:
    now = datetime.datetime.now(datetime.UTC)
    start, end = moment(options.start, now, "--start"), moment(options.end, now, "--end")
    assert end is not None  # noqa: S101 - it was checked
    return client.announce_load(
        options.pool,
        start=start,
        end=end,
        requests_per_second=options.requests_per_second,
        tokens_per_second=options.tokens_per_second,
        prompt_tokens=options.prompt_tokens or 0,
        output_tokens=options.output_tokens or 0,
        load_id=options.id or "",
        timeout=10.0,
    )


def show(loads: Sequence[AnnouncedLoad], console: Console) -> None:
    """Print announced load as a table."""
    table = Table()
    words, times = ("id", "tenant"), ("start (UTC)", "end (UTC)")
    add_columns(table, "id", "tenant", "start (UTC)", "end (UTC)", "rate", "counts for", words=words, left=times)
    for each in loads:
        rate = f"{rate_text(each.requests_per_second)} requests/s" if each.requests_per_second is not None else ""
        rate = rate or f"{rate_text(each.tokens_per_second or 0.0)} tokens/s"
        cells = (each.id, each.tenant, _time(each.start), _time(each.end), rate, f"{each.counts_for:.0%}")
        table.add_row(*map(Text, cells))
    print_table(table, console)


def rate_text(rate: float) -> str:
    """Return a rate with four digits, and without an exponent where it is large."""
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.4g}"


def _time(at: datetime.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"
