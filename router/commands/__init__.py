"""The commands that call a router, and `penstock keys`."""

from __future__ import annotations

from cluster.terminal.command import Command, Extra, Purpose

COMMANDS = (
    Command("generate", "send a prompt and stream the answer", "router.commands.generate", Purpose.CALL),
    Command("chat", "talk with a model, message by message", "router.commands.chat", Purpose.CALL),
    Command("jobs", "run files of requests in the background", "router.commands.jobs", Purpose.CALL),
    Command("announce", "tell a pool what load will come", "router.commands.announce", Purpose.CALL),
    Command("top", "watch the cluster live", "router.commands.top.command", Purpose.LOOK_AFTER),
    Command("explain", "show where the time of a request went", "router.commands.explain", Purpose.LOOK_AFTER),
    Command("status", "show pools, replicas and routers", "router.commands.status", Purpose.LOOK_AFTER),
    Command(
        "usage",
        "show tokens, accelerator time and cost by day, pool and tenant",
        "router.commands.usage",
        Purpose.LOOK_AFTER,
    ),
    Command(
        "console",
        "serve a web page that shows what the cluster does",
        "router.console.command",
        Purpose.LOOK_AFTER,
        Extra.ROUTER,
    ),
    Command("keys", "make, list and check API keys", "router.commands.keys", Purpose.LOOK_AFTER, Extra.ROUTER),
    *(
        Command(name, text, f"router.commands.registry.{name}", Purpose.LOOK_AFTER, Extra.ROUTER)
        for name, text in (
            ("get", "show tenants, keys, adapters and aliases"),
            ("apply", "bring pools, tenants, keys, adapters and aliases to a file"),
            ("delete", "delete a tenant, key, adapter or alias"),
            ("history", "show who changed tenants, keys, adapters and aliases"),
        )
    ),
    Command(
        "doctor",
        "check whether this machine can run the cluster",
        "router.commands.doctor.command",
        Purpose.RUN,
        Extra.ROUTER,
    ),
    Command(
        "rollout",
        "change a pool's model or engine settings, one replica at a time",
        "router.commands.rollout",
        Purpose.LOOK_AFTER,
    ),
    Command(
        "decisions",
        "show what the autoscaler decided, and why",
        "router.commands.decisions.command",
        Purpose.LOOK_AFTER,
    ),
    Command(
        "operating-point",
        "show or change what a running pool promises, and what it may cost",
        "router.commands.operating_point",
        Purpose.LOOK_AFTER,
    ),
)
