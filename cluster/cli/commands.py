"""List of this package's commands."""

from __future__ import annotations

from cluster.terminal.command import Command, Extra, Purpose

COMMANDS = (
    Command(
        "up",
        "start a whole cluster on this machine; stays until Ctrl-C",
        "cluster.cli.up_flags",
        Purpose.RUN,
        Extra.CLUSTER,
    ),
    Command(
        "demo",
        "start a cluster, answer one prompt, stop it again",
        "cluster.cli.demo_flags",
        Purpose.RUN,
        Extra.CLUSTER,
    ),
    Command("down", "stop the cluster that `penstock up` started", "cluster.cli.down", Purpose.RUN, Extra.CLUSTER),
    Command("logs", "show the logs of the cluster that `penstock up` started", "cluster.cli.logs.command", Purpose.RUN),
    Command(
        "config", "check, show or begin a file of settings", "cluster.cli.config.command", Purpose.RUN, Extra.ROUTER
    ),
    Command(
        "autoscaler",
        "decide how many replicas pools have; several may run, one leads per pool",
        "cluster.autoscaler.command",
        Purpose.RUN,
        Extra.ROUTER,
    ),
    Command(
        "weights",
        "fetch models from a hub before replicas need them",
        "cluster.weights.command",
        Purpose.RUN,
        Extra.ROUTER,
    ),
    Command("completion", "print the script that completes commands in a shell", "cluster.cli.completion", Purpose.RUN),
)
