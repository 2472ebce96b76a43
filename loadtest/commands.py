"""Commands of this package."""

from __future__ import annotations

from cluster.terminal.command import Command

COMMANDS = (
    Command("simulate", "replay a recorded load on a simulated cluster", "loadtest.simulate.flags"),
    Command("loadtest", "send a load with Locust and report what clients saw", "loadtest.load.flags"),
    Command("profile", "measure an engine's step times, for `penstock plan --profile`", "loadtest.profile.flags"),
    Command("plan", "how many GPUs a model, a load and an SLO need, and how sure that is", "loadtest.plan.flags"),
)
