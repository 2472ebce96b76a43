"""`penstock simulate --models`: several models on one number of GPUs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.markup import escape

from cluster.errors import SettingsError
from cluster.terminal.console import messages, screen
from cluster.terminal.lines import ProgressLines
from cluster.terminal.tables import print_table
from loadtest.report.json_text import json_text
from loadtest.report.origin import origin
from loadtest.simulate.chosen import STATIC, most_replicas, simulation_of
from loadtest.simulate.command import check_folder, load_for, progress_bar, setup_of, write_file
from loadtest.simulate.flags import add_flags
from loadtest.simulate.models.file import ModelsFile, NamedModel, only_with, read_models
from loadtest.simulate.models.report import as_json, page_of, table_of
from loadtest.simulate.models.run import ModelLoad, run_models

_BESIDE = frozenset({"models", "json", "html"})


def run_shared(options: argparse.Namespace) -> int:
    """Simulate the models of a file and report.

    Raises:
        TraceError: a trace cannot be read.
        SettingsError: a flag is out of range or has no effect.
    """
    only_with(options, _BESIDE)
    check_folder("html", options.html)
    path = Path(options.models)
    file = read_models(path, add_flags)
    loads = [_load(model, file.gpus) for model in file.models]
    _check_room(file, loads)
    total = sum(load.requests for load in loads)
    console = messages()
    with progress_bar(console, quiet=not console.is_terminal) as progress:
        task, lines = progress.add_task("simulating", total=total), ProgressLines(console)

        def tell(ended: int) -> None:
            progress.update(task, completed=ended)
            lines(f"{ended:,} of {total:,} requests")

        found = run_models(loads, file.gpus, tell)
    made_by = origin()
    if options.json:
        sys.stdout.write(json_text({**as_json(found), "origin": made_by}))
    else:
        print_table(table_of(found, path.name), screen())
        for model in found.models:
            for note in model.load.notes(model.run):
                screen().print(f"[dim]{escape(f'{model.load.name}: {note}')}[/]", highlight=False, soft_wrap=True)
    if options.html:
        page = page_of(found, path.name, made_by)

        def write(at: Path) -> None:
            at.write_text(page, encoding="utf-8")

        write_file("html", options.html, write)
    return 0


def _load(model: NamedModel, gpus: int) -> ModelLoad:
    options = model.options
    if options.max_replicas is None and options.policy not in STATIC:
        # More would wait for GPUs for ever, and relief begins where no more can come.
        options.max_replicas = max(1, options.replicas, min(most_replicas(options), gpus // model.gpus))
    try:
        setup = setup_of(options)
        trace = load_for(options, setup)
        simulation = simulation_of(trace, options, setup, options.target)
    except SettingsError as error:
        raise SettingsError(f"models.{model.name}: {error}") from error
    return ModelLoad(model.name, setup, model.gpus, simulation, len(trace))


def _check_room(file: ModelsFile, loads: list[ModelLoad]) -> None:
    """Refuse replicas that don't fit at first, or that can never be kept."""
    for name, need in {
        "replicas": sum(load.gpus * (load.setup.replicas + load.setup.parts.beside) for load in loads),
        "min-replicas": sum(load.gpus * (load.setup.min_replicas + load.setup.parts.beside) for load in loads),
    }.items():
        if need > file.gpus:
            raise SettingsError(f"gpus must be at least {need}, those of all models' {name}, got {file.gpus}")
