"""Flags of `penstock simulate`: those of a simulation, and those that hold it to a recorded run."""

from __future__ import annotations

import argparse

from cluster.errors import SettingsError
from cluster.terminal.values import span
from loadtest.simulate.flags import add_flags as add_simulation_flags
from loadtest.simulate.given_flags import given

VALIDATION = ("validate", "fit", "fit_on", "gpu", "save_profile")
FILLING = ("kv_tokens", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Flags of a simulation that fill in what a recorded run does not tell, in the order of `FilledIn`."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_simulation_flags(parser)
    check = parser.add_argument_group(
        "validation",
        "instead of a trace: compare the simulated engine with a recorded run. --kv-tokens, --max-num-seqs, "
        "--max-num-batched-tokens (of each data parallel rank) and --max-model-len then tell what its recorder "
        "left out",
    )
    check.add_argument("--validate", metavar="DIR", help="a folder with requests.jsonl and meta.json")
    check.add_argument(
        "--fit",
        type=span,
        metavar="A-B",
        help="numbers of the requests to fit the engine to (default 1-100, or all of --fit-on)",
    )
    check.add_argument(
        "--fit-on",
        metavar="DIR",
        help="fit to this run and predict all of the other. Of another engine the constants are carried over in "
        "proportion to what the planner expects of both",
    )
    check.add_argument("--gpu", metavar="NAME", help="the accelerator, where a run does not tell it")
    check.add_argument(
        "--save-profile", metavar="FILE", help="write the fitted engine as a profile for `penstock plan --profile`"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    found = given(options)
    if options.validate is None:
        for name in VALIDATION:
            if name in found:
                raise SettingsError(f"{_flag(name)} is for validate: a trace has no measured times")
        if options.models is not None:
            from loadtest.simulate.models.command import run_shared

            return run_shared(options)
        from loadtest.simulate.command import run_simulate

        return run_simulate(options)
    for name in sorted(found - {*VALIDATION, *FILLING, "json"}):
        raise SettingsError(f"{_flag(name)} does not go together with validate, got {getattr(options, name)}")
    from loadtest.validation.command import run_validate

    return run_validate(options, found)


def _flag(name: str) -> str:
    return name.replace("_", "-")
