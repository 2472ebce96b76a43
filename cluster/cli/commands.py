"""List of this package's commands."""

from __future__ import annotations

from cluster.terminal.command import Command

COMMANDS = (
    Command("up", "start a whole cluster on this machine; stays until Ctrl-C", "cluster.cli.up"),
    Command("demo", "start a cluster, answer one prompt, stop it again", "cluster.cli.demo"),
    Command("down", "stop the cluster that `penstock up` started", "cluster.cli.down"),
    Command(
        "autoscaler",
        "decide how many replicas pools have; several may run, one leads per pool",
        "cluster.autoscaler.command",
    ),
)
