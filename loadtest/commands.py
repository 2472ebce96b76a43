"""Commands of this package."""

from __future__ import annotations

from cluster.terminal.command import Command, Extra, Purpose

COMMANDS = tuple(
    Command(name, text, module, Purpose.PLAN, Extra.LOADTEST)
    for name, text, module in (
        ("simulate", "replay a recorded load on a simulated cluster", "loadtest.validation.flags"),
        ("loadtest", "send a load with Locust and report what clients saw", "loadtest.load.flags"),
        ("profile", "measure an engine's step times, for `penstock plan --profile`", "loadtest.profile.flags"),
        ("plan", "how many GPUs a model, a load and an SLO need, and how sure that is", "loadtest.plan.flags"),
    )
)
