"""`penstock completion`: the script that makes a shell ask `penstock` for completions."""

from __future__ import annotations

import argparse
import sys

from cluster.terminal.command import show_examples

_SHELLS = ("bash", "zsh", "fish")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the script that completes commands, flags and values. Let the shell's start file run it."
    )
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help="bash, zsh or fish")
    show_examples(
        parser,
        """echo 'eval "$(penstock completion bash)"' >> ~/.bashrc""",
        """echo 'eval "$(penstock completion zsh)"' >> ~/.zshrc""",
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    )
    parser.set_defaults(run=run_completion)


def run_completion(options: argparse.Namespace) -> int:
    """Print the script."""
    from argcomplete.shell_integration import shellcode

    # The script for zsh calls compdef, which exists only after compinit.
    first = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n" if options.shell == "zsh" else ""
    sys.stdout.write(f"{first}{shellcode(['penstock'], shell=options.shell).strip()}\n")
    return 0
