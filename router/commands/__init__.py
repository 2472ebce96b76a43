"""The commands that call a router, and `penstock keys`."""

from __future__ import annotations

from cluster.terminal.command import Command

COMMANDS = (
    Command("generate", "send a prompt and stream the answer", "router.commands.generate"),
    Command("jobs", "run files of requests in the background", "router.commands.jobs"),
    Command("status", "show pools, replicas and routers", "router.commands.status"),
    Command("usage", "show tokens, accelerator time and cost by day, pool and tenant", "router.commands.usage"),
    Command("keys", "make and check API keys", "router.identity.command"),
    Command("decisions", "show what the autoscaler decided, and why", "router.commands.decisions"),
    Command(
        "operating-point",
        "show or change what a running pool promises, and what it may cost",
        "router.commands.operating_point",
    ),
)
