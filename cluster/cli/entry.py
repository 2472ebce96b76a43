"""What the installed command `penstock` calls: the command line, with its imports under the same watch for Ctrl-C."""

from __future__ import annotations


def main() -> int:
    """Run `penstock` and return the exit status."""
    try:
        # Imported here: that takes part of a second, in which Ctrl-C would print a traceback.
        from cluster.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
