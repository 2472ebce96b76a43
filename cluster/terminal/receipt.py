"""Display of a receipt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cluster.terminal.tables import add_columns, number, print_table

if TYPE_CHECKING:
    from penstock.client import Finished


def print_receipt(finished: Finished, console: Console) -> None:
    """Print the times and tokens of each attempt, and the usage of the request."""
    receipt, usage = finished.receipt, finished.usage
    table = Table(title="receipt", title_justify="left", show_edge=False, pad_edge=False)
    lost = any(attempt.lost_time for attempt in receipt.attempts)
    times = ("queue ms", "prefill ms", "decode ms", *(["lost ms"] if lost else []))
    add_columns(table, "replica", *times, "tokens", "cached", "GPU s", words=("replica",))
    for attempt in receipt.attempts:
        table.add_row(
            Text(attempt.replica_id),
            f"{1e3 * attempt.queue_time:.1f}",
            f"{1e3 * attempt.prefill_time:.1f}",
            f"{1e3 * attempt.decode_time:.1f}",
            *([f"{1e3 * attempt.lost_time:.1f}"] if lost else []),
            str(attempt.output_tokens),
            str(attempt.cached_tokens),
            f"{attempt.gpu_seconds:.3f}",
        )
    print_table(table, console)
    first = f"{1e3 * receipt.time_to_first_token:.1f} ms" if receipt.time_to_first_token is not None else "none"
    reasons = ", ".join(choice.finish_reason.value for choice in finished.choices)
    # Without prices a cost of 0 would look as if the request were free.
    cost = f"; cost {number(receipt.cost, digits=5)}" if receipt.cost else ""
    console.print(
        f"tokens in {usage.prompt_tokens}, out {usage.output_tokens}; first token {first}, "
        f"total {1e3 * receipt.total_time:.1f} ms; finish: {reasons}{cost}",
        highlight=False,
    )
