"""`penstock jobs`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cluster.errors import SettingsError, plain_reason
from cluster.plural import counted
from cluster.terminal.command import Subcommands, add_action, show_examples
from cluster.terminal.console import messages, print_problem, screen, standard_input
from cluster.terminal.json_values import print_json
from cluster.terminal.tables import add_columns, print_table
from cluster.terminal.values import time_of, whole
from router.commands.target import add_target_flags, open_client, report_call_errors

if TYPE_CHECKING:
    from penstock.client import Batch, Client, Job, JobItemError, JobUpdate


_CLASSES = ("interactive", "standard", "batch")


def add_flags(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    submit = add_action(actions, "submit", "store a file in the OpenAI batch format as a job and follow it")
    submit.add_argument("file", metavar="FILE", help="JSON lines; - reads standard input")
    submit.add_argument("--key", default="", help="your own name: the same key and content give the same job")
    submit.add_argument(
        "--class",
        dest="request_class",
        choices=_CLASSES,
        default="batch",
        help="how urgent it is (default %(default)s)",
    )
    submit.add_argument("--run-within", type=time_of, metavar="SECONDS", help="the job expires after this time")
    submit.add_argument(
        "--ignore-unknown",
        action="store_true",
        help="leave out unsupported fields that do not change answers",
    )
    submit.add_argument("--detach", action="store_true", help="return once the job is stored")
    submit.add_argument(
        "--output", metavar="FILE", help="write results to this file as they come, in the OpenAI batch format"
    )
    _finish(submit, run_submit)

    watch = _of_job(actions, "watch", "follow a job to its end")
    watch.add_argument(
        "--output", metavar="FILE", help="write results to this file, from the first one on; - is standard output"
    )
    _finish(watch, run_watch)

    results = _of_job(actions, "results", "write the results that a job has now")
    results.add_argument("--output", metavar="FILE", default="-", help="file to write to (default: standard output)")
    _finish(results, run_results)

    listing = add_action(actions, "list", "list jobs, newest first")
    listing.add_argument(
        "--limit", type=whole(1), metavar="N", default=50, help="largest number of jobs shown (default %(default)s)"
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object per job")
    _finish(listing, run_list)

    _finish(_of_job(actions, "get", "describe a job as JSON"), run_get)
    _finish(_of_job(actions, "cancel", "end a job; results that exist are kept"), run_cancel)
    _finish(_of_job(actions, "delete", "delete a job with its bodies and results"), run_delete)
    show_examples(
        parser,
        "penstock jobs submit requests.jsonl --output results.jsonl",
        "penstock jobs submit requests.jsonl --detach --key nightly",
        "penstock jobs list",
    )


def _of_job(actions: Subcommands, name: str, text: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, text)
    parser.add_argument("job", metavar="JOB", help="the job's id")
    return parser


def _finish(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    add_target_flags(parser)
    parser.set_defaults(run=run)


def run_submit(options: argparse.Namespace) -> int:
    """Store a file as a job, and follow it unless --detach is given."""
    from penstock.models import RequestClass

    if options.detach and options.output is not None:
        raise SettingsError(
            "--output takes results as they come, so it can't go with --detach; see `penstock jobs results`"
        )
    errors = messages()
    batch = _read(options)
    if batch is None:
        return 2
    for field, lines in batch.ignored.items():
        errors.print(f"[yellow]ignored:[/] {escape(field)} on {counted(lines, 'line')}", highlight=False)
    with (
        # Opened first: once the job is stored, an error of this command can't take it back.
        _output(options.output) as output,
        report_call_errors(options) as outcome,
        open_client(options) as client,
    ):
        # Gone when it is stored or refused, and the next line says which.
        with _progress(errors, transient=True) as progress:
            task = progress.add_task("uploading", total=len(batch.items))
            job = client.submit_job(
                batch.model,
                batch.items,
                request_class=RequestClass[options.request_class.upper()],
                idempotency_key=options.key,
                run_within=options.run_within,
                on_sent=lambda sent: progress.update(task, completed=sent),
            )
        found = " was there already under this key" if job.existed and options.key else ""
        errors.print(f"[green]✓[/] job {escape(job.job_id)}{found}: {counted(job.items, 'item')}", highlight=False)
        if options.detach:
            sys.stdout.write(f"{job.job_id}\n")
        else:
            outcome.status = _follow(client, job.job_id, output, errors)
    return outcome.status


def run_watch(options: argparse.Namespace) -> int:
    """Follow a job to its end; the exit status is 0 when every item succeeded.

    A watch waits for routers that are away, for as long as that takes. It begins only where one answers.
    """
    errors = messages()
    with (
        _output(options.output) as output,
        report_call_errors(options) as outcome,
        open_client(options) as client,
    ):
        client.get_job(options.job)
        outcome.status = _follow(client, options.job, output, errors)
    return outcome.status


def run_results(options: argparse.Namespace) -> int:
    """Write the results that the job has now."""
    with (
        report_call_errors(options) as outcome,
        open_client(options) as client,
        _output(options.output) as output,
    ):
        client.get_job(options.job)  # As for a watch.
        written = 0
        for update in client.watch_job(options.job):
            written += _write(update, output)
            if written >= update.job.finished_items:
                break
    return outcome.status


def run_list(options: argparse.Namespace) -> int:
    with report_call_errors(options) as outcome, open_client(options) as client:
        jobs: list[Job] = []
        token = ""
        while len(jobs) < options.limit:
            page = client.list_jobs(page_size=min(500, options.limit - len(jobs)), page_token=token)
            jobs.extend(page.jobs)
            token = page.next_page_token
            if not token:
                break
        if options.json:
            for job in jobs:
                print_json(_fields(job), indent=None)
        else:
            print_table(_table(jobs), screen(), nothing="no jobs")
    return outcome.status


def run_get(options: argparse.Namespace) -> int:
    with report_call_errors(options) as outcome, open_client(options) as client:
        print_json(_fields(client.get_job(options.job)))
    return outcome.status


def run_cancel(options: argparse.Namespace) -> int:
    console = messages()
    with report_call_errors(options) as outcome, open_client(options) as client:
        _report(client.cancel_job(options.job), console)
    return outcome.status


def run_delete(options: argparse.Namespace) -> int:
    console = messages()
    with report_call_errors(options) as outcome, open_client(options) as client:
        client.delete_job(options.job)
        console.print(f"[green]✓[/] job {escape(options.job)} deleted", highlight=False)
    return outcome.status


# --- parts ------------------------------------------------------------------------------------------------------------


def _read(options: argparse.Namespace) -> Batch | None:
    from penstock.client import BatchFileError, read_batch

    try:
        with _input(options.file) as lines:
            return read_batch(lines, ignore_unknown=options.ignore_unknown)
    except (BatchFileError, OSError) as error:
        print_problem(f"{options.file}: {plain_reason(error)}")
        return None


@contextlib.contextmanager
def _input(name: str) -> Iterator[TextIO]:
    from penstock.batch.encoding import ESCAPED

    if name == "-":
        yield standard_input(ESCAPED)
    else:
        with Path(name).open(encoding="utf-8", errors=ESCAPED) as file:
            yield file


class _Output:
    """Destination of results. An existing file stays as it is until the first update: the id may be a typo."""

    def __init__(self, file: TextIO, *, replaces: bool) -> None:
        self.written = False
        self._file = file
        self._replaces = replaces

    def write(self, lines: str) -> None:
        """Append lines. The first call replaces what an existing file had."""
        if self._replaces and not self.written:
            self._file.truncate(0)
        self.written = True
        self._file.write(lines)
        self._file.flush()


@contextlib.contextmanager
def _output(name: str | None) -> Iterator[_Output | None]:
    if name is None:
        yield None
        return
    if name == "-":
        yield _Output(sys.stdout, replaces=False)
        return
    path = Path(name)
    there = path.exists()
    try:
        # Opened now, so that an error comes before anything is sent.
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--output: {name} cannot be written: {error.strerror}") from error
    with file:
        output = _Output(file, replaces=path.is_file())
        try:
            yield output
        finally:
            if not (there or output.written):
                path.unlink(missing_ok=True)


def _follow(client: Client, job_id: str, output: _Output | None, console: Console) -> int:
    """Show a progress bar until the job ends, write results to `output`, and return the exit status."""
    last: Job | None = None
    first: JobItemError | None = None
    try:
        with contextlib.ExitStack() as shown:
            progress = _progress(console)
            task = progress.add_task("queued", total=None)
            for update in client.watch_job(job_id, progress_only=output is None):
                if last is None:
                    # Not before: the id may be a typo.
                    shown.enter_context(progress)
                last = update.job
                _write(update, output)
                first = first or next((each.error for each in update.results if each.error is not None), None)
                failed = f", [red]{last.failed_items} failed[/]" if last.failed_items else ""
                progress.update(
                    task, description=f"{last.state}{failed}", completed=last.finished_items, total=last.items
                )
    except KeyboardInterrupt:
        console.print(f"the job goes on; follow it with: penstock jobs watch {escape(job_id)}", highlight=False)
        raise
    if last is None:
        return 1
    _report(last, console)
    if last.failed_items and (first := first or _first_failure(client, job_id)) is not None:
        # Items of one file often fail for the same reason.
        console.print(f"the first failure: {first.reason}: {first.message}", highlight=False, markup=False)
    return 0 if last.succeeded_items == last.items else 1


def _first_failure(client: Client, job_id: str) -> JobItemError | None:
    updates = client.watch_job(job_id)
    return next((each.error for update in updates for each in update.results if each.error is not None), None)


def _write(update: JobUpdate, output: _Output | None) -> int:
    from penstock.client import result_line

    if output is not None:
        output.write("".join(result_line(update.job, result) + "\n" for result in update.results))
    return len(update.results)


def _progress(console: Console, *, transient: bool = False) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Output that can't be drawn over would have an empty line after it, and has the lines that tell the same.
    shown = console.is_interactive
    return Progress(TextColumn("{task.description}"), *columns, console=console, transient=transient, disable=not shown)


def _report(job: Job, console: Console) -> None:
    usage = job.usage
    mark = "[green]✓[/]" if job.succeeded_items == job.items else "[yellow]![/]"
    if job.failure:
        print_problem(f"job {job.job_id}: {job.failure}")
    console.print(
        f"{mark} job {escape(job.job_id)} {job.state}: {job.succeeded_items:,} of {counted(job.items, 'item')} "
        f"succeeded, {job.failed_items:,} failed; "
        f"tokens in {usage.prompt_tokens:,}, out {usage.output_tokens:,}; "
        f"kept until {_moment(job.due_at)}",
        highlight=False,
    )


def _table(jobs: list[Job]) -> Table:
    table = Table()
    names = ("job", "state", "items", "done", "failed", "tokens out", "created", "key")
    add_columns(table, *names, words=("key",), left=("job", "state", "created"))
    for job in jobs:
        table.add_row(
            Text(job.job_id),
            job.state.value,
            f"{job.items:,}",
            f"{job.finished_items:,}",
            f"{job.failed_items:,}",
            f"{job.usage.output_tokens:,}",
            _moment(job.created_at),
            Text("" if job.idempotency_key.startswith("auto-") else job.idempotency_key),
        )
    return table


def _fields(job: Job) -> dict[str, object]:
    fields = dataclasses.asdict(job)
    del fields["existed"]  # Of a submission alone.
    return fields


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
